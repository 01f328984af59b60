// A hub in this process, for tests of the client alone: PROTOCOL.md sections 1 to 4 as far as the client can see them,
// in memory. `kill` drops the connections and the port and keeps what was stored, as a restart on the same data would.
import { randomUUID } from "node:crypto";
import type { AddressInfo } from "node:net";
import { WebSocket, WebSocketServer } from "ws";

type Json = Record<string, any>;
interface Stored { id: string; seq: number; ts: number; topic: string; key?: string; headers?: Json; tags?: string[]; payload: unknown }
interface Flight { seq: number; member: Member; lease: number; timer: NodeJS.Timeout }

const UUID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i;
const TOPIC = /^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$/;

/** What a tail's deliveries say: no leases, no limit of attempts. */
const TAIL = { attempt: 1, maxAttempts: 0, ack_deadline_ms: 0, lease: 0 };

export class Refusal extends Error {
  constructor(readonly code: string, message: string, readonly more: Json = {}) { super(message); }
}

/** One subscription of one connection. */
class Member {
  held = 0;
  paused = false;
  out: Json[] = [];
  constructor(readonly conn: Conn, readonly topic: string, readonly group: string | undefined, readonly opts: Json) {}

  get room(): boolean { return !this.paused && this.held < (this.opts.maxInFlight ?? 100); }
  wants(topic: string): boolean { return [this.topic, ...(this.opts.topics ?? [])].some((pattern) => matches(pattern, topic)); }

  push(event: Stored, ctx: Json): void {
    if (!this.opts.batch) return this.conn.send({ op: "EVENT", topic: this.topic, group: this.group, event, ctx });
    if (this.out.push({ event, ctx }) > 1) return;
    queueMicrotask(() => this.conn.send({ op: "EVENTS", topic: this.topic, group: this.group, events: this.out.splice(0) }));
  }
}

/** The state of (topic, group). */
class Group {
  members: Member[] = [];
  done = new Set<number>();
  next: number;
  attempts = new Map<number, number>();
  waiting = new Set<number>();
  flights = new Map<string, Flight>();
  turn = 0;
  constructor(readonly hub: FakeHub, readonly topic: string, readonly name: string, start: number) { this.next = start + 1; }

  /** The last seq below which all are done. */
  get floor(): number {
    return Math.min(...[...this.flights.values()].map((f) => f.seq), ...this.waiting, this.next) - 1;
  }

  run(): void {
    const log = this.hub.log(this.topic);
    for (;;) {
      const seq = [...this.waiting].sort((a, b) => a - b)[0] ?? this.next;
      const event = log[seq - 1];
      const ready = this.members.filter((member) => member.room);
      const member = ready[this.turn++ % (ready.length || 1)];
      if (!event || !member) return;
      if (!this.waiting.delete(seq)) this.next++;
      if (this.done.has(seq)) continue;
      if (!wanted(member.opts.filter, event)) { this.done.add(seq); continue; }
      const attempt = (this.attempts.get(seq) ?? 0) + 1;
      const most = member.opts.maxAttempts ?? 5;
      if (most && attempt > most) { this.bury(event, attempt - 1); continue; }
      this.attempts.set(seq, attempt);
      const ms = Math.min(member.opts.ackTimeoutMs ?? 30_000, this.hub.maxLease);
      const lease = ++this.hub.leases;
      this.flights.set(event.id, { seq, member, lease, timer: this.expiry(event.id, ms) });
      member.held++;
      member.push(event, { attempt, maxAttempts: most, ack_deadline_ms: ms, lease });
    }
  }

  reason = new Map<number, string>();
  private bury(event: Stored, attempts: number): void {
    this.done.add(event.seq);
    const err = this.reason.get(event.seq) ?? "not acked in time";
    this.hub.append(`dlq.${this.topic}`, { topic: this.topic, group: this.name, original: event, err, attempts, ts: Date.now() }, { caused_by: [event.id] });
  }

