// The TypeScript clients of the seeds, as they stand in the documents, against the real hub: their frames work unchanged.
//
// The documents are not part of the repository. They are looked for in $SEEDS, else in ../shared/seeds beside the
// checkout. The client of sdk/typescript/test/seed-client.ts says the same frames and runs always.
import { build } from "esbuild";
import { execFile } from "node:child_process";
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import type { RealHub } from "../../sdk/typescript/test/real-hub.js";
import { startHub, until } from "./harness.js";

const here = (path: string) => fileURLToPath(new URL(path, import.meta.url));
const seeds = process.env.SEEDS ?? here("../../../shared/seeds");
if (process.env.SEEDS && !existsSync(seeds)) throw new Error(`SEEDS names ${seeds}, which is not there`);

/** The code block of the seeds that has this class. */
function block(name: string): string {
  const pages = readdirSync(seeds).filter((file) => file.endsWith(".md")).map((file) => readFileSync(join(seeds, file), "utf8"));
  const blocks = pages.flatMap((page) => [...page.matchAll(/^```ts\n(.*?)^```/gms)].map(([, code]) => code!));
  const found = blocks.filter((code) => code.includes(`export class ${name} `));
  if (found.length !== 1) throw new Error(`${found.length} blocks of the seeds have a class ${name}`);
  return found[0]!;
}

const own = readFileSync(here("../../sdk/typescript/test/seed-client.ts"), "utf8");
const sources: Record<string, (name: string) => string> = { "the conformance client": () => own };
if (existsSync(seeds)) sources["the client of the seeds"] = block;
console.log(`seed.test.ts runs ${Object.keys(sources).join(" and ")}${existsSync(seeds) ? "" : ` (no documents in ${seeds})`}`);

const TOKEN = "devtoken";
let hub: RealHub;
let runs = 0;
const dir = mkdtempSync(join(tmpdir(), "promethean-seed-"));
beforeAll(async () => { hub = await startHub({ open: true, env: { WS_TOKEN: TOKEN } }); });
afterAll(async () => {
  await hub?.end();
  rmSync(dir, { recursive: true, force: true });
});

/** Bundles the driver with the client and runs it under Node. */
async function run(name: string, code: string, token: string): Promise<any> {
  const outfile = join(dir, `${name}-${++runs}.cjs`);
  await build({
    entryPoints: [here("seed-driver.ts")], outfile, bundle: true, platform: "node", format: "cjs", logLevel: "error",
    plugins: [{
      name: "the-client",
      setup({ onResolve, onLoad }) {
        onResolve({ filter: /^the-client$/ }, () => ({ path: name, namespace: "client" }));
        onLoad({ filter: /.*/, namespace: "client" }, () => ({ contents: code, loader: "ts", resolveDir: here(".") }));
      },
    }],
  });
  const { stdout } = await promisify(execFile)(process.execPath, [outfile, hub.url, token, name], { timeout: 60_000 });
  return JSON.parse(stdout);
}

const ops = async (path: string) => (await fetch(`http://${hub.ops}${path}`, { headers: { authorization: `Bearer ${TOKEN}` } })).json();

describe.each(Object.entries(sources))("%s", (source, code) => {
  it.each([["EventClient", "heartbeat.received", "smoke"], ["PromClient", "process.state", "sdk"]])("%s publishes, subscribes, acks and nacks", async (name, topic, group) => {
    // The second source starts where the first one's group has got to.
    const before = (await ops(`/topics?topic=${topic}`)).topics[0]?.lastSeq ?? 0;
    const { ids, seen, refused } = await run(name, code(name), TOKEN);
    const numbers = seen.filter(([, , attempt]: number[]) => attempt === 1).map(([, n]: number[]) => n);
    expect(numbers, "in order, each once").toEqual([1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
    expect(seen.filter(([, , attempt]: number[]) => attempt! > 1).map(([, n, attempt]: number[]) => [n, attempt]), "the one that was nacked").toEqual([[3, 2]]);
    if (ids) {
      expect(new Set(seen.map(([id]: string[]) => id))).toEqual(new Set(ids));
      expect(refused).toBe("bad_topic");
    }
    await until("all are acked", async () => (await ops(`/lag?topic=${topic}&group=${group}`)).lag === 0);
    expect((await ops(`/cursors?topic=${topic}`)).cursors.map((cursor: any) => [cursor.group, cursor.seq]), source).toEqual([[group, before + 10]]);
  });

  it("is refused with a wrong token", async () => {
    await expect(run("PromClient", code("PromClient"), "another")).rejects.toThrow(/bad_token/);
  });
});
