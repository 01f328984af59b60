// What every client must do with a hub, told once: run by vitest on Node (against the fake and the real hub) and by
// Playwright in Chromium. No test framework and nothing of Node in here; a scenario fails by throwing.
import type { ClientOptions, Delivery, PromClient, Published } from "../src/index.js";

export interface Env {
  /** A client of the hub, closed after the scenario. */
  client(options?: ClientOptions): PromClient;
  /** A topic or group name that nobody else uses. */
  name(base: string): string;
  /** Takes the hub away at once, keeps its data. */
  kill(): Promise<void>;
  /** Brings it back at the same address. */
  start(): Promise<void>;
  /** A token that is good for so many seconds. */
  token(seconds: number): Promise<string>;
}

export const sleep = (ms: number) => new Promise<void>((resolve) => setTimeout(resolve, ms));

export async function until(what: string, check: () => boolean, ms = 20_000): Promise<void> {
  const end = Date.now() + ms;
  while (!check()) {
    if (Date.now() > end) throw new Error(`in vain: ${what}`);
    await sleep(10);
  }
}

export function same(is: unknown, should: unknown, what: string): void {
  const [a, b] = [JSON.stringify(is), JSON.stringify(should)];
  if (a !== b) throw new Error(`${what}: is ${a?.slice(0, 400)}, should be ${b?.slice(0, 400)}`);
}

const range = (n: number) => Array.from({ length: n }, (_, i) => i);

