// What the scenarios cannot see from outside: frames on the wire, bounds, and links that fail in particular ways.
import { describe, expect, it } from "vitest";
import { EventClient, PromClient, PromError, uuidv7, type Delivery, type Published } from "../src/index.js";
import { Refusal } from "./fake-hub.js";
import { clients, codeOf, cut, hub, make, ops } from "./one-hub.js";
import { sleep, until } from "./scenarios.js";

describe("publishing", () => {
  it("keeps to its window", async () => {
    const client = make({ window: 3 });
    let open = 0, most = 0;
    hub.intercept = async (frame) => {
      if (frame.op !== "PUBLISH") return;
      most = Math.max(most, ++open);
      await sleep(5);
      open--;
    };
    await Promise.all(Array.from({ length: 20 }, (_, n) => client.publish("t", n)));
    expect(most).toBe(3);
    expect(hub.log("t").map((event) => event.payload)).toEqual(Array.from({ length: 20 }, (_, n) => n));
  });

  it("refuses more than maxQueue waiting publishes with queue_full", async () => {
    const client = make({ window: 1, maxQueue: 2 });
    const results = await Promise.allSettled([1, 2, 3, 4].map((n) => client.publish("t", n)));
    expect(results.map((r) => r.status)).toEqual(["fulfilled", "fulfilled", "rejected", "rejected"]);
    const error = (results[3] as PromiseRejectedResult).reason as PromError;
    expect([error.code, error.retryable]).toEqual(["queue_full", true]);
  });

  it("resends an unanswered publish with the same id, so that it is stored once", async () => {
    const client = make({ backoffMs: [10, 20] });
    let first = true;
    hub.intercept = async (frame) => {
      if (frame.op !== "PUBLISH" || !first) return;
      first = false;
      hub.append(frame.topic, frame.payload, frame.opts); // stored, and the answer never arrives
      for (const conn of hub.conns) conn.socket.terminate();
      await sleep(10);
    };
    const { seq, duplicate } = await client.publish("t", "once");
    expect([seq, duplicate, hub.log("t").length], "a resend is no duplicate").toEqual([1, undefined, 1]);
    const [a, b] = ops("PUBLISH");
    expect(a!.opts.id).toBe(b!.opts.id);
  });

  it("sends what waited before what onState publishes, and that once", async () => {
    const { id } = hub.append("u", "there already");
    const made: Promise<Published>[] = [];
    const client = make({
      backoffMs: [10, 20],
      onState: (state) => {
        if (!made.length) return;
        if (state === "connecting") made.push(client.publish("t", 3)); // waits for the connection
        else if (state === "open") made.push(client.publish("u", 4, { id }));
      },
    });
    await client.connect();
    hub.intercept = () => new Promise(() => {});
    made.push(client.publish("t", 1), client.publish("t", 2));
    await until("two are in flight", () => ops("PUBLISH").length === 2);
    hub.frames = [];
    hub.intercept = undefined;
    cut();
    await until("all four are made", () => made.length === 4);
    const answers = await Promise.all(made);
    expect(ops("PUBLISH").map((frame) => frame.payload)).toEqual([1, 2, 3, 4]);
    expect(answers[3]!.duplicate, "sent once: that it was there already is no resend").toBe(true);
  });

  it("waits out a hub that is shutting down", async () => {
    const client = make({ backoffMs: [10, 20] });
    let draining = true;
    hub.intercept = (frame) => {
      if (frame.op !== "PUBLISH" || !draining) return;
      setTimeout(() => { draining = false; for (const conn of hub.conns) conn.socket.close(1001); }, 20);
      throw new Refusal("shutting_down", "the hub is draining");
    };
    expect((await client.publish("t", 1)).seq).toBe(1);
  });

  it("refuses what the hub closes with 1009 on, and resends the others", async () => {
    hub.maxFrame = 1_000;
    const client = make({ backoffMs: [10, 20] });
    const sizes = [10, 2_000, 20, 5_000, 900 - 150, 1_001, 30];
    const results = await Promise.allSettled(sizes.map((size) => client.publish("t", "x".repeat(size), { timeoutMs: 3_000 })));
    expect(results.map((r) => r.status === "rejected" && r.reason.code)).toEqual([false, "too_large", false, "too_large", false, "too_large", false]);
    const error = (results[3] as PromiseRejectedResult).reason as PromError;
    expect(error.message).toMatch(/5\d\d\d bytes.*max_frame_bytes/);
    expect([error.retryable, error.message.includes("unknown")]).toEqual([false, false]);
    expect(hub.log("t").length, "each that fits, once").toBe(4);
  });

  it("tells code, retryable, the pause and the id of a refused publish", async () => {
    const client = make();
    hub.intercept = (frame) => { if (frame.op === "PUBLISH") throw new Refusal("rate_limited", "slower", { retry_after_ms: 70 }); };
    const error: PromError = await client.publish("t", 1).then(() => { throw new Error("was not refused"); }, (e) => e);
    expect(error).toBeInstanceOf(PromError);
    expect([error.code, error.retryable, error.retryAfterMs]).toEqual(["rate_limited", true, 70]);
    expect(error.id).toBe(ops("PUBLISH")[0]!.opts.id);
    hub.intercept = undefined;
    expect(await codeOf(client.publish("not a topic", 1))).toBe("bad_topic");
  });

  it("times out with an unknown outcome, and rejects when closed", async () => {
    const client = make({ timeoutMs: 50 });
    await client.connect();
    hub.mute = true;
    expect(await codeOf(client.publish("t", 1))).toBe("timeout");
    const pending = client.publish("t", 2, { timeoutMs: 0 });
    void client.close({ timeoutMs: 20 });
    expect(await codeOf(pending)).toBe("closed");
    expect(await codeOf(client.publish("t", 3))).toBe("closed");
  });

  it("makes rising UUIDv7 ids", () => {
    const ids = Array.from({ length: 10_000 }, () => uuidv7());
    expect(ids.every((id) => /^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/.test(id))).toBe(true);
    expect([...ids].sort()).toEqual(ids);
    expect(new Set(ids).size).toBe(ids.length);
    expect(Math.abs(parseInt(ids[0]!.replace("-", "").slice(0, 12), 16) - Date.now())).toBeLessThan(10_000);
  });
});

