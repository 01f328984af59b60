// Asking the hub: an answer that does not come is an error, not old numbers.
import { afterEach, beforeEach, expect, it, vi } from "vitest";

vi.stubGlobal("document", { baseURI: "http://hub/" });
const { get, list, request } = await import("../src/api");

beforeEach(() => { vi.useFakeTimers(); });
afterEach(() => vi.useRealTimers());

const failing = (promise: Promise<unknown>) => promise.then(() => "answered", (error) => `${error.code ?? ""} ${error.message}`);
const hangs = (_: unknown, { signal }: RequestInit) => new Promise<never>((_resolve, reject) => signal!.addEventListener("abort", () => reject(signal!.reason)));

it("ends after ten seconds without an answer, or without its end", async () => {
  vi.stubGlobal("fetch", vi.fn(hangs));
  const silent = failing(get("topics"));
  await vi.advanceTimersByTimeAsync(10_000);
  expect(await silent).toBe("unreachable The hub gave no answer within 10 s.");
  vi.stubGlobal("fetch", vi.fn(async (_: unknown, init: RequestInit) => ({ ok: true, text: () => hangs(_, init) })));
  const half = failing(get("topics"));
  await vi.advanceTimersByTimeAsync(10_000);
  expect(await half).toBe("unreachable The hub gave no answer within 10 s.");
});

it("ends when its caller does not want it any more, and leaves no timer", async () => {
  vi.stubGlobal("fetch", vi.fn(hangs));
  const stop = new AbortController();
  const asked = failing(get("topics", {}, stop.signal));
  stop.abort(new Error("left"));
  expect(await asked).toBe(" left");
  vi.stubGlobal("fetch", vi.fn(async () => new Response('{"topics":[]}')));
  expect(await get("topics")).toEqual({ topics: [] });
  expect((await request("export")).ok).toBe(true);
  expect(vi.getTimerCount()).toBe(0);
});

it("reads a long list to its last page", async () => {
  const pages: Record<string, string> = { "": '{"topics":[{"topic":"a"},{"topic":"b"}],"next":"b"}', b: '{"topics":[{"topic":"c"}]}' };
  const asked = vi.fn(async (at: URL) => new Response(pages[at.searchParams.get("after") ?? ""]));
  vi.stubGlobal("fetch", asked);
  expect(await list("topics")).toEqual([{ topic: "a" }, { topic: "b" }, { topic: "c" }]);
  expect(asked).toHaveBeenCalledTimes(2);
});
