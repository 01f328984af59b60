// How subscriptions end, and which ends are none: they come back by themselves.
import { describe, expect, it } from "vitest";
import { PromError } from "../src/index.js";
import { Refusal } from "./fake-hub.js";
import { codeOf, cut, hub, make, ops } from "./one-hub.js";
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

  /** The hub ends its subscription. */
  const end = (code: string, more: object = {}) => {
    for (const conn of hub.conns) {
      for (const member of conn.members.values()) hub.drop(member);
      conn.members.clear();
      conn.send({ op: "ERR", code, msg: "the owner cannot be reached", topic: "t", group: "g", ...more });
    }
  };

  it("come back when the hub could not serve them for a while, with what was under way", async () => {
    const told: unknown[] = [];
    const client = make({ onError: (error) => told.push((error as PromError).code) });
    const seen: unknown[] = [];
    let finish = () => {};
    const sub = await client.subscribe("t", "g", async (event) => {
      seen.push(event.payload);
      if (event.payload === 1) await new Promise<void>((resolve) => { finish = resolve; });
    });
    await client.publish("t", 1);
    await until("the handler", () => seen.length === 1);
    let refusals = 2;
    hub.intercept = (frame) => {
      if (frame.op === "SUBSCRIBE" && refusals-- > 0) throw new Refusal("ack_failed", "still not", { retry_after_ms: 5 });
    };
    end("ack_failed");
    await until("the end is seen", () => told.length === 1);
    finish();
    await client.publish("t", 2);
    const group = hub.group("t", "g", 0);
    await until("both are acked", () => group.done.size === 2);
    expect(seen, "one handler for each").toEqual([1, 2]);
    expect(ops("SUBSCRIBE").length).toBe(4);
    expect(told, "each try").toEqual(["ack_failed", "ack_failed", "ack_failed"]);
    await sub.unsubscribe();
    expect(await sub.closed).toBeUndefined();
  });

  it("end at once while the hub cannot serve them, and leave the name", async () => {
    const client = make();
    const sub = await client.subscribe("t", "g", () => {});
    end("rate_limited", { retry_after_ms: 60_000 });
    await client.publish("u", "answered after the end was told");
    await sub.unsubscribe();
    expect(await sub.closed).toBeUndefined();
    await client.subscribe("t", "g", () => {});
    expect([ops("SUBSCRIBE").length, hub.group("t", "g", 0).members.length]).toEqual([2, 1]);
  });

  it("stay when a hub that shuts down ends them: the next connection has them again", async () => {
    const client = make({ backoffMs: [5, 10] });
    const seen: unknown[] = [];
    await client.subscribe("t", "g", (event) => void seen.push(event.payload));
    end("shutting_down");
    cut();
    await until("subscribed again", () => ops("SUBSCRIBE").length === 2);
    await client.publish("t", 1);
    await until("the event", () => seen.length === 1);
  });

  /** The hub answers the next SUBSCRIBE when `open` is called. */
  const stall = () => {
    let open = () => {};
    const gate = new Promise<void>((resolve) => { open = resolve; });
    let first = true;
    hub.intercept = (frame) => {
      if (frame.op === "SUBSCRIBE" && first) { first = false; return gate; }
      // A hub that has granted gives out before it reads on.
      if (frame.op === "PAUSE") return until("an event is out", () => hub.group("t", "g", 0).attempts.get(1) === 1);
    };
    return () => open();
  };

  it("that nobody waits for any more are given up at the hub, and their events uncounted", async () => {
    const client = make({ timeoutMs: 500 });
    hub.append("t", "unseen");
    const open = stall();
    const seen: unknown[] = [];
    const take = (event: { payload: unknown }, ctx: { attempt: number }) => void seen.push([event.payload, ctx.attempt]);
    expect(await codeOf(client.subscribe("t", "g", take, { from: "earliest" }))).toBe("timeout");
    expect(await codeOf(client.subscribe("t", "g", take)), "until the hub has answered").toBe("already_subscribed");
    open();
    await until("it is gone from the hub", () => ops("UNSUBSCRIBE").length === 1 && !hub.group("t", "g", 0).members.length);
    expect([seen, hub.group("t", "g", 0).attempts.get(1)]).toEqual([[], 0]);
    await client.subscribe("t", "g", take);
    await until("the event", () => seen.length === 1);
    expect(seen).toEqual([["unseen", 1]]);
  });

  it("that were there once are asked for again after a SUBSCRIBE that timed out", async () => {
    const told: unknown[] = [];
    const client = make({ timeoutMs: 300, backoffMs: [5, 10], onError: (error) => told.push((error as PromError).code) });
    const seen: unknown[] = [];
    const sub = await client.subscribe("t", "g", (event) => void seen.push(event.payload));
    const open = stall();
    cut();
    await until("it has timed out", () => told.includes("timeout"));
    open();
    await until("asked again", () => ops("SUBSCRIBE").length === 3);
    expect(ops("UNSUBSCRIBE").length).toBe(1);
    await client.publish("t", 1);
    await until("the event", () => seen.length === 1);
    expect(hub.group("t", "g", 0).members.length).toBe(1);
    await sub.unsubscribe();
    expect(await sub.closed).toBeUndefined();
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
