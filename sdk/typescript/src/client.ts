// The client: publishing and subscriptions over one link.
import { now, pause } from "./clock.js";
import { closed, PromError } from "./error.js";
import { uuidv7 } from "./id.js";
import { Link, type Frame, type Loose } from "./link.js";
import { insideHandler, Subscription, type Handler } from "./subscription.js";
import type {
  AnyTopics, CallOptions, ClientOptions, Derived, EventOptions, Mapped, Pattern, PayloadOf, PublishOptions, Published, Sendable,
  State, SubscribeOptions, TopicMap,
} from "./types.js";

type Name<M> = keyof M & string;
type Group = string | null | undefined;
type Selector<M> = Name<M> | Pattern | Derived<M>;
/** One address, or several hubs of a cluster: the next one is tried when a connection fails. */
export type Address = string | URL | readonly (string | URL)[];

function addresses(given: Address): string[] {
  return [given].flat().map((one) => {
    let url: URL | undefined;
    try { url = new URL(one); } catch {}
    if (!/^wss?:$/.test(url?.protocol!)) throw new TypeError(`${one} is no WebSocket address; write ws://host:8090`);
    return url!.href;
  });
}

/** Returns the error of an option that would stop everything without a word. */
function wrong(options: object, ...names: string[]): Error | undefined {
  for (const name of names) {
    const value = (options as Record<string, unknown>)[name];
    if (value !== undefined && !(Number(value) >= 1)) return new RangeError(`${name} is ${value}, but must be at least 1`);
  }
  return undefined;
}

const keyOf = (topic: string, group: Group) => `${topic}::${group ?? ""}`;

export class PromClient<M extends TopicMap = AnyTopics> implements AsyncDisposable {
  /** `close()`, for `await using`. */
  declare [Symbol.asyncDispose]: () => Promise<void>;
  private _link: Link;
  private _subs = new Map<string, Subscription>();

  /** Takes one address or several, and a token or options. Connects with the first call. */
  constructor(url: Address, token?: string | ClientOptions) {
    const subs = this._subs;
    const options = typeof token === "string" ? { token } : token ?? {};
    const error = wrong(options, "window", "maxQueue", "maxQueueBytes", "pingMs");
    if (error) throw error;
    this._link = new Link(addresses(url), options, {
      _up: () => subs.forEach((sub) => sub._up()),
      _down: () => subs.forEach((sub) => sub._down()),
      _failed: (error) => subs.forEach((sub) => sub._fail(error)),
      _wanted: () => subs.size > 0,
      _frame: (frame, text) => this._frame(frame, text),
    });
  }

  get state(): State {
    return this._link._state;
  }

  /** Resolves once connected and authenticated. Optional: `publish` and `subscribe` connect by themselves. */
  connect(): Promise<void> {
    return this._link._mind(this._link._connect());
  }

  /**
   * For programs that know of a sleep or a network that is back: dials at once instead of waiting out the back-off, or
   * finds out in a few seconds whether the connection is still there. Browsers' events call it by themselves.
   */
  resumeNow(): void {
    this._link._resume();
  }

  /**
   * Publishes and waits until the hub has stored it. Sent again with the same id after a lost connection, so that it
   * is stored once however often that happens.
   */
  publish<K extends Name<M>>(topic: K, payload: Mapped<M, K>, opts?: PublishOptions): Promise<Published>;
  publish<P>(this: PromClient<AnyTopics>, topic: string, payload: P & Sendable<P>, opts?: PublishOptions): Promise<Published>;
  publish(topic: string, payload: unknown, opts?: PublishOptions): Promise<Published> {
    return this._one(topic, { payload }, undefined, opts);
  }

  /** Publishes a payload that is JSON text already; it is stored as it is, byte for byte. */
  publishRaw(topic: Name<M>, text: string, opts?: PublishOptions): Promise<Published> {
    return this._one(topic, {}, text, opts);
  }

  private _one(topic: string, fields: object, text: string | undefined, { signal, timeoutMs, ...opts }: PublishOptions = {}): Promise<Published> {
    opts.id ??= uuidv7();
    return this._publish({ op: "PUBLISH", topic, ...fields, opts }, { signal, timeoutMs }, [opts.id],
      ({ id, seq, duplicate }) => ({ id, seq, ...(duplicate && { duplicate }) }), text);
  }

  /** Publishes all or none, in this order. */
  publishBatch<K extends Name<M>>(topic: K, events: ({ payload: M[K] & Sendable<M[K]> } & EventOptions)[], opts?: CallOptions): Promise<Published[]> {
    const list = events.map((event) => ({ ...event, id: event.id ?? uuidv7() }));
    return this._publish({ op: "PUBLISH", topic, events: list }, (opts ?? {}) as Loose<CallOptions>, list.map((event) => event.id),
      ({ ids, seqs, duplicates = [] }) => ids.map((id: string, i: number) => ({ id, seq: seqs[i], ...(duplicates.includes(i) && { duplicate: true }) })));
  }

