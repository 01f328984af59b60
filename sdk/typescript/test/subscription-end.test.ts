// How subscriptions end.
import { describe, expect, it } from "vitest";
import type { PromError } from "../src/index.js";
import { Refusal } from "./fake-hub.js";
import { codeOf, hub, make } from "./one-hub.js";
import { until } from "./scenarios.js";

describe("subscriptions", () => {
  it("end with the error when the hub refuses them, also later", async () => {
    const told: unknown[] = [];
    const client = make({ backoffMs: [10, 20], onError: (error) => told.push((error as PromError).code) });
    hub.intercept = (frame) => { if (frame.topic === "secret") throw new Refusal("forbidden", "not for you"); };
    expect(await codeOf(client.subscribe("secret", "g", () => {}))).toBe("forbidden");
    const sub = client.subscribe("t", "g");
    await sub.ready;
    hub.intercept = (frame) => { if (frame.op === "SUBSCRIBE") throw new Refusal("forbidden", "not any more"); };
    for (const conn of hub.conns) conn.socket.terminate();
    const reading = (async () => { for await (const _ of sub); })();
    expect(await codeOf(reading)).toBe("forbidden");
    expect(((await sub.closed) as PromError).code).toBe("forbidden");
    expect(told, "not for the first one: its caller waits").toEqual(["disconnected", "forbidden"]);
  });

  it("end with forbidden when a narrower token takes them away", async () => {
    const client = make();
    const sub = await client.subscribe("t", "g", () => {});
    for (const conn of hub.conns) conn.send({ op: "ERR", code: "forbidden", msg: "t::g is not allowed any more", topic: "t", group: "g" });
    expect(((await sub.closed) as PromError).code).toBe("forbidden");
  });

  it("end with the reason when the hub cannot serve them any more", async () => {
    const client = make();
    const sub = await client.subscribe("t", "g", () => {});
    const other = await client.subscribe("t", "other", () => {});
    for (const conn of hub.conns) conn.send({ op: "ERR", code: "shutting_down", msg: "the hub ends", topic: "t", group: "other" });
    for (const conn of hub.conns) conn.send({ op: "ERR", code: "ack_failed", msg: "the owner cannot be reached", topic: "t", group: "g" });
    expect(await sub.closed).toMatchObject({ code: "ack_failed", message: expect.stringContaining("cannot be reached") });
    await other.unsubscribe();
    expect(await other.closed).toBeUndefined();
  });
});

describe("a handler's error", () => {
  it("is cut between characters, so that the hub takes it", async () => {
    const reasons: string[] = [];
    hub.intercept = (frame) => {
      if (frame.op !== "NACK") return;
      reasons.push(frame.reason);
      if (/[\ud800-\udfff]/u.test(frame.reason)) throw new Refusal("bad_request", "lone leading surrogate in hex escape");
    };
    await make().subscribe("t", "g", (event) => { throw new Error(event.payload as string); }, { maxAttempts: 1 });
    for (const message of ["x" + "\u{1f600}".repeat(600), "half \ud83d, then \u{1f600}"]) hub.append("t", message);
    await until("both are nacked", () => reasons.length === 2);
    expect(reasons).toEqual(["x" + "\u{1f600}".repeat(499) + "\ufffd", "half \ufffd, then \u{1f600}"]);
    await until("the dead letters", () => hub.log("dlq.t").length === 2);
  });
});
