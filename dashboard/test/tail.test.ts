// The tail's bound: what it keeps and how often it wakes the page.
import { afterEach, expect, it, vi } from "vitest";
import { KEEP, Tail } from "../src/tail";

let source: () => AsyncIterable<unknown>;
const ended = vi.fn(async () => {});
vi.mock("../src/api", () => ({ hub: () => ({ subscribe: () => Object.assign(source(), { unsubscribe: ended }) }) }));
afterEach(() => vi.useRealTimers());

it("keeps the newest and tells the page a few times a second however fast events come", async () => {
  vi.useFakeTimers();
  const many = 50_000;
  source = async function* () { for (let seq = 1; seq <= many; seq++) yield { event: { id: String(seq), seq, ts: seq } }; };
  const changed = vi.fn();
  const tail = new Tail({ topic: "t", filter: {}, to: many - 10 }, changed, Promise.resolve());
  await vi.advanceTimersByTimeAsync(1_000);
  expect(tail.total).toBe(many - 10);
  expect(tail.events.length).toBeLessThanOrEqual(KEEP * 1.5);
  expect(tail.events.at(-1)!.seq).toBe(many - 10);
  expect(changed.mock.calls.length).toBeLessThanOrEqual(5);
  await tail.stop();
  expect(ended).toHaveBeenCalledOnce();
});

it("shows why there is no tail", async () => {
  vi.useFakeTimers();
  source = async function* () { throw new Error("forbidden: not for you"); };
  const tail = new Tail({ topic: "t", filter: {} }, () => {}, Promise.resolve());
  await vi.advanceTimersByTimeAsync(10);
  expect(tail.error?.message).toBe("forbidden: not for you");
  await tail.stop();
});
