// The exact text of payloads: read and published as it is, whatever JSON.parse would make of it.
import { describe, expect, it } from "vitest";
import { payloadsOf } from "../src/received.js";
import { clients, hub, make } from "./one-hub.js";
import { until } from "./scenarios.js";

const exact = [
  "9007199254740993", "1e400", "-0", '{"b":1,"a":[1.10,2E+3],"b":2}', '"\\u00e9 \\"payload\\":{[,"', "null", "[]", "{}", '" , "',
  '{"payload":{"payload":[{"event":{"payload":1}}]}}', '"\\\\"', '{\n  "x" : [ 1 ,\t2 ]\n}', '"\u2028\ud83d\ude00"', '"\\ud800"',
];
const event = (text: string, n: number, more = "") => `{"id":"e${n}","seq":${n},"ts":1,"topic":"t","headers":{"payload":"no"},"payload":${text}${more},"tags":["payload"]}`;

/** Sends a frame that no JSON.stringify could write. */
const send = (text: string) => { for (const conn of hub.conns) conn.socket.send(text); };

describe("the exact text of a payload", () => {
  it("is found in frames of one event and of several", () => {
    exact.forEach((text, n) => expect(payloadsOf(`{"op":"EVENT","topic":"t","event":${event(text, n)},"ctx":{"attempt":1}}`, 2)(0)).toBe(text));
    const list = exact.map((text, n) => `{"event":${event(text, n, " ")},"ctx":{"attempt":1}}`).join(",");
    const payload = payloadsOf(`{"op":"EVENTS","topic":"t","group":"g","events":[${list}]}`, 4);
    expect(exact.map((_, n) => payload(n))).toEqual(exact);
  });

  it("is at the event as payloadText, which does not show in its JSON", async () => {
    const client = make();
    const seen: string[] = [];
    await client.subscribe("t", null, (received) => {
      seen.push(received.payloadText);
      expect(Object.keys(received)).toEqual(["id", "seq", "ts", "topic", "headers", "payload", "tags"]);
    });
    send(`{"op":"EVENTS","topic":"t","events":[${exact.map((text, n) => `{"event":${event(text, n)},"ctx":{}}`).join(",")}]}`);
    await until("all came", () => seen.length === exact.length);
    expect(seen).toEqual(exact);
  });

  it("is what parse gets, when the payload is read", async () => {
    const told: string[] = [];
    const client = make({
      parse: (text) => { if (text === "null") throw new Error("nothing there"); return /^-?\d+$/.test(text) ? BigInt(text) : JSON.parse(text); },
      onError: (error) => told.push(error.message),
    });
    const seen: unknown[] = [];
    await client.subscribe("t", null, (received) => void seen.push(received.payload));
    for (const [n, text] of ["9007199254740993", "null", '{"a":1}'].entries()) send(`{"op":"EVENT","topic":"t","event":${event(text, n)},"ctx":{}}`);
    await until("all came", () => seen.length === 2 && told.length === 1);
    expect([seen, told]).toEqual([[9007199254740993n, { a: 1 }], ["nothing there"]]);
  });

  it("is published as it is by publishRaw, and text that is no JSON is refused", async () => {
    const client = make();
    for (const text of exact) expect((await client.publishRaw("t", text, { key: "k" })).seq).toBeGreaterThan(0);
    expect(hub.texts.filter((frame) => frame.includes('"PUBLISH"')).every((frame, n) => frame.includes(`"payload":${exact[n]}}`))).toBe(true);
    expect(hub.log("t").every((stored) => stored.key === "k")).toBe(true);
    for (const text of ["", "{", '1},"x":{', "undefined", "1 2"]) await expect(client.publishRaw("t", text)).rejects.toThrow(SyntaxError);
    expect(clients.length).toBe(1);
  });
});
