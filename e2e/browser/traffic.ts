// A small shop that is always busy: enough of everything that the screens have to show.
import type { PromClient } from "../../sdk/typescript/src/index.js";
import type { RealHub } from "../../sdk/typescript/test/real-hub.js";
import { connect, until } from "./harness.js";

export interface Shop {
  /** A paid order: caused by its creation, cause of a mail. */
  paid: string;
  stop(): Promise<void>;
}

export async function openShop(hub: RealHub, token?: string): Promise<Shop> {
  const options = token === undefined ? {} : { token };
  const clients: PromClient[] = [];
  const client = () => { const made = connect(hub, options); clients.push(made); return made; };
  const [till, billing, mailer, stuck, watcher] = [client(), client(), client(), client(), client()];
  let paid = "";

  // Orders cause payments, payments cause mails.
  await billing.subscribe<{ n: number }>("order.created", "billing", async (event) => {
    if (event.payload.n % 10 === 3) throw new Error("card declined");
    await billing.publish("order.paid", { n: event.payload.n, total: 12.5 }, { caused_by: [event.id], ...(event.key && { key: event.key }) });
  }, { from: "earliest", maxAttempts: 2 });
  await mailer.subscribe<{ n: number }>("order.paid", "mailer", async (event) => {
    await mailer.publish("mail.sent", { to: `customer-${event.payload.n}@example.org` }, { caused_by: [event.id] });
    paid ||= event.id;
  }, { from: "earliest" });
  // Takes three events and never acks them.
  await stuck.subscribe("order.created", "stuck", () => {}, { from: "earliest", ack: "manual", maxInFlight: 3, ackTimeoutMs: 600_000 });
  // Was there once and left: it lags without a member.
  const gone = await watcher.subscribe("order.created", "gone", () => {}, { from: "earliest" });
  await gone.unsubscribe();

  let n = 0;
  const timer = setInterval(() => {
    n++;
    till.publish("order.created", { n, items: [{ sku: `a-${n % 7}`, n: 2 }], note: null, paid: false }, { key: `customer-${n % 5}`, tags: n % 2 ? ["#web"] : ["#shop"], headers: { "x-trace": String(n) } }).catch(() => {});
    till.publish("process.state", { processId: `dev:worker:${n % 4}`, name: "worker", host: "dev", pid: 100 + (n % 4), cpu_pct: 20 + (n % 60), mem_mb: 200 + n % 50, last_seen_ts: Date.now(), status: n % 4 ? "alive" : "stale" }, { key: `dev:worker:${n % 4}` }).catch(() => {});
  }, 50);
  await until("a paid order", () => paid !== "" && n > 20);
  return {
    get paid() { return paid; },
    async stop() {
      clearInterval(timer);
      await Promise.all(clients.map((c) => c.close({ timeoutMs: 500 })));
    },
  };
}