  expiry(id: string, ms: number): NodeJS.Timeout {
    return setTimeout(() => this.back(id), ms);
  }

  land(id: string): Flight | undefined {
    const flight = this.flights.get(id);
    if (!flight) return;
    clearTimeout(flight.timer);
    this.flights.delete(id);
    flight.member.held--;
    return flight;
  }

  /** Not done: to be delivered again after `delay`. */
  back(id: string, delay = 0, counted = true): void {
    const flight = this.land(id);
    if (!flight) return;
    if (!counted) this.attempts.set(flight.seq, this.attempts.get(flight.seq)! - 1);
    setTimeout(() => { this.waiting.add(flight.seq); this.run(); }, delay);
  }

  leave(member: Member): void {
    this.members = this.members.filter((other) => other !== member);
    for (const [id, flight] of [...this.flights]) if (flight.member === member) this.back(id);
  }
}

class Conn {
  authed: boolean;
  expiry: NodeJS.Timeout | undefined;
  members = new Map<string, Member>();
  /** A SUBSCRIBE that is not answered: what comes after it waits, as at the real hub. */
  private joining: Promise<void> | undefined;
  constructor(readonly hub: FakeHub, readonly socket: WebSocket) {
    this.authed = !hub.auth;
    socket.on("message", (data) => this.receive(String(data)));
    socket.on("close", () => this.gone());
  }

  send(frame: Json): void {
    if (this.hub.mute || this.socket.readyState !== WebSocket.OPEN) return;
    this.socket.send(JSON.stringify(frame));
  }

  gone(): void {
    clearTimeout(this.expiry);
    for (const member of this.members.values()) this.hub.drop(member);
    this.members.clear();
    this.hub.conns.delete(this);
  }

  private async receive(text: string): Promise<void> {
    if (this.hub.mute || this.socket.readyState !== WebSocket.OPEN) return;
    if (text.length > this.hub.maxFrame) return this.socket.close(1009);
    const frame = JSON.parse(text);
    this.hub.frames.push(frame);
    this.hub.texts.push(text);
    if (frame.op === "SUBSCRIBE") {
      const before = this.joining;
      const mine = this.joining = (async () => { await before; await this.answer(frame); })();
      await mine;
      if (this.joining === mine) this.joining = undefined;
      return;
    }
    if (this.joining) await this.joining;
    await this.answer(frame);
  }

  private async answer(frame: Json): Promise<void> {
    const { corr } = frame;
    try {
      await this.hub.intercept?.(frame);
      this.send({ op: "OK", corr, ...this.handle(frame) });
    } catch (error) {
      if (!(error instanceof Refusal)) throw error;
      this.send({ op: "ERR", corr, code: error.code, msg: error.message, ...error.more });
    }
  }

  private handle(frame: Json): Json {
    if (frame.op === "AUTH") return this.auth(frame.token);
    if (!this.authed) throw new Refusal("unauthorized", "AUTH first");
    const key = `${frame.topic}::${frame.group ?? ""}`;
    switch (frame.op) {
      case "PING": return {};
      case "PUBLISH": return this.publish(frame);
      case "SUBSCRIBE": {
        if (this.members.has(key)) throw new Refusal("already_subscribed", key);
        const member = new Member(this, frame.topic, frame.group, frame.opts ?? {});
        const cursor = this.hub.join(member);
        this.members.set(key, member);
        return { cursor };
      }
    }
    const member = this.members.get(key);
    if (!member) throw new Refusal("not_subscribed", key);
    switch (frame.op) {
      case "UNSUBSCRIBE": this.members.delete(key); this.hub.drop(member); return {};
      case "PAUSE": member.paused = true; return {};
      case "RESUME": member.paused = false; this.hub.runAll(); return {};
    }
    for (const id of frame.ids ?? [frame.id]) {
      const group = [...this.hub.groups.values()].find((g) => g.name === frame.group && member.wants(g.topic) && this.hub.log(g.topic).some((e) => e.id === id));
      const flight = group?.flights.get(id);
      if (frame.lease !== undefined && flight?.lease !== frame.lease) throw new Refusal("lease_lost", `${id} was given out again`);
      if (frame.op === "MODACK") {
        if (!flight) throw new Refusal("unknown_id", `${id} is not in flight`);
        clearTimeout(flight.timer);
        flight.timer = group!.expiry(id, Math.max(1_000, frame.extend_ms));
      } else if (frame.op === "ACK") {
        const event = group && this.hub.log(group.topic).find((e) => e.id === id);
        if (event) { group!.done.add(event.seq); group!.land(id); group!.run(); }
      } else if (frame.op === "NACK") {
        if (flight && frame.reason) group!.reason.set(flight.seq, frame.reason);
        if (flight) group!.back(id, frame.delay_ms ?? 0, !frame.release);
      } else throw new Refusal("bad_request", `op ${frame.op} is unknown`);
    }
    return {};
  }

