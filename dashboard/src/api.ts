// Talking to the hub: one origin, one token, one error type. The token lives as long as the tab.
import { PromClient } from "@promethean/client";

const KEY = "promethean-token";
let token: string | undefined = read();
const listeners = new Set<() => void>();

function read(): string | undefined {
  try { return sessionStorage.getItem(KEY) ?? undefined; } catch { return undefined; }
}

export const getToken = () => token;

export function setToken(value: string | undefined): void {
  token = value;
  try { value === undefined ? sessionStorage.removeItem(KEY) : sessionStorage.setItem(KEY, value); } catch { /* for this page only then */ }
  client?.close({ timeoutMs: 0 });
  client = undefined;
  for (const listener of listeners) listener();
}

/** Told when the token changes or is refused. */
export function onToken(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export class ApiError extends Error {
  constructor(readonly status: number, readonly code: string, message: string) { super(message); }
}

/** Set while the hub wants a (better) token. */
export let refused: ApiError | undefined;

function refuse(error: ApiError | undefined): void {
  if (!error && !refused) return;
  refused = error;
  for (const listener of listeners) listener();
}

export type Query = Record<string, string | number | boolean | undefined>;

export function url(path: string, query: Query = {}): URL {
  const made = new URL(path, document.baseURI);
  for (const [name, value] of Object.entries(query)) if (value !== undefined && value !== "") made.searchParams.set(name, String(value));
  return made;
}

export async function request(path: string, query: Query = {}, init: RequestInit = {}): Promise<Response> {
  const headers = new Headers(init.headers);
  if (token !== undefined) headers.set("authorization", `Bearer ${token}`);
  if (init.body) headers.set("content-type", "application/json");
  let response: Response;
  try {
    response = await fetch(url(path, query), { ...init, headers });
  } catch (cause) {
    if ((cause as Error).name === "AbortError") throw cause;
    throw new ApiError(0, "unreachable", "The hub does not answer.");
  }
  if (response.ok) {
    if (path !== "healthz") refuse(undefined);
    return response;
  }
  const body = await response.json().catch(() => ({}));
  const error = new ApiError(response.status, body.code ?? "", body.error ?? response.statusText);
  if (response.status === 401) refuse(error);
  throw error;
}

export const get = async <T>(path: string, query?: Query, signal?: AbortSignal): Promise<T> =>
  (await request(path, query, signal ? { signal } : {})).json();

export const send = async <T>(method: "PUT" | "POST", path: string, query: Query, body: unknown): Promise<T> =>
  (await request(path, query, { method, body: JSON.stringify(body) })).json();

let client: PromClient | undefined;

/** The page's WebSocket, opened with the first use. */
export function hub(): PromClient {
  const address = url("ws");
  address.protocol = address.protocol.replace("http", "ws");
  return (client ??= new PromClient(address, { ...(token !== undefined && { token }), backoffMs: [250, 5_000] }));
}
