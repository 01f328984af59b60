// Every screen of the page, against the real hub with real traffic. Screenshots stay in screenshots/.
import { readFile } from "node:fs/promises";
import type { Browser, Page } from "playwright-core";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from "vitest";
import type { RealHub } from "../../sdk/typescript/test/real-hub.js";
import { connect, launch, openPage, picture, shot, sleep, startHub, unfriendly, until } from "./harness.js";
import { openShop, type Shop } from "./traffic.js";

let hub: RealHub;
let shop: Shop;
let browser: Browser;
let page: Page;
let complaints: string[];

const visit = (path: string) => page.goto(`http://${hub.ops}/#/${path}`);
const number = (text: string | null) => Number((text ?? "").replace(/[^\d.]/g, ""));
const row = (text: string) => page.locator("tbody tr", { hasText: text });

beforeAll(async () => {
  hub = await startHub({ open: true });
  shop = await openShop(hub);
  browser = await launch();
});
afterAll(async () => {
  await browser?.close();
  await shop?.stop();
  await hub?.end();
});
beforeEach(async () => { ({ page, complaints } = await openPage(browser)); });
afterEach(async () => {
  await page.close();
  expect(complaints, "errors, refusals by the policy, failed requests").toEqual([]);
});

describe("the page", () => {
  it("comes with a strict policy and names nobody else", async () => {
    const response = (await page.goto(`http://${hub.ops}/`))!;
    const policy = response.headers()["content-security-policy"]!;
    expect(policy).toContain("default-src 'none'");
    expect(policy).not.toMatch(/unsafe|\*|https?:/);
    const hosts = new Set<string>();
    page.on("request", (request) => hosts.add(new URL(request.url()).host));
    await page.reload();
    await page.getByRole("heading", { name: "Overview" }).waitFor();
    expect([...hosts]).toEqual([hub.ops]);
  });

  it("serves the SDK as a module for other origins", async () => {
    const response = await fetch(`http://${hub.ops}/sdk.js`);
    expect([response.status, response.headers.get("content-type")?.split(";")[0], response.headers.get("access-control-allow-origin")]).toEqual([200, "text/javascript", "*"]);
    expect(await response.text()).toContain("promethean.v1");
  });

  it("is walked with the keyboard alone", async () => {
    await visit("overview");
    await page.getByRole("heading", { name: "Overview" }).waitFor();
    await page.keyboard.press("Tab");
    expect(await page.evaluate(() => document.activeElement?.textContent)).toBe("Skip to content");
    for (let i = 0; i < 3; i++) await page.keyboard.press("Tab");
    expect(await page.evaluate(() => document.activeElement?.textContent)).toBe("Topics");
    await page.keyboard.press("Enter");
    await page.getByRole("heading", { name: "Topics" }).waitFor();
    // The focus follows once the heading is painted.
    await page.waitForFunction(() => document.activeElement?.tagName === "H1");
    await page.getByRole("link", { name: "order.created", exact: true }).focus();
    const before = await page.evaluate(() => document.activeElement?.textContent);
    await page.keyboard.press("ArrowDown");
    const after = await page.evaluate(() => document.activeElement?.textContent);
    expect([before, after !== before]).toEqual(["order.created", true]);
    await page.keyboard.press("Enter");
    await page.getByRole("heading", { name: after!, level: 1 }).waitFor();
  });

  it("is light or dark as its user says, over a reload, whatever the system says", async () => {
    await page.emulateMedia({ colorScheme: "light" });
    await visit("overview");
    const background = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    const light = await background();
    await page.getByRole("button", { name: /^Theme: auto/ }).click();
    await page.getByRole("button", { name: /^Theme: light/ }).click();
    await page.getByRole("button", { name: /^Theme: dark/ }).waitFor();
    const dark = await background();
    expect(dark).not.toBe(light);
    await page.reload();
    await page.getByRole("heading", { name: "Overview" }).waitFor();
    expect(await background()).toBe(dark);
    await page.getByRole("button", { name: /^Theme: dark/ }).click();
    expect(await background()).toBe(light);
    await page.emulateMedia({ colorScheme: "dark" });
    expect(await background()).toBe(dark);
  });

  for (const scheme of ["light", "dark"] as const)
    for (const path of ["overview", "topics", "events", "groups", "groups?topic=order.created&group=stuck", "dead-letters", "dead-letters?topic=order.created", "connections", "causality"])
      it(`has nothing against assistive technology: ${path}, ${scheme}`, async () => {
        await page.emulateMedia({ colorScheme: scheme });
        await visit(path);
        await page.locator("h1").waitFor();
        await sleep(1_200);
        expect(await unfriendly(page)).toEqual([]);
        await shot(page, `${path.replace(/\W+/g, "-")}-${scheme}`);
      });
});

