// The documents of the protocol against the real hub: /asyncapi.json is an AsyncAPI 3 document, what its schemas refuse
// the hub refuses too, what they allow it takes, and every frame of the hub is as they say, with nothing besides.
import specs from "@asyncapi/specs";
import { Ajv, type ValidateFunction } from "ajv";
import formats from "ajv-formats";
import { readFileSync } from "node:fs";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { jwt, STATIC_TOKEN, type RealHub } from "../../sdk/typescript/test/real-hub.js";
import { startHub } from "./harness.js";
import { Wire, type Frame } from "./wire.js";

let hub: RealHub;
let document: any;
let allowed: (message: string, frame: unknown) => string[];
let strict: (message: string, frame: unknown) => string[];

/** Checks a value against the payload of a message; no lines: it is as the document says. */
function checker(doc: any): (message: string, frame: unknown) => string[] {
  const ajv = new Ajv({ strict: false, allErrors: true });
  formats.default(ajv);
  ajv.addSchema(doc, "doc");
  return (message, frame) => {
    const validate = ajv.getSchema(`doc#/components/messages/${message}/payload`) as ValidateFunction | undefined;
    if (!validate) throw new Error(`the document has no message ${message}`);
    return validate(frame) ? [] : validate.errors!.map((error) => `${error.instancePath || "/"} ${error.message}`);
  };
}

/** The same document with no room for what it does not name. */
function closed(value: any): any {
  if (Array.isArray(value)) return value.map(closed);
  if (value === null || typeof value !== "object") return value;
  const copy = Object.fromEntries(Object.entries(value).map(([name, inner]) => [name, name === "examples" ? inner : closed(inner)]));
  // The branches of oneOf and allOf are rules about an object that is described elsewhere: they have no type.
  if (copy.type === "object" && copy.properties) copy.additionalProperties = false;
  return copy;
}

beforeAll(async () => {
  hub = await startHub({ open: true });
  document = await (await fetch(`http://${hub.http}/asyncapi.json`)).json();
  allowed = checker(document);
  strict = checker(closed(document));
});
afterAll(() => hub?.end());

describe("the document", () => {
  it("is AsyncAPI 3 by the schema of the specification", () => {
    const ajv = new Ajv({ strict: false, allErrors: true });
    formats.default(ajv);
    const validate = ajv.compile((specs as any).schemasWithoutId["3.0.0"]);
    expect(validate(document) ? [] : validate.errors!.map((error) => `${error.instancePath} ${error.message}`)).toEqual([]);
  });

  it("has examples that are as its schemas say", () => {
    for (const [name, message] of Object.entries<any>(document.components.messages)) {
      for (const { payload } of message.examples) expect(strict(name, payload), `${name} ${JSON.stringify(payload)}`).toEqual([]);
    }
  });

  it("has every frame of the contract's tables, with every field", () => {
    const page = readFileSync(new URL("../../docs/protocol.md", import.meta.url), "utf8");
    const table = page.split("| client → hub |")[1]!.split("\n\n")[0]!;
    const messages = Object.values<any>(document.components.messages);
    const fields = (op: string) => JSON.stringify(messages.filter((message) => message.title === op).map((message) => [message.payload, document.components.schemas]));
    let checked = 0;
    for (const [, ops, words] of table.matchAll(/^\| (`[A-Z` /]+)(?: \(batch\))? \| ([^|]*)\|/gm)) {
      for (const [, op] of ops!.matchAll(/`([A-Z]+)`/g)) {
        for (const [, field] of words!.matchAll(/[`{ ,]([a-z][A-Za-z_]*)\??[`},:]/g)) {
          expect(fields(op!), `${op} has ${field}`).toContain(`"${field}":`);
          checked++;
        }
      }
    }
    expect(checked).toBeGreaterThan(30);
    for (const [, codes] of page.split("| `ERR` code | when |")[1]!.split("\n\n")[0]!.matchAll(/^\| ((?:`[a-z_]+` ?)+)\|/gm)) {
      for (const [, code] of codes!.matchAll(/`([a-z_]+)`/g)) expect(document.components.messages.refused.payload.properties.code.enum).toContain(code);
    }
  });
});

// What a frame is refused for by its form alone; other codes are about what it asks.
const BY_FORM = ["bad_json", "bad_request", "bad_topic", "bad_id"];
const INSTEAD: unknown[] = [null, true, 7, 7.5, -1, 50_000, 5e12, "", "x", "a..b", "a*.b", "two words", "é", "a".repeat(2_000), [], [7], [""], ["x y"], {}, { a: 1 }];

