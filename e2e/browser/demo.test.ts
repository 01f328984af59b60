// `promethean demo`: the page with the live table of processes, over a kill and a restart of the hub.
import type { Browser } from "playwright-core";
import { afterAll, beforeAll, expect, it } from "vitest";
import type { RealHub } from "../../sdk/typescript/test/real-hub.js";
import { launch, openPage, shot, startHub, unfriendly, until } from "./harness.js";

let hub: RealHub;
let browser: Browser;
beforeAll(async () => {
  hub = await startHub({ open: true, command: "demo" });
  browser = await launch();
});
afterAll(async () => {
  await browser?.close();
  await hub?.end();
});

it("shows every process alive, and goes on by itself after the hub was killed and started again", async () => {
  const { page, complaints } = await openPage(browser);
  await page.goto(`http://${hub.ops}/demo`);
  const table = page.getByRole("table", { name: "Processes" });
  for (const name of ["stt", "tts", "vision"]) {
    const row = table.getByRole("row", { name: new RegExp(name) });
    await row.getByText("alive").waitFor();
    expect(await row.innerText()).toMatch(/local[\s\S]*1234[\s\S]*%[\s\S]*MB/);
  }
  expect(await unfriendly(page)).toEqual([]);
  await shot(page, "demo");
  const events = async () => Number(/(\d+) events/.exec(await page.getByRole("status").innerText())?.[1]);
  const first = await events();
  await until("heartbeats move the table", async () => (await events()) > first + 3);
  expect(complaints).toEqual([]);

  await hub.kill();
  await page.getByRole("status").filter({ hasText: "connecting" }).waitFor();
  await hub.start();
  const before = await events();
  await until("the page goes on by itself", async () => (await events()) > before + 3);
  // A page that is opened now begins with the state as the restarted projector has it.
  const { page: fresh } = await openPage(browser);
  await fresh.goto(`http://${hub.ops}/demo`);
  await fresh.getByRole("row", { name: /stt/ }).getByText("alive").waitFor();
  expect(await fresh.getByRole("table", { name: "Processes" }).getByRole("row").count()).toBe(4);
});