describe("subscriptions", () => {
  it("ask for batches and ack a burst in one frame", async () => {
    const client = make();
    const seen: unknown[] = [];
    await client.publishBatch("t", Array.from({ length: 50 }, (_, n) => ({ payload: n })));
    await client.subscribe("t", "g", async (event) => void seen.push(event.payload), { from: "earliest" });
    await until("all are acked", () => hub.group("t", "g", 0).done.size === 50);
    expect(ops("SUBSCRIBE")[0]!.opts).toEqual({ batch: true, from: "earliest" });
    expect(ops("ACK").length).toBeLessThan(5);
    expect(seen).toEqual(Array.from({ length: 50 }, (_, n) => n));
  });

  it("are asked for once when onState begins them", async () => {
    let sub: Promise<unknown> | undefined;
    const client = make({ onState: (state) => { if (state === "open") sub = client.subscribe("t", "g", () => {}); } });
    await client.connect();
    await sub;
    await client.unsubscribe("t", "g");
    expect(ops("SUBSCRIBE").length).toBe(1);
  });

  it("do not start a second handler for an event that is delivered again while the first one runs", async () => {
    const client = make({ backoffMs: [10, 20] });
    let runs = 0;
    let finish = () => {};
    await client.subscribe("t", "g", async () => { runs++; await new Promise<void>((resolve) => { finish = resolve; }); });
    await client.publish("t", 1);
    await until("the handler", () => runs === 1);
    for (const conn of hub.conns) conn.socket.terminate();
    await until("delivered again", () => hub.group("t", "g", 0).attempts.get(1) === 2);
    await sleep(50);
    finish();
    await until("acked on the new connection", () => hub.group("t", "g", 0).done.has(1));
    expect(runs).toBe(1);
  });

  it("keep an ack whose answer got lost and send it again", async () => {
    const client = make({ backoffMs: [10, 20] });
    let lost = false;
    hub.intercept = async (frame) => {
      if (frame.op !== "ACK" || lost) return;
      lost = true;
      for (const conn of hub.conns) conn.socket.terminate();
      await new Promise(() => {});
    };
    let runs = 0;
    const acked: Promise<void>[] = [];
    await client.subscribe("t", "g", (_event, ctx) => { runs++; acked.push(ctx.ack()); });
    await client.publish("t", 1);
    await until("the ack was lost", () => lost);
    await acked[0];
    expect([runs, hub.group("t", "g", 0).done.has(1), ops("ACK").length]).toEqual([1, true, 2]);
  });

  it("hand an event out again when a manual handler let its lease run out", async () => {
    const client = make();
    const seen: number[] = [];
    await client.subscribe("t", "g", (_event, ctx) => { seen.push(ctx.attempt); if (ctx.attempt === 2) void ctx.ack(); }, { manualAck: true, ackTimeoutMs: 100 });
    await client.publish("t", 1);
    await until("the second delivery is acked", () => hub.group("t", "g", 0).done.has(1));
    expect(seen).toEqual([1, 2]);
  });

  it("tell a handler by its signal that the lease is lost", async () => {
    const client = make();
    const reasons: unknown[] = [];
    hub.intercept = (frame) => { if (frame.op === "MODACK") throw new Refusal("lease_lost", "given to another"); };
    await client.subscribe("t", "g", (_event, ctx) => new Promise<void>((resolve) => {
      ctx.signal.addEventListener("abort", () => { reasons.push(ctx.signal.reason.code); resolve(); });
    }), { ackTimeoutMs: 200 });
    await client.publish("t", 1);
    await until("the signal", () => reasons.length === 1);
    expect(reasons).toEqual(["lease_lost"]);
  });

  it("extend what waits behind a busy handler", async () => {
    const client = make();
    const attempts: number[] = [];
    await client.publishBatch("t", [{ payload: 1 }, { payload: 2 }, { payload: 3 }]);
    await client.subscribe("t", "g", async (_event, ctx) => { attempts.push(ctx.attempt); await sleep(400); }, { from: "earliest", ackTimeoutMs: 300, concurrency: 1 });
    await until("all three", () => hub.group("t", "g", 0).done.size === 3);
    expect(attempts).toEqual([1, 1, 1]);
    expect(ops("MODACK").length).toBeGreaterThan(0);
  });

  it("pause a tail that nobody reads and go on without a gap", async () => {
    const client = make();
    const sub = client.subscribe("t", null);
    await sub.ready;
    const publisher = make({ window: 1_000 });
    for (let n = 0; n < 15; n++) await publisher.publishBatch("t", Array.from({ length: 100 }, () => ({ payload: n })));
    await until("it is paused", () => ops("PAUSE").length === 1);
    await sub.resume();
    expect(ops("RESUME").length, "it is as full as before").toBe(0);
    let count = 0;
    for await (const _ of sub) if (++count === 1_100) break; // of at most 1 500: less than half of the mark is left
    expect(ops("RESUME").length).toBe(1);
  });

  it("resume a tail after the last event it saw", async () => {
    const client = make({ backoffMs: [10, 20] });
    const seen: unknown[] = [];
    await client.subscribe("t", null, (event) => void seen.push(event.payload));
    await client.publish("t", 1);
    await until("the first", () => seen.length === 1);
    await hub.kill();
    hub.append("t", 2);
    await hub.start();
    await until("the missed one", () => seen.length === 2);
    expect(ops("SUBSCRIBE")[1]!.opts).toMatchObject({ from: "afterId", afterId: hub.log("t")[0]!.id });
  });

  it("keep what a tail was sent and nobody has read yet over a reconnect", async () => {
    const client = make({ backoffMs: [10, 20] });
    const sub = client.subscribe("t", null);
    await sub.ready;
    for (const n of [1, 2, 3]) await client.publish("t", n);
    await hub.kill();
    hub.append("t", 4);
    await hub.start();
    await until("it is back", () => ops("SUBSCRIBE").length === 2);
    const seen: unknown[] = [];
    for await (const { event } of sub) if (seen.push(event.payload) === 4) break;
    expect(seen).toEqual([1, 2, 3, 4]);
  });

  /** A tail from a snapshot of a and b; the connection is lost, b goes, c comes. */
  const overReconnect = async (before: () => void, topic = "t") => {
    const seen: unknown[] = [];
    hub.append("t", 1, { key: "a" });
    hub.append("t", 2, { key: "b" });
    await make({ backoffMs: [10, 20] }).subscribe(topic, null, (event, ctx) => void seen.push([event.key, event.payload, !!ctx.snapshot, !!ctx.restarted]), { from: "snapshot" });
    await until("the snapshot", () => seen.length === 2);
    await hub.kill();
    before();
    hub.append("t", null, { key: "b" });
    hub.append("t", 3, { key: "c" });
    await hub.start();
    await until("it goes on", () => seen.length === 4);
    hub.append("t", 4, { key: "a" });
    await until("what is new", () => seen.length === 5);
    expect(seen.slice(0, 2)).toEqual([["a", 1, true, false], ["b", 2, true, false]]);
    return seen.slice(2);
  };
  const news = [["b", null, false, false], ["c", 3, false, false], ["a", 4, false, false]];
  const again = [["a", 1, true, true], ["c", 3, true, false], ["a", 4, false, false]];

  it("go on after a whole snapshot, deletions too", async () => {
    expect(await overReconnect(() => {})).toEqual(news);
    expect(ops("SUBSCRIBE")[1]!.opts).toMatchObject({ from: "afterId", afterId: hub.log("t")[1]!.id });
  });

  it("go on after the last live event of a snapshot tail", async () => {
    hub.cutShort = true;
    const seen: unknown[] = [];
    hub.append("t", 1, { key: "a" });
    await make({ backoffMs: [10, 20] }).subscribe("t", null, (event, ctx) => void seen.push([event.payload, !!ctx.restarted]), { from: "snapshot" });
    await until("the snapshot", () => seen.length === 1);
    hub.append("t", 2, { key: "a" });
    await until("a live event", () => seen.length === 2);
    await hub.kill();
    hub.append("t", null, { key: "a" });
    await hub.start();
    await until("the deletion", () => seen.length === 3);
    expect(seen).toEqual([[1, false], [2, false], [null, false]]);
  });

  it("say that a snapshot begins again that was cut short", async () => {
    hub.cutShort = true;
    expect(await overReconnect(() => {})).toEqual(again);
  });

  it("begin a snapshot again where the place to go on at is gone", async () => {
    expect(await overReconnect(() => hub.ids.clear())).toEqual(again);
    expect(ops("SUBSCRIBE").map((frame) => frame.opts.from)).toEqual(["snapshot", "afterId", "snapshot"]);
  });

  it("begin the snapshot of a pattern again", async () => {
    expect(await overReconnect(() => {}, "*")).toEqual(again);
  });

  it("release what waits when they end, so that the attempt is not counted", async () => {
    const client = make();
    await client.publishBatch("t", [{ payload: 1 }, { payload: 2 }, { payload: 3 }]);
    let runs = 0;
    const sub = await client.subscribe("t", "g", async () => { runs++; await sleep(50); }, { from: "earliest", concurrency: 1, maxInFlight: 10 });
    await until("the first runs", () => runs === 1);
    await sub.unsubscribe();
    await sub.closed;
    const group = hub.group("t", "g", 0);
    expect([runs, group.done.size, group.attempts.get(2), group.attempts.get(3)]).toEqual([1, 1, 0, 0]);
    expect(ops("UNSUBSCRIBE").length).toBe(1);
    await client.subscribe("t", "g", () => { runs++; });
    await until("a new one takes over", () => group.done.size === 3);
  });

  it("give up what the hub grants after they have ended", async () => {
    const client = make();
    await client.connect();
    hub.intercept = async (frame) => { if (frame.op === "SUBSCRIBE") await sleep(50); };
    const sub = client.subscribe("t", "g");
    await sub.unsubscribe();
    expect([ops("SUBSCRIBE").length, ops("UNSUBSCRIBE").length, hub.group("t", "g", 0).members.length]).toEqual([1, 1, 0]);
    await client.subscribe("t", "g", () => {});
  });

  it("stay when a hub that shuts down refuses them on a new connection", async () => {
    const client = make({ backoffMs: [10, 20] });
    const seen: unknown[] = [];
    await client.subscribe("t", "g", (event) => void seen.push(event.payload));
    let draining = true;
    hub.intercept = (frame) => {
      if (frame.op !== "SUBSCRIBE" || !draining) return;
      draining = false;
      setTimeout(() => { for (const conn of hub.conns) conn.socket.close(1001); }, 20);
      throw new Refusal("shutting_down", "the hub is draining");
    };
    for (const conn of hub.conns) conn.socket.terminate();
    await until("subscribed again", () => ops("SUBSCRIBE").length === 3);
    await client.publish("t", 1);
    await until("the event", () => seen.length === 1);
  });

  it("are not ended by an ERR that names none", async () => {
    const client = make();
    const sub = await client.subscribe("undefined", null, () => {});
    for (const conn of hub.conns) conn.send({ op: "ERR", code: "bad_json", msg: "not JSON" });
    const ended = await Promise.race([sub.closed.then(() => "ended"), sleep(50).then(() => "there")]);
    expect(ended).toBe("there");
  });

  it("wait when the hub limits their rate", async () => {
    const client = make();
    let refusals = 2;
    hub.intercept = (frame) => { if (frame.op === "ACK" && refusals-- > 0) throw new Refusal("rate_limited", "slower", { retry_after_ms: 20 }); };
    await client.subscribe("t", "g", () => {});
    await client.publish("t", 1);
    await until("acked in the end", () => hub.group("t", "g", 0).done.has(1));
  });

  /** The hub asks for patience with the first frame of this kind. */
  const refuseOnce = (op: string, ms: number, then = () => {}) => {
    let refused = false;
    hub.intercept = (frame) => {
      if (frame.op !== op || refused) return;
      refused = true;
      setTimeout(then, 10);
      throw new Refusal("rate_limited", "slower", { retry_after_ms: ms });
    };
  };

  it("ask once per connection, also when the hub limited their rate on the one before", async () => {
    const client = make({ backoffMs: [2, 5] });
    const seen: unknown[] = [];
    await client.subscribe("t", "g", (event) => void seen.push(event.payload));
    refuseOnce("SUBSCRIBE", 100, cut);
    cut();
    await until("the third connection", () => ops("SUBSCRIBE").length === 3);
    await sleep(150);
    await client.publish("t", 1);
    await until("the event", () => seen.length === 1);
    expect(ops("SUBSCRIBE").length).toBe(3);
  });

  it("do not wait out a limited rate on a connection that is gone", async () => {
    const client = make({ backoffMs: [2, 5] });
    const sub = await client.subscribe("t", "g", () => {});
    refuseOnce("UNSUBSCRIBE", 60_000, cut);
    await sub.unsubscribe();
    await client.subscribe("t", "g", () => {});
    expect([ops("SUBSCRIBE").length, hub.group("t", "g", 0).members.length]).toEqual([2, 1]);
  });

  it("are not paused by a delayed PAUSE after they were resumed", async () => {
    const client = make();
    const seen: unknown[] = [];
    const sub = await client.subscribe("t", "g", (event) => void seen.push(event.payload));
    refuseOnce("PAUSE", 50);
    const paused = sub.pause();
    await until("the PAUSE is refused", () => ops("PAUSE").length === 1);
    await sub.resume();
    await paused;
    await client.publish("t", 1);
    await until("the event", () => seen.length === 1, 1_000);
    expect(ops("PAUSE").length).toBe(1);
  });

  it("leave those alone that come after them, with what a limited rate delayed", async () => {
    const client = make();
    const sub = await client.subscribe("t", "g", () => {});
    refuseOnce("PAUSE", 100);
    const paused = codeOf(sub.pause());
    await until("the PAUSE is refused", () => ops("PAUSE").length === 1);
    await sub.unsubscribe();
    await client.subscribe("t", "g", () => {});
    expect(await paused).toBe("rate_limited");
    expect(hub.group("t", "g", 0).members[0]!.paused).toBe(false);
  });

  it("refuse a second one of the same topic and group, and a second reader", async () => {
    const client = make();
    await client.subscribe("t", "g", () => {});
    expect(await codeOf(client.subscribe("t", "g", () => {}))).toBe("already_subscribed");
    expect(await codeOf(client.unsubscribe("t", "other"))).toBe("not_subscribed");
    const sub = client.subscribe("u", "g");
    const reader = sub[Symbol.asyncIterator]();
    const first = reader.next();
    await expect(sub[Symbol.asyncIterator]().next()).rejects.toThrow("one iterator");
    await sub.unsubscribe();
    expect((await first).done).toBe(true);
  });
});