/** Every frame that differs from `frame` in one place: a member left out, replaced, or one too many. */
function* changed(value: any, put: (value: unknown) => unknown): Generator<unknown> {
  if (Array.isArray(value)) {
    for (const [i, inner] of value.entries()) yield* changed(inner, (v) => put(value.with(i, v)));
  } else if (value !== null && typeof value === "object") {
    for (const [name, inner] of Object.entries(value)) {
      const { [name]: _, ...rest } = value;
      yield put(rest);
      if (name === "payload") continue; // Any JSON.
      for (const other of INSTEAD) yield put({ ...value, [name]: other });
      yield* changed(inner, (v) => put({ ...value, [name]: v }));
    }
    yield put({ ...value, "Promethean-x": "1" });
    yield put({ ...value, unheard_of: [{}] });
  }
}

describe("what the schemas of client frames say is what the hub does", () => {
  const ID = "0199d1c0-7d3b-7cc2-8b1a-3f0e2c9a4b5d";
  // Beside the examples of the document: what those leave out.
  const more: [string, Frame][] = [
    ["auth", { op: "AUTH", quiet: false, corr: 1 }],
    ["publish", { op: "PUBLISH", topic: "form", payload: null, opts: { id: ID.replaceAll("-", "").toUpperCase() }, corr: 1 }],
    ["publishBatch", { op: "PUBLISH", topic: "form", events: [{ payload: 1, id: ID, ts: 5, headers: { a: "1" }, tags: ["#a"], caused_by: [ID], sid: "s" }], corr: 1 }],
    ["subscribe", { op: "SUBSCRIBE", topic: "form.**", opts: { from: "afterId", afterId: ID }, corr: 1 }],
    ["subscribe", { op: "SUBSCRIBE", topic: "form", opts: { from: "latest", ts: 5, afterId: ID }, corr: 1 }],
    ["ack", { op: "ACK", topic: "form", group: "g", ids: [ID], corr: 1 }],
    ["ack", { op: "ACK", topic: "form", group: "g", upTo: ID, corr: 1 }],
  ];
  // What is one of two and never both.
  const both: Record<string, Frame[]> = {
    publish: [{ op: "PUBLISH", topic: "form", payload: 1, events: [{ payload: 1 }] }],
    ack: [{ op: "ACK", topic: "form", group: "g", upTo: ID, id: ID }, { op: "ACK", topic: "form", group: "g", ids: [ID], id: ID }],
    nack: [{ op: "NACK", topic: "form", group: "g", ids: [ID], id: ID }],
  };
  const ASKED = ["auth", "publish", "publishBatch", "subscribe", "unsubscribe", "ack", "nack", "modack", "pause", "resume", "ping"];

  /** Why no message of the document is this frame; nothing: one is. A batch and a single event have one `op`. */
  const refusal = (frame: Frame): string[] => {
    const whys = ASKED.filter((name) => document.components.messages[name].title === frame.op).map((name) => allowed(name, frame));
    return whys.find((why) => why.length === 0) ?? whys.flat().concat(whys.length === 0 ? ["/op is none of them"] : []);
  };

  it.each(ASKED)("%s", async (name) => {
    const bases = document.components.messages[name].examples.map((example: any) => example.payload);
    for (const [of, frame] of more) if (of === name) bases.push(frame);
    const counts = { taken: 0, refused: 0 };
    const wrong: string[] = [];
    let group = 0;
    const frames: Frame[] = bases.flatMap((base: Frame) => [base, ...changed(base, (value) => value)]);
    for (const frame of [...frames, ...(both[name] ?? [])]) {
      // Members of a group agree on options: here each frame is about a group of its own.
      if (frame.op === "SUBSCRIBE" && frame.group === "ops") frame.group = `g${++group}`;
      const wire = await Wire.open(hub.url);
      const answer = await wire.answer(JSON.stringify(frame));
      wire.close();
      const why = refusal(frame);
      const byForm = answer.op === "ERR" && BY_FORM.includes(answer.code);
      // Who ends, pauses or acks is told `not_subscribed` where no subscription could have that name.
      const unnamed = answer.code === "not_subscribed" && why.length > 0 && why.every((line) => /^\/(topic|group) /.test(line));
      if (why.length === 0 ? byForm : !byForm && !unnamed) wrong.push(`${JSON.stringify(frame).slice(0, 300)}\n  the hub: ${JSON.stringify(answer)}\n  the document: ${why.join("; ") || "allowed"}`);
      counts[byForm || unnamed ? "refused" : "taken"]++;
    }
    expect(wrong.slice(0, 5).join("\n"), `${wrong.length} frames`).toBe("");
    expect(Math.min(counts.taken, counts.refused), JSON.stringify(counts)).toBeGreaterThan(2);
  }, 120_000);
});

