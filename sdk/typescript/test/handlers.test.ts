// What becomes of events between their arrival and their ack: no attempt without a handler, no ack lost, no error unheard.
import { afterEach, describe, expect, it, vi } from "vitest";
import type { ErrorContext, PromError } from "../src/index.js";
import { Refusal } from "./fake-hub.js";
import { codeOf, cut, hub, make, ops } from "./one-hub.js";
import { sleep, until } from "./scenarios.js";

afterEach(() => vi.restoreAllMocks());

const batch = (...payloads: unknown[]) => payloads.map((payload) => ({ payload }));
const gate = () => {
  let open = () => {};
  const opened = new Promise<void>((resolve) => { open = resolve; });
  return { open, opened };
};

describe("a filter function", () => {
  it("acks what it does not want, without a handler, and is not sent to the hub", async () => {
    const client = make();
    await client.publishBatch("t", batch(1, 2, 3, 4));
    const seen: unknown[] = [];
    await client.subscribe("t", "g", (event) => seen.push(event.payload), { from: "earliest", filter: (event) => event.payload % 2 === 0 });
    await until("all are done", () => hub.group("t", "g", 0).done.size === 4);
    expect([seen, ops("SUBSCRIBE")[0]!.opts.filter]).toEqual([[2, 4], undefined]);
    const looped: unknown[] = [];
    for await (const delivery of client.subscribe("t", "h", { from: "earliest", filter: (event) => event.payload > 2 })) {
      looped.push(delivery.event.payload);
      if (looped.length === 2) break;
    }
    expect(looped).toEqual([3, 4]);
  });

  it("that throws nacks its event, and is reported", async () => {
    const errors: unknown[] = [];
    const client = make({ onError: (error) => errors.push(error.message) });
    await client.publishBatch("t", batch(1, 2));
    let thrown = 0;
    const filter = (event: { payload: number }) => {
      if (event.payload === 1 && !thrown++) throw new Error("no such field");
      return true;
    };
    await client.subscribe("t", "g", () => {}, { from: "earliest", filter });
    await until("both are done", () => hub.group("t", "g", 0).done.size === 2);
    expect([ops("NACK")[0]!.reason, errors]).toEqual(["no such field", ["no such field"]]);
  });
});

describe("events that wait", () => {
  it("longer than maxExtendMs are released, and run later as their first attempt", async () => {
    const client = make();
    await client.publishBatch("t", batch(1, 2));
    const attempts: unknown[] = [];
    const first = gate();
    await client.subscribe("t", "g", async (event, ctx) => {
      attempts.push([event.payload, ctx.attempt]);
      if (event.payload === 1) await first.opened;
    }, { from: "earliest", concurrency: 1, maxInFlight: 10, ackTimeoutMs: 400, maxExtendMs: 0 });
    await until("the second is released", () => ops("NACK").length === 1);
    first.open();
    await until("both are done", () => hub.group("t", "g", 0).done.size === 2);
    expect([attempts, ops("NACK")[0]!.release]).toEqual([[[1, 1], [2, 1]], true]);
  });

  it("do not use up the time of their handler", async () => {
    const client = make();
    await client.publishBatch("t", batch(1, 2));
    const [first, second] = [gate(), gate()];
    let running = 0;
    const lengths = { ackTimeoutMs: 4_000, maxExtendMs: 1_750 };
    await client.subscribe("t", "g", (event) => (running++, event.payload === 1 ? first.opened : second.opened), { from: "earliest", concurrency: 1, maxInFlight: 10, ...lengths });
    const id = hub.log("t")[1]!.id;
    await until("the first runs", () => running === 1);
    await sleep(1_500);
    first.open();
    await until("the second runs", () => running === 2);
    await until("it is extended 2 or 3 s after it came", () => ops("MODACK").some((frame) => [frame.id, ...(frame.ids ?? [])].includes(id)));
    second.open();
    await until("both are done", () => hub.group("t", "g", 0).done.size === 2);
  });

  it("are few: twice the handlers that run at a time, and ten for a loop", async () => {
    const client = make();
    await client.subscribe("a", "g", () => {}, { concurrency: 3 });
    await client.subscribe("b", "g", () => {});
    await client.subscribe("c", "g", () => {}, { concurrency: 3, maxInFlight: 50 });
    await client.subscribe("d", "g", { ack: "manual" }).ready;
    await client.subscribe("e", "g").ready;
    await client.subscribe("f", null).ready;
    expect(ops("SUBSCRIBE").map((frame) => frame.opts.maxInFlight)).toEqual([6, undefined, 50, undefined, 10, undefined]);
  });

  it("keep the lease that the hub granted, not the one that was asked for", async () => {
    hub.maxLease = 200;
    const client = make();
    const { open, opened } = gate();
    await client.subscribe("t", "g", () => opened);
    await client.publish("t", 1);
    await until("it is extended in time", () => ops("MODACK").length === 1, 2_000);
    expect(ops("MODACK")[0]!.extend_ms).toBe(200);
    open();
  });

  it("keep their lease when the machine's clock is set back", async () => {
    const client = make();
    const { open, opened } = gate();
    await client.subscribe("t", "g", () => opened, { ackTimeoutMs: 300 });
    await client.publish("t", 1);
    await until("it is delivered", () => hub.group("t", "g", 0).flights.size === 1);
    const clock = Date.now;
    vi.spyOn(Date, "now").mockImplementation(() => clock() - 3_600_000);
    for (let rest = 40; rest && !ops("MODACK").length; rest--) await sleep(50);
    expect([ops("MODACK").length > 0, hub.group("t", "g", 0).attempts.get(1)]).toEqual([true, 1]);
    open();
  });

  it("let a loop that is left by throw use up attempts, until the event is a dead letter", async () => {
    const client = make();
    const attempts: number[] = [];
    await client.publishBatch("t", batch("poison", "waits"));
    for (let run = 1; run <= 3; run++) {
      const reading = (async () => {
        for await (const { event, attempt } of client.subscribe("t", "g", { from: "earliest", maxAttempts: 2 })) {
          if (event.payload !== "poison") return;
          attempts.push(attempt);
          throw new Error("boom");
        }
      })();
      await reading.catch(() => {});
    }
    await until("the dead letter", () => hub.log("dlq.t").length === 1);
    expect([attempts, (hub.log("dlq.t")[0]!.payload as any).original.payload]).toEqual([[1, 2], "poison"]);
    expect(hub.group("t", "g", 0).attempts.get(2), "the one behind it has lost none, but for the third run's own").toBeLessThanOrEqual(1);
  });
});

