// What a service of the seeds does with its client: bundled with the client's code and run as a program of its own by
// seed.test.ts. Its arguments are the address, the token and the client's name; what it saw is its output, one line of JSON.
// @ts-expect-error put in its place by the bundler
import * as client from "the-client";

const [url, token, name] = process.argv.slice(2);
const seen: [string, number, number][] = [];
const done = async (what: string, check: () => boolean) => {
  const end = Date.now() + 20_000;
  while (!check()) {
    if (Date.now() > end) throw new Error(`in vain: ${what}; saw ${JSON.stringify(seen)}`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
};

async function main(): Promise<object> {
  if (name === "EventClient") {
    const c = new client.EventClient(url, token);
    await new Promise((resolve) => c.ws.on("open", resolve));
    await c.subscribe("heartbeat.received", "smoke", async (event: any, ctx: any) => {
      seen.push([event.id, event.payload.n, ctx.attempt]);
      c.modAck("heartbeat.received", "smoke", event.id, 60_000);
      if (event.payload.n === 3 && ctx.attempt === 1) throw new Error("once more");
    }, { from: "earliest" });
    const ids: string[] = [];
    for (let n = 1; n <= 10; n++) ids.push((await c.publish("heartbeat.received", { n }, { key: "dev:stt:1", tags: ["#stt"] })).id);
    await done("ten events, one of them twice", () => seen.length === 11);
    const refused = await c.publish("not a topic", 1).catch((error: any) => error.code);
    await c.unsubscribe("heartbeat.received", "smoke");
    c.ws.close();
    return { ids, seen, refused };
  }
  const c = new client.PromClient(url, token);
  await c.connect();
  await c.subscribe("process.state", "sdk", async (event: any, ctx: any) => {
    seen.push([event.id, event.payload.n, ctx.attempt]);
    if (event.payload.n === 3 && ctx.attempt === 1) throw new Error("once more");
  }, { from: "earliest" });
  for (let n = 1; n <= 10; n++) await c.publish("process.state", { n }, { key: `p:${n}`, headers: { "x-n": String(n) }, sid: "s" });
  await done("ten events, one of them twice", () => seen.length === 11);
  await c.unsubscribe("process.state", "sdk");
  c.close();
  return { seen };
}

// The timers of unanswered calls would keep it for fifteen seconds.
main().then((result) => { console.log(JSON.stringify(result)); process.exit(0); }, (error) => { console.error(error); process.exit(1); });