describe("a session with every frame", () => {
  const codes = new Set<string>();
  /** What came and is not as the document says. */
  const wrong: string[] = [];

  /** A connection whose every frame is checked: those sent as what they are, those that come as the answer to them. */
  class Checked {
    private constructor(private wire: Wire) {}

    static async open(url: string): Promise<Checked> {
      const seen = (frame: Frame) => {
        if (frame.op === "OK") return; // Checked as the answer that it is.
        if (frame.op === "ERR") codes.add(frame.code);
        wrong.push(...strict(frame.op === "ERR" ? "refused" : frame.op.toLowerCase(), frame).map((why) => `${why}: ${JSON.stringify(frame)}`));
      };
      return new Checked(await Wire.open(url, seen));
    }

    /** A frame that has to be done. */
    async ok(name: string, frame: Frame): Promise<Frame> {
      expect(strict(name, { ...frame, corr: "x" }), JSON.stringify(frame)).toEqual([]);
      const answer = await this.wire.ask(frame);
      const [reply] = document.operations[name].reply.messages.map((message: any) => message.$ref.split("/").at(-1));
      expect(strict(reply, answer), `${JSON.stringify(frame)} → ${JSON.stringify(answer)}`).toEqual([]);
      return answer;
    }

    /** A frame that has to be refused. */
    async err(frame: Frame | string, code: string): Promise<Frame> {
      const answer = typeof frame === "string" ? await this.wire.answer(frame) : await this.wire.ask(frame);
      expect([answer.op, answer.code], JSON.stringify(answer)).toEqual(["ERR", code]);
      return answer;
    }

    delivery = (group?: string) => this.wire.delivery(group);
    said = (code: string) => this.wire.next(code, (frame) => frame.code === code);
    close = () => this.wire.close();
  }

  it("on an open hub", async () => {
    const c = await Checked.open(hub.url);
    await c.ok("ping", { op: "PING" });
    await c.ok("auth", { op: "AUTH", token: "any" });
    const sub = { topic: "s.a", group: "g" };
    await c.ok("subscribe", { op: "SUBSCRIBE", ...sub, opts: { ackTimeoutMs: 60_000, filter: { tags: ["#x"] } } });
    await c.err({ op: "SUBSCRIBE", ...sub }, "already_subscribed");
    const first = await c.ok("publish", { op: "PUBLISH", topic: "s.a", payload: { n: 1 }, opts: { key: "k", tags: ["#x"], headers: { "x-a": "1" }, sid: "s", ts: 5 } });
    const again = await c.ok("publish", { op: "PUBLISH", topic: "s.a", payload: { n: 1 }, opts: { id: first.id } });
    expect(again.duplicate).toBe(true);
    await c.err({ op: "PUBLISH", topic: "s.b", payload: 1, opts: { id: first.id } }, "duplicate_id");
    const got = await c.delivery("g");
    expect([got.event.id, got.ctx.attempt]).toEqual([first.id, 1]);
    const held = { ...sub, id: first.id };
    await c.ok("modack", { op: "MODACK", ...held, extend_ms: 60_000, lease: got.ctx.lease });
    await c.ok("nack", { op: "NACK", ...held, reason: "not now", delay_ms: 0 });
    expect((await c.delivery("g")).ctx.attempt).toBe(2);
    await c.err({ op: "ACK", ...held, lease: got.ctx.lease }, "lease_lost");
    await c.ok("pause", { op: "PAUSE", ...sub });
    await c.ok("resume", { op: "RESUME", ...sub });
    await c.ok("ack", { op: "ACK", ...held });
    await c.err({ op: "MODACK", ...held, extend_ms: 1_000 }, "unknown_id");
    const batch = await c.ok("publishBatch", { op: "PUBLISH", topic: "s.a", events: [{ payload: 2, tags: ["#x"], caused_by: [first.id] }, { payload: 1, id: first.id }] });
    expect(batch.duplicates).toEqual([1]);
    await c.ok("ack", { op: "ACK", ...sub, upTo: (await c.delivery("g")).event.id });
    await c.ok("unsubscribe", { op: "UNSUBSCRIBE", ...sub });
    await c.err({ op: "UNSUBSCRIBE", ...sub }, "not_subscribed");
    // A tail, a pattern, batches of deliveries, a snapshot start.
    await c.ok("subscribe", { op: "SUBSCRIBE", topic: "s.**", opts: { from: "earliest" } });
    expect((await c.delivery()).topic).toBe("s.**");
    await c.ok("unsubscribe", { op: "UNSUBSCRIBE", topic: "s.**" });
    const all = await c.ok("subscribe", { op: "SUBSCRIBE", topic: "s.*", group: "all", opts: { from: "earliest", batch: true, topics: ["t"] } });
    expect(Array.isArray(all.cursor)).toBe(true);
    expect((await c.delivery("all")).op).toBe("EVENTS");
    await c.ok("subscribe", { op: "SUBSCRIBE", topic: "s.a", group: "state", opts: { from: "snapshot" } });
    const state = await c.delivery("state");
    expect([state.ctx.snapshot, state.event.key]).toEqual([true, "k"]);
    const back = await c.ok("subscribe", { op: "SUBSCRIBE", ...sub, opts: { filter: { tags: ["#x"] } } });
    expect(back.cursor.lastId).toBe(batch.ids[0]);
    await c.err("{", "bad_json");
    await c.err({ op: "NOPE" }, "bad_request");
    await c.err({ op: "PUBLISH", topic: "a b", payload: 1 }, "bad_topic");
    await c.err({ op: "PUBLISH", topic: "a", payload: 1, opts: { id: "1" } }, "bad_id");
    await c.err({ op: "PUBLISH", topic: "a", payload: "x".repeat(1_100_000) }, "too_large");
    await c.err({ op: "SUBSCRIBE", topic: "s.a", group: "h", opts: { from: "afterId", afterId: "0199d1c0-0000-7000-8000-000000000000" } }, "unknown_id");
    c.close();
  });

  it("on a hub that asks for tokens, with quotas", async () => {
    const guarded = await startHub({ env: { PROMETHEAN_CONN_RATE: "1", PROMETHEAN_CONN_BURST: "30" } });
    try {
      const c = await Checked.open(guarded.url);
      await c.err({ op: "PING" }, "unauthorized");
      await c.err({ op: "AUTH" }, "no_token");
      await c.err({ op: "AUTH", token: "not.a.jwt" }, "jwt_invalid");
      const narrow = (seconds: number, scopes: string[]) => jwt(seconds, { scopes });
      const who = await c.ok("auth", { op: "AUTH", token: narrow(600, ["publish:a", "subscribe:a"]) });
      expect(who.sub).toBe("tester");
      await c.err({ op: "PUBLISH", topic: "b", payload: 1 }, "forbidden");
      await c.ok("subscribe", { op: "SUBSCRIBE", topic: "a", group: "g" });
      await c.ok("auth", { op: "AUTH", token: narrow(600, ["publish:a"]) });
      const ended = await c.said("forbidden");
      expect([ended.topic, ended.group, ended.corr]).toEqual(["a", "g", undefined]);
      // Good for a second or two more: the hub allows clocks to differ by five.
      await c.ok("auth", { op: "AUTH", token: narrow(-3, ["publish:a"]) });
      await c.said("token_expired");
      const fast = await Checked.open(guarded.url);
      await fast.ok("auth", { op: "AUTH", token: STATIC_TOKEN });
      let limited: Frame | undefined;
      for (let n = 0; n < 60 && !limited; n++) await fast.ok("ping", { op: "PING" }).catch(async () => { limited = await fast.err({ op: "PING" }, "rate_limited"); });
      expect(limited?.retry_after_ms).toBeGreaterThan(0);
      fast.close();
    } finally {
      await guarded.end();
    }
    const plain = await startHub({ open: true, env: { WS_TOKEN: "the right one" } });
    try {
      const c = await Checked.open(plain.url);
      await c.err({ op: "AUTH", token: "another" }, "bad_token");
      c.close();
    } finally {
      await plain.end();
    }
  });

  it("saw no delivery and no refusal that is not as the document says", () => expect(wrong).toEqual([]));

  it("saw every code but those of a failing store and of a drain", () => {
    const all: string[] = document.components.messages.refused.payload.properties.code.enum;
    const elsewhere = ["publish_failed", "ack_failed", "shutting_down", "store_damaged", "limit_reached"];
    elsewhere.push("conflict", "not_found", "method_not_allowed", "unknown_topic", "topic_deleted"); // of HTTP, or of the ops port
    expect([...codes].sort()).toEqual(all.filter((code) => !elsewhere.includes(code)).sort());
  });
});
