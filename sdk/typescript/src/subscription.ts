// A subscription that outlives its connections: hands events to a handler or an async iterator and keeps their leases.
// Invariants: an event is in at most one handler here, also when it is delivered again meanwhile; no attempt is spent on
// an event that no handler has seen, while the connection lasts; the queue is bounded by maxInFlight, or for a tail
// by TAIL_EVENTS and TAIL_BYTES and what the hub sends before it reads the PAUSE.
import { A_MOMENT, answersOver, type Answers } from "./answers.js";
import { now, pause, type Timer } from "./clock.js";
import { Delivery } from "./delivery.js";
import { away, PromError, textOf } from "./error.js";
import type { Frame, Link } from "./link.js";
import { payloadsOf, Received } from "./received.js";
import { beginAt, TailPlace } from "./tail.js";
import type { AckOptions, CursorPosition, EventRecord, Filter, NackOptions, ReceivedEvent, SubscribeOptions } from "./types.js";

export type Handler<T = any> = (event: ReceivedEvent<T>, ctx: Delivery<T>) => unknown;

/** A tail is paused when so much waits in it. */
const TAIL_EVENTS = 1_000;
const TAIL_BYTES = 8 << 20;
/** Events asked for where a loop takes one at a time: enough that a quick one does not wait for the hub. */
const LOOP_EVENTS = 10;
/** Replaces halves of characters: the hub takes no JSON with one. */
interface WellFormed { toWellFormed(): string }

/** Handlers that are in their synchronous part: a call from there must not wait for them. */
let inside = 0;
export const insideHandler = (): boolean => inside > 0;

export class Subscription<T = any> implements AsyncIterable<Delivery<T>> {
  /** Resolves with the group's cursor (of several topics: their cursors) once the hub has accepted; rejects if it refuses. */
  readonly ready: Promise<CursorPosition | CursorPosition[] | undefined>;
  /** Resolves when it has ended, with the error if one ended it. */
  readonly closed: Promise<Error | undefined>;

  private _active = new Map<string, Delivery<T>>(); // held for the group: waiting, in a handler, or acked without OK
  private _queue: Delivery<T>[] = [];
  private _bytes = 0; // of the queue
  private _running = 0;
  private _live?: boolean; // the hub has it on this connection
  private _known?: boolean; // the hub had it once
  private _stopping?: boolean;
  private _ended?: boolean;
  private _error: Error | undefined;
  private _paused?: boolean; // by the caller
  private _held?: boolean; // by a full tail
  private _later?: boolean; // a full tail, on a connection that does not have it yet
  private _answers: Answers;
  private _place: TailPlace;
  private _asking: Promise<void> | undefined; // the SUBSCRIBE on its way
  private _granted = 0; // the longest lease that the hub gave
  private _iterating?: boolean;
  private _current: Delivery<T> | undefined;
  private _wanted: (() => void) | undefined;
  private _idle: (() => void) | undefined;
  private _keeper: Timer | undefined;
  private _isReady!: (cursor?: CursorPosition | CursorPosition[]) => void;
  private _notReady!: (error: Error) => void;
  private _isClosed!: (error?: Error) => void;
  private _abort = (): void => void this.unsubscribe();

  /** @internal */
  constructor(
    /** @internal */ readonly _link: Link,
    readonly topic: string,
    readonly group: string | undefined,
    private _options: SubscribeOptions,
    private _handler?: Handler<T>,
  ) {
    this.ready = new Promise((resolve, reject) => { this._isReady = resolve; this._notReady = reject; });
    this.ready.catch(() => {});
    this.closed = new Promise((resolve) => { this._isClosed = resolve; });
    this._place = new TailPlace(topic, _options);
    this._answers = answersOver({
      _send: (op, fields) => this._send(op, fields),
      _sleep: (ms) => _link._sleep(ms),
      _open: () => !!this._live,
      _stale: (id, lease) => lease !== undefined && (this._active.get(id)?.lease ?? lease) !== lease,
    });
    _options.signal?.addEventListener("abort", this._abort);
    if (_options.signal?.aborted) this._finish();
    else if (_link._state === "open") this._up();
  }

  /** Stops deliveries until `resume`. */
  pause(): Promise<void> {
    this._paused = true;
    return this._link._mind(this._tell());
  }

  resume(): Promise<void> {
    this._paused = false;
    return this._link._mind(this._tell());
  }

