// Connections that fail, hang, lie or never were there: reports, retries, and a process that lives on.
import { afterEach, describe, expect, it, vi } from "vitest";
import { WebSocket } from "ws";
import { PromClient, PromError, uuidv7, type SocketClass } from "../src/index.js";
import { FakeHub, Refusal } from "./fake-hub.js";
import { clients, codeOf, cut, hub, make, ops } from "./one-hub.js";
import { sleep, until } from "./scenarios.js";

afterEach(() => { vi.restoreAllMocks(); vi.unstubAllGlobals(); });

/** Timers of the first length run after the second. */
const stretch = (from: number, to: number) => {
  const real = globalThis.setTimeout;
  vi.spyOn(globalThis, "setTimeout").mockImplementation(((run: () => void, ms?: number) => real(run, ms === from ? to : ms)) as typeof setTimeout);
};
const quick = { backoffMs: [5, 10] as [number, number] };
const codes = (told: Error[]) => told.map((error) => (error as PromError).code);

describe("a refused token", () => {
  it("ends what was there and is told, to the console where nobody listens", async () => {
    hub.auth = (token) => { if (token !== "a") throw new Refusal("bad_token", "token rejected"); return {}; };
    const told: Error[] = [];
    const client = make({ token: "a", ...quick, onError: (error) => told.push(error) });
    const silent = make({ token: "a", ...quick });
    const subs = [await client.subscribe("t", "g", () => {}), await silent.subscribe("t", "h", () => {})];
    const printed = vi.spyOn(console, "error").mockImplementation(() => {});
    hub.auth = () => { throw new Refusal("bad_token", "token rejected"); };
    const waiting = codeOf((cut(), client.publish("t", 1)));
    expect(codes(await Promise.all(subs.map((sub) => sub.closed)) as Error[])).toEqual(["bad_token", "bad_token"]);
    expect([codes(told), await waiting]).toEqual([["disconnected", "bad_token"], "bad_token"]);
    expect(printed.mock.calls.map((call) => call[1].code)).toEqual(["bad_token"]);
  });

  it("fails each publish with an error of its own, with its id", async () => {
    hub.auth = () => { throw new Refusal("bad_token", "token rejected"); };
    const client = make({ token: "a" });
    const ids = [uuidv7(), uuidv7()];
    const errors = (await Promise.allSettled(ids.map((id) => client.publish("t", 1, { id })))).map((one) => (one as PromiseRejectedResult).reason as PromError);
    expect(errors.map((error) => [error.code, error.id, error.ids, error.message])).toEqual(ids.map((id) => ["bad_token", id, [id], "bad_token: token rejected"]));
  });
});

describe("a token callback that hangs", () => {
  it("has 15 s, at the first connection and at a renewal", async () => {
    stretch(15_000, 20);
    hub.auth = () => ({ exp: Date.now() / 1000 + 600 });
    let asked = 0;
    const client = make({ ...quick, token: () => (++asked % 2 ? new Promise<string>(() => {}) : `t${asked}`), onError: () => {} });
    expect((await client.publish("t", 1)).seq).toBe(1);
    cut();
    expect((await client.publish("t", 2)).seq).toBe(2);
    expect([asked, ops("AUTH").map((frame) => frame.token)]).toEqual([4, ["t2", "t4"]]);
  });
});

describe("a socket that fires error without close, as Node's own does", () => {
  it("is tried again at once", async () => {
    let tries = 0;
    class Refusing extends WebSocket {
      constructor(url: string) {
        super(++tries < 3 ? "ws://127.0.0.1:1" : url);
        if (tries < 3) Object.defineProperty(this, "onclose", { set() {} });
      }
    }
    const client = make({ ...quick, WebSocket: Refusing as unknown as SocketClass, connectTimeoutMs: 3_000, onError: () => {} });
    await client.connect();
    expect(tries).toBe(3);
  });
});

