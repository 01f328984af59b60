// The page's decisions, without a browser.
import { describe, expect, it } from "vitest";
import { attention, status } from "../src/attention";
import { curl, httpBase } from "../src/curl";
import { ago, bytes, count, duration, left, many, preview, quoted, rate, time } from "../src/format";
import { layout } from "../src/graph";
import { join } from "../src/poll";
import { href, parse } from "../src/route";
import { headersOf, item, listOf } from "../src/tail";
import type { Event, Group, Hub } from "../src/types";

const group = (more: Partial<Group>): Group => ({ topic: "t", group: "g", members: 1, inflight: 0, lag: 0, lagMs: 0, seq: 1, redelivered: 0, deadLettered: 0, paused: false, ...more });
const event = (id: string, caused_by: string[] = [], ts = 0): Event => ({ id, seq: 1, ts, topic: "t", payload: null, caused_by });

describe("numbers and times", () => {
  it("are short and readable", () => {
    expect([count(1234), count(1234567), rate(0), rate(1.25), rate(1234)]).toEqual(["1,234", "1.2M", "0", "1.3", "1,234"]);
    expect([bytes(0), bytes(999), bytes(1500), bytes(2.5e9), bytes(1e15)]).toEqual(["0 B", "999 B", "1.5 kB", "2.5 GB", "1000 TB"]);
    expect([0.4, 12, 1500, 61_000, 7_200_000, 3e8].map(duration)).toEqual(["0.4 ms", "12 ms", "1.5 s", "1 min", "2 h", "3 d"]);
    expect([492_300, 59_100, 200, 0].map(left)).toEqual(["8:12", "60 s", "1 s", "over"]);
    expect([many(1, "event"), many(0, "event"), many(2_000, "dead letter")]).toEqual(["1 event", "0 events", "2,000 dead letters"]);
    expect([ago(1000, 1500), ago(1000, 4000)]).toEqual(["now", "3.0 s ago"]);
    const noon = new Date(2026, 10, 15, 12, 0, 0, 7).getTime();
    expect([time(noon, noon), time(noon, noon + 9e8)]).toEqual(["12:00:00.007", "2026-11-15 12:00:00.007"]);
  });

  it("cut a payload and quote for a shell", () => {
    expect(preview(JSON.stringify({ a: "x".repeat(50) }), 10)).toBe(`{"a":"xxxx…`);
    expect(quoted("it's")).toBe(`'it'\\''s'`);
  });
});

describe("what needs attention", () => {
  const hub = { disk: { used: 1, free: 5e8 } } as Hub;
  it("puts what is lost without help first", () => {
    const found = attention([group({ lag: 3, members: 0 }), group({ group: "late", lag: 9, lagMs: 120_000 }), group({ group: "still", lag: 1, paused: true }), group({ group: "fine", lag: 2, lagMs: 10 })], [], hub, [{ topic: "t", letters: 1 }]);
    expect(found.map((n) => [n.tone, n.text])).toEqual([
      ["bad", "Less than 1 GB of disk is free."],
      ["bad", "g on t has 3 events waiting and no members."],
      ["warn", "late on t is 2 min behind (9 events)."],
      ["warn", "still on t is paused with 1 event waiting."],
      ["warn", "1 dead letter of t."],
    ]);
  });
  it("names a connection that reads slowly, at the most that the hub keeps for one", () => {
    const slow = { id: "c7", peer: "10.0.0.1:5", since: 0, subscriptions: [], bufferedBytes: 1_048_576 };
    const found = attention([], [slow, { ...slow, bufferedBytes: 100_000 }], undefined, []);
    expect(found.map((n) => [n.text, n.link])).toEqual([["Connection 10.0.0.1:5 reads slowly: 1.0 MB wait for it.", "#/connections?id=c7"]]);
  });
  it("is quiet when all is well", () => {
    expect(attention([group({})], [], undefined, [{ topic: "t", letters: 0 }])).toEqual([]);
  });
  it("has a word for each state of a group", () => {
    expect([group({}), group({ lag: 1, members: 0 }), group({ lag: 1, paused: true }), group({ lag: 1, lagMs: 99_999 }), group({ lag: 1 })].map((g) => status(g)[1]))
      .toEqual(["caught up", "no members", "paused", "behind", "working"]);
  });
});

