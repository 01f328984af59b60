// The include, compiled by the real Sibilant and run against a hub in this process.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname } from "node:path";
import { fileURLToPath } from "node:url";
import { Script, runInThisContext, constants } from "node:vm";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { FakeHub } from "../../typescript/test/fake-hub.js";

const require = createRequire(import.meta.url);
const sibilant = require("sibilant");
const fixture = fileURLToPath(new URL("fixtures/heartbeat.sibilant", import.meta.url));

/** Compiles a program and runs it as a CommonJS module that may import packages. */
function load(code, filename) {
  const module = { exports: {} };
  const wrapped = runInThisContext(`(function (module, exports, require) {${code}\n})`, { filename, importModuleDynamically: constants.USE_MAIN_CONTEXT_DEFAULT_LOADER });
  wrapped(module, module.exports, require);
  return module.exports;
}

/** `include` looks from sibilant.dir. */
function translate(source, dir) {
  sibilant.dir = dir;
  return sibilant(source).js;
}

const compile = (source) => translate(`(include "./prom")\n${source}`, fileURLToPath(new URL("..", import.meta.url)));

describe("the program of the sketches", () => {
  const hub = new FakeHub();
  let program;
  beforeAll(async () => {
    await hub.start();
    program = load(translate(readFileSync(fixture, "utf8"), dirname(fixture)), fixture);
  });
  afterAll(() => hub.kill());

  it("defines a topic", () => expect(program.topic).toEqual({ name: "heartbeat.received", opts: { retentionDays: 3 } }));

  it("connects, subscribes, publishes, waits and closes", async () => {
    const seen = await program.run(Number(hub.url.split(":").at(-1)));
    expect(seen).toEqual([[42, undefined, 1], [43, "dev:stt:43", 1]]);
    expect(hub.frames.find((frame) => frame.op === "SUBSCRIBE").opts).toMatchObject({ from: "earliest", batchSize: 100 });
    expect(hub.frames.filter((frame) => frame.op === "PUBLISH")[1].opts).toMatchObject({ key: "dev:stt:43", tags: ["#stt"] });
    expect(hub.group("heartbeat.received", "ops", 0).done.size).toBe(2);
    await expect.poll(() => hub.conns.size, { timeout: 10_000 }).toBe(0);
  });

  it("turns scopes into a policy and writes rules", () => {
    expect(program.policy).toEqual({ rules: [
      { effect: "allow", action: "publish", topics: ["heartbeat.*"] },
      { effect: "allow", action: "subscribe", topics: ["process.**"] },
      { effect: "allow", action: "admin", topics: ["**"] },
    ] });
    expect(program.rule).toEqual({ effect: "allow", action: "subscribe", topics: ["process.**", "heartbeat.*"] });
  });
});

describe("with-ws-bus", () => {
  // Built by scripts/browser-tests.sh.
  it("starts a hub, awaits the body, and ends the hub", async () => {
    expect(process.env.PROMETHEAN_BIN, "PROMETHEAN_BIN names the hub").toBeTruthy();
    const { run } = load(compile(`
      (def run () (with-ws-bus bus 0
        (publish! bus "a" 1)
        (.then (publish! bus "a" 2) (#(stored) (hash seq stored.seq url bus.url)))))
      (set module.exports 'run run)`), "real.sibilant");
    expect(await run()).toMatchObject({ seq: 2 });
  }, 60_000);

  it("names the remedy when the hub does not start", async () => {
    const { run } = load(compile(`(def run () (with-ws-bus bus 70000 1))\n(set module.exports 'run run)`), "port.sibilant");
    await expect(run()).rejects.toThrow(/with-ws-bus: the hub did not start/);
  }, 60_000);
});

describe("the README", () => {
  const readme = readFileSync(fileURLToPath(new URL("../README.md", import.meta.url)), "utf8");
  const programs = [...readme.matchAll(/^```(\w+)\n([^]*?)^```$/gm)].filter(([, language]) => language === "lisp");

  it("has programs that compile", () => {
    expect(programs).toHaveLength(1);
    for (const [, , source] of programs) {
      const [include, ...program] = source.split("\n");
      expect(include).toContain("prom");
      const code = compile(program.join("\n"));
      expect(() => new Script(code)).not.toThrow();
      expect(code).toContain("heartbeat.received");
    }
  });
});

describe("the forms", () => {
  it("closes the bus and passes the error on when the body fails", async () => {
    const hub = await new FakeHub().start();
    const { run } = load(compile(`(def run (url) (connect-ws-bus bus url (publish! bus "not a topic" 1)))\n(set module.exports 'run run)`), "fail.sibilant");
    await expect(run(hub.url)).rejects.toMatchObject({ code: "bad_topic" });
    await hub.kill();
  });

  const calls = (source) => {
    const made = [];
    const bus = { publish: (...args) => made.push(args), subscribe: (...args) => made.push(args) };
    load(compile(`(set module.exports 'run (#(bus f) ${source}))`), "calls.sibilant").run(bus, "f");
    return made[0];
  };

  it("subscribes from the earliest event in batches of 100 unless the options say otherwise", () => {
    expect(calls(`(subscribe! bus "a" "g" f)`)[3]).toEqual({ from: "earliest", batchSize: 100 });
    expect(calls(`(subscribe! bus "a" "g" f :from "latest")`)[3]).toEqual({ from: "latest", batchSize: 100 });
    expect(calls(`(subscribe! bus "a" "g" f {:batchSize 5})`)[3]).toEqual({ from: "earliest", batchSize: 5 });
  });

  it("publishes with pairs, with a map of options, or with none", () => {
    expect(calls(`(publish! bus "a" {:n 1})`)).toEqual(["a", { n: 1 }, {}]);
    expect(calls(`(publish! bus "a" 1 :key "k" :sid "s")`)[2]).toEqual({ key: "k", sid: "s" });
    expect(calls(`(publish! bus "a" 1 {:key "k"})`)[2]).toEqual({ key: "k" });
  });

  it("names the form in every error of a macro", () => {
    for (const [form, source] of [
      ["define-topic", `(define-topic)`],
      ["publish!", `(publish! bus "a")`],
      ["publish!", `(publish! bus "a" 1 :key "k" :sid)`],
      ["subscribe!", `(subscribe! bus "a" "g")`],
      ["subscribe!", `(subscribe! bus "a" "g" f :from "earliest" 3)`],
      ["with-ws-bus", `(with-ws-bus bus)`],
      ["connect-ws-bus", `(connect-ws-bus)`],
      ["allow", `(allow "publish")`],
      ["scopes->policy", `(scopes->policy)`],
    ]) expect(() => compile(source), source).toThrow(form);
  });

  it("compares a token with WS_TOKEN", () => {
    const { auth } = load(compile(`(set module.exports 'auth ws-auth)`), "auth.sibilant");
    const before = process.env.WS_TOKEN;
    try {
      process.env.WS_TOKEN = "right";
      expect(auth("right")).toEqual({ ok: true });
      expect(auth("wrong")).toMatchObject({ ok: false, code: "bad_token" });
      delete process.env.WS_TOKEN;
      expect(auth(undefined)).toMatchObject({ ok: false });
    } finally {
      if (before === undefined) delete process.env.WS_TOKEN;
      else process.env.WS_TOKEN = before;
    }
  });

  it("refuses another arrow than scopes->policy at compile time", () => {
    expect(() => compile(`(var x (scopes->rules [ "a" ]))`)).toThrow(/scopes->policy/);
  });
});