  private auth(token: unknown): Json {
    const answer = this.hub.auth?.(token as string) ?? {};
    this.authed = true;
    clearTimeout(this.expiry);
    if (answer.exp) this.expiry = setTimeout(() => {
      this.send({ op: "ERR", code: "token_expired", msg: "the token ran out" });
      this.socket.close(4401, "token expired");
    }, answer.exp * 1000 - Date.now());
    return answer;
  }

  private publish(frame: Json): Json {
    if (!TOPIC.test(frame.topic)) throw new Refusal("bad_topic", `${frame.topic} is not a topic`);
    if (!frame.events) return this.hub.append(frame.topic, frame.payload, frame.opts);
    const made = frame.events.map(({ payload, ...opts }: Json) => this.hub.append(frame.topic, payload, opts));
    const duplicates = made.flatMap((m: Json, i: number) => (m.duplicate ? [i] : []));
    return { ids: made.map((m: Json) => m.id), seqs: made.map((m: Json) => m.seq), ...(duplicates.length && { duplicates }) };
  }
}

export class FakeHub {
  topics = new Map<string, Stored[]>();
  ids = new Map<string, Stored>();
  groups = new Map<string, Group>();
  tails = new Set<Member>();
  conns = new Set<Conn>();
  /** Every frame that clients sent. */
  frames: Json[] = [];
  /** The same, as they came. */
  texts: string[] = [];
  leases = 0;
  /** The longest lease that it grants. */
  maxLease = Infinity;
  /** Says no by throwing a Refusal; else may tell `sub` and `exp` (seconds). */
  auth: ((token: string | undefined) => Json) | undefined;
  /** Looks at a frame first; throws a Refusal, waits, or lets it pass. */
  intercept: ((frame: Json) => unknown) | undefined;
  /** Neither reads nor answers: a dead link. */
  mute = false;
  /** Snapshots do not come to their end. */
  cutShort = false;
  /** Closes with 1009 on a larger frame. */
  maxFrame = Infinity;
  private server: WebSocketServer | undefined;
  private port = 0;

  get url(): string { return `ws://127.0.0.1:${this.port}`; }

  async start(): Promise<this> {
    const server = new WebSocketServer({ host: "127.0.0.1", port: this.port, handleProtocols: () => "promethean.v1" });
    this.server = server;
    server.on("connection", (socket) => this.conns.add(new Conn(this, socket)));
    await new Promise((resolve, reject) => server.once("listening", resolve).once("error", reject));
    this.port = (server.address() as AddressInfo).port;
    return this;
  }

  async kill(): Promise<void> {
    const conns = [...this.conns];
    for (const conn of conns) conn.socket.terminate();
    for (const conn of conns) conn.gone();
    await new Promise((resolve) => this.server!.close(resolve));
  }

  log(topic: string): Stored[] {
    if (!this.topics.has(topic)) {
      this.topics.set(topic, []);
      for (const conn of this.conns) for (const m of conn.members.values()) if (m.group !== undefined && m.wants(topic)) this.group(topic, m.group, 0).members.push(m);
    }
    return this.topics.get(topic)!;
  }

