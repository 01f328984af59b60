// Asking again and again, politely: never two requests of a kind at once, none while the tab is hidden.
import { useEffect, useRef, useState } from "preact/hooks";
import { get, list, onToken, type ApiError, type Query } from "./api";
import type { Samples } from "./types";

export interface Polled<T> {
  data: T | undefined;
  error: ApiError | undefined;
  /** Asks now. */
  again: () => void;
}

/** The answer of `ask`, renewed every `ms`; `key` says when it is another question. */
export function usePoll<T>(key: string, ask: (signal: AbortSignal) => Promise<T>, ms: number): Polled<T> {
  const [state, setState] = useState<{ key: string; data?: T | undefined; error?: ApiError | undefined }>({ key });
  const kick = useRef<() => void>(() => {});
  const latest = useRef(ask);
  latest.current = ask;
  useEffect(() => {
    const stop = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    let busy = false;
    const run = async () => {
      clearTimeout(timer);
      if (busy) return;
      busy = true;
      if (!document.hidden) {
        try {
          const data = await latest.current(stop.signal);
          if (!stop.signal.aborted) setState({ key, data });
        } catch (error) {
          if (!stop.signal.aborted) setState((old) => ({ key, data: old.key === key ? old.data : undefined, error: error as ApiError }));
        }
      }
      busy = false;
      if (!stop.signal.aborted) timer = setTimeout(run, ms);
    };
    kick.current = () => void run();
    void run();
    const show = () => { if (!document.hidden) void run(); };
    document.addEventListener("visibilitychange", show);
    const off = onToken(() => void run());
    return () => {
      stop.abort();
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", show);
      off();
    };
  }, [key, ms]);
  const current = state.key === key ? state : { key };
  return { data: current.data, error: current.error, again: () => kick.current() };
}

export function useGet<T>(path: string, query: Query, ms = 2_000): Polled<T> {
  return usePoll<T>(`${path}?${JSON.stringify(query)}`, (signal) => get<T>(path, query, signal), ms);
}

/** All entries of a long list. */
export function useList<T>(path: string, query: Query, ms = 2_000): Polled<T[]> {
  return usePoll<T[]>(`all ${path}?${JSON.stringify(query)}`, (signal) => list<T>(path, query, signal), ms);
}

const MOST = 900;

/** Fifteen minutes of samples, one second asked for at a time. */
export function useSamples(query: { topic?: string; group?: string }): Polled<Samples> {
  const kept = useRef<{ key: string; samples?: Samples }>({ key: "" });
  const key = `samples ${query.topic ?? ""} ${query.group ?? ""}`;
  return usePoll<Samples>(key, async (signal) => {
    if (kept.current.key !== key) kept.current = { key };
    const old = kept.current.samples;
    const since = old?.t.at(-1);
    const fresh = await get<Samples>("samples", { ...query, since }, signal);
    const merged = old && since !== undefined ? join(old, fresh) : fresh;
    kept.current.samples = merged;
    return merged;
  }, 1_000);
}

/** Appends column by column and keeps the last 900. */
export function join(old: Samples, fresh: Samples): Samples {
  const from = fresh.t.findIndex((t) => t > (old.t.at(-1) ?? 0));
  if (from < 0) return old;
  const made: Record<string, unknown> = { ...old };
  for (const [name, column] of Object.entries(fresh))
    if (Array.isArray(column)) made[name] = [...((old as unknown as Record<string, unknown[]>)[name] ?? []), ...column.slice(from)].slice(-MOST);
  return made as unknown as Samples;
}

/** The current time, renewed every `ms`. */
export function useNow(ms = 1_000): number {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), ms);
    return () => clearInterval(timer);
  }, [ms]);
  return now;
}
