// The one error type: a stable code, and whether trying again may help.

/** The codes of the contract. */
export type HubCode =
  | "bad_json" | "bad_request" | "unauthorized" | "no_token" | "bad_token" | "jwt_invalid" | "token_expired"
  | "forbidden" | "bad_topic" | "bad_id" | "duplicate_id" | "too_large" | "publish_failed" | "ack_failed"
  | "already_subscribed" | "not_subscribed" | "unknown_id" | "lease_lost" | "rate_limited" | "shutting_down"
  | "conflict" | "unknown_topic" | "topic_deleted" | "not_found" | "method_not_allowed" | "schema_invalid" | "limit_reached"
  | "store_damaged";
/** Failures on this side of the wire. */
export type ClientCode = "timeout" | "disconnected" | "connect_failed" | "queue_full" | "closed" | "no_websocket";
export type Code = HubCode | ClientCode;

const RETRYABLE = /_failed$|^(rate_limited|shutting_down|timeout|disconnected|queue_full)$/;
const AUTH = /^unauthorized$|token|^jwt_/;

export class PromError extends Error {
  /** Matches on this; it never changes its meaning. Codes of a newer hub pass through as they are. */
  readonly code: Code;
  /** True if the same call may succeed later. A publish is safe to repeat with the same `id`. */
  readonly retryable: boolean;
  /** With `rate_limited`: when to try again. */
  readonly retryAfterMs: number | undefined;
  /** The event's id, where a publish failed: repeat it with this id. */
  id?: string;
  /** The ids of all events of a publish that failed, in their order: repeat a batch with these. */
  ids?: string[];

  constructor(code: Code, message: string, options?: { cause?: unknown; retryAfterMs?: number | undefined }) {
    super(`${code}: ${message}`, options);
    this.name = "PromError";
    this.code = code;
    this.retryable = RETRYABLE.test(code);
    this.retryAfterMs = options?.retryAfterMs;
  }

  /** @internal Returns the error of one publish; the same cause may end many. */
  _for(ids: string[]): PromError {
    return Object.assign(new PromError(this.code, this.message.slice(this.code.length + 2), this as object), { id: ids[0], ids });
  }
}

/** True if the hub refused the token rather than the request. */
export const isAuthCode = (code: string): boolean => AUTH.test(code);

/** Returns the text of anything that was thrown, also of an object that has none. */
export function textOf(thrown: unknown): string {
  try {
    const { message, code } = (thrown ?? {}) as { message?: unknown; code?: unknown };
    return String(message || code || thrown);
  } catch {
    return "an error without a text";
  }
}

export const away = (): PromError => new PromError("disconnected", "no connection");
export const closed = (): PromError => new PromError("closed", "the client was closed");
