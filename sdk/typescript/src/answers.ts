// Acks, nacks and extensions of one subscription on their way to the hub. Those of one kind and one turn share a frame.
// Invariants: an ack stays here until the hub has answered it, over refusals of a quota and lost connections; while a
// quota makes it wait, everything that comes meanwhile joins the same frame. A nack that loses its connection is done:
// the hub gives the event back by itself.
import { away, type PromError } from "./error.js";
import type { Frame } from "./link.js";

interface Entry {
  _id: string;
  _lease: number | undefined;
  _done: (error?: unknown) => void;
}

interface Bundle {
  _op: string;
  _fields: object | undefined;
  _entries: Entry[];
}

/** Most ids in a frame, and most frames without an answer: later answers join the next frames. */
const MOST_IDS = 1_000;
const MOST_FRAMES = 8;
/** Pause where the hub names none. */
export const A_MOMENT = 1_000;

export interface Road {
  /** Sends a frame of the subscription. */
  _send(op: string, fields: object): Promise<Frame>;
  /** Sleeps while the connection lasts. */
  _sleep(ms: number): Promise<void>;
  /** True while the hub has the subscription on this connection. */
  _open(): boolean;
  /** True if the event was delivered here again since, under another lease. */
  _stale(id: string, lease: number | undefined): boolean;
}

export interface Answers {
  /** Adds an answer to one delivery; resolves when the hub has stored it. */
  _add(op: string, id: string, lease: number | undefined, fields?: object, after?: () => void): Promise<void>;
  /** Sends all that waits, unless a quota or the connection forbids it. */
  _flush(): void;
  /** The connection is gone: acks wait for the next one, all else ends. */
  _down(): void;
  /** Ends all that waits. */
  _fail(error: Error): void;
  /** True while an answer waits or is on its way. */
  _busy(): boolean;
}

export function answersOver(road: Road): Answers {
  const bundles = new Map<string, Bundle>();
  let sent = 0; // frames without an answer
  let patient = false; // a quota asked for it
  let soon = false;
  let alone = 0;

  const put = (op: string, fields: object | undefined, entry: Entry, key = fields ? op + JSON.stringify(fields) : op) => {
    const bundle = bundles.get(key);
    if (bundle) bundle._entries.push(entry);
    else bundles.set(key, { _op: op, _fields: fields, _entries: [entry] });
  };

  /** A few turns of the microtask queue let the handlers of one burst share a frame. */
  const turn = async () => {
    if (soon) return;
    soon = true;
    for (let i = 0; i < 4; i++) await null;
    soon = false;
    flush();
  };

  const flush = () => {
    for (const [key, { _op, _fields, _entries }] of bundles) {
      if (patient || sent >= MOST_FRAMES || !road._open()) return;
      void go(_op, _fields, _entries.splice(0, MOST_IDS));
      if (!_entries.length) bundles.delete(key);
    }
  };

  const go = async (op: string, fields: object | undefined, all: Entry[]) => {
    const entries = all.filter((entry) => !road._stale(entry._id, entry._lease) || entry._done());
    const [first, second] = entries;
    if (!first) return;
    let end: unknown;
    sent++;
    try {
      await road._send(op, second ? { ids: entries.map((entry) => entry._id), ...fields } : { id: first._id, lease: first._lease, ...fields });
    } catch (error) {
      const { code, retryAfterMs } = error as PromError;
      const limited = code === "rate_limited";
      const one = second && (code === "lease_lost" || code === "unknown_id"); // one of them: each finds out for itself
      if (limited || one || (op === "ACK" && (code === "disconnected" || (code === "not_subscribed" && !road._open())))) {
        for (const entry of entries.splice(0)) put(op, fields, entry, one ? `${++alone}` : undefined);
        limited ? void wait(retryAfterMs ?? A_MOMENT) : void turn();
      }
      end = error;
    }
    sent--;
    for (const entry of entries) entry._done(end);
    flush();
  };

  const wait = async (ms: number) => {
    if (patient) return;
    patient = true;
    await road._sleep(ms).catch(() => {});
    patient = false;
    flush();
  };

  const drop = (error: Error, acks: boolean) => {
    for (const [key, { _op, _entries }] of bundles) if (acks || _op !== "ACK") {
      bundles.delete(key);
      for (const entry of _entries) entry._done(error);
    }
  };

  return {
    _add: (op, id, lease, fields, after) => new Promise((resolve, reject) => {
      put(op, fields, { _id: id, _lease: lease, _done: (error) => {
        after?.();
        error ? reject(error) : resolve();
      } });
      void turn();
    }),
    _flush: flush,
    _down: () => drop(away(), false),
    _fail: (error) => drop(error, true),
    _busy: () => sent + bundles.size > 0,
  };
}
