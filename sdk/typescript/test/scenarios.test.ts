// The scenarios on Node: against the fake hub always, against the real one where PROMETHEAN_BIN names it.
import { afterAll, afterEach, beforeAll, describe, it } from "vitest";
import { WebSocket } from "ws";
import { PromClient, type ClientOptions, type SocketClass } from "../src/index.js";
import { FakeHub, Refusal } from "./fake-hub.js";
import { jwt, RealHub, STATIC_TOKEN } from "./real-hub.js";
import { scenarios, type Env } from "./scenarios.js";

interface Hub { url: string; start(): Promise<unknown>; kill(): Promise<void>; end(): Promise<void>; token(seconds: number): string }

function fake(): Hub {
  const hub = new FakeHub();
  hub.auth = (token) => {
    if (token === STATIC_TOKEN) return { sub: "static" };
    const exp = Number(/^until:(\d+)$/.exec(token ?? "")?.[1]);
    if (!(exp * 1000 > Date.now())) throw new Refusal("bad_token", "not a token of the tests");
    return { sub: "tester", exp };
  };
  return {
    get url() { return hub.url; }, start: () => hub.start(), kill: () => hub.kill(), end: () => hub.kill(),
    token: (seconds) => `until:${Math.ceil(Date.now() / 1000) + seconds}`,
  };
}

function real(bin: string): Hub {
  const hub = new RealHub(bin);
  return { get url() { return hub.url; }, start: () => hub.start(), kill: () => hub.kill(), end: () => hub.end(), token: jwt };
}

const hubs: Record<string, () => Hub> = { "the fake hub": fake };
const bin = process.env.PROMETHEAN_BIN;
if (bin) hubs["the real hub"] = () => real(bin);

describe.each(Object.entries(hubs))("on Node, with %s", (_name, make) => {
  const hub = make();
  const clients: PromClient[] = [];
  let names = 0;
  const env: Env = {
    client(options: ClientOptions = {}) {
      const client = new PromClient(hub.url, { token: STATIC_TOKEN, WebSocket: WebSocket as unknown as SocketClass, ...options });
      clients.push(client);
      return client;
    },
    name: (base) => `${base}.n${++names}`,
    kill: () => hub.kill(),
    start: async () => void (await hub.start()),
    token: async (seconds) => hub.token(seconds),
  };
  beforeAll(() => hub.start());
  afterEach(() => Promise.all(clients.splice(0).map((client) => client.close({ timeoutMs: 500 }))));
  afterAll(() => hub.end());

  for (const [name, run] of Object.entries(scenarios)) it(name, () => run(env), 60_000);
});
