// The one error type: a stable code, and whether trying again may help.

/** The codes of the contract. */
export type HubCode =
  | "bad_json" | "bad_request" | "unauthorized" | "no_token" | "bad_token" | "jwt_invalid" | "token_expired"
  | "forbidden" | "bad_topic" | "bad_id" | "duplicate_id" | "too_large" | "publish_failed" | "ack_failed"
  | "already_subscribed" | "not_subscribed" | "unknown_id" | "lease_lost" | "rate_limited" | "shutting_down"
  | "conflict" | "not_found" | "method_not_allowed" | "limit_reached" | "store_damaged";
/** What happens on this side of the wire. */
export type ClientCode = "timeout" | "disconnected" | "connect_failed" | "queue_full" | "closed" | "no_websocket";
export type Code = HubCode | ClientCode;

const RETRYABLE = "publish_failed ack_failed rate_limited shutting_down timeout disconnected connect_failed queue_full".split(" ");
const AUTH = "unauthorized no_token bad_token jwt_invalid token_expired".split(" ");

export class PromError extends Error {
  /** Matches on this; it never changes its meaning. Codes of a newer hub pass through as they are. */
  readonly code: Code;
  /** Whether the same call may succeed later. A publish is safe to repeat with the same `id`. */
  readonly retryable: boolean;
  /** With `rate_limited`: when to try again. */
  readonly retryAfterMs: number | undefined;
  /** The event's id, where a publish failed: repeat it with this id. */
  id?: string;

  constructor(code: Code, message: string, options?: { cause?: unknown; retryAfterMs?: number | undefined }) {
    super(`${code}: ${message}`, options && "cause" in options ? { cause: options.cause } : undefined);
    this.name = "PromError";
    this.code = code;
    this.retryable = RETRYABLE.includes(code);
    this.retryAfterMs = options?.retryAfterMs;
  }
}

/** Whether the hub refused who we are, not what we asked for. */
export const isAuthCode = (code: string): boolean => AUTH.includes(code);