  /**
   * With a handler: resolves when the hub has accepted; every event runs through the handler, is acked when that is
   * through and nacked when it throws. Without: an async iterable of deliveries. Without a group: an ephemeral tail.
   */
  subscribe<K extends Selector<M>>(
    topic: K, group: Group, handler: Handler<PayloadOf<M, K>>, opts?: SubscribeOptions,
  ): Promise<Subscription<PayloadOf<M, K>>>;
  subscribe<K extends Selector<M>>(topic: K, group?: Group, opts?: SubscribeOptions): Subscription<PayloadOf<M, K>>;
  subscribe<P>(
    this: PromClient<AnyTopics>, topic: string, group: Group, handler: Handler<P>, opts?: SubscribeOptions,
  ): Promise<Subscription<P>>;
  subscribe(topic: string, group: Group, last?: Handler | SubscribeOptions, more?: SubscribeOptions): any {
    const handler = typeof last === "function" ? last : undefined;
    const options = (handler ? more : (last as SubscribeOptions | undefined)) ?? {};
    const key = keyOf(topic, group);
    const error = wrong(options, "concurrency", "maxInFlight") ?? (this.state === "closed" ? closed()
      : this._subs.has(key) && new PromError("already_subscribed", key));
    if (error) {
      if (handler) return this._link._mind(Promise.reject(error));
      throw error;
    }
    const sub = new Subscription(this._link, topic, group ?? undefined, options, handler);
    this._subs.set(key, sub);
    void sub.closed.then(() => this._subs.get(key) === sub && this._subs.delete(key));
    this._link._wake();
    return handler ? this._link._mind(sub.ready.then(() => sub)) : sub;
  }

  /** Ends a subscription. */
  unsubscribe(topic: string, group?: Group): Promise<void> {
    const sub = this._subs.get(keyOf(topic, group));
    return this._link._mind(sub ? sub.unsubscribe() : Promise.reject(new PromError("not_subscribed", keyOf(topic, group))));
  }

  /** Acks by id, for handlers that handed the event on (`ack: "manual"`). */
  ack(topic: string, group: string, id: string): Promise<void> {
    return this._link._mind(this._settle("ACK", topic, group, { id }));
  }

  nack(topic: string, group: string, id: string, reason?: string): Promise<void> {
    return this._link._mind(this._settle("NACK", topic, group, { id, reason }));
  }

  /** Holds an event for `extend_ms` from now. */
  modAck(topic: string, group: string, id: string, extend_ms: number): Promise<void> {
    return this._link._mind(this._settle("MODACK", topic, group, { id, extend_ms }));
  }

  /**
   * Lets running handlers finish, waits until the hub has their acks and all publishes, also while the connection is away,
   * releases waiting events, and hangs up: after `timeoutMs` (10 000) at the latest. Called by a handler before it awaits
   * anything, it returns at once, and the rest happens when the handler has returned.
   */
  async close({ timeoutMs = 10_000 }: { timeoutMs?: number } = {}): Promise<void> {
    const closing = this._close(timeoutMs);
    if (!insideHandler()) await closing;
  }

  private async _close(timeoutMs: number): Promise<void> {
    const until = now() + timeoutMs;
    if (timeoutMs > 0) this._subs.forEach((sub) => void sub.unsubscribe());
    while ((this._subs.size || (this._link._pending && this.state !== "idle")) && now() < until) await pause(5);
    this._link._close();
  }

  private _publish<R>(frame: Frame, options: Loose<CallOptions>, ids: string[], made: (answer: Frame) => R, text?: string): Promise<R> {
    return this._link._tell((done, failed) => this._link._begin(frame, true, options, (error, answer) => {
      if (answer) done(made(answer));
      else failed(error instanceof PromError && ids.length ? error._for(ids) : error);
    }, text));
  }

  private async _settle(op: string, topic: string, group: string, fields: object): Promise<void> {
    await this._link._connect();
    await this._link._call({ op, topic, group, ...fields });
    if (op !== "MODACK") this._subs.get(keyOf(topic, group))?._forget((fields as { id: string }).id);
  }

  private _frame(frame: Frame, text: string): void {
    const sub = frame.topic === undefined ? undefined : this._subs.get(keyOf(frame.topic, frame.group));
    const { op, events } = frame;
    if (/^EVENT/.test(op)) sub?._deliver(events ?? [frame], text, events ? 4 : 2);
    // An ERR that names a subscription ends it, or ends it for now; a hub that shuts down closes the connection, and the
    // next one takes it up.
    else if (op === "ERR" && frame.code !== "shutting_down") sub?._end(new PromError(frame.code, frame.msg, { retryAfterMs: frame.retry_after_ms }));
  }
}

if (Symbol.asyncDispose)
  PromClient.prototype[Symbol.asyncDispose] = function (this: PromClient) {
    return this.close();
  };

/** The name of the TypeScript bus: connects at once. */
export class EventClient<M extends TopicMap = AnyTopics> extends PromClient<M> {
  constructor(url: Address, token?: string | ClientOptions) {
    super(url, token);
    void this.connect();
  }
}
