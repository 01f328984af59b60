// One delivery: the event, its lease, and ack, nack, extend.
import { now } from "./clock.js";
import { PromError } from "./error.js";
import type { Subscription } from "./subscription.js";
import type { AckOptions, NackOptions, ReceivedEvent } from "./types.js";

export class Delivery<T = unknown> {
  /** The number of this delivery, from 1. */
  attempt!: number;
  /** Deliveries before it becomes a dead letter; 0: no limit. */
  maxAttempts!: number;
  /** Time of its lease that was left when it arrived. */
  ack_deadline_ms!: number;
  /** The fence: another delivery of the event has another number. */
  lease?: number;
  /** Part of a snapshot start: the key's state, not news. */
  snapshot?: boolean;
  /** Delivered again after it was dead-lettered: `attempt` counts from 1 anew. */
  redriven?: boolean;
  /** With the last event of a tail's snapshot: the id of the event at which the snapshot was taken. */
  cut?: string;
  /**
   * The snapshot of a tail begins again with this event: forget the state that came before, or keys that went meanwhile stay.
   * Where no key is left, the next live event says it.
   */
  restarted?: boolean;
  /** @internal since when it waits or runs, until when we hold it, and where it is: in the queue, in a handler, or handed on */
  _since = now();
  /** @internal */ _deadline = Infinity;
  /** @internal */ _stage: "wait" | "run" | "out" = "wait";
  /** @internal */ _settled: Promise<void> | undefined;
  /** @internal a MODACK is on its way */ _extending?: boolean;
  private _abort: AbortController | undefined;

  /** @internal */
  constructor(readonly event: ReceivedEvent<T>, readonly subscription: Subscription<any>, ctx: object, /** @internal */ readonly _size: number) {
    this._renew(ctx);
  }

  /** Aborted when the event is no longer ours (`lease_lost`) or the subscription ends by force. */
  get signal(): AbortSignal {
    return (this._abort ??= new AbortController()).signal;
  }

  /** Done with it. Resolves when the hub has stored that. */
  ack(options?: AckOptions): Promise<void> {
    return (this._settled ??= this.subscription._link._mind(this.subscription._ack(this, options)));
  }

  /** Not done: to be delivered again. */
  nack(options?: NackOptions): Promise<void> {
    return (this._settled ??= this.subscription._link._mind(this.subscription._nack(this, options)));
  }

  /** Holds it for `ms` from now (at least 1 000). */
  extend(ms: number): Promise<void> {
    return this.subscription._link._mind(this.subscription._extend(this, ms));
  }

  /** @internal */
  _renew(ctx: object): void {
    Object.assign(this, ctx);
    // A tail has no leases: its deadline says 0.
    if (this.subscription.group && "ack_deadline_ms" in ctx) this._deadline = now() + this.ack_deadline_ms;
  }

  /** @internal */
  _lose(why: string): void {
    this._deadline = 0;
    this._abort?.abort(new PromError("lease_lost", why));
  }
}
