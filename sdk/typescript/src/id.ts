// UUIDv7, rising within a process: a publish carries its id from the start, so that a resend cannot store it twice.

let lastMs = 0;
let counter = 0;

const hex = (n: number, width: number) => n.toString(16).padStart(width, "0");

export function uuidv7(now = Date.now()): string {
  const [high, low, start] = crypto.getRandomValues(new Uint32Array(3)) as unknown as [number, number, number];
  if (now > lastMs) {
    lastMs = now;
    counter = start & 0x7f; // leaves room to count up within the millisecond
  } else if (++counter > 0xfff) {
    lastMs++;
    counter = 0;
  }
  const [time, tail] = [hex(lastMs, 12), hex(0x80000000 + (high >>> 2), 8)];
  return `${time.slice(0, 8)}-${time.slice(8)}-7${hex(counter, 3)}-${tail.slice(0, 4)}-${tail.slice(4)}${hex(low, 8)}`;
}
