// A page that stays open under 2,000 events a second does not grow. SOAK_SECONDS (300) says how long.
import type { Browser } from "playwright-core";
import { afterAll, beforeAll, expect, it } from "vitest";
import type { RealHub } from "../../sdk/typescript/test/real-hub.js";
import { connect, launch, openPage, shot, sleep, startHub } from "./harness.js";

const SECONDS = Number(process.env.SOAK_SECONDS ?? 300);
const RATE = 2_000;
let hub: RealHub;
let browser: Browser;
beforeAll(async () => { hub = await startHub({ open: true }); browser = await launch(); });
afterAll(async () => { await browser?.close(); await hub?.end(); });

it(`keeps its size over ${SECONDS} s of ${RATE} events/s`, async () => {
  const publisher = connect(hub);
  const payload = { text: "x".repeat(180), n: 0 };
  let sent = 0;
  const start = Date.now();
  const timer = setInterval(() => {
    const due = Math.min(RATE, Math.floor((Date.now() - start) / 1000 * RATE) - sent);
    if (due <= 0) return;
    sent += due;
    publisher.publishBatch("flood", Array.from({ length: due }, (_, n) => ({ payload: { ...payload, n }, key: `k${n % 50}` }))).catch(() => {});
  }, 50);
  const { page, complaints } = await openPage(browser);
  const cdp = await page.context().newCDPSession(page);
  await cdp.send("Performance.enable");
  const measure = async () => {
    await cdp.send("HeapProfiler.collectGarbage");
    const { usedSize } = await cdp.send("Runtime.getHeapUsage");
    const { metrics } = await cdp.send("Performance.getMetrics");
    const value = (name: string) => metrics.find((m) => m.name === name)!.value;
    return { heapMB: Math.round(usedSize / 1e5) / 10, nodes: value("Nodes"), listeners: value("JSEventListeners") };
  };
  await page.goto(`http://${hub.ops}/#/events?topic=flood`);
  await page.locator("tbody tr").first().waitFor();
  const steps: Awaited<ReturnType<typeof measure>>[] = [];
  const pause = (SECONDS * 1000) / 10;
  for (let i = 0; i < 10; i++) {
    await sleep(pause);
    steps.push(await measure());
  }
  const seen = Number((await page.getByRole("status").filter({ hasText: "seen" }).textContent())!.replace(/.*·\s*([\d.,]+[KM]?) seen.*/, "$1").replace(/,/g, "").replace("K", "e3").replace("M", "e6"));
  await shot(page, "soak");
  clearInterval(timer);
  console.log({ sent, seen, steps });
  expect(complaints).toEqual([]);
  expect(seen).toBeGreaterThan(sent * 0.9);
  // The first tenth fills the ring; after that, nothing grows. Rows that have just left may still wait for the collector,
  // so the smallest of several measurements is what the page really holds.
  const least = (part: typeof steps, of: (s: (typeof steps)[number]) => number) => Math.min(...part.map(of));
  const [early, late] = [steps.slice(1, 5), steps.slice(6)];
  expect(least(late, (s) => s.heapMB)).toBeLessThan(least(early, (s) => s.heapMB) * 1.1 + 0.5);
  expect(least(late, (s) => s.nodes)).toBeLessThan(least(early, (s) => s.nodes) * 1.05 + 100);
  expect(Math.max(...steps.map((s) => s.nodes))).toBeLessThan(20_000);
  expect(Math.max(...steps.map((s) => s.listeners))).toBeLessThan(3_000);
  await page.close();
  await publisher.close();
}, SECONDS * 1000 + 120_000);