  /**
   * Ends it: events that wait here go back uncounted, no handler starts any more. Handlers that run may finish and ack;
   * `closed` resolves after the last of them.
   */
  async unsubscribe(): Promise<void> {
    if (this._stopping || this._ended) return void (this._running || (await this.closed));
    this._stopping = true;
    await this._asking; // what the hub is about to grant has to be given up, too
    await this._tell().catch(() => {});
    await this._release(); // with what came before the pause
    this._wanted?.();
    const drained = this._drain();
    if (!this._running) await drained;
  }

  async *[Symbol.asyncIterator](): AsyncIterator<Delivery<T>> {
    if (this._handler || this._iterating) throw new TypeError("one handler or one iterator");
    this._iterating = true;
    try {
      for (;;) {
        const next = this._stopping ? undefined : this._take();
        if (next) {
          this._current = next;
          if (!this._begin(next)) yield next;
          this._current = undefined;
          this._leave(next);
          if (!this._manual) this._auto(next);
        } else if (this._stopping || this._ended) {
          if (this._error) throw this._error;
          return;
        } else {
          await new Promise<void>((resolve) => { this._wanted = resolve; });
        }
      }
    } finally {
      // Left by break or throw, which look the same from here: the attempt counts, so that a poison event ends as a dead letter.
      const current = this._current;
      if (current) {
        this._current = undefined;
        if (!this._manual && !current._settled) this._quiet(current.nack({ reason: "the loop was left" }));
        this._leave(current);
      }
      await this.unsubscribe();
    }
  }

  // ---- the connection