describe("the causality graph", () => {
  it("puts every effect to the right of all its causes", () => {
    const { spots, edges, layers } = layout([event("a"), event("b", ["a"]), event("c", ["a"]), event("d", ["b", "a"]), event("e", ["gone"])]);
    const layer = Object.fromEntries(spots.map((s) => [s.event.id, s.layer]));
    expect(layer).toEqual({ a: 0, b: 1, c: 1, d: 2, e: 0 });
    expect(layers).toBe(3);
    expect(edges.every(([from, to]) => from.layer < to.layer)).toBe(true);
    expect(edges.length).toBe(4);
    expect(new Set(spots.map((s) => `${s.layer} ${s.row}`)).size).toBe(5);
  });
  it("survives events that name themselves or each other as cause", () => {
    const { spots } = layout([event("a", ["b"]), event("b", ["a"]), event("c", ["c"])]);
    expect(spots.length).toBe(3);
  });
});

describe("copy as curl", () => {
  it("keeps key, tags, causes and the headers that the hub stores", () => {
    const text = curl({ ...event("1", ["c1"]), topic: "a.b", key: "k 1", tags: ["#x"], headers: { "x-trace": "it's", "content-type": "text/plain" }, payload: { n: "it's" } }, "http://h:8081", true);
    expect(text).toBe([
      `curl -X POST 'http://h:8081/publish/a.b?key=k+1&tag=%23x&caused_by=c1'`,
      `-H 'content-type: application/json'`,
      `-H "authorization: Bearer $PROMETHEAN_TOKEN"`,
      `-H 'x-trace: it'\\''s'`,
      `--data '{"n":"it'\\''s"}'`,
    ].join(" \\\n  "));
  });
  it("names the host that the page was opened with", () => {
    const page = { protocol: "http:", hostname: "hub.lan", host: "hub.lan:8082" };
    expect([httpBase("127.0.0.1:8081", page), httpBase(undefined, page)]).toEqual(["http://hub.lan:8081", "http://hub.lan:8082"]);
  });
});

describe("addresses and filters", () => {
  it("go there and back", () => {
    expect(parse(href("groups", { topic: "a.b", group: "x y", none: undefined }))).toEqual({ screen: "groups", query: { topic: "a.b", group: "x y" } });
    expect(parse("")).toEqual({ screen: "overview", query: {} });
  });
  it("read lists and headers as people write them", () => {
    expect([listOf(" a, b ,,"), headersOf("x-a=1, x-b = 2=3, junk")]).toEqual([["a", "b"], { "x-a": "1", "x-b": "2=3" }]);
  });
  it("take a key with a comma in quotes, as the inspector's link has it", () => {
    expect(listOf(`"a,b", c, "d \\" e"`)).toEqual(["a,b", "c", `d " e`]);
    for (const key of ["plain", "a,b", " spaces ", `quo"te`, `"`, `"x"`, ",", "back\\slash", `a"b,c`]) expect(listOf(item(key)), key).toEqual([key]);
    expect(item("plain")).toBe("plain");
  });
});

describe("samples", () => {
  const cols = (from: number, n: number) => { const t = Array.from({ length: n }, (_, i) => from + i); return { interval: 1000, t, lag: t.map((x) => x * 10) }; };
  it("are joined without doubles and kept to 900", () => {
    const joined = join(cols(0, 890), cols(885, 30));
    expect([joined.t.length, joined.t[0], joined.t.at(-1), joined.lag!.length, joined.lag!.at(-1)]).toEqual([900, 15, 914, 900, 9140]);
    expect(join(cols(0, 5), cols(2, 3)).t).toEqual([0, 1, 2, 3, 4]);
  });
});