describe("a hidden page", () => {
  it("whose timers are slow keeps its connection", async () => {
    stretch(50, 160);
    const told: Error[] = [];
    const client = make({ pingMs: 50, onError: (error) => told.push(error) });
    await client.connect();
    await until("it has asked three times", () => ops("PING").length >= 4);
    expect([told, client.state]).toEqual([[], "open"]);
  });

  it("that comes back dials at once, however long the back-off", async () => {
    const page = new EventTarget();
    vi.stubGlobal("addEventListener", page.addEventListener.bind(page));
    vi.stubGlobal("removeEventListener", page.removeEventListener.bind(page));
    const client = make({ backoffMs: [60_000, 60_000], onError: () => {} });
    await client.connect();
    for (const come of ["visibilitychange", "pageshow", "online", undefined]) {
      cut();
      await until("the loss is seen", () => client.state === "connecting");
      come ? page.dispatchEvent(new Event(come)) : client.resumeNow();
      await until("it is back", () => client.state === "open", 3_000);
    }
    vi.stubGlobal("document", { hidden: true });
    cut();
    await until("the loss is seen", () => client.state === "connecting");
    page.dispatchEvent(new Event("visibilitychange"));
    await sleep(50);
    expect(client.state, "it goes, it does not come").toBe("connecting");
  });

  it("that comes back finds out whether its connection is still there", async () => {
    stretch(5_000, 30);
    const told: Error[] = [];
    const client = make({ ...quick, onError: (error) => told.push(error) });
    await client.connect();
    const before = ops("PING").length;
    client.resumeNow();
    await until("it has asked", () => ops("PING").length === before + 1);
    await sleep(80);
    expect(told, "answered").toEqual([]);
    hub.mute = true;
    client.resumeNow();
    await until("it is given up", () => told.length === 1);
    hub.mute = false;
    await until("it is back", () => client.state === "open");
  });
});

describe("a peer that is no hub", () => {
  it.each(["220 mail.example ESMTP", "null", "[]x", "7", '{"op":"EVENTS","topic":"t","group":"g","events":3}'])("saying %s ends a connection, not the process", async (text) => {
    const told: Error[] = [];
    const client = make({ ...quick, onError: (error) => told.push(error) });
    await client.subscribe("t", "g", () => {});
    for (const conn of hub.conns) conn.socket.send(text);
    for (const conn of hub.conns) conn.socket.send(Buffer.from([0, 255, 1]));
    await until("it is told", () => told.length > 0);
    expect(codes(told)[0]).toBe("disconnected");
    expect((await client.publish("t", 1)).seq).toBe(1);
  });
});

describe("a hub that never was there", () => {
  it("fails a publish at once, with the address and the reason", async () => {
    const client = make({ onError: () => {} });
    await hub.kill();
    const error: PromError = await client.publish("t", 1).then(() => { throw new Error("published"); }, (thrown) => thrown);
    await hub.start();
    expect([error.code, error.retryable, client.state]).toEqual(["connect_failed", true, "idle"]);
    expect(error.message).toContain(hub.url);
    expect(error.message).toContain("ECONNREFUSED");
    expect((await client.publish("t", 2, { id: error.id! })).seq, "and is there for the next try").toBe(1);
  });

  it("at the HTTP port names the one of the WebSocket", async () => {
    class Http { constructor() { setTimeout(() => (this as any).onerror({ message: "Unexpected server response: 404" })); } close() {} }
    const client = new PromClient("ws://127.0.0.1:8081", { WebSocket: Http as unknown as SocketClass, onError: () => {} });
    clients.push(client);
    await expect(client.publish("t", 1)).rejects.toThrow(/127\.0\.0\.1:8081.*404.*8090/);
  });

  it("whose address is none is refused by the constructor, with the remedy", () => {
    for (const url of ["localhost:8090", "127.0.0.1:8090", "http://127.0.0.1:8090", "", "ws://"]) expect(() => new PromClient(url)).toThrow(/ws:\/\/host:8090/);
    for (const url of ["ws://a:1/x", "wss://a", new URL("ws://a")]) new PromClient(url);
  });
});

describe("several addresses", () => {
  it("are tried in turn, at the start and when a hub goes", async () => {
    const other = await new FakeHub().start();
    try {
      const client = new PromClient(["ws://127.0.0.1:1", hub.url, other.url], { ...quick, onError: () => {} });
      clients.push(client);
      await client.publish("t", 1);
      const seen: unknown[] = [];
      await client.subscribe("t", "g", (event) => void seen.push(event.payload), { from: "earliest" });
      await until("the first", () => seen.length === 1);
      await hub.kill();
      await client.publish("t", 2);
      await until("the subscription moved, too", () => seen.includes(2));
      expect(other.log("t").length).toBe(1);
      await hub.start();
    } finally {
      await other.kill();
    }
  });
});

