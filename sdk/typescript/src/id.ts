// UUIDv7, rising within a process: a publish carries its id from the start, so that a resend cannot store it twice.

let lastMs = 0;
let counter = 0;

const hex = (n: number, width: number) => n.toString(16).padStart(width, "0");

export function uuidv7(now = Date.now()): string {
  const bytes = crypto.getRandomValues(new Uint8Array(9));
  if (now > lastMs) {
    lastMs = now;
    counter = bytes[8]! >> 1; // leaves room to count up within the millisecond
  } else if (++counter > 0xfff) {
    lastMs++;
    counter = 0;
  }
  bytes[0] = 0x80 | (bytes[0]! & 0x3f);
  const tail = Array.from(bytes, (b) => hex(b, 2)).join("");
  return `${hex(lastMs, 12)}7${hex(counter, 3)}${tail.slice(0, 16)}`.replace(/(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-");
}
