// Time for leases and limits. Monotonic: setting the machine's clock moves no deadline.

/** Longest time that a timer can count to; beyond, it would fire at once. */
export const MOST_MS = 2 ** 31 - 1;

/** Milliseconds of a clock that only runs forward. */
export const now = (): number => performance.now();

/** A time limit as given; 0, no limit, where no timer can count to it. */
export const limited = (ms: number): number => (ms > MOST_MS ? 0 : ms);

export type Timer = ReturnType<typeof setTimeout>;

/** Settles as `promise` does, or rejects after `ms`. */
export function within<T>(promise: T | PromiseLike<T>, ms: number, why: string): Promise<T> {
  let timer: Timer;
  const late = new Promise<never>((_, reject) => { timer = setTimeout(() => reject(new Error(why)), ms); });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

export const pause = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));
