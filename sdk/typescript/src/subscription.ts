// A subscription that outlives its connections: hands events to a handler or an async iterator, keeps their leases,
// sends their acks in bundles.
// Invariants: an event is in at most one handler here, also when it is delivered again meanwhile; an ack stays until
// the hub has answered it, over reconnects; never more than maxInFlight events wait here (a tail is paused instead).
import { Delivery } from "./delivery.js";
import { PromError } from "./error.js";
import type { Frame, Link } from "./link.js";
import type { AckOptions, CursorPosition, EventRecord, NackOptions, SubscribeOptions } from "./types.js";

export type Handler<T = any> = (event: EventRecord<T>, ctx: Delivery<T>) => unknown;

interface Acks {
  _ids: string[];
  _result: Promise<void>;
  _done: (error?: unknown) => void;
}

/** Local options: the hub does not know them. */
const LOCAL = new Set(["ack", "manualAck", "concurrency", "autoExtend", "maxExtendMs", "signal"]);
const TAIL_HIGH_WATER = 1_000;
/** Half of a character: the hub takes no JSON with one. */
const LONE = /[\ud800-\udfff]/gu;
/** How long to wait where the hub does not say. */
const A_MOMENT = 1_000;

export class Subscription<T = any> implements AsyncIterable<Delivery<T>> {
  /** Resolves with the group's cursor (of several topics: their cursors) once the hub has accepted; rejects if it refuses. */
  readonly ready: Promise<CursorPosition | CursorPosition[] | undefined>;
  /** Resolves when it has ended, with the error if one ended it. */
  readonly closed: Promise<Error | undefined>;

  private _active = new Map<string, Delivery<T>>(); // held for the group: waiting, in a handler, or acked without OK
  private _queue: Delivery<T>[] = [];
  private _running = 0;
  private _live = false; // the hub has it on this connection
  private _known = false; // the hub had it once
  private _stopping = false;
  private _ended = false;
  private _error: Error | undefined;
  private _paused = false; // by the caller
  private _held = false; // by a full tail
  private _acks: Acks | undefined; // collecting
  private _sent: Acks | undefined; // on their way
  private _asking: Promise<void> | undefined; // the SUBSCRIBE on its way
  private _lastId: string | undefined; // what a tail goes on after
  private _began = false; // something was delivered
  private _restarted = false; // a tail's snapshot begins again, and the next delivery has to say so
  private _iterating = false;
  private _current: Delivery<T> | undefined;
  private _wanted: (() => void) | undefined;
  private _idle: (() => void) | undefined;
  private _lease: ReturnType<typeof setInterval> | undefined;
  private _isReady!: (cursor?: CursorPosition | CursorPosition[]) => void;
  private _notReady!: (error: Error) => void;
  private _isClosed!: (error?: Error) => void;
  private _abort = (): void => void this.unsubscribe();

  /** @internal */
  constructor(
    private _link: Link,
    readonly topic: string,
    readonly group: string | undefined,
    private _options: SubscribeOptions,
    private _handler?: Handler<T>,
  ) {
    this.ready = new Promise((resolve, reject) => { this._isReady = resolve; this._notReady = reject; });
    this.ready.catch(() => {});
    this.closed = new Promise((resolve) => { this._isClosed = resolve; });
    _options.signal?.addEventListener("abort", this._abort);
    if (group)
      this._lease = setInterval(() => this._keep(), Math.max(50, this._timeout / 4));
    if (_options.signal?.aborted) this._finish();
    else if (_link.state === "open") this._up();
  }

  /** Stops deliveries until `resume`. */
  pause(): Promise<void> {
    this._paused = true;
    return this._tell();
  }

  resume(): Promise<void> {
    this._paused = false;
    return this._tell();
  }

  /**
   * Ends it: what waits here goes back uncounted, no handler starts any more. Handlers that run may finish and ack;
   * `closed` resolves after the last of them.
   */
  async unsubscribe(): Promise<void> {
    if (this._stopping || this._ended) return this._running ? undefined : void (await this.closed);
    this._stopping = true;
    await this._asking; // what the hub is about to grant has to be given up, too
    await this._tell().catch(() => {});
    await this._release(); // with what came before the pause
    this._wanted?.();
    const drained = this._drain();
    if (!this._running) await drained;
  }

