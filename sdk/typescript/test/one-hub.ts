// A fresh hub in this process for every test of a file, and clients of it that are closed after the test.
import { afterEach, beforeEach } from "vitest";
import { PromClient, type ClientOptions } from "../src/index.js";
import { FakeHub } from "./fake-hub.js";

export let hub: FakeHub;
export const clients: PromClient<any>[] = [];
export const make = (options: ClientOptions | string = {}) => {
  const client = new PromClient(hub.url, options);
  clients.push(client);
  return client;
};
/** The frames of this kind that the hub was sent. */
export const ops = (op: string) => hub.frames.filter((frame) => frame.op === op);
export const cut = () => { for (const conn of hub.conns) conn.socket.terminate(); };
export const codeOf = (promise: Promise<unknown>) => promise.then(() => "no error", (error) => error.code ?? error);

beforeEach(async () => { hub = await new FakeHub().start(); });
afterEach(async () => {
  await Promise.all(clients.splice(0).map((client) => client.close({ timeoutMs: 200 })));
  await hub.kill();
});
