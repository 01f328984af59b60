// After vite: puts the SDK's single file beside the page, and checks what the page promises: at most 80 kB gzipped in
// all, and nothing inline that a strict content security policy would refuse.
import { copyFileSync, existsSync, readdirSync, readFileSync, statSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";

const here = (path) => fileURLToPath(new URL(path, import.meta.url));
const dist = here("../dist/");
const sdk = here("../../sdk/typescript/dist/sdk.js");
if (!existsSync(sdk)) throw new Error("build the SDK first: cd sdk/typescript && npm ci && npm run build");
copyFileSync(sdk, `${dist}sdk.js`);

let total = 0;
for (const name of readdirSync(dist, { recursive: true }).map(String).sort()) {
  if (statSync(dist + name).isDirectory()) continue;
  const bytes = readFileSync(dist + name);
  const size = gzipSync(bytes, { level: 9 }).length;
  total += size;
  console.log(`${String(size).padStart(7)}  ${name}`);
  if (name.endsWith(".html") && /<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)/i.test(String(bytes))) throw new Error(`${name} has inline script or style`);
}
console.log(`${String(total).padStart(7)}  gzipped in all`);
if (total > 80 * 1024) throw new Error("more than 80 kB gzipped");
