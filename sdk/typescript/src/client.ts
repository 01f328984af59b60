// The client: publishing and subscriptions over one link.
import { PromError } from "./error.js";
import { uuidv7 } from "./id.js";
import { Link, MOST_MS, type Frame } from "./link.js";
import { Subscription, type Handler } from "./subscription.js";
import type {
  AnyTopics, CallOptions, ClientOptions, EventOptions, Pattern, PayloadOf, PublishOptions, Published, State,
  SubscribeOptions, TopicMap,
} from "./types.js";

type Name<M> = keyof M & string;
type Group = string | null | undefined;

const keyOf = (topic: string, group: Group) => `${topic}::${group ?? ""}`;

export class PromClient<M extends TopicMap = AnyTopics> implements AsyncDisposable {
  /** `close()`, for `await using`. */
  declare [Symbol.asyncDispose]: () => Promise<void>;
  private _link: Link;
  private _subs = new Map<string, Subscription>();

  /** `new PromClient(url, token)` as in the seed, or with options. Connects with the first call. */
  constructor(url: string | URL, token?: string | ClientOptions) {
    const subs = this._subs;
    this._link = new Link(String(url), typeof token === "string" ? { token } : token ?? {}, {
      _up: () => subs.forEach((sub) => sub._up()),
      _down: () => subs.forEach((sub) => sub._down()),
      _failed: (error) => subs.forEach((sub) => sub._fail(error)),
      _wanted: () => subs.size > 0,
      _frame: (frame) => this._frame(frame),
    });
  }

  get state(): State {
    return this._link.state;
  }

  /** Resolves once connected and authenticated. Optional: `publish` and `subscribe` connect by themselves. */
  connect(): Promise<void> {
    return this._link.connect();
  }

  /**
   * Publishes and waits until the hub has stored it. Sent again with the same id after a lost connection, so that it
   * is stored once however often that happens.
   */
  publish<K extends Name<M>>(topic: K, payload: M[K], opts?: PublishOptions): Promise<Published>;
  publish<P>(this: PromClient<AnyTopics>, topic: string, payload: P, opts?: PublishOptions): Promise<Published>;
  async publish(topic: string, payload: unknown, { signal, timeoutMs, ...opts }: PublishOptions = {}): Promise<Published> {
    opts.id ??= uuidv7();
    const frame = await this._publish({ op: "PUBLISH", topic, payload, opts }, { signal, timeoutMs }, opts.id);
    return { id: frame.id, seq: frame.seq, ...(frame.duplicate ? { duplicate: true } : {}) };
  }

  /** Publishes all or none, in this order. */
  async publishBatch<K extends Name<M>>(
    topic: K, events: ({ payload: M[K] } & EventOptions)[], { signal, timeoutMs }: CallOptions = {},
  ): Promise<Published[]> {
    const list = events.map((event) => ({ ...event, id: event.id ?? uuidv7() }));
    const { ids, seqs, duplicates = [] } = await this._publish({ op: "PUBLISH", topic, events: list }, { signal, timeoutMs }, list[0]?.id);
    return ids.map((id: string, i: number) => ({ id, seq: seqs[i], ...(duplicates.includes(i) && { duplicate: true }) }));
  }

  /**
   * With a handler: resolves when the hub has accepted; every event runs through the handler, is acked when that is
   * through and nacked when it throws. Without: an async iterable of deliveries. Without a group: an ephemeral tail.
   */
  subscribe<K extends Name<M> | Pattern>(
    topic: K, group: Group, handler: Handler<PayloadOf<M, K>>, opts?: SubscribeOptions,
  ): Promise<Subscription<PayloadOf<M, K>>>;
  subscribe<K extends Name<M> | Pattern>(topic: K, group?: Group, opts?: SubscribeOptions): Subscription<PayloadOf<M, K>>;
  subscribe<P>(
    this: PromClient<AnyTopics>, topic: string, group: Group, handler: Handler<P>, opts?: SubscribeOptions,
  ): Promise<Subscription<P>>;
  subscribe(topic: string, group: Group, last?: Handler | SubscribeOptions, more?: SubscribeOptions): any {
    const handler = typeof last === "function" ? last : undefined;
    const options = (handler ? more : (last as SubscribeOptions | undefined)) ?? {};
    const key = keyOf(topic, group);
    const error = this.state === "closed" ? new PromError("closed", "the client was closed")
      : this._subs.has(key) && new PromError("already_subscribed", key);
    if (error) {
      if (handler) return Promise.reject(error);
      throw error;
    }
    const sub = new Subscription(this._link, topic, group ?? undefined, options, handler);
    this._subs.set(key, sub);
    void sub.closed.then(() => this._subs.get(key) === sub && this._subs.delete(key));
    this._link.wake();
    return handler ? sub.ready.then(() => sub) : sub;
  }

