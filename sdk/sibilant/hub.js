// What with-ws-bus and connect-ws-bus do at run time.
import { spawn } from "node:child_process";
import { PromClient } from "@promethean/client";

/** How long a hub may take to start, and to end after SIGTERM. */
const PATIENCE_MS = 30_000;

/** Connects to a hub: a port of this machine, or a URL. The token is WS_TOKEN, where set. */
export async function connect(at) {
  const url = typeof at === "number" ? `ws://127.0.0.1:${at}` : at;
  const bus = new PromClient(url, process.env.WS_TOKEN);
  try {
    await bus.connect();
  } catch (error) {
    await bus.close();
    throw error;
  }
  return { bus, close: () => bus.close() };
}

/**
 * Starts `promethean serve` (PROMETHEAN_BIN, else the one on the PATH) with its WebSocket port on `port`, and connects.
 * The store is in memory unless PROMETHEAN_STORE or PROMETHEAN_DATA_DIR names another one.
 */
export async function start(port) {
  const { PROMETHEAN_BIN = "promethean", PROMETHEAN_STORE, PROMETHEAN_DATA_DIR } = process.env;
  const store = PROMETHEAN_STORE || PROMETHEAN_DATA_DIR ? [] : ["--store", "memory"];
  const ports = ["--ws-port", String(port), "--http-port", "0", "--ops-port", "0"];
  const hub = spawn(PROMETHEAN_BIN, ["serve", ...ports, ...store], { stdio: ["ignore", "pipe", "inherit"] });
  const ended = new Promise((resolve) => hub.once("exit", resolve).once("error", resolve));
  const end = async () => {
    hub.kill("SIGTERM");
    const late = setTimeout(() => hub.kill("SIGKILL"), PATIENCE_MS);
    await ended;
    clearTimeout(late);
  };
  try {
    const address = await ready(hub, ended);
    const { bus, close } = await connect(`ws://${address}`);
    return { bus, close: async () => { await close(); await end(); } };
  } catch (error) {
    await end();
    throw error;
  }
}

/** The WebSocket address of the line that says that the hub is up. */
async function ready(hub, ended) {
  let said = "";
  const line = new Promise((resolve) => hub.stdout.setEncoding("utf8").on("data", (text) => {
    said += text;
    const found = /^promethean ready ws=(\S+)/m.exec(said);
    if (found) resolve(found[1]);
  }));
  let late;
  const silence = new Promise((resolve) => { late = setTimeout(resolve, PATIENCE_MS, new Error("it is not up after 30 s")); });
  const first = await Promise.race([line, silence, ended.then((why) => why instanceof Error ? why : new Error(`it ended with ${why}`))]);
  clearTimeout(late);
  if (first instanceof Error) throw new Error(`with-ws-bus: the hub did not start: ${first.message}; install promethean, or name the binary in PROMETHEAN_BIN`);
  return first;
}
