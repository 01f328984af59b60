// The TypeScript of the README, compiled against the built package and run under Node against the real hub. Its commands
// and its Rust are in e2e/tests/it/readme.rs; the types of all pages are checked by sdk/typescript/test/docs.test.ts.
import { execFileSync, spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, expect, it } from "vitest";
import { startHub } from "./harness.js";

const here = (path: string) => fileURLToPath(new URL(path, import.meta.url));
const tsc = createRequire(import.meta.url).resolve("typescript/bin/tsc");

const blocks = [...readFileSync(here("../../README.md"), "utf8").matchAll(/^```ts\n(.*?)^```/gms)].map(([, code]) => code!);

// A project that has the package as `npm install ./sdk/typescript` would give it.
const project = mkdtempSync(join(tmpdir(), "promethean-readme-"));
mkdirSync(join(project, "node_modules/@promethean"), { recursive: true });
symlinkSync(here("../../sdk/typescript"), join(project, "node_modules/@promethean/client"));
symlinkSync(here("node_modules/@types"), join(project, "node_modules/@types"));
writeFileSync(join(project, "package.json"), JSON.stringify({ type: "module" }));
afterAll(() => rmSync(project, { recursive: true, force: true }));

/** Compiles a program of the project; what is wrong with its types is thrown. */
function compile(code: string): string {
  writeFileSync(join(project, "readme.ts"), code);
  try {
    execFileSync(process.execPath, [tsc, "readme.ts", "--strict", "--skipLibCheck", "--target", "ES2022", "--module", "NodeNext", "--lib", "ES2023,DOM", "--types", "node"], { cwd: project, encoding: "utf8" });
  } catch (error) {
    throw new Error((error as { stdout: string }).stdout);
  }
  return join(project, "readme.js");
}

it("publishes and consumes", async () => {
  const hub = await startHub({ open: true });
  try {
    const [code, ...others] = blocks;
    expect(others, "one block").toEqual([]);
    expect(code).toContain('"ws://127.0.0.1:8090"');
    const program = compile(code!.replace("127.0.0.1:8090", hub.ws));
    for (const order of [1, 2, 3]) await fetch(`http://${hub.http}/publish/orders.created`, { method: "POST", body: JSON.stringify({ order }) });
    const child = spawn(process.execPath, [program], { stdio: ["ignore", "pipe", "inherit"] });
    let out = "";
    await new Promise<void>((resolve, reject) => {
      const timer = setTimeout(() => reject(new Error(`in vain: four orders; it said ${out}`)), 20_000);
      child.on("exit", (code) => reject(new Error(`it ended with ${code}; it said ${out}`)));
      child.stdout.on("data", (chunk) => { out += chunk; if (out.split("\n").length > 4) { clearTimeout(timer); resolve(); } });
    }).finally(() => { child.removeAllListeners("exit"); child.kill(); });
    expect(out).toBe("order 1\norder 2\norder 3\norder 4\n");
  } finally {
    await hub.end();
  }
});