  /** Ends a subscription. */
  async unsubscribe(topic: string, group?: Group): Promise<void> {
    const sub = this._subs.get(keyOf(topic, group));
    if (!sub) throw new PromError("not_subscribed", keyOf(topic, group));
    await sub.unsubscribe();
  }

  /** Acks by id, for handlers that handed the event on (`ack: "manual"`). */
  ack(topic: string, group: string, id: string): Promise<void> {
    return this._settle("ACK", topic, group, { id });
  }

  nack(topic: string, group: string, id: string, reason?: string): Promise<void> {
    return this._settle("NACK", topic, group, { id, reason });
  }

  /** Holds an event for `extend_ms` from now. */
  modAck(topic: string, group: string, id: string, extend_ms: number): Promise<void> {
    return this._settle("MODACK", topic, group, { id, extend_ms });
  }

  /** Lets handlers and publishes finish, for at most `timeoutMs`, gives the rest back and hangs up. */
  async close({ timeoutMs = 5_000 }: { timeoutMs?: number } = {}): Promise<void> {
    const subs = [...this._subs.values()];
    const until = Date.now() + timeoutMs;
    let timer: ReturnType<typeof setTimeout>;
    const late = new Promise<void>((resolve) => { timer = setTimeout(resolve, Math.min(timeoutMs, MOST_MS)); });
    if (this.state === "open") await Promise.race([late, Promise.all(subs.map((sub) => (void sub.unsubscribe(), sub.closed)))]);
    while (this._link.pending && this.state !== "idle" && Date.now() < until) await new Promise((resolve) => setTimeout(resolve, 5));
    clearTimeout(timer!);
    this._link.close();
  }

  private async _publish(frame: Frame, { signal, timeoutMs }: { [K in keyof CallOptions]: CallOptions[K] | undefined }, id?: string): Promise<Frame> {
    try {
      return await this._link.call(frame, true, { ...(signal && { signal }), ...(timeoutMs !== undefined && { timeoutMs }) });
    } catch (error) {
      if (error instanceof PromError && id) error.id = id;
      throw error;
    }
  }

  private async _settle(op: string, topic: string, group: string, fields: object): Promise<void> {
    await this._link.connect();
    await this._link.call({ op, topic, group, ...fields });
    if (op !== "MODACK") this._subs.get(keyOf(topic, group))?._forget((fields as { id: string }).id);
  }

  private _frame(frame: Frame): void {
    const sub = frame.topic === undefined ? undefined : this._subs.get(keyOf(frame.topic, frame.group));
    if (frame.op === "EVENT") sub?._deliver([frame as any]);
    else if (frame.op === "EVENTS") sub?._deliver(frame.events);
    // An ERR that names a subscription ends it, or ends it for now; a hub that shuts down closes the connection, and the
    // next one takes it up.
    else if (frame.op === "ERR" && frame.code !== "shutting_down") sub?._end(new PromError(frame.code, frame.msg, { retryAfterMs: frame.retry_after_ms }));
  }
}

if (Symbol.asyncDispose)
  PromClient.prototype[Symbol.asyncDispose] = function (this: PromClient) {
    return this.close();
  };

/** The seed's other name: connects at once. */
export class EventClient<M extends TopicMap = AnyTopics> extends PromClient<M> {
  constructor(url: string | URL, token?: string | ClientOptions) {
    super(url, token);
    this.connect().catch(() => {}); // whoever calls next is told
  }
}