describe("overview", () => {
  it("shows rates, lag, in flight, dead letters, and what needs attention", async () => {
    await visit("overview");
    const stat = (label: string) => page.locator(".stat", { hasText: label }).locator("strong");
    await until("events flow", async () => number(await stat("Published").textContent()) > 10);
    await until("deliveries flow", async () => number(await stat("Delivered").textContent()) > 10);
    await until("three events are held for good", async () => number(await stat("In flight").textContent()) >= 3);
    await until("there is lag", async () => number(await stat("Lag").textContent()) > 0);
    await until("there are dead letters", async () => number(await stat("Dead letters").textContent()) > 0);
    expect(number(await stat("Connections").textContent())).toBeGreaterThanOrEqual(5);
    await page.getByText(/gone on order\.created has .* events waiting and no members/).waitFor();
    await page.getByText(/dead letters? of order\.created/).waitFor();
    const drawn = await page.locator(".chart canvas").first().evaluate((canvas: HTMLCanvasElement) => {
      const { data } = canvas.getContext("2d")!.getImageData(0, 0, canvas.width, canvas.height);
      return data.some((value) => value !== 0);
    });
    expect(drawn).toBe(true);
    await expect.poll(() => page.getByRole("img", { name: /Events per second.*published \d/ }).count()).toBe(1);
    const { bytes, fits } = await picture(page, "dashboard");
    expect(fits, "docs/images/dashboard.png shows another size: UPDATE_PICTURES=1").toBe(true);
    expect(bytes).toBeLessThan(150_000);
  });
});

describe("topics", () => {
  it("lists all with counts, filters, and shows one with its keys", async () => {
    await visit("topics");
    const orders = page.locator("tbody tr").filter({ has: page.getByRole("link", { name: "order.created", exact: true }) });
    await orders.waitFor();
    expect(number(await orders.locator("td").nth(1).textContent())).toBeGreaterThan(20);
    await page.getByLabel("Filter").fill("process");
    await until("only one is left", async () => (await page.locator("tbody tr").count()) === 1);
    await page.getByRole("link", { name: "process.state", exact: true }).click();
    await page.getByRole("heading", { name: "process.state", level: 1 }).waitFor();
    await row("dev:worker:3").waitFor();
    expect(await page.locator("table[aria-label='Latest event of each key'] tbody tr").count()).toBe(4);
    await shot(page, "topic");
  });
});

