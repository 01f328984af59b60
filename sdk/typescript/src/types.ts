// Shapes of the wire and options of callers. Field names are the contract's.
/// <reference lib="esnext.disposable" />

/** The topics of an application: name → payload type. */
export type TopicMap = object;
/** The map of a client that names no topics: anything goes. */
export type AnyTopics = Record<string, any>;
type Star = "*" | "**";
/** A selector of several topics: a segment `*` is one segment, `**` any number. */
export type Pattern = Star | `${Star}.${string}` | `${string}.${Star}` | `${string}.${Star}.${string}`;
type Names<M> = keyof M & string;
/** A topic that the hub makes of a topic of the map: its dead letters, its snapshot. */
export type Derived<M> = `dlq.${Names<M>}` | `${Names<M>}.snapshot`;
/** A value after its way through JSON: a `Date` has become a string. */
export type Received<T> =
  0 extends 1 & T ? T
    : T extends { toJSON(): infer R } ? R
    : T extends object ? { [K in keyof T]: Received<T[K]> }
    : T;
/** A value that JSON can carry: no `bigint` in it. */
export type Sendable<T> =
  0 extends 1 & T ? T
    : T extends bigint ? never
    : T extends { toJSON(): unknown } ? T
    : T extends object ? { [K in keyof T]: Sendable<T[K]> }
    : T;
/** The payload of a publish to a topic of the map; none of a client that names no topics, whose payload is inferred. */
export type Mapped<M, K extends keyof M> = string extends keyof M ? (0 extends 1 & M[K] ? never : Sends<M[K]>) : Sends<M[K]>;
type Sends<T> = T & Sendable<T>;
/** The payload of an event of `dlq.<topic>`. */
export interface DeadLetter<P = unknown> {
  topic: string;
  group: string;
  original: EventRecord<P>;
  err: string;
  attempts: number;
  ts: number;
}
/** The payload of an event of `<topic>.snapshot`; `null`: the key was deleted. */
export interface SnapshotEntry<P = unknown> {
  key: string;
  payload: P;
  ts: number;
}
/** The payload of a topic of the map as it arrives; for a pattern, of any of them. */
export type PayloadOf<M extends TopicMap, K> =
  K extends keyof M ? Received<M[K]>
    : K extends `dlq.${infer N extends Names<M>}` ? DeadLetter<Received<M[N]>>
    : K extends `${infer N extends Names<M>}.snapshot` ? SnapshotEntry<Received<M[N]>> | null
    : Received<M[keyof M]>;

/** An event as the hub stores it. */
export interface EventRecord<T = unknown> {
  id: string;
  seq: number;
  ts: number;
  topic: string;
  key?: string;
  partition?: number;
  sid?: string;
  headers?: Record<string, string>;
  payload: T;
  caused_by?: string[];
  tags?: string[];
}

/** An event that was delivered. */
export interface ReceivedEvent<T = unknown> extends EventRecord<T> {
  /** The payload's JSON exactly as it was published: digits, order of keys, escapes, whitespace. */
  readonly payloadText: string;
}

/** Position of a group: the last event below which all are done. */
export interface CursorPosition {
  topic?: string;
  lastId?: string;
  lastTs?: number;
  seq?: number;
}

/** Everything optional of an event. */
export interface EventOptions {
  /** Brings its own id; the same id again is not stored twice. */
  id?: string;
  ts?: number;
  key?: string;
  headers?: Record<string, string>;
  tags?: string[];
  caused_by?: string[];
  sid?: string;
}

/** Limits of a call. */
export interface CallOptions {
  /** Ends the call; the event may be stored all the same. */
  signal?: AbortSignal;
  /** Overrides the client's `timeoutMs`. */
  timeoutMs?: number;
}

export interface PublishOptions extends EventOptions, CallOptions {}
/** The name of the source documents. */
export type PublishOpts = PublishOptions;

/** Answer of the hub: the event is stored, as durably as its store's setting says. */
export interface Published {
  id: string;
  seq: number;
  /**
   * The id was on the topic before this call. Never set for a publish that was sent again after a lost connection, where it
   * would mean no more than that the first try had arrived.
   */
  duplicate?: boolean;
}

/** Which events a group wants; the kinds combine with AND. */
export interface Filter {
  tags?: string[];
  keys?: string[];
  headers?: Record<string, string>;
}

