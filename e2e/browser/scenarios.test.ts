// The SDK's scenarios in Chromium: the hub's own /sdk.js, the browser's WebSocket, the real hub, killed for real.
import { fileURLToPath } from "node:url";
import { build } from "esbuild";
import type { Browser, Page } from "playwright-core";
import { afterAll, afterEach, beforeAll, describe, it } from "vitest";
import { jwt, STATIC_TOKEN, type RealHub } from "../../sdk/typescript/test/real-hub.js";
import { scenarios } from "../../sdk/typescript/test/scenarios.js";
import { launch, startHub } from "./harness.js";

const file = fileURLToPath(new URL("../../sdk/typescript/test/scenarios.ts", import.meta.url));

describe("in Chromium, with the real hub", () => {
  let hub: RealHub;
  let browser: Browser;
  let page: Page;
  let code: string;
  beforeAll(async () => {
    hub = await startHub();
    browser = await launch();
    const built = await build({ entryPoints: [file], bundle: true, write: false, format: "iife", globalName: "told", target: "es2022" });
    code = built.outputFiles[0]!.text;
  });
  afterAll(async () => {
    await browser?.close();
    await hub?.end();
  });
  afterEach(() => page?.close());

  let serial = 0;
  for (const name of Object.keys(scenarios)) {
    it(name, async () => {
      // The hub's own page is the origin; its policy would refuse the test's script, so that is told to look away here.
      page = await (await browser.newContext({ bypassCSP: true })).newPage();
      await page.goto(`http://${hub.ops}/`);
      await page.exposeFunction("hubKill", () => hub.kill());
      await page.exposeFunction("hubStart", async () => void (await hub.start()));
      await page.exposeFunction("hubToken", (seconds: number) => jwt(seconds));
      await page.addScriptTag({ content: code });
      await page.addScriptTag({ type: "module", content: `import * as sdk from "/sdk.js"; globalThis.sdk = sdk;` });
      await page.waitForFunction("globalThis.sdk");
      await page.evaluate(async ({ name, url, token, serial }) => {
        const world = globalThis as any;
        const { PromClient } = world.sdk;
        const clients: any[] = [];
        let names = 0;
        const env = {
          client(options = {}) {
            const client = new PromClient(url, { token, ...options });
            clients.push(client);
            return client;
          },
          name: (base: string) => `${base}.b${serial}x${++names}`,
          kill: () => world.hubKill(),
          start: () => world.hubStart(),
          token: (seconds: number) => world.hubToken(seconds),
        };
        try {
          await world.told.scenarios[name](env);
        } finally {
          await Promise.all(clients.map((client) => client.close({ timeoutMs: 500 })));
        }
      }, { name, url: hub.url, token: STATIC_TOKEN, serial: ++serial });
    });
  }
});
