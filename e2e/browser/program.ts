// A TypeScript program of a page, compiled against the built package as a reader's project would have it, and run under
// Node against a real hub.
import { execFileSync, spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import type { RealHub } from "../../sdk/typescript/test/real-hub.js";

const here = (path: string) => fileURLToPath(new URL(path, import.meta.url));
const tsc = createRequire(import.meta.url).resolve("typescript/bin/tsc");

/** The ts blocks of a page, given from the root of the repository. */
export const blocks = (page: string): string[] =>
  [...readFileSync(here(`../../${page}`), "utf8").matchAll(/^```ts\n(.*?)^```/gms)].map(([, code]) => code!);

/** A project that has the package as `npm install ./sdk/typescript` would give it. */
export class Project {
  readonly dir = mkdtempSync(join(tmpdir(), "promethean-pages-"));

  constructor() {
    mkdirSync(join(this.dir, "node_modules/@promethean"), { recursive: true });
    symlinkSync(here("../../sdk/typescript"), join(this.dir, "node_modules/@promethean/client"));
    symlinkSync(here("node_modules/@types"), join(this.dir, "node_modules/@types"));
    writeFileSync(join(this.dir, "package.json"), JSON.stringify({ type: "module" }));
  }

  remove(): void {
    rmSync(this.dir, { recursive: true, force: true });
  }

  /**
   * Compiles a block, runs it against the hub until it has printed so many lines, and gives what it printed. What is wrong
   * with its types, or an end before that, is thrown. `before`: JavaScript that runs first, for what the block declares.
   */
  async run(code: string, hub: RealHub, lines: number, before = ""): Promise<string> {
    if (!code.includes('"ws://127.0.0.1:8090"')) throw new Error(`it connects to something else than "ws://127.0.0.1:8090":\n${code}`);
    const program = this.compile(code.replaceAll("127.0.0.1:8090", hub.ws));
    writeFileSync(join(this.dir, "before.js"), before);
    const child = spawn(process.execPath, ["--import", "./before.js", program], { cwd: this.dir, stdio: ["ignore", "pipe", "inherit"] });
    let out = "";
    await new Promise<void>((resolve, reject) => {
      const timer = setTimeout(() => reject(new Error(`in vain: ${lines} lines; it said ${out}`)), 20_000);
      child.on("exit", (code) => reject(new Error(`it ended with ${code}; it said ${out}`)));
      child.stdout.on("data", (chunk) => { out += chunk; if (out.split("\n").length > lines) { clearTimeout(timer); resolve(); } });
    }).finally(() => { child.removeAllListeners("exit"); child.kill(); });
    return out;
  }

  private compile(code: string): string {
    writeFileSync(join(this.dir, "program.ts"), `${code}\nexport {};\n`);
    try {
      execFileSync(process.execPath, [tsc, "program.ts", "--strict", "--skipLibCheck", "--target", "ES2022", "--module", "NodeNext", "--lib", "ES2023,DOM,ESNext.Disposable", "--types", "node"], { cwd: this.dir, encoding: "utf8" });
    } catch (error) {
      throw new Error((error as { stdout: string }).stdout);
    }
    return join(this.dir, "program.js");
  }
}
