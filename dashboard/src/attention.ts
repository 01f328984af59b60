// What needs attention: pure, from what the hub tells. Ordered by weight.
import { bytes, duration, many } from "./format";
import { href } from "./route";
import type { Connection, Group, Hub } from "./types";

export interface Notice { tone: "bad" | "warn"; text: string; link: string }

const LATE_MS = 60_000;
const LOW_DISK = 1e9;
/** The hub lets a connection have a mebibyte waiting (max_outbound_bytes); at that it reads slower than it is sent to. */
const FULL = 9e5;

export function attention(groups: Group[], connections: Connection[], hub: Hub | undefined, dead: { topic: string; letters: number }[]): Notice[] {
  const found: Notice[] = [];
  if (hub?.disk?.free !== undefined && hub.disk.free < LOW_DISK) found.push({ tone: "bad", text: `Less than 1 GB of disk is free.`, link: href("topics") });
  for (const group of groups) {
    const link = href("groups", { topic: group.topic, group: group.group });
    const who = `${group.group} on ${group.topic}`;
    if (group.lag > 0 && group.members === 0) found.push({ tone: "bad", text: `${who} has ${many(group.lag, "event")} waiting and no members.`, link });
    else if (group.lag > 0 && group.paused) found.push({ tone: "warn", text: `${who} is paused with ${many(group.lag, "event")} waiting.`, link });
    else if (group.lagMs > LATE_MS) found.push({ tone: "warn", text: `${who} is ${duration(group.lagMs)} behind (${many(group.lag, "event")}).`, link });
  }
  for (const { topic, letters } of dead) if (letters > 0) found.push({ tone: "warn", text: `${many(letters, "dead letter")} of ${topic}.`, link: href("dead-letters", { topic }) });
  for (const connection of connections)
    if (connection.bufferedBytes > FULL) found.push({ tone: "warn", text: `Connection ${connection.sub ?? connection.peer} reads slowly: ${bytes(connection.bufferedBytes)} wait for it.`, link: href("connections", { id: connection.id }) });
  return found.sort((a, b) => (a.tone === b.tone ? 0 : a.tone === "bad" ? -1 : 1));
}

/** One word for a group. */
export function status(group: Group): [tone: "good" | "warn" | "bad" | "calm", word: string] {
  if (group.lag === 0) return ["good", "caught up"];
  if (group.members === 0) return ["bad", "no members"];
  if (group.paused) return ["warn", "paused"];
  if (group.lagMs > LATE_MS) return ["warn", "behind"];
  return ["calm", "working"];
}