describe("an idle client", () => {
  it("wakes up for its pings only", async () => {
    const intervals = vi.spyOn(globalThis, "setInterval");
    const client = make();
    await client.subscribe("t", "g", () => {}, { ackTimeoutMs: 100 });
    await client.publish("t", 1);
    await until("it is done", () => hub.group("t", "g", 0).done.has(1));
    await sleep(120); // the last look at its lease
    const timers = vi.spyOn(globalThis, "setTimeout");
    await sleep(150);
    expect([timers.mock.calls.length, intervals.mock.calls.length], "the test's own timer").toEqual([1, 0]);
  });
});

describe("answers that a quota refuses", () => {
  it("are joined, extensions and nacks too, and no event runs twice", async () => {
    const client = make({ onError: () => {} });
    let credit = 2;
    hub.intercept = (frame) => {
      if (!["ACK", "NACK", "MODACK"].includes(frame.op)) return;
      if (credit-- <= 0) { setTimeout(() => { credit = 2; }, 20); throw new Refusal("rate_limited", "slower", { retry_after_ms: 30 }); }
    };
    const runs = new Map<unknown, number>();
    await client.subscribe("t", "g", async (event) => {
      runs.set(event.payload, (runs.get(event.payload) ?? 0) + 1);
      await sleep((event.payload as number) % 7);
      if (event.payload === 5 && runs.get(5) === 1) throw new Error("once");
    }, { from: "earliest", maxInFlight: 100 });
    await client.publishBatch("t", batch(...Array.from({ length: 100 }, (_, n) => n)));
    await until("all are done", () => hub.group("t", "g", 0).done.size === 100);
    expect([...runs].filter(([payload, count]) => count !== (payload === 5 ? 2 : 1))).toEqual([]);
    expect(ops("ACK").length + ops("NACK").length).toBeLessThan(50);
  });

  it("of which one is lost, still extend the others", async () => {
    const client = make({ onError: () => {} });
    await client.publishBatch("t", batch(1, 2));
    const aborted: unknown[] = [];
    const { open, opened } = gate();
    const lost = () => hub.log("t")[0]!.id;
    hub.intercept = (frame) => {
      if (frame.op === "MODACK" && [frame.id, ...(frame.ids ?? [])].includes(lost())) throw new Refusal("unknown_id", "one is not in flight");
    };
    await client.subscribe("t", "g", (event, ctx) => {
      ctx.signal.addEventListener("abort", () => aborted.push(event.payload));
      return opened;
    }, { from: "earliest", ackTimeoutMs: 300 });
    await until("the other one is extended", () => ops("MODACK").some((frame) => frame.id === hub.log("t")[1]!.id));
    await until("the handler of the lost one knows", () => aborted.length === 1);
    expect(aborted).toEqual([1]);
    open();
  });
});

