// The package as users get it: small, without dependencies, typed.
import { readFileSync } from "node:fs";
import { gzipSync } from "node:zlib";
import { expect, expectTypeOf, it } from "vitest";
import { EventClient, PromClient, type Delivery, type Published, type PublishOpts, type ReceivedEvent, type SnapshotEntry, type Subscription } from "../src/index.js";

const file = (name: string) => readFileSync(new URL(`../${name}`, import.meta.url));

it("is at most 8 kB (8,000 bytes) gzipped in one file", () => {
  const bytes = gzipSync(file("dist/sdk.js"), { level: 9 }).length;
  console.log(`sdk.js: ${bytes} bytes gzipped`);
  expect(bytes).toBeLessThanOrEqual(8_000);
});

it("has no dependencies and the bundle imports nothing", () => {
  const manifest = JSON.parse(String(file("package.json")));
  expect(manifest.dependencies).toBeUndefined();
  expect(String(file("dist/sdk.js"))).not.toMatch(/import\s*[{"'*]|from\s*["']/);
});

it("works from the bundle as from the modules", async () => {
  const bundle = await import(new URL("../dist/sdk.js", import.meta.url).href);
  expect(Object.keys(bundle).sort()).toEqual(["Delivery", "EventClient", "PromClient", "PromError", "Subscription", "uuidv7"]);
});

it("types payloads by the topic map", () => {
  interface Topics { "heartbeat.received": { pid: number }; "process.state": { status: "alive" | "stale" } }
  const client = new PromClient<Topics>("ws://127.0.0.1:1");
  const never = () => {
    expectTypeOf(client.publish("heartbeat.received", { pid: 1 })).resolves.toEqualTypeOf<Published>();
    // @ts-expect-error the payload is of another topic
    void client.publish("process.state", { pid: 1 });
    // @ts-expect-error not a topic of the map
    void client.publish("process.stat", { status: "alive" });
    void client.subscribe("process.state", "g", (event) => expectTypeOf(event).toEqualTypeOf<ReceivedEvent<{ status: "alive" | "stale" }>>());
    expectTypeOf(client.subscribe("heartbeat.received", "g")).toEqualTypeOf<Subscription<{ pid: number }>>();
    void client.subscribe("process.*", "g", (event, ctx) => {
      expectTypeOf(event.payload).toEqualTypeOf<Topics[keyof Topics]>();
      expectTypeOf(ctx).toEqualTypeOf<Delivery<Topics[keyof Topics]>>();
    });
  };
  expect(never).toBeTypeOf("function");
});

it("types derived topics, dates as they arrive, and refuses what JSON or the hub would", () => {
  interface Topics { order: { at: Date; lines: { n: number }[] }; count: number }
  const client = new PromClient<Topics>("ws://127.0.0.1:1");
  const never = () => {
    void client.subscribe("dlq.order", "g", ({ payload }) => expectTypeOf(payload.original.payload).toEqualTypeOf<{ at: string; lines: { n: number }[] }>());
    void client.subscribe("order.snapshot", null, ({ payload }) => expectTypeOf(payload).toEqualTypeOf<SnapshotEntry<{ at: string; lines: { n: number }[] }> | null>());
    void client.subscribe("order", "g", ({ payload }) => expectTypeOf(payload.at).toEqualTypeOf<string>());
    void client.publish("order", { at: new Date(), lines: [] });
    void client.subscribe("*", "g");
    void client.subscribe("a.**", "g");
    // @ts-expect-error half a segment
    void client.subscribe("a*b", "g");
    // @ts-expect-error not derived from a topic of the map
    void client.subscribe("dlq.orders", "g");
    // @ts-expect-error a bigint is no JSON
    void new PromClient("ws://127.0.0.1:1").publish("t", { n: 1n });
    void new PromClient<{ any: any; n: number }>("ws://127.0.0.1:1").publish("any", 1);
    void new PromClient<Record<string, { n: number }>>("ws://127.0.0.1:1").publish("t", { n: 1 });
    void new PromClient("ws://127.0.0.1:1").publish<{ pid: number }>("t", { pid: 1 });
  };
  expect(never).toBeTypeOf("function");
});

it("takes the types of the source documents as they are", () => {
  type Handler = (event: any, ctx: { attempt: number; ack_deadline_ms: number }) => Promise<void> | void;
  type Context = { attempt: number; maxAttempts: number };
  interface SourceEvent<T = unknown> { id: string; sid?: string; ts: number; topic: string; key?: string; partition?: number; headers?: Record<string, string>; payload: T; caused_by?: string[]; tags?: string[] }
  type SourceOpts = { headers?: Record<string, string>; key?: string; tags?: string[]; caused_by?: string[]; sid?: string; ts?: number };
  const never = (handler: Handler, full: (e: SourceEvent, ctx: Context) => Promise<void>, opts: SourceOpts, ours: PublishOpts, any?: any) => {
    const client = new EventClient("ws://127.0.0.1:1", process.env.WS_TOKEN);
    void client.subscribe("t", "g", handler, any);
    void client.subscribe("t", "g", full);
    void client.subscribe<{ pid: number }>("t", "g", (e: { id: string; payload: { pid: number }; ts: number; topic: string }, _ctx: any) => e.payload.pid, any);
    void client.publish("t", 1, opts);
    void client.publish("t", 1, ours);
    client.modAck("t", "g", "id", 1_000);
  };
  expect(never).toBeTypeOf("function");
});
