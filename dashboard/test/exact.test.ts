// Payloads as they were published: shown, copied and taken along without a rounded number.
import { describe, expect, it } from "vitest";
import { curl } from "../src/curl";
import { line, payloadText, pretty, readAnswer, tree } from "../src/exact";
import type { Event } from "../src/types";

const odd = `{ "n": 9007199254740993, "big":1e400 ,"b":[1.10,{}, []],"b":"\\u00e9\\"",\n "t": true, "z":null}`;
const event = (payload: string) => `{"id":"1","seq":1,"ts":1,"topic":"t","payload":${payload},"key":"k"}`;

describe("exact JSON", () => {
  it("keeps each leaf's text, doubled keys and the order", () => {
    expect(pretty(tree(odd))).toBe(`{
  "n": 9007199254740993,
  "big": 1e400,
  "b": [
    1.10,
    {},
    []
  ],
  "b": "\\u00e9\\"",
  "t": true,
  "z": null
}`);
    expect(tree(odd).text).toBe(odd);
    for (const text of ["", "{", "1 2", "nul"]) expect(() => tree(text)).toThrow(SyntaxError);
  });

  it("is at every payload of an answer, however deep", () => {
    const answer = readAnswer(`{"entries":[{"id":"l","original":${event(odd)}}],"k":{"payload":1.0},"payload":null}`) as any;
    expect([payloadText(answer.entries[0].original), payloadText(answer.k), payloadText(answer)]).toEqual([odd, "1.0", "null"]);
    expect(JSON.stringify(answer.k), "and in no copy of it").toBe('{"payload":1}');
    expect(readAnswer('{"a":[1,2]}')).toEqual({ a: [1, 2] });
  });

  it("goes into copies, exports and commands", () => {
    const one = readAnswer(event(odd)) as Event;
    expect(line(one)).toBe(`{"id":"1","seq":1,"ts":1,"topic":"t","key":"k","payload":${odd.replace("\n", "")}}`);
    expect(curl(one, "http://h", false)).toContain(odd);
    expect(payloadText({ payload: { a: 1 } })).toBe('{"a":1}');
  });
});
