// Links that fail in particular ways, and what of the caller's must not stop one: its timers, its callbacks.
import { describe, expect, it, vi } from "vitest";
import { EventClient, PromError, uuidv7 } from "../src/index.js";
import { Refusal } from "./fake-hub.js";
import { clients, codeOf, cut, hub, make, ops } from "./one-hub.js";
import { sleep, until } from "./scenarios.js";

describe("the connection", () => {
  it("tries again until the hub is there", async () => {
    await hub.kill();
    const client = make({ backoffMs: [10, 50] });
    const connected = client.connect();
    await sleep(100);
    await hub.start();
    await connected;
    expect(client.state).toBe("open");
  });

  it("gives up after connectTimeoutMs and names the address", async () => {
    await hub.kill();
    const client = make({ backoffMs: [10, 20], connectTimeoutMs: 100 });
    await expect(client.connect()).rejects.toThrow(/connect_failed.*127\.0\.0\.1/);
    expect(client.state).toBe("idle");
    await hub.start();
  });

  it("comes back for subscriptions also when a call has waited for connectTimeoutMs in vain", async () => {
    const options = { backoffMs: [10, 20] as [number, number], connectTimeoutMs: 100 };
    const client = make(options);
    const seen: unknown[] = [];
    const sub = await client.subscribe("t", "g", (event) => void seen.push(event.payload));
    await hub.kill();
    await until("the loss is seen", () => client.state === "connecting");
    const early = new EventClient(hub.url, options);
    clients.push(early);
    void early.subscribe("t", "early", (event) => void seen.push(event.payload), { from: "earliest" });
    expect(await codeOf(client.ack("t", "g", uuidv7()))).toBe("connect_failed");
    expect(await codeOf(early.connect())).toBe("connect_failed");
    expect([client.state, early.state]).toEqual(["connecting", "connecting"]);
    await hub.start();
    hub.append("t", 1);
    await until("the event, for both", () => seen.length === 2);
    await sub.unsubscribe();
    await hub.kill();
    await until("the loss is seen", () => client.state === "connecting");
    expect([await codeOf(client.connect()), client.state], "nobody is left to come back for").toEqual(["connect_failed", "idle"]);
    await hub.start();
  });

  it("notices a link that is dead without a close, by silence", async () => {
    const client = make({ pingMs: 50, backoffMs: [10, 20] });
    await client.connect();
    hub.mute = true;
    await until("the link is given up", () => client.state === "connecting");
    hub.mute = false;
    await until("another link", () => client.state === "open");
    expect(ops("PING").length).toBeGreaterThan(0);
  });

  it("gives up on a fixed token that is refused and asks a callback again", async () => {
    hub.auth = (token) => { if (token !== "good") throw new Refusal("bad_token", "no"); return {}; };
    expect(await codeOf(make("bad").publish("t", 1))).toBe("bad_token");
    expect(await codeOf(make().connect())).toBe("unauthorized");
    const tokens = ["bad", "bad", "good"];
    const client = make({ token: async () => tokens.shift(), backoffMs: [5, 10] });
    expect((await client.publish("t", 1)).seq).toBe(1);
  });

  it("bears jwt_invalid for a while from a hub that knew the token before", async () => {
    let refusals = 0;
    hub.auth = () => ({});
    const client = make({ token: "good", backoffMs: [2, 5] });
    await client.connect();
    const restart = (most: number) => {
      refusals = 0;
      hub.auth = () => { if (refusals++ < most) throw new Refusal("jwt_invalid", "no signing keys yet"); return {}; };
      for (const conn of hub.conns) conn.socket.terminate();
    };
    restart(9);
    expect((await client.publish("t", 1)).seq).toBe(1);
    restart(Infinity);
    expect([await codeOf(client.publish("t", 2)), refusals]).toEqual(["jwt_invalid", 10]);
    refusals = 0;
    expect([await codeOf(make("bad").connect()), refusals]).toEqual(["jwt_invalid", 1]);
  });

  it("comes back with a fresh token after token_expired closed the connection", async () => {
    let serial = 0;
    hub.auth = () => ({ exp: Date.now() / 1000 + (serial === 1 ? 0.2 : 600) });
    const client = make({ token: () => `t${++serial}`, backoffMs: [5, 10] });
    const seen: unknown[] = [];
    await client.subscribe("t", "g", (event) => void seen.push(event.payload));
    await until("the second token", () => serial >= 2 && client.state === "open");
    await client.publish("t", 1);
    await until("the event", () => seen.length === 1);
    expect(ops("AUTH").map((frame) => frame.token)).toEqual(["t1", "t2"]);
  });

  it("stops when the token callback gives up with a PromError", async () => {
    const client = make({ token: () => { throw new PromError("unauthorized", "logged out"); } });
    expect(await codeOf(client.connect())).toBe("unauthorized");
  });
});

describe("what the caller brings", () => {
  it("a payload that is no JSON is refused at once, and nothing of it goes off later", async () => {
    const client = make({ timeoutMs: 50 });
    await client.connect();
    vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"] });
    try {
      await expect(client.publish("t", { n: 1n } as object)).rejects.toThrow(TypeError);
      const circle: { me?: unknown } = {};
      circle.me = circle;
      await expect(client.publishBatch("t", [{ payload: circle }])).rejects.toThrow(TypeError);
      expect(vi.getTimerCount()).toBe(0);
    } finally {
      vi.useRealTimers();
    }
    expect((await client.publish("t", 1)).seq).toBe(1);
  });

  it("a time that no timer can count to is no limit", async () => {
    const limits = vi.spyOn(globalThis, "setTimeout");
    try {
      for (const ms of [Infinity, 2 ** 31, 2 ** 40]) {
        const client = make({ timeoutMs: ms, connectTimeoutMs: ms, pingMs: ms, backoffMs: [5, 10] });
        await client.connect();
        await client.publish("t", 1);
        hub.mute = true;
        const open = client.publish("t", 2, { timeoutMs: ms });
        const closing = client.close({ timeoutMs: ms });
        hub.mute = false;
        cut();
        expect((await open).seq).toBeGreaterThan(1);
        await closing;
      }
      expect(limits.mock.calls.filter(([, ms]) => ms! > 2 ** 31 - 1)).toEqual([]);
    } finally {
      limits.mockRestore();
    }
  });

  it("onState and onError that throw stop nothing", async () => {
    const told: string[] = [];
    const client = make({
      backoffMs: [5, 10],
      onState: (state) => { throw new Error(state); },
      onError: (error) => { told.push(error.message); throw error; },
    });
    expect((await client.publish("t", 1)).seq).toBe(1);
    cut();
    await until("another connection", () => told.filter((message) => message === "open").length === 2);
    expect((await client.publish("t", 2)).seq).toBe(2);
    expect(told.filter((message) => !message.startsWith("disconnected"))).toEqual(["connecting", "open", "connecting", "open"]);
  });

  it("a token callback that throws at a renewal is told of, and asked again", async () => {
    hub.auth = () => ({ exp: Date.now() / 1000 + 3 });
    const told: unknown[] = [];
    let asked = 0;
    const client = make({
      token: () => { if (++asked === 2) throw new Error("no network"); return `t${asked}`; },
      onError: (error) => told.push(error.message),
    });
    await client.connect();
    await until("a third token", () => ops("AUTH").length === 2);
    expect(ops("AUTH").map((frame) => frame.token)).toEqual(["t1", "t3"]);
    expect(told).toEqual(["no network"]);
  });
});
