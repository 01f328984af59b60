// The scripts of sdk/scenarios, which every client runs: a fake hub that follows them step by step. The format
// is in sdk/scenarios/README.md.
import { readdirSync, readFileSync } from "node:fs";
import { expect, it } from "vitest";
import { WebSocketServer, type WebSocket } from "ws";
import { PromClient, type Delivery } from "../src/index.js";
import { until } from "./scenarios.js";

type Json = Record<string, any>;
const folder = new URL("../../scenarios/", import.meta.url);
const ALWAYS = ["PING", "PAUSE", "RESUME"];
const PATIENCE = 5_000;

/** True if `frame` has the fields of `wanted`; a `$name` is bound by the first value that it meets. */
function has(frame: any, wanted: any, bound: Map<string, unknown>): boolean {
  if (typeof wanted === "string" && wanted.startsWith("$")) {
    if (!bound.has(wanted)) bound.set(wanted, frame);
    return bound.get(wanted) === frame;
  }
  if (wanted === null || typeof wanted !== "object") return frame === wanted;
  return frame !== null && typeof frame === "object" && Object.entries(wanted).every(([name, value]) => has(frame[name], value, bound));
}

const fill = (value: any, bound: Map<string, unknown>): any =>
  typeof value === "string" && value.startsWith("$") ? bound.get(value)
    : Array.isArray(value) ? value.map((one) => fill(one, bound))
    : value !== null && typeof value === "object" ? Object.fromEntries(Object.entries(value).map(([name, one]) => [name, fill(one, bound)]))
    : value;

class Run {
  private server = new WebSocketServer({ host: "127.0.0.1", port: 0, handleProtocols: () => "promethean.v1" });
  private waiting: { socket: WebSocket; auth: Json }[] = [];
  private socket: WebSocket | undefined;
  private frames: Json[] = [];
  readonly ops: string[] = [];
  private bound = new Map<string, unknown>();
  private results = new Map<string, Promise<unknown>>();
  private handlers = new Map<string, { delivery: Delivery; end: (error?: Error) => void }>();
  private reported: Error[] = [];
  private client!: PromClient;
  private leases = 0;

  constructor(private script: Json) {}

  async run(): Promise<void> {
    await new Promise((resolve) => this.server.once("listening", resolve));
    this.server.on("connection", (socket) => socket.on("message", (data) => this.receive(socket, JSON.parse(String(data)))));
    const { port } = this.server.address() as { port: number };
    this.client = new PromClient(`ws://127.0.0.1:${port}`, {
      token: "t", backoffMs: [5, 10], timeoutMs: this.script.client?.timeoutMs ?? 60_000, onError: (error) => this.reported.push(error),
    });
    try {
      for (const [n, step] of this.script.steps.entries()) {
        await this.step(step).catch((error) => { throw new Error(`step ${n + 1}, ${JSON.stringify(step)}: ${error.message}`); });
      }
      expect(this.ops.filter((op) => this.script.never?.includes(op))).toEqual([]);
    } finally {
      for (const { end } of this.handlers.values()) end();
      for (const result of this.results.values()) result.catch(() => {});
      await this.client.close({ timeoutMs: 0 });
      for (const socket of this.server.clients) socket.terminate();
      this.server.close();
    }
  }

  private receive(socket: WebSocket, frame: Json): void {
    this.ops.push(frame.op);
    if (frame.op === "AUTH") this.waiting.push({ socket, auth: frame });
    else if (ALWAYS.includes(frame.op) || this.script.ignore?.includes(frame.op)) socket.send(JSON.stringify({ op: "OK", corr: frame.corr }));
    else if (socket === this.socket) this.frames.push(frame);
  }

  private send(frame: Json): void {
    this.socket!.send(JSON.stringify(frame));
  }

  private async next(what: string): Promise<Json> {
    await until(what, () => this.frames.length > 0, PATIENCE);
    return this.frames.shift()!;
  }

