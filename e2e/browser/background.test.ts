// A page that is hidden and frozen, or offline, in Chromium: coming back needs no timer. The client's back-off is an hour.
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";
import { afterAll, afterEach, beforeAll, beforeEach, expect, it } from "vitest";
import { FakeHub } from "../../sdk/typescript/test/fake-hub.js";
import { Chromium, type Tab } from "./devtools.js";
import { until } from "./harness.js";

const sdk = fileURLToPath(new URL("../../sdk/typescript/src/index.ts", import.meta.url));
const HTML = `<!doctype html><title>a page</title><script type="module">
  import { PromClient } from "/sdk.js";
  globalThis.seen = [];
  for (const name of ["freeze", "resume"]) document.addEventListener(name, () => seen.push(name));
  document.addEventListener("visibilitychange", () => seen.push(document.visibilityState));
  globalThis.begin = (url) => {
    globalThis.client = new PromClient(url, { backoffMs: [3_600_000, 3_600_000], onState: (state) => seen.push(state), onError() {} });
    return client.connect();
  };
</script>`;

let site: Server;
let browser: Chromium;
let hub: FakeHub;
let tab: Tab;

beforeAll(async () => {
  const built = await build({ entryPoints: [sdk], bundle: true, write: false, format: "esm", target: "es2022", dropLabels: ["NODE"] });
  const script = built.outputFiles[0]!.text;
  site = createServer((request, response) => {
    const js = request.url === "/sdk.js";
    response.setHeader("Content-Type", js ? "text/javascript" : "text/html").end(js ? script : HTML);
  });
  await new Promise<void>((resolve) => site.listen(0, "127.0.0.1", resolve));
  browser = await Chromium.start();
});
afterAll(async () => {
  await browser?.end();
  site?.close();
});

beforeEach(async () => {
  hub = new FakeHub();
  await hub.start();
  tab = await browser.open(`http://127.0.0.1:${(site.address() as AddressInfo).port}/`);
  await until("the page is there", () => tab.value("!!globalThis.begin"));
  await tab.value(`begin(${JSON.stringify(hub.url)})`);
});
afterEach(async () => {
  await tab?.send("Page.close");
  tab?.close();
  await hub?.kill();
});

const publish = () => tab.value(`client.publish("t", 1).then(({ seq }) => seq)`);
const becomes = (state: string) => until(`the client is ${state}`, async () => (await tab.value("client.state")) === state);

/** Puts another tab in front and freezes the page, as browsers do with a tab in the background. */
async function frozen(during: () => Promise<unknown>): Promise<void> {
  const other = await browser.open("about:blank");
  await tab.send("Page.setWebLifecycleState", { state: "frozen" });
  await during();
  await tab.send("Page.setWebLifecycleState", { state: "active" });
  await tab.send("Page.bringToFront");
  await other.send("Page.close");
  other.close();
}

/** The hub is gone, and the next attempt is an hour away. */
async function lost(): Promise<void> {
  await hub.kill();
  await becomes("connecting");
}

it("a frozen page that comes back connects at once", async () => {
  await lost();
  await frozen(() => hub.start());
  await becomes("open");
  expect(await publish()).toBe(1);
  expect(await tab.value("seen")).toEqual(["connecting", "open", "connecting", "hidden", "freeze", "resume", "visible", "open"]);
});

it("a frozen page publishes when it is back, also if the browser has closed its connection", async () => {
  await frozen(async () => {});
  expect(await publish()).toBe(1);
  await frozen(() => hub.kill().then(() => hub.start()));
  expect(await publish()).toBe(2);
});

it("a page whose network is back connects at once, and so does resumeNow", async () => {
  await lost();
  const network = (offline: boolean) => tab.send("Network.emulateNetworkConditions", { offline, latency: 0, downloadThroughput: -1, uploadThroughput: -1 });
  await tab.send("Network.enable");
  await network(true);
  await hub.start();
  await network(false);
  await becomes("open");
  expect(await publish()).toBe(1);
  await lost();
  await hub.start();
  await tab.value("client.resumeNow()");
  await becomes("open");
  expect(await publish()).toBe(2);
});
