// Numbers, sizes and times for people. Pure.
const whole = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

const pad = (n: number, width = 2) => String(n).padStart(width, "0");

/** 1 234, then 12.3K. */
export const count = (n: number): string => (Math.abs(n) < 100_000 ? whole.format(Math.round(n)) : short.format(n));

/** 1 event, 2 events. */
export const many = (n: number, what: string): string => `${count(n)} ${what}${n === 1 ? "" : "s"}`;

export const rate = (n: number): string => (n === 0 ? "0" : n < 10 ? n.toFixed(1) : count(n));

export function bytes(n: number): string {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let i = 0;
  while (n >= 1000 && i < units.length - 1) { n /= 1000; i++; }
  return `${i && n < 100 ? n.toFixed(1) : Math.round(n)} ${units[i]}`;
}

/** 0.4 ms, 12 ms, 3.1 s, 4 min, 2 h, 3 d. */
export function duration(ms: number): string {
  if (ms < 0) return `−${duration(-ms)}`;
  if (ms < 10) return `${Number(ms.toFixed(1))} ms`;
  if (ms < 1_000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1_000).toFixed(ms < 10_000 ? 1 : 0)} s`;
  if (ms < 5_400_000) return `${Math.round(ms / 60_000)} min`;
  if (ms < 172_800_000) return `${Math.round(ms / 3_600_000)} h`;
  return `${Math.round(ms / 86_400_000)} d`;
}

/** Time left as on a clock: 8:12, 29 s. */
export const left = (ms: number): string => (ms <= 0 ? "over" : ms < 60_000 ? `${Math.ceil(ms / 1_000)} s` : `${Math.floor(ms / 60_000)}:${pad(Math.floor(ms / 1_000) % 60)}`);

export const ago = (ts: number, now: number): string => (now - ts < 1_000 ? "now" : `${duration(now - ts)} ago`);

/** Local clock time with milliseconds; with the date where it is not today. */
export function time(ts: number, now = Date.now()): string {
  const d = new Date(ts);
  const clock = `${pad(d.getHours())}:${pad(d.getMinutes())}:${pad(d.getSeconds())}.${pad(d.getMilliseconds(), 3)}`;
  return d.toDateString() === new Date(now).toDateString() ? clock : `${d.getFullYear()}-${pad(d.getMonth() + 1)}-${pad(d.getDate())} ${clock}`;
}

/** JSON text on one line, cut. */
export function preview(json: string, most = 160): string {
  const text = json.slice(0, 4 * most).replace(/\s*\n\s*/g, "");
  return text.length > most ? `${text.slice(0, most)}…` : text;
}

/** A word for a shell, in single quotes. */
export const quoted = (text: string): string => `'${text.replaceAll("'", `'\\''`)}'`;
