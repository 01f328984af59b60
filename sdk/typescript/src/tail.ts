// The place of a subscription without a group: where it resumes when its connection comes back.
import type { EventRecord, SubscribeOptions } from "./types.js";

/** Returns the options of `SUBSCRIBE` that say where to begin. */
export const beginAt = (from?: string, afterId?: string, resume?: string) => ({ from, ts: undefined, afterId, resume });

export class TailPlace {
  /** The snapshot begins again, and the next delivery has to say so. */
  _restarted?: boolean;
  private _lastId: string | undefined;
  private _resume: string | undefined;
  private _began?: boolean;
  private _moved?: boolean; // since the last SUBSCRIBE was written
  private _single: boolean;
  private _snapshot: boolean;

  constructor(topic: string, { topics, from }: SubscribeOptions) {
    this._single = !topics && !topic.includes("*");
    this._snapshot = from === "snapshot";
  }

  /** The hub has accepted, with a place of its own. A snapshot resumes by event: the hub then notices removed tombstones. */
  _granted(resume: string | undefined): void {
    if (!this._snapshot && !this._moved) this._resume = resume ?? this._resume;
  }

  _saw(event: EventRecord, { snapshot, cut, resume }: { snapshot?: boolean; cut?: string; resume?: string }): void {
    this._began = this._moved = true;
    // A snapshot comes in the order of its keys: one that was cut short starts over, a whole one is resumed after.
    const id = snapshot ? cut : event.id;
    if (!id) return;
    this._lastId = id;
    if (!this._snapshot) this._resume = resume ?? this._resume;
  }

  /** Returns what changes in the options of a later `SUBSCRIBE`. */
  _again(): object | undefined {
    this._moved = false;
    if (this._resume) return beginAt(undefined, undefined, this._resume);
    if (!this._began) return;
    if (this._single && this._lastId) return beginAt("afterId", this._lastId);
    if (!this._snapshot) return beginAt("latest");
    this._restarted = true;
    return;
  }

  /** The hub does not know the place any more; returns whether there was one to forget. */
  _lost(): boolean {
    const had = !!(this._resume ?? this._lastId);
    this._resume = this._lastId = undefined;
    return had;
  }
}