describe("events", () => {
  it("tails live, holds still, and shows one closely", async () => {
    await visit("events?topic=order.created");
    await until("events come", async () => (await page.locator("tbody tr").count()) > 10);
    await page.getByRole("button", { name: "Pause" }).click();
    const top = await page.locator("tbody tr").first().textContent();
    await page.getByText(/newer/).waitFor();
    expect(await page.locator("tbody tr").first().textContent()).toBe(top);
    await page.locator("tbody tr button").first().click();
    const panel = page.getByRole("complementary", { name: "Event" });
    await panel.getByText("x-trace").waitFor();
    await panel.getByText("sku").first().waitFor();
    await shot(page, "events-inspector");
    const key = (await panel.locator("dd a").first().textContent())!;
    await page.getByRole("button", { name: "Go on" }).click();
    await page.locator("h1").hover();
    await until("it goes on", async () => (await page.locator("tbody tr").first().textContent()) !== top);
    await panel.getByRole("link", { name: key, exact: true }).click();
    await until("the key is in the form", async () => (await page.getByLabel("Key").inputValue()) === key);
    await until("only that key", async () => {
      const rows = await page.locator("tbody tr").allTextContents();
      return rows.length > 0 && rows.every((text) => text.includes(key));
    });
  });

  it("filters by key, tag and header, at the hub", async () => {
    await visit("events?topic=order.created&from=earliest");
    await page.getByLabel("Key").fill("customer-2");
    await page.getByLabel("Tag").fill("#web");
    await until("only those", async () => {
      const rows = await page.locator("tbody tr").allTextContents();
      return rows.length > 0 && rows.every((text) => text.includes("customer-2") && text.includes("#web"));
    });
    await page.getByLabel("Key").fill("");
    await page.getByLabel("Tag").fill("");
    await page.getByLabel("Header").fill("x-trace=7");
    await until("the one with the header", async () => (await page.locator("tbody tr").count()) === 1);
  });

  it("starts at a time, ends at a time, and finds by id", async () => {
    const local = (ms: number) => new Date(ms - new Date().getTimezoneOffset() * 60_000).toISOString().slice(0, 19);
    await visit(`events?topic=order.created&from=time&since=${local(Date.now() - 3_000)}&to=${local(Date.now() - 1_000)}`);
    await until("some in between", async () => (await page.locator("tbody tr").count()) > 5);
    const shown = await page.locator("tbody tr").count();
    await sleep(1_500);
    expect(await page.locator("tbody tr").count()).toBe(shown);
    await page.getByLabel("Event id").fill(shop.paid);
    await page.getByRole("complementary", { name: "Event" }).getByText(shop.paid).waitFor();
  });

  it("publishes, and what it publishes is stored", async () => {
    await visit("events?topic=hand.made");
    await page.getByRole("button", { name: "Publish…" }).click();
    const dialog = page.getByRole("dialog");
    await dialog.getByLabel("Topic").fill("hand.made");
    await dialog.getByLabel("Key").fill("k1");
    await dialog.getByLabel("Payload").fill(`{"by": "hand"`);
    expect(await dialog.getByRole("button", { name: "Publish" }).isDisabled()).toBe(true);
    await dialog.getByLabel("Payload").fill(`{"by": "hand"}`);
    await dialog.getByRole("button", { name: "Publish" }).click();
    await dialog.getByText("Stored as seq 1").waitFor();
    await shot(page, "events-publish");
    await page.keyboard.press("Escape");
    await row("k1").waitFor();
    const replay = await (await fetch(`http://${hub.http}/replay?topic=hand.made&from=earliest`)).json();
    expect(replay.events.map((event: { payload: unknown; key: string }) => [event.payload, event.key])).toEqual([[{ by: "hand" }, "k1"]]);
  });

  it("copies as a curl command that works", async () => {
    await page.context().grantPermissions(["clipboard-read", "clipboard-write"], { origin: `http://${hub.ops}` });
    await visit(`events?id=${shop.paid}`);
    await page.getByRole("button", { name: "Copy as curl" }).click();
    await page.getByRole("button", { name: "Copied" }).waitFor();
    const command = await page.evaluate(() => navigator.clipboard.readText());
    const { execFileSync } = await import("node:child_process");
    const answer = JSON.parse(execFileSync("bash", ["-c", command.replace("curl ", "curl -sS --noproxy '*' ")], { encoding: "utf8" }));
    expect(answer.seq).toBeGreaterThan(0);
    const stored = await (await fetch(`http://${hub.ops}/event?id=${answer.id}`)).json();
    expect(stored.topic).toBe("order.paid");
  });

  it("exports a whole topic as NDJSON", async () => {
    await visit("events?topic=order.paid");
    await page.getByRole("button", { name: "Export…" }).click();
    const [file] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: "All of order.paid" }).click()]);
    const lines = (await readFile((await file.path())!, "utf8")).trim().split("\n").map((line) => JSON.parse(line));
    expect(file.suggestedFilename()).toBe("order.paid.ndjson");
    expect(lines.map((event) => event.seq)).toEqual(lines.map((_, i) => i + 1));
    expect(lines.length).toBeGreaterThan(5);
  });
});

describe("groups", () => {
  it("lists lag, members and state", async () => {
    await visit("groups");
    await row("stuck").waitFor();
    await until("the stuck one holds three", async () => number(await row("stuck").locator("td").nth(4).textContent()) === 3);
    expect(await row("gone").locator(".pill").textContent()).toBe("no members");
  });

  it("explains why one does not move, with holders and a countdown", async () => {
    await visit("groups?topic=order.created&group=stuck");
    await page.getByText("Why it does not move").waitFor();
    await page.getByText("all_in_flight").waitFor();
    const held = page.locator("table[aria-label='Events in flight'] tbody tr");
    await until("three are held", async () => (await held.count()) === 3);
    const lease = async () => /(\d+):(\d\d)/.exec((await held.first().locator("td").last().textContent())!)!.slice(1).reduce((sum, part) => sum * 60 + Number(part), 0);
    const first = await lease();
    expect(first).toBeLessThan(600);
    await until("the lease counts down", async () => (await lease()) < first);
    await page.locator(".chart canvas").first().waitFor();
    await shot(page, "group-stuck");
    await visit("groups?topic=order.created&group=gone");
    await page.getByText("no_members").waitFor();
  });

  it("moves a cursor after a dry run that changes nothing", async () => {
    const client = connect(hub);
    await client.publishBatch("seek.me", Array.from({ length: 20 }, (_, n) => ({ payload: n })));
    let done = 0;
    const sub = await client.subscribe("seek.me", "g", () => { done++; }, { from: "earliest" });
    await until("all are done", () => done === 20);
    await sub.unsubscribe();
    await visit("groups?topic=seek.me&group=g");
    await page.getByRole("button", { name: "Move cursor…" }).click();
    const dialog = page.getByRole("dialog");
    await dialog.getByLabel("To").selectOption("earliest");
    expect(await dialog.getByRole("button", { name: "Move", exact: true }).isDisabled()).toBe(true);
    await dialog.getByRole("button", { name: "Try" }).click();
    await dialog.getByText(/Would move from seq 20 to 0/).waitFor();
    await dialog.getByText(/20 events would be delivered again/).waitFor();
    const lag = async () => (await (await fetch(`http://${hub.ops}/lag?topic=seek.me&group=g`)).json()).lag;
    expect(await lag()).toBe(0);
    await shot(page, "group-seek");
    await dialog.getByRole("button", { name: "Move", exact: true }).click();
    await dialog.getByText(/Moved from seq 20 to 0/).waitFor();
    expect(await lag()).toBe(20);
    await dialog.getByLabel("To").selectOption("seq");
    await dialog.getByRole("spinbutton", { name: "Seq" }).fill("16");
    await dialog.getByRole("button", { name: "Try" }).click();
    await dialog.getByText(/15 events would be passed over/).waitFor();
    await client.close();
  });
});