export interface SubscribeOptions {
  /** Start position of a group that has no cursor. */
  from?: "latest" | "earliest" | "ts" | "afterId" | "snapshot";
  ts?: number;
  afterId?: string;
  /** Further topics or patterns of the same subscription. */
  topics?: string[];
  /**
   * Most events held unacked, here and in handlers. Default: twice `concurrency` where that is given, 10 for a loop that
   * acks by itself, else 100.
   */
  maxInFlight?: number;
  batchSize?: number;
  /** Lease of a delivered event (30 000). */
  ackTimeoutMs?: number;
  maxAttempts?: number;
  /**
   * Which events are wanted. Data is for the hub, which skips the others; a function runs here, and acks what it does not want.
   * If it throws, the event is nacked.
   */
  filter?: Filter | ((event: ReceivedEvent<any>) => boolean);
  ordered?: "none" | "key" | "topic";
  /** `auto` (default): acked when the handler is through, nacked when it throws. */
  ack?: "auto" | "manual";
  /** The seed's name for `ack: "manual"`. */
  manualAck?: boolean;
  /** Most handlers running at a time (`maxInFlight`). */
  concurrency?: number;
  /** Extends leases while events wait here or a handler runs (true). */
  autoExtend?: boolean;
  /**
   * Limit of automatic extension (1 h), counted from the start of the handler. An event that waits here longer is released
   * without an attempt.
   */
  maxExtendMs?: number;
  /** Ends the subscription. */
  signal?: AbortSignal;
}

export interface NackOptions {
  reason?: string;
  /** When to deliver again; the hub's backoff where left out. */
  delayMs?: number;
  /** Gives the event back without counting the attempt. */
  release?: boolean;
}

export interface AckOptions {
  /** Refused with `lease_lost` when the event was given out again since. */
  fence?: boolean;
}

/** The part of WebSocket that the client uses. */
export interface Socket {
  readonly readyState: number;
  onopen: ((event: any) => void) | null;
  onmessage: ((event: any) => void) | null;
  onclose: ((event: any) => void) | null;
  onerror: ((event: any) => void) | null;
  send(data: string): void;
  close(code?: number, reason?: string): void;
  /** Ends without waiting for the other side (package `ws`). */
  terminate?(): void;
}
/** A WebSocket implementation: the browser's, Node 22's, or that of the package `ws`. */
export type SocketClass = new (url: string, protocols?: string | string[]) => Socket;

export type State = "idle" | "connecting" | "open" | "closed";

export interface ClientOptions {
  /**
   * A token, or a function that is asked for one at every connect and before the old one expires. A refused token ends
   * the client, one of a function the fifth time in a row. After a first success `jwt_invalid` may mean that the hub has
   * just started and has no signing keys yet: only the tenth in a row ends the client.
   */
  token?: string | (() => string | undefined | Promise<string | undefined>);
  /** WebSocket implementation. Default: the global one, else (Node 20) the package `ws`. */
  WebSocket?: SocketClass;
  /** Most publishes on their way without an answer (256); further ones wait here. */
  window?: number;
  /** Most publishes waiting for a place in the window or for a connection (10 000); beyond: `queue_full`. */
  maxQueue?: number;
  /** Most characters of all publishes without an answer (64 Mi); beyond: `queue_full`. */
  maxQueueBytes?: number;
  /** Reads payloads in place of `JSON.parse`, from their exact text. It runs when `payload` is first read. */
  parse?: (text: string) => unknown;
  /** Time that a call waits for its answer, reconnects included (60 000; 0 or more than a timer counts, 2^31 - 1: without end). */
  timeoutMs?: number;
  /** Time that `connect` tries (10 000; 0: without end). */
  connectTimeoutMs?: number;
  /** Shortest and longest pause between two connection attempts (100, 10 000), with jitter. */
  backoffMs?: [least: number, most: number];
  /** A `PING` after this much silence; as long again without an answer means the link is dead (20 000). */
  pingMs?: number;
  /** Told about every change of the connection. */
  onState?: (state: State) => void;
  /**
   * Told about all that no caller waits for: an error that a handler threw (with the event), a lost connection, a failed
   * ack, a refused renewal, a subscription that ended, the failure of a call that is not awaited. Without it, errors that a
   * retry cannot help go to the console.
   */
  onError?: (error: Error, context?: ErrorContext) => void;
}

/** The event whose handler failed. */
export interface ErrorContext {
  event: ReceivedEvent<any>;
  attempt: number;
  /** Topic or pattern of the subscription. */
  topic: string;
  group: string | undefined;
}
