// The TypeScript of the READMEs: type-checked against the built package, and the main one run under Node against the real
// hub. Its commands and its Rust are in e2e/tests/it/readme.rs.
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

/** The `ts` blocks of a page. */
const blocks = (page: string) => [...readFileSync(here(`../../${page}`), "utf8").matchAll(/^```ts\n(.*?)^```/gms)].map(([, code]) => code!);

// A project that has the package as `npm install ./sdk/typescript` would give it.
const project = mkdtempSync(join(tmpdir(), "promethean-readme-"));
mkdirSync(join(project, "node_modules/@promethean"), { recursive: true });
symlinkSync(here("../../sdk/typescript"), join(project, "node_modules/@promethean/client"));
symlinkSync(here("node_modules/@types"), join(project, "node_modules/@types"));
writeFileSync(join(project, "package.json"), JSON.stringify({ type: "module" }));
afterAll(() => rmSync(project, { recursive: true, force: true }));

/** Compiles a program of the project; what is wrong with its types is thrown. */
function compile(name: string, code: string, lib = "ES2023,DOM"): string {
  const file = join(project, `${name}.ts`);
  writeFileSync(file, code);
  try {
    execFileSync(process.execPath, [tsc, file, "--outDir", project, "--strict", "--target", "ES2022", "--module", "NodeNext", "--lib", lib, "--types", "node"], { cwd: project, encoding: "utf8" });
  } catch (error) {
    throw new Error(`${name}: ${(error as { stdout: string }).stdout}`);
  }
  return join(project, `${name}.js`);
}

it("of README.md publishes and consumes", async () => {
  const hub = await startHub({ open: true });
  try {
    const [code, ...others] = blocks("README.md");
    expect(others, "one block").toEqual([]);
    expect(code).toContain('"ws://127.0.0.1:8090"');
    const program = compile("readme", code!.replace("127.0.0.1:8090", hub.ws));
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

it("of sdk/typescript/README.md has the right types", () => {
  for (const [i, code] of blocks("sdk/typescript/README.md").entries()) {
    compile(`sdk${i}`, `declare function fetchToken(): Promise<string>;\n${code}`, "ES2023,DOM,ESNext.Disposable");
  }
});