describe("dead letters", () => {
  it("are shown by reason and sent back", async () => {
    const client = connect(hub);
    let refuse = true;
    const got: number[] = [];
    await client.subscribe<number>("fragile", "g", (event) => { if (refuse) throw new Error(event.payload % 2 ? "odd" : "even"); got.push(event.payload); }, { from: "earliest", maxAttempts: 1 });
    for (let n = 1; n <= 5; n++) await client.publish("fragile", n);
    await visit("dead-letters");
    await row("fragile").getByRole("link").click();
    const reasons = page.locator("table[aria-label='Reasons'] tbody tr");
    await until("two reasons, five letters", async () => (await reasons.count()) === 2 && (await page.locator("table[aria-label='Dead letters'] tbody tr").count()) === 5);
    expect(number(await reasons.filter({ hasText: "odd" }).locator("td").nth(2).textContent())).toBe(3);
    await page.locator("table[aria-label='Dead letters'] button.link").first().click();
    await page.getByRole("dialog").getByText("payload").waitFor();
    await page.keyboard.press("Escape");
    await shot(page, "dead-letters-reasons");
    refuse = false;
    await reasons.filter({ hasText: "odd" }).getByRole("button").click();
    await page.getByRole("dialog").getByRole("button", { name: "Send back" }).click();
    await page.getByRole("dialog").getByText(/Sent 3 back/).waitFor();
    await until("the odd ones come again", () => got.length === 3);
    expect(got.sort()).toEqual([1, 3, 5]);
    await page.getByRole("dialog").getByRole("button", { name: "Done" }).click();
    await page.getByRole("button", { name: "Send all back…" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Send back" }).click();
    await page.getByRole("dialog").getByText(/Sent 2 back/).waitFor();
    await until("all have come", () => got.length === 5);
    await client.close();
  });
});

describe("connections", () => {
  it("show who is there and what they hold", async () => {
    await visit("connections");
    await row("order.created · stuck").waitFor();
    expect(await row("order.created · stuck").textContent()).toMatch(/3 \/ 3/);
    await page.getByLabel("Filter").fill("stuck");
    await until("only that one", async () => (await page.locator("tbody tr").count()) === 1);
  });
});

describe("the demo's page", () => {
  it("is a live table of process.state, from a snapshot on", async () => {
    // The hub serves it while `promethean demo` runs; here the file comes from the build and all else from the hub.
    const body = await readFile(new URL("../../dashboard/dist/demo.html", import.meta.url), "utf8");
    await page.goto(`http://${hub.ops}/healthz`);
    await page.setContent(body);
    await until("four processes", async () => (await page.locator("tbody tr").count()) === 4);
    const events = async () => number(/([\d,]+) events/.exec((await page.getByRole("status").textContent()) ?? "")?.[1] ?? "0");
    const before = await events();
    await until("news", async () => (await events()) > before + 5);
    expect(await page.locator("tbody tr").count()).toBe(4);
    expect(await unfriendly(page)).toEqual([]);
    await shot(page, "demo");
  });
});

describe("causality", () => {
  it("draws what led to an event and what followed", async () => {
    await visit(`causality?id=${shop.paid}`);
    const nodes = page.locator("svg .node");
    await until("order, payment, mail", async () => (await nodes.count()) === 3);
    expect((await nodes.allTextContents()).map((text) => /(order\.created|order\.paid|mail\.sent)/.exec(text)?.[0]).sort()).toEqual(["mail.sent", "order.created", "order.paid"]);
    expect(await page.locator("svg .edge").count()).toBe(2);
    expect(await page.locator("svg .root").textContent()).toContain("order.paid");
    await nodes.first().focus();
    await page.keyboard.press("Enter");
    await page.getByRole("complementary", { name: "Event" }).waitFor();
    await shot(page, "causality-graph");
  });

  it("says when nobody has the id", async () => {
    await visit("causality?id=0199d1c0-0000-7000-8000-000000000000");
    await page.getByRole("alert").waitFor();
    complaints = complaints.filter((line) => !line.startsWith("404"));
  });
});
