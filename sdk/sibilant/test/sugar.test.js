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
    const { run } = load(compile(`(def run (url) (with-ws-bus bus url (publish! bus "not a topic" 1)))\n(set module.exports 'run run)`), "fail.sibilant");
    await expect(run(hub.url)).rejects.toMatchObject({ code: "bad_topic" });
    await hub.kill();
  });

  it("refuses another arrow than scopes->policy at compile time", () => {
    expect(() => compile(`(var x (scopes->rules [ "a" ]))`)).toThrow(/scopes->policy/);
  });
});
