// Talking to the hub: one origin, one token, one error type. The token lives as long as the tab.
import { PromClient } from "@promethean/client";
import { readAnswer } from "./exact";

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

/** Longest wait for an answer: a hub that hangs must not leave old numbers looking live. */
const PATIENCE = 10_000;

/** Runs `ask`; ends it by its signal after `PATIENCE`, or when `stop` says so. */
async function limited<T>(stop: AbortSignal | null | undefined, ask: (signal: AbortSignal) => Promise<T>): Promise<T> {
  const limit = new AbortController();
  const end = () => limit.abort(stop?.reason);
  const timer = setTimeout(() => limit.abort(new ApiError(0, "unreachable", "The hub gave no answer within 10 s.")), PATIENCE);
  stop?.addEventListener("abort", end);
  if (stop?.aborted) end();
  try {
    return await ask(limit.signal);
  } catch (error) {
    throw limit.signal.aborted ? limit.signal.reason : error;
  } finally {
    clearTimeout(timer);
    stop?.removeEventListener("abort", end);
  }
}

/** Asks and checks the status; only the head of the answer has a limit of time. */
export const request = (path: string, query: Query = {}, init: RequestInit = {}): Promise<Response> =>
  limited(init.signal, (signal) => ask(path, query, { ...init, signal }));

/** Asks for JSON; all of it has a limit of time. */
const json = <T>(path: string, query: Query, init: RequestInit): Promise<T> =>
  limited(init.signal, async (signal) => readAnswer(await (await ask(path, query, { ...init, signal })).text()) as T);

async function ask(path: string, query: Query, init: RequestInit): Promise<Response> {
  const headers = new Headers(init.headers);
  if (token !== undefined) headers.set("authorization", `Bearer ${token}`);
  if (init.body) headers.set("content-type", "application/json");
  let response: Response;
  try {
    response = await fetch(url(path, query), { ...init, headers });
  } catch (cause) {
    if (init.signal?.aborted) throw init.signal.reason;
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

export const get = <T>(path: string, query: Query = {}, signal?: AbortSignal): Promise<T> => json(path, query, signal ? { signal } : {});

/** All entries of a long list, page by page; the list is named like its path. */
export async function list<T>(path: string, query: Query = {}, signal?: AbortSignal): Promise<T[]> {
  const all: T[] = [];
  for (let after: string | undefined; ;) {
    const page = await get<Record<string, unknown>>(path, { ...query, limit: 10_000, after }, signal);
    all.push(...(page[path] as T[]));
    if (page.next === undefined) return all;
    after = page.next as string;
  }
}

export const send = <T>(method: "PUT" | "POST" | "DELETE", path: string, query: Query, body?: unknown): Promise<T> =>
  json(path, query, { method, ...(body !== undefined && { body: JSON.stringify(body) }) });

let client: PromClient | undefined;

/** The page's WebSocket, opened with the first use. */
export function hub(): PromClient {
  const address = url("ws");
  address.protocol = address.protocol.replace("http", "ws");
  return (client ??= new PromClient(address, { ...(token !== undefined && { token }), backoffMs: [250, 5_000] }));
}