  async *[Symbol.asyncIterator](): AsyncIterator<Delivery<T>> {
    if (this._handler || this._iterating) throw new TypeError("a subscription has one handler or one iterator");
    this._iterating = true;
    try {
      for (;;) {
        const next = this._stopping ? undefined : this._take();
        if (next) {
          this._begin(next);
          this._current = next;
          yield next;
          this._current = undefined;
          this._leave(next);
          if (!this._manual) this._quiet(next.ack());
        } else if (this._stopping || this._ended) {
          if (this._error) throw this._error;
          return;
        } else {
          await new Promise<void>((resolve) => { this._wanted = resolve; });
        }
      }
    } finally {
      // Left by break or throw: whether the event is done is for the caller to say; unsaid, it goes back.
      const current = this._current;
      if (current) {
        this._current = undefined;
        if (!this._manual && !current._settled) this._quiet(current.nack({ release: true }));
        this._leave(current);
      }
      await this.unsubscribe();
    }
  }

  // ---- the connection

  /** @internal */
  _up(): void {
    const frame = this._frame();
    this._asking = this._call("SUBSCRIBE", frame).then(
      (answer) => {
        if (this._ended) return;
        this._live = this._known = true;
        this._isReady(answer.cursor);
        if (this._paused || this._stopping) this._quiet(this._tell());
        this._flush();
      },
      async (error: PromError) => {
        if (error.code === "disconnected" || this._ended) return;
        if (error.code === "unknown_id" && frame.opts.afterId !== this._options.afterId) {
          this._lastId = undefined; // the tail's last event is gone: go on at the live end, or begin with the state again
          if (this._options.from !== "snapshot") this._options = { ...this._options, from: "latest" };
          this._up();
          return this._asking;
        }
        // A hub that shuts down closes the connection, and the next one takes it up.
        if (this._known && error.code === "shutting_down") return;
        if (this._known) this._link.report(error); // nobody waits for `ready` any more
        const late = error.code === "timeout"; // the hub may have it all the same, or be about to
        if (this._known && (late || error.code === "ack_failed")) {
          if (late) await this._call("UNSUBSCRIBE", {}).catch(() => {});
          this._again(error);
        } else if (late) {
          // Left as one that was there, what came goes back uncounted; the name is free when the hub has answered.
          this._error = error;
          this._notReady(error);
          this._live = true;
          void this.unsubscribe();
        } else this._fail(error);
      },
    );
  }

  /** @internal The hub has ended it: for good, or because it cannot serve it at the moment. */
  _end(error: PromError): void {
    if (!["ack_failed", "rate_limited"].includes(error.code)) return this._fail(error);
    // Its OK may have come in the same turn, and not be seen yet.
    void this._asking?.then(() => this._live && this._again(error));
  }

  /** Asks again after a moment, on this connection: another one asks by itself. */
  private _again(error: PromError): void {
    this._down();
    this._link.sleep(error.retryAfterMs ?? A_MOMENT).then(() => this._ended || this._up(), () => {});
  }

  /**
   * @internal The hub gives everything back, so what no handler has yet is not ours any more. A tail goes on after what it
   * was sent: that stays.
   */
  _down(): void {
    this._live = this._held = false;
    if (!this.group) return;
    this._queue = [];
    for (const [id, delivery] of this._active) if (delivery._stage !== "run" && !delivery._settled) this._active.delete(id);
  }

  /** @internal */
  _fail(error: Error): void {
    if ((error as PromError).code !== "closed") this._error ??= error;
    for (const delivery of this._active.values()) delivery._lose(error.message);
    this._finish();
  }

  /** @internal */
  _deliver(list: { event: EventRecord<T>; ctx: object }[]): void {
    for (const { event, ctx } of list) {
      const { snapshot, cut } = ctx as Partial<Delivery>;
      // A snapshot comes in the order of its keys: one that was cut short starts over, a whole one is gone on after.
      this._lastId = (snapshot ? cut : event.id) ?? this._lastId;
      this._began = true;
      if (this._ended || (this._stopping && !this.group)) continue;
      const known = this._active.get(event.id);
      if (known && (known._stage !== "out" || known._settled)) {
        known._renew(ctx);
        continue;
      }
      const delivery = new Delivery<T>(event, this, ctx);
      if (this._restarted) delivery.restarted = true;
      this._restarted = false;
      if (this.group) this._active.set(event.id, delivery);
      this._queue.push(delivery);
    }
    if (!this.group && this._queue.length >= TAIL_HIGH_WATER && !this._held) this._hold(true);
    this._pump();
  }