  /** @internal */
  _up(): void {
    if (this._stopping && !this._running && !this._answers._busy()) return this._finish(); // nothing is left to say
    this._later = !this.group && this._full;
    if (this._later) return; // when it is read: each SUBSCRIBE brings a burst
    const opts = this._opts();
    this._asking = this._call("SUBSCRIBE", { opts }).then(
      (answer) => {
        if (this._ended) return;
        this._live = this._known = true;
        if (!this.group) this._place._granted(answer.resume);
        this._isReady(answer.cursor);
        if (this._paused || this._stopping) this._quiet(this._tell());
        this._answers._flush();
      },
      async (error: PromError) => {
        const { code } = error;
        // A hub that shuts down closes the connection, and the next one takes it up.
        if (this._ended || code === "disconnected" || code === "shutting_down") return;
        if ((code === "unknown_id" || code === "bad_request") && this._place._lost()) {
          this._up();
          return this._asking;
        }
        if (this._known) this._link._report(error); // `ready` has resolved long ago
        const late = code === "timeout"; // the hub may have it all the same, or be about to
        if (this._known && (late || code === "ack_failed")) {
          if (late) await this._call("UNSUBSCRIBE", {}).catch(() => {});
          this._again(error);
        } else if (late) {
          // Ended like one that was granted: events are released, and the name is free when the hub has answered.
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
    if (error.code !== "ack_failed" && error.code !== "rate_limited") return this._fail(error);
    // Its OK may have come in the same turn, and not be seen yet.
    void this._asking?.then(() => this._live && this._again(error));
  }

  /** Asks again after a moment, on this connection: another one asks by itself. */
  private _again(error: PromError): void {
    this._down();
    this._link._sleep(error.retryAfterMs ?? A_MOMENT).then(() => this._ended || this._up(), () => {});
  }

  /**
   * @internal The hub redelivers everything, so events that no handler has are dropped here. A tail resumes after the events it
   * was sent: they stay.
   */
  _down(): void {
    this._live = this._held = this._later = false;
    this._answers._down();
    if (this.group) {
      this._empty();
      this._active.forEach((delivery, id) => delivery._stage === "run" || delivery._settled || this._active.delete(id));
    }
    if (this._stopping && !this._running && !this._answers._busy()) this._finish();
  }

  /** @internal */
  _fail(error: Error): void {
    if ((error as PromError).code !== "closed") this._error ??= error;
    for (const delivery of this._active.values()) delivery._lose(error.message);
    this._finish();
  }

  /** @internal */
  _deliver(list: { event: EventRecord<T>; ctx: Partial<Delivery> }[], text: string, depth: number): void {
    this._live = true; // its OK may have come in the same turn, and not be seen yet
    const payload = payloadsOf(text, depth);
    const size = text.length / list.length;
    for (const [index, { event, ctx }] of list.entries()) {
      if (!this.group) this._place._saw(event, ctx);
      if (this._ended || (this._stopping && !this.group)) continue;
      const known = this._active.get(event.id);
      if (known && (known._stage !== "out" || known._settled)) {
        known._renew(ctx);
        continue;
      }
      const received = new Received(event, payload, index, this._link._options.parse) as unknown as ReceivedEvent<T>;
      const delivery = new Delivery<T>(received, this, ctx, size);
      if (this._place._restarted) delivery.restarted = true;
      this._place._restarted = false;
      if (this.group) {
        this._active.set(event.id, delivery);
        this._granted = Math.max(this._granted, delivery.ack_deadline_ms);
      }
      this._queue.push(delivery);
      this._bytes += size;
    }
    if (!this.group && this._full && !this._held) this._hold(true);
    this._watch();
    this._pump();
  }

  private _opts(): Record<string, unknown> {
    const { ack, manualAck, concurrency, autoExtend, maxExtendMs, signal, ...wire } = this._options; // the first ones are ours
    const opts: Record<string, unknown> = { batch: true, maxInFlight: this._most, ...wire };
    if (!this.group) Object.assign(opts, this._place._again());
    // The group has a cursor where it stood; this is for topics of a pattern that appeared meanwhile.
    else if (this._known && opts.from !== "snapshot") Object.assign(opts, beginAt("earliest"));
    return opts;
  }

  /** Most events to ask for: little more than are worked on at a time. */
  private get _most(): number | undefined {
    const { concurrency } = this._options;
    if (!this.group || this._manual) return;
    return this._handler ? concurrency && Math.min(2 * concurrency, 10_000) : LOOP_EVENTS;
  }

  private _send(op: string, fields: object): Promise<Frame> {
    return this._link._call({ op, topic: this.topic, group: this.group, ...fields });
  }

  /** A call that waits and repeats itself when the hub asks for patience, on the same connection. */
  private async _call(op: string | (() => string), fields: object): Promise<Frame> {
    for (;;) {
      try {
        return await this._send(typeof op === "string" ? op : op(), fields);
      } catch (error) {
        if ((error as PromError).code !== "rate_limited") throw error;
        await this._link._sleep((error as PromError).retryAfterMs ?? A_MOMENT);
        if (this._ended) throw error; // another one may have its name by now
      }
    }
  }

  /** Sends the state that is wanted when the frame leaves: one that had to wait must not undo a later one. */
  private async _tell(): Promise<void> {
    if (this._live) await this._call(() => this._paused || this._held || this._stopping ? "PAUSE" : "RESUME", {});
  }

  private _hold(held: boolean): void {
    this._held = held;
    if (!this._paused) this._quiet(this._tell());
  }

  private _quiet(promise: Promise<unknown>): void {
    promise.catch((error) => { if (!this._ended && error.code !== "disconnected") this._link._report(error); });
  }

  private _auto(delivery: Delivery<T>): void {
    if (!delivery._settled) this._quiet(delivery._settled = this._ack(delivery));
  }

  // ---- handing out

  private get _manual(): boolean {
    return this._options.ack === "manual" || !!this._options.manualAck;
  }

  /** The lease of an event: the one asked for, or less if the hub grants less. */
  private get _lease(): number {
    return Math.min(this._options.ackTimeoutMs ?? 30_000, this._granted || Infinity);
  }

  private get _full(): boolean {
    return this._queue.length >= TAIL_EVENTS || this._bytes >= TAIL_BYTES;
  }

  private _empty(): Delivery<T>[] {
    this._bytes = 0;
    return this._queue.splice(0);
  }

  private _take(): Delivery<T> | undefined {
    for (;;) {
      const next = this._queue.shift();
      if (next) this._bytes -= next._size;
      if (this._queue.length < TAIL_EVENTS / 2 && this._bytes < TAIL_BYTES / 2) {
        if (this._held) this._hold(false);
        if (this._later && !this._ended) this._up();
      }
      if (!next || next._deadline > now()) return next;
      this._active.delete(next.event.id); // its lease ran out while nothing could run here: the hub has given it out again
    }
  }

  /** Answers with the ack of an event that the caller's function does not want. */
  private _begin(delivery: Delivery<T>): unknown {
    delivery._stage = "run";
    delivery._since = now();
    this._running++;
    const filter = this._options.filter as Exclude<SubscribeOptions["filter"], Filter>; // in no frame: JSON has no functions
    return filter?.call && !filter(delivery.event) && delivery.ack();
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
    try {
      let result;
      inside++;
      try {
        result = this._begin(delivery) || this._handler!(delivery.event, delivery);
      } finally {
        inside--;
      }
      await result;
      if (!this._manual) this._auto(delivery);
    } catch (error) {
      this._link._report(error, { event: delivery.event, attempt: delivery.attempt, topic: this.topic, group: this.group });
      this._quiet(delivery.nack({ reason: textOf(error).slice(0, 1_000) }));
    } finally {
      this._leave(delivery);
      this._pump();
    }
  }

  // ---- acks and leases

  /** @internal */
  _ack({ event: { id }, lease }: Delivery<T>, options?: AckOptions): Promise<void> {
    if (!this.group) return Promise.resolve();
    return this._answers._add("ACK", id, undefined, options?.fence ? { lease } : undefined, () => this._active.delete(id));
  }

  /** @internal Settled by id, past the delivery. */
  _forget(id: string): void {
    const delivery = this._active.get(id);
    this._active.delete(id);
    if (delivery) delivery._settled ??= Promise.resolve();
  }

  /** @internal */
  async _nack({ event: { id }, lease }: Delivery<T>, { reason, delayMs, release }: NackOptions = {}): Promise<void> {
    if (!this.group) return;
    this._active.delete(id);
    if (!this._live) return; // the hub gives it back by itself
    try {
      await this._answers._add("NACK", id, lease, { reason: (reason as WellFormed | undefined)?.toWellFormed(), delay_ms: delayMs, release });
    } catch (error) {
      // Both mean that it will be delivered again, which is all a nack wants.
      if (!["disconnected", "lease_lost"].includes((error as PromError).code)) throw error;
    }
  }

  /** @internal */
  async _extend(delivery: Delivery<T>, ms: number): Promise<void> {
    if (!this.group) return;
    if (!this._live) throw away();
    delivery._extending = true;
    try {
      await this._answers._add("MODACK", delivery.event.id, delivery.lease, { extend_ms: ms });
      delivery._deadline = now() + Math.max(1_000, ms);
    } catch (error) {
      const { code, message } = error as PromError;
      if (code === "lease_lost" || code === "unknown_id") delivery._lose(message);
      throw error;
    } finally {
      delivery._extending = false;
    }
  }

  /** Looks after the leases while there are any. */
  private _watch(): void {
    if (this._active.size && !this._keeper && !this._ended) this._keeper = setTimeout(() => {
      this._keeper = undefined;
      this._keep();
      this._watch();
    }, Math.max(50, this._lease / 4));
  }

  private _keep(): void {
    if (!this._live) return;
    const { autoExtend = true, maxExtendMs = 3_600_000 } = this._options;
    const time = now();
    for (const [id, delivery] of this._active) {
      const left = delivery._deadline - time;
      if (delivery._settled) continue;
      if (delivery._stage === "out") {
        if (left < 0) this._active.delete(id); // handed on and not settled in time: somebody else's now
        continue;
      }
      if (!delivery._deadline || delivery._extending || left > this._lease / 2) continue;
      if (autoExtend && time - delivery._since <= maxExtendMs) {
        this._extend(delivery, this._lease).catch(() => {}); // a lost lease shows in delivery.signal
      } else if (delivery._stage === "wait") {
        this._queue.splice(this._queue.indexOf(delivery), 1);
        this._bytes -= delivery._size;
        this._quiet(delivery.nack({ release: true }));
      }
    }
  }

  // ---- the end

  /** Releases the events of the queue. */
  private async _release(): Promise<void> {
    await Promise.all(this._empty().map((delivery) => this._nack(delivery, { release: true }).catch(() => {})));
  }

  private async _drain(): Promise<void> {
    if (this._running) await new Promise<void>((resolve) => { this._idle = resolve; });
    await this._asking; // a SUBSCRIBE on a connection that came meanwhile
    while (this._answers._busy() && !this._ended) await pause(5);
    await this._release();
    if (this._live) await this._call("UNSUBSCRIBE", {}).catch(() => {});
    this._finish();
  }

  private _finish(): void {
    if (this._ended) return;
    this._ended = true;
    this._live = false;
    clearTimeout(this._keeper);
    this._options.signal?.removeEventListener("abort", this._abort);
    const error = this._error ?? new PromError("closed", "the subscription has ended");
    this._notReady(error);
    this._answers._fail(error);
    this._isClosed(this._error);
    this._wanted?.();
    this._idle?.();
  }
}