export const scenarios: Record<string, (env: Env) => Promise<void>> = {
  async "publishes are stored once, in order, and a known id is answered as duplicate"(env) {
    const [topic, client] = [env.name("pub"), env.client()];
    const answers = await Promise.all(range(500).map((n) => client.publish(topic, { n })));
    same(answers.map((a) => a.seq), range(500).map((n) => n + 1), "seqs");
    same(new Set(answers.map((a) => a.id)).size, 500, "distinct ids");
    const again = await client.publish(topic, { n: "other" }, { id: answers[7]!.id });
    same(again, { id: answers[7]!.id, seq: 8, duplicate: true }, "the same id again");
    const batch = await client.publishBatch(topic, range(3).map((n) => ({ payload: { n }, key: `k${n}` })));
    same(batch.map((b) => b.seq), [501, 502, 503], "seqs of a batch");
    const mixed = await client.publishBatch(topic, [{ payload: 1, id: batch[1]!.id }, { payload: 2 }]);
    same(mixed.map((m) => [m.seq, m.duplicate ?? false]), [[502, true], [504, false]], "a batch with an id that is there");
    const seen: number[] = [];
    await client.subscribe(topic, null, (event) => void seen.push(event.seq), { from: "earliest" });
    await until("all events come through a tail", () => seen.length === 504);
    same(seen, range(504).map((n) => n + 1), "order of the tail");
  },

  async "members of a group share its events and another group gets them all"(env) {
    const topic = env.name("groups");
    const [a, b, c, publisher] = [env.client(), env.client(), env.client(), env.client()];
    const got = { a: [] as number[], b: [] as number[], c: [] as number[] };
    const take = (list: number[]) => async (event: { seq: number }) => { await sleep(1); list.push(event.seq); };
    await a.subscribe(topic, "shared", take(got.a), { from: "earliest", maxInFlight: 5 });
    await b.subscribe(topic, "shared", take(got.b), { from: "earliest", maxInFlight: 5 });
    await c.subscribe(topic, "alone", take(got.c), { from: "earliest" });
    await Promise.all(range(200).map((n) => publisher.publish(topic, n)));
    await until("both groups are through", () => got.a.length + got.b.length >= 200 && got.c.length >= 200);
    const sorted = [...got.a, ...got.b].sort((x, y) => x - y);
    same(sorted, range(200).map((n) => n + 1), "the shared group, each once");
    same(got.a.length > 0 && got.b.length > 0, true, "both members got some");
    same([...got.c].sort((x, y) => x - y), range(200).map((n) => n + 1), "the other group");
  },

  async "a handler that throws gets the event again, and a dead letter after the last attempt"(env) {
    const [topic, client] = [env.name("nack"), env.client()];
    const attempts: Record<string, number[]> = { good: [], bad: [] };
    await client.subscribe(topic, "g", (event, ctx) => {
      attempts[event.payload as string]!.push(ctx.attempt);
      if (event.payload === "bad" || ctx.attempt < 2) throw new Error("boom");
    }, { from: "earliest", maxAttempts: 3 });
    const dead: any[] = [];
    await client.subscribe(`dlq.${topic}`, "undertaker", (event) => void dead.push(event.payload), { from: "earliest" });
    const bad = await client.publish(topic, "bad");
    await client.publish(topic, "good");
    await until("the dead letter", () => dead.length === 1 && attempts.good!.length === 2);
    same(attempts, { good: [1, 2], bad: [1, 2, 3] }, "attempts");
    same([dead[0].topic, dead[0].group, dead[0].err, dead[0].attempts, dead[0].original.id], [topic, "g", "boom", 3, bad.id], "the letter");
  },

  async "a lease that runs out gives the event to another member, and a running handler keeps its own"(env) {
    const [topic, client, other] = [env.name("lease"), env.client(), env.client()];
    const seen: string[] = [];
    const hold = await client.subscribe(topic, "g", (_e, ctx) => { seen.push(`first ${ctx.attempt}`); }, { from: "earliest", ack: "manual", ackTimeoutMs: 500, maxInFlight: 1 });
    await client.publish(topic, 1);
    await until("the first delivery", () => seen.length === 1);
    await hold.pause();
    await other.subscribe(topic, "g", (_e, ctx) => { seen.push(`second ${ctx.attempt}`); }, { from: "earliest", ackTimeoutMs: 500 });
    await until("the second delivery", () => seen.length === 2);
    same(seen, ["first 1", "second 2"], "who got it");

    const [slow, runs] = [env.name("slow"), [] as number[]];
    let finished = 0;
    await client.subscribe(slow, "g", async (_e, ctx) => { runs.push(ctx.attempt); await sleep(4_000); finished++; }, { from: "earliest", ackTimeoutMs: 1_000 });
    await client.publish(slow, 1);
    await until("the slow handler", () => finished === 1);
    await sleep(1_500);
    same(runs, [1], "one delivery although the handler took four leases");
  },

  async "acks, nacks and extensions by hand"(env) {
    const [topic, client] = [env.name("manual"), env.client()];
    const held: Delivery[] = [];
    const sub = client.subscribe(topic, "g", { from: "earliest", ack: "manual", ackTimeoutMs: 60_000 });
    const reading = (async () => { for await (const delivery of sub) held.push(delivery); })();
    await client.publishBatch(topic, range(3).map((n) => ({ payload: n })));
    await until("three deliveries", () => held.length === 3);
    await held[0]!.extend(90_000);
    await held[0]!.ack({ fence: true });
    await held[1]!.ack();
    await held[2]!.nack({ reason: "later", delayMs: 50 });
    await until("the nacked one again", () => held.length === 4);
    same([held[3]!.event.payload, held[3]!.attempt], [2, 2], "the nacked one");
    await held[3]!.ack();
    const late = await held[0]!.extend(90_000).then(() => "extended", (error) => error.code);
    same(["unknown_id", "lease_lost"].includes(late), true, `an extension after the ack is refused, ${late}`);
    await sub.unsubscribe();
    await reading;
  },

  async "an async iterator takes what it asks for and no more than maxInFlight waits"(env) {
    const [topic, client, other] = [env.name("iter"), env.client(), env.client()];
    await client.publishBatch(topic, range(50).map((n) => ({ payload: n })));
    const sub = client.subscribe(topic, "g", { from: "earliest", maxInFlight: 5 });
    const seen: unknown[] = [];
    for await (const { event } of sub) {
      seen.push(event.payload);
      if (seen.length === 20) break;
    }
    same(seen, range(20), "the first twenty, in order");
    const rest: unknown[] = [];
    await other.subscribe(topic, "g", (event) => void rest.push(event.payload), { from: "earliest" });
    await until("the rest", () => rest.length === 31);
    same(rest.sort((x, y) => (x as number) - (y as number)), range(31).map((n) => n + 19), "left in the middle: the current one and all after it come back");
  },

  async "a signal ends a subscription and a publish"(env) {
    const [topic, client] = [env.name("abort"), env.client()];
    const stop = new AbortController();
    const seen: unknown[] = [];
    const sub = await client.subscribe(topic, "g", (event) => void seen.push(event.payload), { signal: stop.signal });
    await client.publish(topic, 1);
    await until("the event", () => seen.length === 1);
    stop.abort();
    same(await sub.closed, undefined, "ended without an error");
    await client.publish(topic, 2);
    await sleep(200);
    same(seen, [1], "nothing after the end");
    const refused = await client.publish(topic, 3, { signal: AbortSignal.abort(new Error("no more")) }).then(() => "sent", (error) => error.message);
    same(refused, "no more", "a publish with an aborted signal");
  },

  async "patterns, filters and a snapshot start"(env) {
    const base = env.name("fan");
    const client = env.client();
    const [wide, tagged, states]: unknown[][] = [[], [], []];
    await client.subscribe(`${base}.*`, "g", (event) => void wide!.push(event.topic));
    await client.subscribe(`${base}.a`, "tagged", (event) => void tagged!.push(event.payload), { filter: { tags: ["#x"] } });
    await client.publish(`${base}.a`, 1, { tags: ["#x"] });
    await client.publish(`${base}.a`, 2, { tags: ["#y"] });
    await client.publish(`${base}.b`, 3);
    await until("all topics of the pattern", () => wide!.length === 3 && tagged!.length === 1);
    same([wide!.sort(), tagged], [[`${base}.a`, `${base}.a`, `${base}.b`], [1]], "what came");
    const [past, tail]: unknown[][] = [[], []];
    await client.subscribe(`${base}.*`, "late", (event) => void past!.push(event.topic), { from: "earliest" });
    await client.subscribe(`${base}.*`, null, (event) => void tail!.push(event.topic), { from: "earliest" });
    await until("the history of all topics", () => past!.length === 3 && tail!.length === 3);
    for (const [key, payload] of [["k1", 1], ["k2", 2], ["k1", 3], ["k2", null]] as const) await client.publish(`${base}.state`, payload, { key });
    await client.subscribe(`${base}.state`, null, (event, ctx) => void states!.push([event.key, event.payload, !!ctx.snapshot]), { from: "snapshot" });
    await client.publish(`${base}.state`, 4, { key: "k3" });
    await until("the snapshot and what follows", () => states!.length >= 2);
    same(states, [["k1", 3, true], ["k3", 4, false]], "the live keys, then the news");
  },

  async "a snapshot start under eight writers is complete, then everything comes, nothing twice"(env) {
    const topic = env.name("snap");
    const [writer, reader] = [env.client(), env.client()];
    const written = new Map<number, [key: string, live: boolean]>();
    const write = async (key: string, live: boolean) => {
      const { seq } = await writer.publish(topic, live ? { key } : null, { key });
      written.set(seq, [key, live]);
    };
    const writers = Array.from({ length: 8 }, async (_, w) => {
      for (let n = 0; n < 60; n++) await write(`k${(w * 7 + n * 3) % 20}`, (w + n) % 9 !== 0);
    });
    await until("some are written", () => written.size > 100);
    const seen: { seq: number; snapshot: boolean }[] = [];
    await reader.subscribe(topic, null, (event, ctx) => void seen.push({ seq: event.seq, snapshot: !!ctx.snapshot }), { from: "snapshot" });
    await Promise.all(writers);
    await write("end", true);
    await until("the last event", () => seen.some((one) => one.seq === 481 && !one.snapshot));
    const live = seen.filter((one) => !one.snapshot).map((one) => one.seq);
    const first = live[0]!;
    same(live, Array.from({ length: 482 - first }, (_, n) => first + n), "everything after the snapshot, in order");
    const state = new Map<string, number>();
    for (const [seq, [key, lives]] of [...written].sort(([x], [y]) => x - y)) {
      if (seq >= first) break;
      if (lives) state.set(key, seq);
      else state.delete(key);
    }
    const sorted = (seqs: number[]) => seqs.sort((x, y) => x - y);
    same(sorted(seen.filter((one) => one.snapshot).map((one) => one.seq)), sorted([...state.values()]), "the state at that moment");
  },

  async "nothing is lost or doubled when the hub is killed and restarted"(env) {
    const topic = env.name("crash");
    const quick: ClientOptions = { backoffMs: [50, 500] };
    const [publisher, consumer] = [env.client(quick), env.client(quick)];
    const seen = new Map<number, number>();
    await consumer.subscribe<number>(topic, "g", async (event) => { await sleep(2); seen.set(event.payload, (seen.get(event.payload) ?? 0) + 1); }, { from: "earliest" });
    const answers: Promise<Published>[] = [];
    for (let n = 0; n < 300; n++) {
      answers.push(publisher.publish(topic, n));
      if (n === 100) {
        await Promise.all(answers.slice(0, 50));
        await env.kill();
      }
      if (n === 200) await env.start();
      await sleep(2);
    }
    const stored = await Promise.all(answers);
    same(new Set(stored.map((a) => a.seq)).size, 300, "each publish has its own seq");
    same([...stored.map((a) => a.seq)].sort((x, y) => x - y).at(-1), 300, "stored once each");
    await until("the group has them all", () => seen.size === 300);
    const order = stored.map((a) => a.seq);
    same(order, [...order].sort((x, y) => x - y), "in the order of publishing");
  },

  async "a token is renewed before it runs out and the connection stays"(env) {
    const topic = env.name("token");
    let asked = 0;
    const errors: Error[] = [];
    const states: string[] = [];
    const client = env.client({
      token: () => { asked++; return env.token(asked === 1 ? 3 : 600); },
      onError: (error) => errors.push(error),
      onState: (state) => states.push(state),
    });
    const seen: unknown[] = [];
    await client.subscribe(topic, "g", (event) => void seen.push(event.payload));
    await until("the second token", () => asked === 2);
    await sleep(9_000); // longer than the first token and its leeway
    await client.publish(topic, "after");
    await until("the event", () => seen.length === 1);
    same([errors.map(String), states, asked], [[], ["connecting", "open"], 2], "no interruption");
  },

  async "a refused token is told to whoever waits"(env) {
    const client = env.client({ token: "wrong" });
    const code = await client.connect().then(() => "connected", (error) => `${error.code} ${error.retryable}`);
    same(["bad_token false", "jwt_invalid false"].includes(code), true, `why not, ${code}`);
  },
};
