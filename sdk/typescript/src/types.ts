// What goes over the wire and what callers may ask for. Field names are the contract's.
/// <reference lib="esnext.disposable" />

/** The topics of an application: name → payload type. */
export type TopicMap = object;
/** The map of a client that names no topics: anything goes. */
export type AnyTopics = Record<string, any>;
/** A selector of several topics: `*` is one segment, `**` any number. */
export type Pattern = `${string}*${string}`;
/** The payload of a topic of the map; for a pattern, of any of them. */
export type PayloadOf<M extends TopicMap, K> = K extends keyof M ? M[K] : M[keyof M];

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

/** Where a group stands: the last event below which all are done. */
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

/** How long to wait for the hub's answer. */
export interface CallOptions {
  /** Ends the waiting; what was sent may still be stored. */
  signal?: AbortSignal;
  /** Overrides the client's `timeoutMs`. */
  timeoutMs?: number;
}

export interface PublishOptions extends EventOptions, CallOptions {}

/** What the hub answered: the event is stored, as durably as its store's setting says. */
export interface Published {
  id: string;
  seq: number;
  /**
   * The id was on the topic before this call. Never set for what had to be sent again after a lost connection, where it
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
  /** Where to start while the group has no cursor. */
  from?: "latest" | "earliest" | "ts" | "afterId" | "snapshot";
  ts?: number;
  afterId?: string;
  /** Further topics or patterns of the same subscription. */
  topics?: string[];
  /** Most events held unacked, here and in handlers (100). */
  maxInFlight?: number;
  batchSize?: number;
  /** Lease of a delivered event (30 000). */
  ackTimeoutMs?: number;
  maxAttempts?: number;
  filter?: Filter;
  ordered?: "none" | "key" | "topic";
  /** `auto` (default): acked when the handler is through, nacked when it throws. */
  ack?: "auto" | "manual";
  /** The seed's name for `ack: "manual"`. */
  manualAck?: boolean;
  /** Most handlers running at a time (`maxInFlight`). */
  concurrency?: number;
  /** Whether leases are extended while events wait here or a handler runs (true). */
  autoExtend?: boolean;
  /** An event is not held longer than this by automatic extension (1 h). */
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
  /** Where there is no global WebSocket (Node 20), the package `ws` is used unless one is given here. */
  WebSocket?: SocketClass;
  /** Most publishes on their way without an answer (256); further ones wait here. */
  window?: number;
  /** Most publishes waiting for a place in the window or for a connection (10 000); beyond: `queue_full`. */
  maxQueue?: number;
  /** How long a call waits for its answer, reconnects included (60 000; 0 or more than a timer counts, 2^31 - 1: without end). */
  timeoutMs?: number;
  /** How long `connect` tries (10 000; 0: without end). */
  connectTimeoutMs?: number;
  /** Shortest and longest pause between two connection attempts (100, 10 000), with jitter. */
  backoffMs?: [least: number, most: number];
  /** A `PING` after this much silence; as long again without an answer means the link is dead (20 000). */
  pingMs?: number;
  /** Told about every change of the connection. */
  onState?: (state: State) => void;
  /** Told about what no caller waits for: a lost connection, a failed ack, a refused renewal, a
   * subscription that the hub refused after a reconnect or cannot serve for a while. */
  onError?: (error: Error) => void;
}