describe("closing", () => {
  it("lets handlers and publishes finish", async () => {
    const client = make();
    let done = 0;
    await client.subscribe("t", "g", async () => { await sleep(50); done++; });
    await client.publish("t", 1);
    await sleep(20);
    const last = client.publish("u", 2);
    await client.close();
    expect([done, hub.group("t", "g", 0).done.has(1), (await last).seq]).toEqual([1, true, 1]);
  });

  it("comes with await using", async () => {
    let left: PromClient;
    {
      await using client = new PromClient(hub.url);
      await client.publish("t", 1);
      left = client;
    }
    expect(left.state).toBe("closed");
    expect(await codeOf(left.subscribe("t", "g", () => {}))).toBe("closed");
    expect(() => left.subscribe("t", "g")).toThrow("closed");
  });
});

describe("the seed's names", () => {
  it("PromClient(url, token) connects, publishes, subscribes, unsubscribes, closes", async () => {
    hub.auth = (token) => { if (token !== "devtoken") throw new Refusal("bad_token", "nope"); return {}; };
    const client = make("devtoken");
    await client.connect();
    const seen: number[] = [];
    await client.subscribe<{ pid: number }>("heartbeat.received", "ops", (e) => void seen.push(e.payload.pid), { from: "earliest" });
    await client.publish<{ pid: number }>("heartbeat.received", { pid: 42 }, { tags: ["#stt"] });
    await until("the heartbeat", () => seen.length === 1);
    await client.unsubscribe("heartbeat.received", "ops");
    client.close();
    expect(seen).toEqual([42]);
  });

  it("EventClient connects by itself and has modAck", async () => {
    const client = new EventClient(hub.url, "any");
    clients.push(client);
    const held: Delivery[] = [];
    await client.subscribe("t", "g", (_event, ctx) => void held.push(ctx), { manualAck: true });
    const { id } = await client.publish("t", 1);
    await until("the delivery", () => held.length === 1);
    await client.modAck("t", "g", id, 5_000);
    await client.ack("t", "g", id);
    expect(ops("MODACK")[0]).toMatchObject({ topic: "t", group: "g", id, extend_ms: 5_000 });
    expect(hub.group("t", "g", 0).done.has(1)).toBe(true);
  });
});
