// A hub that is killed every second, behind a proxy that cuts, resets, half-closes, swallows and delays: a ledger of what
// the client was told and of what its handlers saw. Runs where PROMETHEAN_BIN names a hub, for CHAOS_SECONDS (6).
import { createServer, connect, type AddressInfo, type Socket } from "node:net";
import { afterAll, expect, it } from "vitest";
import { PromClient, type PromError } from "../src/index.js";
import { RealHub } from "./real-hub.js";
import { sleep, until } from "./scenarios.js";

const bin = process.env.PROMETHEAN_BIN;
const SECONDS = Number(process.env.CHAOS_SECONDS ?? 6);
const seed = Number(process.env.CHAOS_SEED ?? Date.now() % 100_000);
let state = seed;
const dice = (sides: number): number => Math.floor((state = (state * 48_271) % 2_147_483_647) / 2_147_483_647 * sides);

const rejections: unknown[] = [];
const reject = (reason: unknown) => void rejections.push(reason);
process.on("unhandledRejection", reject);
afterAll(() => void process.off("unhandledRejection", reject));

/** Passes bytes on until it is told to do something else. */
class Proxy {
  readonly links = new Set<{ client: Socket; hub: Socket; deaf: boolean; late: number }>();
  readonly server = createServer((client) => {
    const hub = connect(Number(this.to().split(":").at(-1)), "127.0.0.1");
    const link = { client, hub, deaf: false, late: 0 };
    this.links.add(link);
    const pass = (from: Socket, to: Socket) => {
      let last = Promise.resolve(); // in order, however late
      from.on("data", (bytes) => {
        last = last.then(async () => {
          if (link.late) await sleep(link.late);
          if (!link.deaf) to.write(bytes);
        });
      });
      from.on("error", () => {});
      from.on("close", () => { void last.then(() => to.destroy()); this.links.delete(link); });
    };
    pass(client, hub);
    pass(hub, client);
  });

  constructor(private to: () => string) {}

  /** Does one of its tricks with one connection. */
  async trick(): Promise<void> {
    const links = [...this.links];
    const link = links[dice(links.length || 1)];
    if (!link) return;
    switch (dice(5)) {
      case 0: link.client.destroy(); return;
      case 1: link.client.resetAndDestroy(); return;
      case 2: link.client.end(); await sleep(100); link.client.destroy(); return;
      case 3: link.deaf = true; await sleep(200); link.client.destroy(); return;
      default: link.late = 20; await sleep(200); link.late = 0;
    }
  }
}

it.runIf(bin)(`${SECONDS} s of faults lose, double and reorder nothing (CHAOS_SEED=${seed})`, async () => {
  const hub = new RealHub(bin!, { open: true });
  await hub.start();
  const proxy = new Proxy(() => hub.ws);
  await new Promise<void>((resolve) => proxy.server.listen(0, "127.0.0.1", resolve));
  const url = `ws://127.0.0.1:${(proxy.server.address() as AddressInfo).port}`;
  const make = () => new PromClient(url, { backoffMs: [10, 200], onError() {} });
  const [publisher, consumer] = [make(), make()];
  const told = new Map<string, number>(); // payload → seq
  const failed: PromError[] = [];
  const groups = ["billing", "mail"].map((name) => ({ name, handled: new Set<string>(), seen: new Set<string>(), running: new Set<string>(), twice: [] as string[] }));
  for (const { name, handled, seen, running, twice } of groups) await consumer.subscribe("chaos", name, async (event) => {
    const payload = event.payload as string;
    if (running.has(payload)) twice.push(payload);
    running.add(payload);
    seen.add(payload);
    await sleep(dice(10));
    running.delete(payload);
    if (dice(50) === 0) throw new Error("now and then");
    handled.add(payload);
  }, { from: "earliest", concurrency: 20, ackTimeoutMs: 5_000, maxAttempts: 20 });

  let going = true;
  const publish = async (name: string, batch: number) => {
    const flying = new Set<Promise<void>>();
    for (let n = 0; going; n += batch) {
      const names = Array.from({ length: batch }, (_, i) => `${name}-${n + i}`);
      const sent = batch === 1 ? publisher.publish("chaos", names[0]!, { key: name }).then((one) => [one])
        : publisher.publishBatch("chaos", names.map((payload) => ({ payload, key: name })));
      const one = sent.then((all) => all.forEach(({ seq }, i) => told.set(names[i]!, seq)), (error) => void failed.push(error)).finally(() => flying.delete(one));
      flying.add(one);
      await (flying.size >= 20 ? Promise.race(flying) : sleep(5));
    }
    await Promise.all(flying);
  };
  const publishing = [publish("a", 1), publish("b", 1), publish("c", 5)];
  const end = Date.now() + SECONDS * 1_000;
  const killing = (async () => {
    while (Date.now() < end) {
      await sleep(1_000);
      await hub.kill();
      await hub.start();
    }
  })();
  while (Date.now() < end) {
    await sleep(100 + dice(200));
    await proxy.trick();
  }
  await killing;
  going = false;
  await Promise.all(publishing);

  // Everything that is there, by a reader of its own.
  const direct = new PromClient(hub.url);
  const stored: { payload: string; key: string; seq: number }[] = [];
  const [dead, letters]: string[][] = [[], []];
  await direct.subscribe("chaos", null, (event) => void stored.push(event as any), { from: "earliest" });
  await direct.subscribe("dlq.chaos", null, ({ payload }: any) => { letters!.push(payload.original.payload); if (!groups.find((one) => one.name === payload.group)!.seen.has(payload.original.payload)) dead!.push(payload.original.payload); }, { from: "earliest" });
  await until("all that was answered is there", () => stored.length >= told.size, 30_000);
  await until("every group has handled all of it", () => groups.every(({ handled }) => stored.every(({ payload }) => handled.has(payload) || letters!.includes(payload))), 60_000);

  const place = new Map(stored.map(({ payload, seq }) => [payload, seq]));
  const reordered = ["a", "b", "c"].filter((name) => {
    const order = stored.filter(({ key }) => key === name).map(({ payload }) => Number(payload.slice(2)));
    return order.some((n, i) => i > 0 && n < order[i - 1]!);
  });
  const started = Date.now();
  await Promise.all([publisher.close(), consumer.close(), direct.close()]);
  expect({
    failed: failed.map(({ code }) => code), lost: [...told.keys()].filter((payload) => !place.has(payload)), doubled: stored.length - place.size,
    wrongSeq: [...told].filter(([payload, seq]) => place.get(payload) !== seq), reordered, twiceAtOnce: groups.flatMap(({ twice }) => twice),
    deadUnseen: dead, rejections, late: Date.now() - started > 11_000,
  }).toEqual({ failed: [], lost: [], doubled: 0, wrongSeq: [], reordered: [], twiceAtOnce: [], deadUnseen: [], rejections: [], late: false });
  console.log(`${told.size} publishes, ${stored.length} events, CHAOS_SEED=${seed}`);
  expect(told.size).toBeGreaterThan(SECONDS * 20);
  await hub.end();
  proxy.server.close();
}, (SECONDS + 150) * 1_000);
