// The page of a hub that asks for tokens.
import type { Browser } from "playwright-core";
import { afterAll, beforeAll, expect, it } from "vitest";
import { jwt, STATIC_TOKEN, type RealHub } from "../../sdk/typescript/test/real-hub.js";
import { connect, launch, openPage, shot, startHub, unfriendly, until } from "./harness.js";

let hub: RealHub;
let browser: Browser;
beforeAll(async () => {
  hub = await startHub();
  browser = await launch();
  const client = connect(hub, { token: STATIC_TOKEN });
  await client.publish("open.air", 1);
  await client.publish("secret.plans", 2);
  const sub = await client.subscribe("open.air", "g", () => {});
  await sub.unsubscribe();
  await client.close();
});
afterAll(async () => {
  await browser?.close();
  await hub?.end();
});

const signIn = async (token: string) => {
  const { page, complaints } = await openPage(browser);
  await page.goto(`http://${hub.ops}/#/topics`);
  await page.getByLabel("Token").fill(token);
  await page.getByRole("button", { name: "Sign in" }).click();
  return { page, complaints };
};

it("asks for a token, refuses a wrong one, keeps the right one for the tab", async () => {
  const { page, complaints } = await signIn("wrong");
  await page.getByRole("alert").waitFor();
  expect(await unfriendly(page)).toEqual([]);
  await shot(page, "sign-in");
  await page.getByLabel("Token").fill(STATIC_TOKEN);
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.getByRole("link", { name: "open.air", exact: true }).waitFor();
  await page.reload();
  await page.getByRole("link", { name: "secret.plans", exact: true }).waitFor();
  await page.goto(`http://${hub.ops}/#/events?from=earliest`);
  await until("the tail has the token too", async () => (await page.locator("tbody tr").count()) >= 2);
  await page.getByRole("button", { name: "Sign out" }).click();
  await page.getByLabel("Token").waitFor();
  expect(complaints).toEqual([]);
  await page.close();
});

it("shows a narrow token only its topics and lets it change nothing", async () => {
  const { page } = await signIn(jwt(600, { sub: "reader", scopes: ["subscribe:open.**"] }));
  await page.getByRole("link", { name: "open.air", exact: true }).waitFor();
  expect(await page.getByText("secret.plans").count()).toBe(0);
  await page.getByText("reader").waitFor();
  await page.goto(`http://${hub.ops}/#/groups?topic=open.air&group=g`);
  await page.getByRole("heading", { name: "g", level: 1 }).waitFor();
  await until("no right to move cursors", () => page.getByRole("button", { name: "Move cursor…" }).isDisabled());
  await page.close();
});
