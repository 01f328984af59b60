// What the browser tests share: the real hub, a real Chromium, traffic, and the things no page may do.
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { fileURLToPath } from "node:url";
import { chromium, type Browser, type Page } from "playwright-core";
import { WebSocket } from "ws";
import { PromClient, type ClientOptions, type SocketClass } from "../../sdk/typescript/src/index.js";
import { RealHub, type HubOptions } from "../../sdk/typescript/test/real-hub.js";

const here = (path: string) => fileURLToPath(new URL(path, import.meta.url));
const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
export const SHOTS = here("screenshots/");

/** The binary under test: PROMETHEAN_BIN, else the release build of this checkout. */
export const bin = process.env.PROMETHEAN_BIN ?? here("../../target/release/promethean");

export const startHub = (options: HubOptions = {}): Promise<RealHub> => new RealHub(bin, options).start();

export const launch = (): Promise<Browser> => chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync", "--js-flags=--expose-gc"],
});

export const connect = (hub: RealHub, options: ClientOptions = {}): PromClient =>
  new PromClient(hub.url, { WebSocket: WebSocket as unknown as SocketClass, ...options });

/** A page whose complaints (errors, refused by the content security policy, failed requests) are kept. */
export async function openPage(browser: Browser, options: Parameters<Browser["newPage"]>[0] = {}): Promise<{ page: Page; complaints: string[] }> {
  const page = await browser.newPage({ viewport: { width: 1380, height: 900 }, ...options });
  const complaints: string[] = [];
  page.on("pageerror", (error) => complaints.push(`error: ${error.message}`));
  page.on("console", (message) => { if (message.type() === "error" && !message.text().startsWith("Failed to load resource")) complaints.push(message.text()); });
  page.on("response", (response) => { if (response.status() >= 400 && response.status() !== 401) complaints.push(`${response.status()} ${response.request().method()} ${new URL(response.url()).pathname}${new URL(response.url()).search}`); });
  return { page, complaints };
}

export async function shot(page: Page, name: string): Promise<void> {
  mkdirSync(SHOTS, { recursive: true });
  await page.screenshot({ path: `${SHOTS}${name}.png` });
}

/**
 * A picture of a page of docs: made in every run beside the screenshots; the one in docs/images is made anew with
 * UPDATE_PICTURES=1. Gives the kept one's size in bytes and whether it shows the page as large as it is now.
 */
export async function picture(page: Page, name: string): Promise<{ bytes: number; fits: boolean }> {
  await shot(page, name);
  const now = readFileSync(`${SHOTS}${name}.png`);
  const place = here(`../../docs/images/${name}.png`);
  if (process.env.UPDATE_PICTURES) writeFileSync(place, now);
  const kept = readFileSync(place);
  // A PNG has its width and height at bytes 16 to 23.
  return { bytes: kept.length, fits: kept.subarray(0, 24).equals(now.subarray(0, 24)) };
}

/** What axe-core finds wrong for people with assistive technology. */
export async function unfriendly(page: Page): Promise<string[]> {
  await page.evaluate(AXE);
  return page.evaluate(async () => {
    const axe = (globalThis as any).axe;
    const { violations } = await axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"] });
    return violations.map((v: any) => `${v.id}: ${v.help} (${v.nodes.length}) ${v.nodes[0].target} ${v.nodes[0].any?.[0]?.message ?? ""}`);
  });
}

export const sleep = (ms: number) => new Promise<void>((resolve) => setTimeout(resolve, ms));

/** Waits until `check` is true; a test fails with `what` otherwise. */
export async function until(what: string, check: () => boolean | Promise<boolean>, ms = 20_000): Promise<void> {
  const end = Date.now() + ms;
  while (!(await check())) {
    if (Date.now() > end) throw new Error(`in vain: ${what}`);
    await sleep(50);
  }
}
