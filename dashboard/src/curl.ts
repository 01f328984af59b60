// An event as a command line that publishes it again. Pure.
import { payloadText } from "./exact";
import { quoted } from "./format";
import type { Event } from "./types";

/** The hub stores only these of a request's headers. */
const SENT = /^(x-.*|traceparent|tracestate)$/i;

export function curl(event: Pick<Event, "topic" | "payload"> & Partial<Event>, base: string, auth: boolean): string {
  const query = new URLSearchParams();
  if (event.key !== undefined) query.set("key", event.key);
  if (event.sid !== undefined) query.set("sid", event.sid);
  for (const tag of event.tags ?? []) query.append("tag", tag);
  for (const cause of event.caused_by ?? []) query.append("caused_by", cause);
  const lines = [`curl -X POST ${quoted(`${base}/publish/${event.topic}${query.size ? `?${query}` : ""}`)}`, `-H 'content-type: application/json'`];
  if (auth) lines.push(`-H "authorization: Bearer $PROMETHEAN_TOKEN"`);
  for (const [name, value] of Object.entries(event.headers ?? {})) if (SENT.test(name)) lines.push(`-H ${quoted(`${name}: ${value}`)}`);
  lines.push(`--data ${quoted(payloadText(event))}`);
  return lines.join(" \\\n  ");
}

/** Where the HTTP API is, seen from this page. */
export function httpBase(http: string | undefined, page: { protocol: string; hostname: string; host: string }): string {
  const port = http?.split(":").at(-1);
  return port ? `${page.protocol}//${page.hostname}:${port}` : `${page.protocol}//${page.host}`;
}
