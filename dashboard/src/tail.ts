// A live tail with a bound: keeps the last events in a ring, tells its listener at most four times a second.
// Invariant: however fast events come, memory holds at most `KEEP` of them and nobody is woken per event.
import type { Filter, PromError, Subscription } from "@promethean/client";
import { hub } from "./api";
import type { Event } from "./types";

export const KEEP = 1_000;
const EVERY_MS = 250;

export interface Ask {
  topic: string;
  filter: Filter;
  /** Where to begin; live without. */
  from?: "earliest" | "ts";
  ts?: number;
  /** Events later than this are left out. */
  to?: number;
}

export class Tail {
  /** Oldest first. */
  events: Event[] = [];
  /** All that came. */
  total = 0;
  /** Events a second, over the last few. */
  rate = 0;
  error: PromError | undefined;
  private counts: number[] = [];
  private timer: ReturnType<typeof setTimeout> | undefined;
  private ticker: ReturnType<typeof setInterval>;
  private since = 0;
  private sub: Subscription | undefined;
  private stopped = false;

  constructor(readonly ask: Ask, private changed: () => void, before: Promise<unknown>) {
    this.ticker = setInterval(() => this.tick(), 1_000);
    // The previous tail of the same topic has to be off the connection first.
    void before.finally(() => this.start());
  }

  private async start(): Promise<void> {
    if (this.stopped) return;
    const { topic, filter, from, ts } = this.ask;
    try {
      this.sub = hub().subscribe(topic, null, { filter, ...(from && { from }), ...(ts !== undefined && { ts }), maxInFlight: 1_000 });
      for await (const { event } of this.sub) this.take(event as Event);
    } catch (error) {
      if (this.stopped) return;
      this.error = error as PromError;
      this.changed();
    }
  }

  private take(event: Event): void {
    if (this.stopped || (this.ask.to !== undefined && event.ts > this.ask.to)) return;
    this.total++;
    this.since++;
    this.events.push(event);
    if (this.events.length > KEEP * 1.5) this.events.splice(0, this.events.length - KEEP);
    this.timer ??= setTimeout(() => {
      this.timer = undefined;
      this.changed();
    }, EVERY_MS);
  }

  private tick(): void {
    this.counts = [...this.counts, this.since].slice(-4);
    this.since = 0;
    this.rate = this.counts.reduce((a, b) => a + b, 0) / this.counts.length;
    this.changed();
  }

  clear(): void {
    this.events = [];
    this.changed();
  }

  async stop(): Promise<void> {
    this.stopped = true;
    clearInterval(this.ticker);
    clearTimeout(this.timer);
    await this.sub?.unsubscribe().catch(() => {});
  }
}

/** "a=b, c=d" → headers; what has no "=" is left out. */
export function headersOf(text: string): Record<string, string> {
  const made: Record<string, string> = {};
  for (const part of text.split(",")) {
    const at = part.indexOf("=");
    if (at > 0) made[part.slice(0, at).trim()] = part.slice(at + 1).trim();
  }
  return made;
}

/** "a, b" → its items; one with a comma is in double quotes, as `item` writes it. */
export const listOf = (text: string): string[] =>
  (text.match(/\s*"(?:[^"\\]|\\.)*"\s*(?=,|$)|[^,]+/g) ?? []).map((part) => unquoted(part.trim())).filter(Boolean);

function unquoted(part: string): string {
  try { return part.startsWith('"') ? String(JSON.parse(part)) : part; } catch { return part; }
}

/** One item of a list, in quotes where it would be read as something else. */
export const item = (text: string): string => (listOf(text).length === 1 && listOf(text)[0] === text ? text : JSON.stringify(text));
