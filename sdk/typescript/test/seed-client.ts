// A client that says exactly what the seed's two clients say, frame by frame, and no more: for checkouts without the
// seeds. e2e/browser/seed.test.ts runs it, and the seed's own code beside it where that is there.
import { WebSocket } from "ws";

type Answer = { op: string; corr?: string; id?: string; code?: string; msg?: string };
type Handler = (event: any, ctx: any) => unknown;

/** The frames of a delivery's end: `ACK` once the handler has returned, `NACK` with the reason where it throws. */
async function settle(send: (frame: object) => void, msg: any, handler: Handler | undefined): Promise<void> {
  if (!handler) return;
  const of = { topic: msg.topic, group: msg.group, id: msg.event.id };
  try {
    await handler(msg.event, msg.ctx);
    send({ op: "ACK", ...of });
  } catch (error) {
    send({ op: "NACK", ...of, reason: (error as Error).message });
  }
}

/** Part 2 of the seeds: a string as `corr` on what it waits for, none on `ACK`, `NACK` and `MODACK`. */
export class EventClient {
  readonly ws: WebSocket;
  private waiting = new Map<string, (answer: Answer) => void>();
  private handlers = new Map<string, Handler>();

  constructor(url: string, token?: string) {
    this.ws = new WebSocket(url);
    this.ws.on("open", () => void this.ask({ op: "AUTH", token }));
    this.ws.on("message", (data) => {
      const msg = JSON.parse(String(data));
      if (msg.op === "EVENT") void settle((frame) => this.send(frame), msg, this.handlers.get(`${msg.topic}::${msg.group}`));
      else this.waiting.get(msg.corr)?.(msg);
    });
  }

  private send(frame: object): void { this.ws.send(JSON.stringify(frame)); }

  private ask(frame: object): Promise<Answer> {
    const corr = Math.random().toString(16).slice(2);
    this.send({ ...frame, corr });
    return new Promise((resolve, reject) => this.waiting.set(corr, (answer) => {
      this.waiting.delete(corr);
      (answer.op === "OK" ? resolve : reject)(answer);
    }));
  }

  publish(topic: string, payload: unknown, opts?: object) { return this.ask({ op: "PUBLISH", topic, payload, opts }); }

  subscribe(topic: string, group: string, handler: Handler, opts?: object) {
    this.handlers.set(`${topic}::${group}`, handler);
    return this.ask({ op: "SUBSCRIBE", topic, group, opts });
  }

  unsubscribe(topic: string, group: string) { return this.ask({ op: "UNSUBSCRIBE", topic, group }); }

  modAck(topic: string, group: string, id: string, extend_ms: number) { this.send({ op: "MODACK", topic, group, id, extend_ms }); }
}

/** Part 3 of the seeds: no `corr` at all; the first `OK` means that it is in. */
export class PromClient {
  private ws: WebSocket | undefined;
  private handlers = new Map<string, Handler>();

  constructor(private url: string, private token?: string) {}

  async connect(): Promise<void> {
    if (this.ws) return;
    const ws = this.ws = new WebSocket(this.url);
    await new Promise<void>((resolve, reject) => {
      ws.onopen = () => this.send({ op: "AUTH", token: this.token });
      ws.onmessage = ({ data }) => {
        const msg = JSON.parse(String(data));
        if (msg.op === "OK") resolve();
        else if (msg.op === "ERR") reject(new Error(`${msg.code}: ${msg.msg}`));
        else void settle((frame) => this.send(frame), msg, this.handlers.get(`${msg.topic}::${msg.group}`));
      };
    });
  }

  private send(frame: object): void { this.ws!.send(JSON.stringify(frame)); }

  async publish(topic: string, payload: unknown, opts?: object): Promise<void> {
    await this.connect();
    this.send({ op: "PUBLISH", topic, payload, opts });
  }

  async subscribe(topic: string, group: string, handler: Handler, opts?: object): Promise<void> {
    await this.connect();
    this.handlers.set(`${topic}::${group}`, handler);
    this.send({ op: "SUBSCRIBE", topic, group, opts });
  }

  async unsubscribe(topic: string, group: string): Promise<void> {
    this.handlers.delete(`${topic}::${group}`);
    this.send({ op: "UNSUBSCRIBE", topic, group });
  }

  close(): void { this.ws?.close(); }
}