  group(topic: string, name: string, start: number): Group {
    const key = `${topic}::${name}`;
    if (!this.groups.has(key)) this.groups.set(key, new Group(this, topic, name, start));
    return this.groups.get(key)!;
  }

  append(topic: string, payload: unknown, opts: Json = {}): Json {
    if (opts.id && !UUID.test(opts.id)) throw new Refusal("bad_id", `${opts.id} is not a UUID`);
    const old = opts.id && this.ids.get(opts.id);
    if (old && old.topic !== topic) throw new Refusal("duplicate_id", `${opts.id} is on ${old.topic}`);
    if (old) return { id: old.id, seq: old.seq, duplicate: true };
    const log = this.log(topic);
    const event: Stored = { id: opts.id ?? randomUUID(), seq: log.length + 1, ts: opts.ts ?? Date.now(), topic, ...opts, payload };
    log.push(event);
    this.ids.set(event.id, event);
    for (const tail of this.tails) this.feed(tail, event);
    this.runAll();
    return { id: event.id, seq: event.seq };
  }

  join(member: Member): Json | undefined {
    const { from = "latest", ts, afterId } = member.opts;
    if (from === "afterId" && !this.ids.has(afterId)) throw new Refusal("unknown_id", `${afterId} is unknown`);
    if (TOPIC.test(member.topic)) this.log(member.topic);
    const names = [...this.topics.keys()].filter((topic) => member.wants(topic));
    const startOf = (topic: string): number => {
      const log = this.log(topic);
      if (from === "earliest") return 0;
      if (from === "ts") return (log.find((e) => e.ts >= ts)?.seq ?? log.length + 1) - 1;
      if (from === "afterId") return this.ids.get(afterId)!.seq;
      return log.length;
    };
    if (member.group === undefined) {
      for (const name of names) {
        const log = this.log(name);
        const events = (from === "snapshot" ? latest(log) : log.slice(startOf(name))).filter((event) => wanted(member.opts.filter, event));
        const cut = this.cutShort ? undefined : log.at(-1)?.id;
        for (const event of events) member.push(event, { ...TAIL, ...(from === "snapshot" && { snapshot: true, ...(event === events.at(-1) && { cut }) }) });
      }
      this.tails.add(member);
      return;
    }
    const groups = names.map((name) => this.group(name, member.group!, startOf(name)));
    for (const group of groups) group.members.push(member);
    queueMicrotask(() => groups.forEach((group) => group.run()));
    return { topic: member.topic, seq: groups[0]?.floor ?? 0 };
  }

  drop(member: Member): void {
    this.tails.delete(member);
    for (const group of this.groups.values()) group.leave(member);
  }

  runAll(): void {
    for (const group of this.groups.values()) group.run();
  }

  private feed(tail: Member, event: Stored): void {
    if (tail.wants(event.topic) && wanted(tail.opts.filter, event)) tail.push(event, TAIL);
  }
}

function latest(log: Stored[]): Stored[] {
  const byKey = new Map<string, Stored>();
  for (const event of log) if (event.key !== undefined) byKey.set(event.key, event);
  return [...byKey.values()].filter((event) => event.payload !== null);
}

function wanted(filter: Json | undefined, event: Stored): boolean {
  const { tags, keys, headers } = filter ?? {};
  return (!tags?.length || !!event.tags?.some((tag) => tags.includes(tag)))
    && (!keys?.length || keys.includes(event.key))
    && Object.entries(headers ?? {}).every(([name, value]) => event.headers?.[name] === value);
}

export function matches(pattern: string, topic: string): boolean {
  const go = (p: string[], t: string[]): boolean =>
    !p.length ? !t.length
      : p[0] === "**" ? go(p.slice(1), t) || (t.length > 0 && go(p, t.slice(1)))
        : t.length > 0 && (p[0] === "*" || p[0] === t[0]) && go(p.slice(1), t.slice(1));
  return go(pattern.split("."), topic.split("."));
}
