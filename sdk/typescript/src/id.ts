// UUIDv7, rising within a process: a publish carries its id from the start, so that a resend cannot store it twice.

let lastMs = 0;
let counter = 0;

export function uuidv7(now = Date.now()): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  if (now > lastMs) {
    lastMs = now;
    counter = bytes[6]! & 0x7f; // leaves room to count up within the millisecond
  } else if (++counter > 0xfff) {
    lastMs++;
    counter = 0;
  }
  for (let i = 0, ms = lastMs; i < 6; i++, ms = Math.floor(ms / 256)) bytes[5 - i] = ms % 256;
  bytes[6] = 0x70 | (counter >> 8);
  bytes[7] = counter & 0xff;
  bytes[8] = 0x80 | (bytes[8]! & 0x3f);
  const hex = Array.from(bytes, (b) => b.toString(16).padStart(2, "0")).join("");
  return hex.replace(/(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-");
}