  private _frame(): { opts: SubscribeOptions } {
    const opts: Record<string, unknown> = { batch: true };
    for (const [name, value] of Object.entries(this._options)) if (!LOCAL.has(name)) opts[name] = value;
    // A tail has no cursor at the hub: it goes on after the last event it saw. A snapshot that is not whole, or of several
    // topics, begins again.
    if (!this.group && this._began) {
      const single = !opts.topics && !this.topic.includes("*");
      if (single && this._lastId) Object.assign(opts, { from: "afterId", afterId: this._lastId });
      else if (opts.from === "snapshot") this._restarted = true;
      else opts.from = "latest";
    }
    return { opts };
  }

  /** A call that waits and repeats itself when the hub asks for patience, on the same connection. */
  private async _call(op: string | (() => string), fields: object): Promise<Frame> {
    for (;;) {
      try {
        const group = this.group === undefined ? {} : { group: this.group };
        return await this._link.call({ op: typeof op === "string" ? op : op(), topic: this.topic, ...group, ...fields });
      } catch (error) {
        if ((error as PromError).code !== "rate_limited") throw error;
        await this._link.sleep((error as PromError).retryAfterMs ?? A_MOMENT);
        if (this._ended) throw error; // another one may have its name by now
      }
    }
  }

  /** Tells the hub what is wanted when the frame leaves: one that had to wait must not undo a later one. */
  private async _tell(): Promise<void> {
    if (this._live) await this._call(() => this._paused || this._held || this._stopping ? "PAUSE" : "RESUME", {});
  }

  private _hold(held: boolean): void {
    this._held = held;
    if (!this._paused) this._quiet(this._tell());
  }

  private _quiet(promise: Promise<unknown>): void {
    promise.catch((error) => { if (!this._ended && error.code !== "disconnected") this._link.report(error); });
  }

  // ---- handing out

  private get _manual(): boolean {
    return this._options.ack === "manual" || this._options.manualAck === true;
  }

  private get _timeout(): number {
    return this._options.ackTimeoutMs ?? 30_000;
  }

  private _take(): Delivery<T> | undefined {
    for (;;) {
      const next = this._queue.shift();
      if (this._held && this._queue.length < TAIL_HIGH_WATER / 2) this._hold(false);
      if (!next || next._deadline > Date.now()) return next;
      this._active.delete(next.event.id); // its lease ran out while it waited: the hub has given it out again
    }
  }

  private _begin(delivery: Delivery<T>): void {
    delivery._stage = "run";
    this._running++;
  }

  private _leave(delivery: Delivery<T>): void {
    delivery._stage = "out";
    if (!--this._running) this._idle?.();
  }

  private _pump(): void {
    if (!this._handler) return this._wanted?.();
    const most = this._options.concurrency ?? this._options.maxInFlight ?? 100;
    while (this._running < most && !this._stopping && !this._ended) {
      const next = this._take();
      if (!next) return;
      void this._run(next);
    }
  }

  private async _run(delivery: Delivery<T>): Promise<void> {
    this._begin(delivery);
    try {
      await this._handler!(delivery.event, delivery);
      if (!this._manual) this._quiet(delivery.ack());
    } catch (error) {
      if (!this.group) this._link.report(error);
      else this._quiet(delivery.nack({ reason: String((error as Error)?.message ?? error).slice(0, 1_000) }));
    }
    this._leave(delivery);
    this._pump();
  }

  // ---- acks and leases

  /** @internal */
  async _ack(delivery: Delivery<T>, options?: AckOptions): Promise<void> {
    const id = delivery.event.id;
    if (!this.group) return;
    if (options?.fence) {
      await this._call("ACK", { id, lease: delivery.lease }).finally(() => this._active.delete(id));
      return;
    }
    if (!this._acks) {
      let done!: Acks["_done"];
      const result = new Promise<void>((resolve, reject) => { done = (error) => error ? reject(error) : resolve(); });
      this._acks = { _ids: [], _result: result, _done: done };
      void this._soon();
    }
    this._acks._ids.push(id);
    return this._acks._result;
  }

