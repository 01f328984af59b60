// The TypeScript of the guides, run under Node against the real hub. Their commands and their Rust are in
// e2e/tests/it/guides/.
import { readdirSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { afterAll, beforeAll, expect, it } from "vitest";
import type { RealHub } from "../../sdk/typescript/test/real-hub.js";
import { startHub, until } from "./harness.js";
import { Project, blocks } from "./program.js";

const guides = readdirSync(fileURLToPath(new URL("../../docs/guide", import.meta.url))).sort();
const found = guides.flatMap((guide) => blocks(`docs/guide/${guide}`).map((code, n) => ({ name: `${guide} ${n + 1}`, code })));

const project = new Project();
let hub: RealHub;
beforeAll(async () => { hub = await startHub({ open: true }); });
afterAll(async () => { await hub?.end(); project.remove(); });

const publish = async (to: string, payload: unknown) => {
  const { status } = await fetch(`http://${hub.http}/publish/${to}`, { method: "POST", body: JSON.stringify(payload) });
  expect(status).toBe(200);
};
const joined = (topic: string, name: string) => until(`a member of ${name}`, async () => {
  const { groups } = await (await fetch(`http://${hub.ops}/groups?topic=${topic}`)).json() as { groups: { group: string; members: number }[] };
  return groups.some(({ group, members }) => group === name && members > 0);
});

interface Part { lines: number; out: string | RegExp; before?: string; meanwhile?: () => Promise<void>; first?: () => Promise<void> }

const parts: Record<string, Part> = {
  "delivery.md 1": {
    first: () => publish("orders.created", { order: 5 }),
    before: "globalThis.charge = async (order) => { console.log('charged', order); return {}; };",
    lines: 1, out: "charged 5\n",
  },
  "delivery.md 2": {
    meanwhile: async () => { await joined("orders.created", "shipping"); await publish("orders.created?key=k", { order: 6 }); },
    lines: 1, out: "orders.created k 1\n",
  },
  "migrating-from-nats.md 1": { lines: 1, out: "1 false\n" },
  "migrating-from-redis-streams.md 1": { lines: 1, out: /^\{ order: [56] \}\n/ },
  "migrating-from-the-seed.md 1": { lines: 1, out: "{ pid: 12345, name: 'stt', host: 'dev' } 1\n" },
  "state.md 1": {
    first: async () => { for (const status of ["alive", "stale"]) await publish("process.state?key=dev:stt:7", { status }); },
    lines: 1, out: "dev:stt:7 { status: 'stale' }\n",
  },
  "state.md 2": { first: () => publish("process.state?key=dev:stt:7", { status: "alive" }), lines: 1, out: "1 processes\n" },
};

// It asks its page's own server for a token, and there is none here. That a token may come from a function is tested
// by sdk/typescript/test/client.test.ts.
const elsewhere = ["security.md 1"];
// Two hubs by name (sdk/typescript/test/outage.test.ts), and databases of the reader's (once.test.ts there).
elsewhere.push("clients.md 1", "outbox.md 1");

it("every block of a guide has its part here", () => {
  expect(found.map(({ name }) => name).sort()).toEqual([...Object.keys(parts), ...elsewhere].sort());
});

it.each(found.filter(({ name }) => name in parts))("$name", async ({ name, code }) => {
  const { first, before, lines, out, meanwhile } = parts[name]!;
  await first?.();
  const [printed] = await Promise.all([project.run(code, hub, lines, before), meanwhile?.()]);
  expect(printed).toMatch(typeof out === "string" ? new RegExp(`^${out.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")}$`) : out);
});