describe("what waits for a connection", () => {
  it("is bounded in bytes", async () => {
    const client = make({ ...quick, maxQueueBytes: 10_000, onError: () => {} });
    await client.connect();
    hub.mute = true;
    cut();
    await until("the loss is seen", () => client.state === "connecting");
    const results = Array.from({ length: 5 }, () => codeOf(client.publish("t", "x".repeat(3_000))));
    hub.mute = false;
    expect(await Promise.all(results)).toEqual(["no error", "no error", "no error", "queue_full", "queue_full"]);
    expect(await codeOf(client.publish("t", "x".repeat(30_000))), "one that is alone has a place").toBe("no error");
  });

  it("is told with the ids of all events of a batch", async () => {
    const client = make();
    hub.intercept = (frame) => { if (frame.op === "PUBLISH") throw new Refusal("publish_failed", "the disk is full"); };
    const error: PromError = await client.publishBatch("t", [{ payload: 1 }, { payload: 2 }, { payload: 3 }]).then(() => { throw new Error("published"); }, (thrown) => thrown);
    const ids = ops("PUBLISH")[0]!.events.map((event: { id: string }) => event.id);
    expect([error.ids, error.id]).toEqual([ids, ids[0]]);
  });
});

describe("a call that nobody awaits", () => {
  it("is told of when it fails, and never an unhandled rejection", async () => {
    const told: Error[] = [];
    const client = make({ onError: (error) => told.push(error) });
    await client.connect();
    hub.intercept = (frame) => { if (frame.op !== "PING") throw new Refusal("forbidden", frame.op); };
    void client.publish("t", 1);
    void client.publishRaw("t", "not JSON");
    void client.publishBatch("t", [{ payload: 1 }]);
    void client.subscribe("t", "g", () => {});
    void client.unsubscribe("t", "none");
    void client.modAck("t", "g", "00000000-0000-7000-8000-000000000001", 1_000);
    void client.ack("t", "g", "00000000-0000-7000-8000-000000000001");
    await until("all are told", () => told.length === 7);
    expect(codes(told).filter((code) => code === "forbidden").length).toBe(5);
    expect(await codeOf(client.publish("t", 1)), "an awaited one rejects, and is not told twice").toBe("forbidden");
    expect((await Promise.allSettled([client.publish("t", 1), client.modAck("t", "g", "00000000-0000-7000-8000-000000000001", 1_000)])).map((one) => one.status)).toEqual(["rejected", "rejected"]);
    await sleep(10);
    expect(told.length).toBe(7);
  });
});

describe("a publish that nobody awaits", () => {
  it("is on the console when it fails for any reason and there is no onError", async () => {
    const printed = vi.spyOn(console, "error").mockImplementation(() => {});
    const client = make();
    hub.intercept = (frame) => { if (frame.op === "PUBLISH") throw new Refusal("publish_failed", "the disk is full"); };
    void client.publish("t", 1);
    await until("it is printed", () => printed.mock.calls.length === 1);
    expect(printed.mock.calls[0]![1].code).toBe("publish_failed");
  });
});

describe("a socket of the package ws", () => {
  it("is ended soon after close where the hub does not answer", async () => {
    let ended = 0;
    class Counting extends WebSocket { override terminate() { ended++; super.terminate(); } }
    stretch(1_000, 10);
    const client = make({ WebSocket: Counting as unknown as SocketClass });
    await client.connect();
    for (const conn of hub.conns) conn.socket.pause();
    await client.close();
    await until("it is ended", () => ended === 1);
  });
});

describe("a hub that drains", () => {
  it("does not refuse a first subscription for good: the next connection asks again", async () => {
    const client = make({ ...quick, onError: () => {} });
    let draining = true;
    hub.intercept = (frame) => {
      if (frame.op !== "SUBSCRIBE" || !draining) return;
      draining = false;
      setTimeout(cut, 10);
      throw new Refusal("shutting_down", "the hub is draining");
    };
    await client.subscribe("t", "g", () => {});
    expect(ops("SUBSCRIBE").length).toBe(2);
  });
});