describe("a handler that fails", () => {
  it("is told of with its event and attempt", async () => {
    const told: [string, ErrorContext | undefined][] = [];
    const client = make({ onError: (error, context) => told.push([error.message, context]) });
    await client.subscribe("t", "g", (_event, ctx) => { if (ctx.attempt < 2) throw new Error("boom"); });
    const { id } = await client.publish("t", 1);
    await until("it is done in the end", () => hub.group("t", "g", 0).done.has(1));
    const [[message, context]] = told as [[string, ErrorContext]];
    expect([told.length, message, context.event.id, context.attempt, context.topic, context.group]).toEqual([1, "boom", id, 1, "t", "g"]);
  });

  it("goes to the console when nobody listens, and so does a subscription that ends", async () => {
    const printed = vi.spyOn(console, "error").mockImplementation(() => {});
    const client = make();
    const sub = await client.subscribe("t", "g", (_event, ctx) => { if (ctx.attempt < 2) throw new Error("boom"); });
    await client.publish("t", 1);
    await until("it is done in the end", () => hub.group("t", "g", 0).done.has(1));
    for (const conn of hub.conns) conn.send({ op: "ERR", code: "topic_deleted", msg: "gone", topic: "t", group: "g" });
    await sub.closed;
    expect(printed.mock.calls.map((call) => String(call[1]))).toEqual(["Error: boom", "PromError: topic_deleted: gone"]);
  });

  it("with an object that has no text nacks its event all the same, and the next ones run", async () => {
    const told: unknown[] = [];
    const client = make({ onError: (error) => told.push(error) });
    const thrown = Object.create(null);
    await client.subscribe("t", "g", (event) => { if (event.payload === 1) throw thrown; }, { concurrency: 1, maxAttempts: 1 });
    await client.publishBatch("t", batch(1, 2));
    await until("the next one is done", () => hub.group("t", "g", 0).done.has(2));
    await until("the dead letter", () => hub.log("dlq.t").length === 1);
    expect([told, (hub.log("dlq.t")[0]!.payload as any).err]).toEqual([[thrown], "an error without a text"]);
  });

  it("after it has acked is told of, too", async () => {
    const told: string[] = [];
    const client = make({ onError: (error) => told.push(error.message) });
    await client.subscribe("t", "g", async (_event, ctx) => { await ctx.ack(); throw new Error("late"); });
    await client.publish("t", 1);
    await until("it is told", () => told.length === 1);
    expect([told, ops("NACK").length]).toEqual([["late"], 0]);
  });
});

describe("closing", () => {
  it("waits for handlers and their acks while the connection is away", async () => {
    const client = make({ backoffMs: [5, 10], onError: () => {} });
    const { open, opened } = gate();
    let running = false;
    await client.subscribe("t", "g", () => { running = true; return opened; });
    await client.publish("t", 1);
    await until("the handler", () => running);
    await hub.kill();
    await until("the loss is seen", () => client.state === "connecting");
    const closing = client.close();
    open();
    await sleep(20);
    await hub.start();
    await closing;
    expect([client.state, hub.group("t", "g", 0).done.has(1)]).toEqual(["closed", true]);
  });

  it("ends at its limit, whatever the hub does", async () => {
    const client = make({ onError: () => {} });
    await client.subscribe("t", "g", () => new Promise(() => {}));
    await client.publish("t", 1);
    hub.mute = true;
    await client.close({ timeoutMs: 50 });
    expect(client.state).toBe("closed");
  });

  it("in a handler lets that handler's ack through", async () => {
    const client = make();
    await client.subscribe("t", "g", async () => { await client.close(); });
    await client.publish("t", 1);
    await until("it is closed", () => client.state === "closed", 3_000);
    expect(hub.group("t", "g", 0).done.has(1)).toBe(true);
  });
});

describe("options", () => {
  it("that would handle nothing without a word are refused", async () => {
    const client = make();
    for (const concurrency of [0, NaN, -1]) await expect(client.subscribe("t", "g", () => {}, { concurrency })).rejects.toThrow(/concurrency .* at least 1/);
    expect(() => client.subscribe("t", "g", { maxInFlight: 0 })).toThrow(/maxInFlight/);
    expect(() => make({ pingMs: 0 })).toThrow(/pingMs/);
    expect(() => make({ window: NaN })).toThrow(/window/);
  });
});

describe("a tail that nobody reads", () => {
  it("grows by no burst with a reconnect: it asks again when it is read", async () => {
    const client = make({ backoffMs: [5, 10], onError: () => {} });
    const publisher = make({ window: 1_000 });
    const sub = client.subscribe("t", null);
    await sub.ready;
    for (let n = 0; n < 11; n++) await publisher.publishBatch("t", batch(...Array.from({ length: 100 }, () => n)));
    await until("it is paused", () => ops("PAUSE").length === 1);
    const connections = () => ops("PING").length;
    for (let n = 0; n < 3; n++) {
      const before = connections();
      cut();
      await until("it is back", () => connections() >= before + 1 && client.state === "open");
    }
    expect(ops("SUBSCRIBE").length).toBe(1);
    let count = 0;
    for await (const _ of sub) if (++count === 1_100) break;
    expect(ops("SUBSCRIBE").length, "once it has been read").toBe(2);
  });

  it("is paused by the bytes that wait", async () => {
    const client = make();
    const sub = client.subscribe("t", null);
    await sub.ready;
    for (let n = 0; n < 10; n++) await client.publish("t", "x".repeat(1 << 20));
    await until("it is paused", () => ops("PAUSE").length === 1, 3_000);
    const code = await codeOf(sub.unsubscribe());
    expect(code as PromError | string).toBe("no error");
  });
});