  /** @internal Settled by id, past the delivery. */
  _forget(id: string): void {
    const delivery = this._active.get(id);
    this._active.delete(id);
    if (delivery) delivery._settled ??= Promise.resolve();
  }

  /** A few turns of the microtask queue let the handlers of one burst share a frame. */
  private async _soon(): Promise<void> {
    for (let i = 0; i < 4; i++) await null;
    this._flush();
  }

  private _flush(): void {
    const acks = this._acks;
    if (!acks || !this._live) return; // `_up` comes back to it
    this._acks = undefined;
    this._sent = acks;
    const answered = () => { if (this._sent === acks) this._sent = undefined; };
    this._call("ACK", acks._ids.length > 1 ? { ids: acks._ids } : { id: acks._ids[0] }).then(
      () => {
        answered();
        for (const id of acks._ids) this._active.delete(id);
        acks._done();
      },
      (error: PromError) => {
        answered();
        if (!this._ended && (error.code === "disconnected" || (error.code === "not_subscribed" && !this._live))) {
          // Unanswered: once more when the hub has the subscription again, together with what has come since.
          const since = this._acks as Acks | undefined;
          since?._result.then(() => acks._done(), acks._done);
          if (since) since._ids.push(...acks._ids);
          else this._acks = acks;
          if (this._live) this._flush();
          return;
        }
        for (const id of acks._ids) this._active.delete(id);
        acks._done(error);
      },
    );
  }

  /** @internal */
  async _nack(delivery: Delivery<T>, { reason, delayMs, release }: NackOptions = {}): Promise<void> {
    const { event, lease } = delivery;
    if (!this.group) return;
    this._active.delete(event.id);
    try {
      await this._call("NACK", { id: event.id, lease, reason: reason?.replace(LONE, "\ufffd"), delay_ms: delayMs, release });
    } catch (error) {
      // Both mean that it is on its way to somebody again, which is all a nack wants.
      if (!["disconnected", "lease_lost"].includes((error as PromError).code)) throw error;
    }
  }

  /** @internal */
  async _extend(delivery: Delivery<T>, ms: number): Promise<void> {
    if (!this.group) return;
    try {
      await this._call("MODACK", { id: delivery.event.id, lease: delivery.lease, extend_ms: ms });
      delivery._deadline = Date.now() + Math.max(1_000, ms);
    } catch (error) {
      const { code, message } = error as PromError;
      if (code === "lease_lost" || code === "unknown_id") delivery._lose(message);
      throw error;
    }
  }

  private _keep(): void {
    const now = Date.now();
    if (!this._live) return;
    for (const [id, delivery] of this._active) {
      const left = delivery._deadline - now;
      if (delivery._settled) continue;
      if (delivery._stage === "out") {
        if (left < 0) this._active.delete(id); // handed on and not settled in time: somebody else's now
        continue;
      }
      const tired = this._options.autoExtend === false || now - delivery._since > (this._options.maxExtendMs ?? 3_600_000);
      if (tired || !delivery._deadline || left > this._timeout / 2) continue;
      this._extend(delivery, this._timeout).catch(() => {}); // a lost lease shows in delivery.signal
    }
  }

  // ---- the end

  /** Gives back what waits here. */
  private async _release(): Promise<void> {
    const ids = this._queue.splice(0).map((delivery) => delivery.event.id);
    for (const id of ids) this._active.delete(id);
    if (this._live && this.group && ids.length) await this._call("NACK", { ids, release: true }).catch(() => {});
  }

  private async _drain(): Promise<void> {
    if (this._running) await new Promise<void>((resolve) => { this._idle = resolve; });
    await this._asking; // a SUBSCRIBE on a connection that came meanwhile
    for (let acks; this._live && (acks = this._acks ?? this._sent); ) await acks._result.catch(() => {});
    await this._release();
    if (this._live) await this._call("UNSUBSCRIBE", {}).catch(() => {});
    this._finish();
  }

  private _finish(): void {
    if (this._ended) return;
    this._ended = true;
    this._live = false;
    clearInterval(this._lease);
    this._options.signal?.removeEventListener("abort", this._abort);
    this._notReady(this._error ?? new PromError("closed", "the subscription has ended"));
    this._acks?._done(this._error ?? new PromError("disconnected", "the subscription ended before the ack was stored"));
    this._isClosed(this._error);
    this._wanted?.();
    this._idle?.();
  }
}
