// Builds dist/: the modules with their types (tsc), and sdk.js, everything in one minified file for browsers:
// esbuild bundles it, terser saves another 2 %. The licences come beside it from the root of the repository: npm packs no links.
import { execFileSync } from "node:child_process";
import { copyFileSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";
import { minify } from "terser";

const root = fileURLToPath(new URL("..", import.meta.url));
const tsc = createRequire(import.meta.url).resolve("typescript/bin/tsc");

rmSync(`${root}dist`, { recursive: true, force: true });
execFileSync(process.execPath, [tsc, "-p", `${root}tsconfig.json`], { stdio: "inherit", cwd: root });
const { outputFiles: [bundle] } = await build({
  entryPoints: [`${root}src/index.ts`],
  write: false,
  bundle: true, minify: true, format: "esm", target: "es2022", legalComments: "none",
  mangleProps: /^_/, dropLabels: ["NODE"], charset: "utf8",
  tsconfigRaw: { compilerOptions: { target: "ES2022", useDefineForClassFields: false } }, // shorter
});
const { code } = await minify(bundle.text, { module: true, ecma: 2020, compress: { passes: 2 }, format: { comments: false } });
writeFileSync(`${root}dist/sdk.js`, code);
for (const name of ["LICENSE-MIT", "LICENSE-APACHE"]) copyFileSync(`${root}../../${name}`, `${root}${name}`);
