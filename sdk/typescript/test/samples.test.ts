// The code samples of the source documents, word for word (test/samples), with this package in place of their bus: compiled by
// `npm run check`, run here against the fake hub, and against the real one where PROMETHEAN_BIN names it.
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, afterEach, beforeAll, describe, expect, it, vi } from "vitest";
import type { PromClient } from "../src/index.js";
import { FakeHub } from "./fake-hub.js";
import { RealHub } from "./real-hub.js";
import { at, InMemoryEventBus } from "./samples/event/memory.js";
import { until } from "./scenarios.js";

const here = (path: string) => fileURLToPath(new URL(path, import.meta.url));
const documents = process.env.SEEDS ?? here("../../../../shared/seeds");
const SAMPLES = ["event/example.ts", "event/event.bus.ts", "event/topics.ts", "examples/process/types.ts", "examples/process/projector.ts"];

it("have every character of the documents, where these are at hand", () => {
  const pages = existsSync(documents) ? readdirSync(documents).filter((file) => file.endsWith(".md")) : [];
  const blocks = pages.flatMap((page) => [...readFileSync(join(documents, page), "utf8").matchAll(/^```ts\n(.*?)^```/gms)].map(([, code]) => code!));
  for (const sample of blocks.length ? SAMPLES : []) expect(blocks, sample).toContain(readFileSync(here(`samples/${sample}`), "utf8"));
});

interface Bench { url: string; cursor: typeof at.cursor; end(): Promise<void> }

async function fake(): Promise<Bench> {
  const hub = await new FakeHub().start();
  const cursor = async (topic: string, group: string) => {
    const seq = hub.group(topic, group, 0).floor;
    const last = hub.log(topic)[seq - 1];
    return { topic, seq, ...last && { lastId: last.id, lastTs: last.ts } };
  };
  return { url: hub.url, cursor, end: () => hub.kill() };
}

async function real(bin: string): Promise<Bench> {
  const hub = await new RealHub(bin, { open: true }).start();
  const cursor = async (topic: string, group: string) => {
    const { cursors } = await (await fetch(`http://${hub.ops}/cursors?topic=${topic}`)).json() as { cursors: any[] };
    return cursors.find((one) => one.group === group);
  };
  return { url: hub.url, cursor, end: () => hub.end() };
}

const bin = process.env.PROMETHEAN_BIN;
describe.each([["the fake hub", fake], ...(bin ? [["the real hub", () => real(bin)] as const] : [])] as [string, () => Promise<Bench>][])("the samples with %s", (_name, start) => {
  let bench: Bench;
  beforeAll(async () => {
    bench = await start();
    Object.assign(at, { url: bench.url, cursor: bench.cursor });
  });
  afterEach(async () => {
    vi.restoreAllMocks();
    await Promise.all(at.open.splice(0).map((client: PromClient) => client.close({ timeoutMs: 500 })));
  });
  afterAll(() => bench.end());

  it("subscribe, publish and read the cursor", async () => {
    vi.resetModules();
    const memory = await import("./samples/event/memory.js");
    Object.assign(memory.at, at);
    await import("./samples/event/example.js");
    await vi.waitFor(async () => expect((await bench.cursor("heartbeat.received", "ops"))?.lastId).toBeTruthy(), 10_000);
  });

  it("pass their own tests", async () => {
    vi.spyOn(console, "error").mockImplementation(() => {});
    const tests: [string, () => Promise<void>][] = [];
    vi.stubGlobal("test", (name: string, run: () => Promise<void>) => tests.push([name, run]));
    vi.stubGlobal("expect", expect);
    vi.resetModules();
    const memory = await import("./samples/event/memory.js");
    Object.assign(memory.at, at);
    await import("./samples/event/event.bus.js");
    vi.unstubAllGlobals();
    vi.stubGlobal("expect", expect);
    for (const [, run] of tests) await run();
    vi.unstubAllGlobals();
    expect(tests.map(([name]) => name)).toEqual(["publish -> subscribe (earliest) delivers and advances cursor", "nack leaves cursor; event is retried"]);
  });

  it("project heartbeats into the state of processes", async () => {
    const { startProcessProjector } = await import("./samples/examples/process/projector.js");
    const bus = new InMemoryEventBus();
    const states: any[] = [];
    await bus.subscribe("process.state", null, (event) => states.push([event.key, event.payload]));
    const stop = await startProcessProjector(bus);
    const beat = { pid: 42, name: "tts", host: "dev", cpu_pct: 1.5, mem_mb: 20 };
    const { id } = await bus.publish("heartbeat.received", beat);
    await until("it is projected", () => states.some(([key]) => key === "dev:tts:42"));
    stop();
    const [, state] = states.find(([key]) => key === "dev:tts:42");
    expect(state).toEqual({ processId: "dev:tts:42", ...beat, last_seen_ts: expect.any(Number), status: "alive" });
    expect(id).toBeTruthy();
  });
});
