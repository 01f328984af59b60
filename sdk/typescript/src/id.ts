// UUIDv7, rising within a process: a publish carries its id from the start, so that a resend cannot store it twice.

let last = 0; // 1,024 of them are a millisecond

const hex = (n: number, width: number) => Math.floor(n).toString(16).padStart(width, "0");

export function uuidv7(now = Date.now()): string {
  const [high, low, start] = crypto.getRandomValues(new Uint32Array(3)) as unknown as [number, number, number];
  last = Math.max(last + 1, now * 1024 + (start & 127));
  return (hex(last / 1024, 12) + 7 + hex(last % 1024, 3) + hex(2 ** 31 + (high >>> 2), 8) + hex(low, 8))
    .replace(/(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-");
}
