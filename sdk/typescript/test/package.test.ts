// The package as users get it: small, without dependencies, typed.
import { readFileSync } from "node:fs";
import { gzipSync } from "node:zlib";
import { expect, expectTypeOf, it } from "vitest";
import { PromClient, type Delivery, type EventRecord, type Published, type Subscription } from "../src/index.js";

const file = (name: string) => readFileSync(new URL(`../${name}`, import.meta.url));

it("is at most 8 kB gzipped in one file", () => {
  const bytes = gzipSync(file("dist/sdk.js"), { level: 9 }).length;
  console.log(`sdk.js: ${bytes} bytes gzipped`);
  expect(bytes).toBeLessThanOrEqual(8 * 1024);
});

it("has no dependencies and the bundle imports nothing", () => {
  const manifest = JSON.parse(String(file("package.json")));
  expect(manifest.dependencies).toBeUndefined();
  expect(String(file("dist/sdk.js"))).not.toMatch(/import\s*[{"'*]|from\s*["']/);
});

it("works from the bundle as from the modules", async () => {
  const bundle = await import(new URL("../dist/sdk.js", import.meta.url).href);
  expect(Object.keys(bundle).sort()).toEqual(["Delivery", "EventClient", "PromClient", "PromError", "Subscription", "uuidv7"]);
});

it("types payloads by the topic map", () => {
  interface Topics { "heartbeat.received": { pid: number }; "process.state": { status: "alive" | "stale" } }
  const client = new PromClient<Topics>("ws://127.0.0.1:1");
  const never = () => {
    expectTypeOf(client.publish("heartbeat.received", { pid: 1 })).resolves.toEqualTypeOf<Published>();
    // @ts-expect-error the payload is of another topic
    void client.publish("process.state", { pid: 1 });
    // @ts-expect-error not a topic of the map
    void client.publish("process.stat", { status: "alive" });
    void client.subscribe("process.state", "g", (event) => expectTypeOf(event).toEqualTypeOf<EventRecord<{ status: "alive" | "stale" }>>());
    expectTypeOf(client.subscribe("heartbeat.received", "g")).toEqualTypeOf<Subscription<{ pid: number }>>();
    void client.subscribe("process.*", "g", (event, ctx) => {
      expectTypeOf(event.payload).toEqualTypeOf<Topics[keyof Topics]>();
      expectTypeOf(ctx).toEqualTypeOf<Delivery<Topics[keyof Topics]>>();
    });
  };
  expect(never).toBeTypeOf("function");
});