  private async step(step: Json): Promise<void> {
    if (step.accept) {
      await until("a connection", () => this.waiting.length > 0, PATIENCE);
      const { socket, auth } = this.waiting.shift()!;
      expect(auth.token).toBe("t");
      this.socket = socket;
      this.frames = [];
      this.send({ op: step.accept.code ? "ERR" : "OK", corr: auth.corr, ...step.accept });
    } else if (step.expect) await this.expectFrame(step);
    else if (step.deliver) step.deliver.forEach((id: string, index: number) => this.send({
      op: "EVENT", topic: step.topic, group: step.group,
      event: { id, seq: index + 1, ts: 1, topic: step.topic, payload: null },
      ctx: { attempt: step.attempt ?? 1, maxAttempts: 5, ack_deadline_ms: step.ack_deadline_ms ?? 30_000, lease: ++this.leases },
    }));
    else if (step.send) this.send(fill(step.send, this.bound));
    else if (step.text !== undefined) this.socket!.send(step.text);
    else if (step.cut) this.socket!.terminate();
    else if (step.call) this.results.set(step.as, this.call(step));
    else if (step.result) await this.result(step);
    else if (step.started) {
      await until("the handler", () => this.handlers.has(step.started), PATIENCE);
      if (step.attempt) expect(this.handlers.get(step.started)!.delivery.attempt).toBe(step.attempt);
    } else if (step.return) this.end(step.return);
    else if (step.throw) this.end(step.throw, new Error(step.message));
    else if (step.reported) {
      await until("the report", () => this.reported.some((error: any) => error.code === step.reported || error.message === step.reported), PATIENCE);
      this.reported = [];
    } else throw new Error("unknown step");
  }

  private end(id: string, error?: Error): void {
    const handler = this.handlers.get(id)!;
    this.handlers.delete(id);
    handler.end(error);
  }

  private async expectFrame({ expect: { ids, ...fields }, reply, frames = Infinity }: Json): Promise<void> {
    const left = new Set<string>(ids);
    let count = 0;
    do {
      const frame = await this.next(JSON.stringify(fields));
      count++;
      if (!has(frame, fields, this.bound)) throw new Error(`the frame is ${JSON.stringify(frame)}`);
      for (const id of ids ? frame.ids ?? [frame.id] : []) if (!left.delete(id)) throw new Error(`not expected: ${id} in ${JSON.stringify(frame)}`);
      if (reply) this.send({ op: "OK", corr: frame.corr, ...fill(reply, this.bound) });
    } while (left.size);
    if (count > frames) throw new Error(`${count} frames`);
  }

  private call({ call, topic, group, payload, events, options, as: _ }: Json): Promise<unknown> {
    const { client } = this;
    const handler = (event: { id: string }, delivery: Delivery) => new Promise<void>((resolve, reject) => {
      this.handlers.set(event.id, { delivery, end: (error) => error ? reject(error) : resolve() });
    });
    switch (call) {
      case "connect": return client.connect();
      case "publish": return client.publish(topic, payload, options);
      case "publishBatch": return client.publishBatch(topic, events);
      case "subscribe": return client.subscribe(topic, group, handler, options);
      case "unsubscribe": return client.unsubscribe(topic, group);
      case "close": return client.close({ timeoutMs: this.script.client?.closeMs ?? 10_000 });
      default: throw new Error(`unknown call ${call}`);
    }
  }

  private async result({ result, is, error, ids }: Json): Promise<void> {
    const late = new Promise<never>((_, reject) => setTimeout(() => reject(new Error("no result in time")), PATIENCE).unref());
    const outcome = await Promise.race([this.results.get(result)!.then((value) => ({ value }), (thrown) => ({ thrown })), late]) as Json;
    expect(outcome.thrown?.code ?? outcome.thrown?.message).toBe(error);
    if (ids) expect(outcome.thrown.ids).toEqual(ids);
    if (is && !has(outcome.value, is, this.bound)) throw new Error(`the result is ${JSON.stringify(outcome.value)}`);
  }
}

for (const file of readdirSync(folder).filter((name) => name.endsWith(".json"))) {
  const text = readFileSync(new URL(file, folder), "utf8").replace(/"@(\d+)"/g, (_, n: string) => `"00000000-0000-7000-8000-${n.padStart(12, "0")}"`);
  const script = JSON.parse(text);
  it(`${file}: ${script.name}`, () => new Run(script).run());
}
