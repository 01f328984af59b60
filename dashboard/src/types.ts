// The shapes of the ops API: PROTOCOL.md section 8 and docs/ops-api.md.
import type { EventRecord } from "@promethean/client";

/** An event, with the exact text of its payload where it came as such. */
export type Event = EventRecord<unknown> & { readonly payloadText?: string };

export interface Hub {
  version: string; store: string; startedAt: number; now: number;
  ws: string; http: string; ops: string;
  auth: boolean; sub?: string; admin: boolean;
  disk?: { used: number; free?: number };
}

export interface Topic {
  topic: string; events: number; bytes: number; firstSeq: number; lastSeq: number;
  lastId?: string; lastTs?: number; publishRate: number; groups: number;
}

export interface Group {
  topic: string; group: string; members: number; inflight: number; lag: number; lagMs: number;
  seq: number; lastId?: string; redelivered: number; deadLettered: number; paused: boolean;
}

export interface Connection {
  id: string; peer: string; sub?: string; since: number; bufferedBytes: number;
  subscriptions: { topic: string; group?: string; inflight: number; maxInFlight: number; paused: boolean }[];
}

export type Column = (number | null)[];
export interface Samples {
  interval: number; t: number[];
  published?: Column; delivered?: Column; acked?: Column; redelivered?: Column; deadLettered?: Column;
  p50?: Column; p99?: Column; lag?: Column; inflight?: Column; connections?: Column; bytes?: Column;
}

export interface InFlight {
  topic: string; group: string; now: number; total: number; waitingTotal: number;
  inflight: { id: string; seq: number; key?: string; connection?: string; sub?: string; attempt: number; lease: number; since: number; deadline: number }[];
  waiting: { id: string; seq: number; key?: string; attempt: number; until: number; reason?: string }[];
}

export interface Explanation {
  topic: string; group: string; moving: boolean; lag: number; inflight: number;
  reasons: { code: string; text: string; connection?: string; id?: string; key?: string; until?: number }[];
}

export interface Place { seq: number; lastId?: string; lastTs?: number }
export interface Gone { topic: string; events: number; bytes: number; groups?: number; dlq?: Gone; dryRun?: boolean }
export interface Seek { topic: string; group: string; dryRun: boolean; before: Place; after: Place; lagBefore: number; lagAfter: number; again: number; skipped: number }

export interface DeadTopics { topics: { topic: string; letters: number; lastTs: number }[] }
export interface Letter { id: string; seq: number; ts: number; group: string; err: string; attempts: number; redriven: boolean; foreign?: boolean; original: Event }
export interface Redriven { redriven: number; remaining: number; gone: number; dryRun?: boolean; refused?: number; refusals?: { id: string; code: string; error: string }[] }
export interface DeadLetters {
  topic: string; letters: number; counted?: number; foreign?: number;
  reasons: { err: string; group?: string; count: number }[]; entries: Letter[]; next?: string;
}

export interface Causality { id: string; events: Event[]; missing: string[]; complete: boolean }
