// What has to be true of a release, checked by `make test` (node --test scripts/release): licences of npm packages (those of
// crates: scripts/deny.sh), versions, the Rust version that we state, the bill of materials, and what is in the packages.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { existsSync, readdirSync, rmSync } from "node:fs";
import { test } from "node:test";
import { allowed, cargo, json, licensed, npmPackages, ownCrates, ownNpm, published, root, shippedCrates, text } from "./packages.mjs";
import { sbom } from "./sbom.mjs";

const ours = json("sdk/typescript/package.json").version;

test("licence expressions are read as SPDX says", () => {
  const allow = ["MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "ISC"];
  for (const good of ["MIT", "MIT/Apache-2.0", "GPL-3.0 OR MIT", "MIT AND ISC", "(GPL-3.0 OR MIT) AND ISC", "Apache-2.0 WITH LLVM-exception OR GPL-3.0", "ISC AND (MIT OR GPL-3.0) AND Apache-2.0"]) assert(licensed(good, allow), good);
  for (const bad of ["", "GPL-3.0", "MIT AND GPL-3.0", "(MIT OR ISC) AND GPL-3.0", "MIT WITH Odd-exception", "MIT OR", "(MIT"]) assert(!licensed(bad, allow), bad);
});

test("every npm package has a licence that deny.toml allows, and deny.toml allows none that no crate has", () => {
  const allow = allowed();
  // Tools are not part of what is shipped: they only have to be free to use.
  const tools = [...allow, "MPL-2.0", "BlueOak-1.0.0", "Python-2.0", "CC-BY-4.0", "0BSD"];
  const bad = npmPackages().filter((entry) => !licensed(entry.license ?? "", entry.shipped ? allow : tools)).map((entry) => `${entry.name} ${entry.license}`);
  assert.deepEqual(bad, []);
  const used = new Set(cargo().packages.flatMap((crate) => crate.license.replaceAll("/", " OR ").split(/ OR | AND |[()]/)).map((word) => word.trim()));
  assert.deepEqual(allow.filter((name) => !used.has(name)), [], "nothing is allowed that nobody needs");
});

test("the Rust version that we state is enough for every dependency and not above this toolchain", () => {
  const parts = (version) => version.split(".").concat("0").slice(0, 3).map(Number);
  const above = (one, other) => parts(one).map((part, i) => part - parts(other)[i]).find((difference) => difference !== 0) > 0;
  const [, stated] = text("Cargo.toml").match(/^rust-version = "(.+)"$/m);
  const newer = cargo().packages.filter((crate) => crate.rust_version && above(crate.rust_version, stated)).map((crate) => `${crate.name} ${crate.version} needs Rust ${crate.rust_version}`);
  assert.deepEqual(newer, []);
  for (const crate of ownCrates()) assert.equal(crate.rust_version, stated, crate.name);
  const here = execFileSync("rustc", ["--version"], { encoding: "utf8" }).split(" ")[1];
  assert(!above(stated, here), `Rust ${stated} is stated, this is ${here}`);
  for (const page of ["README.md", "CONTRIBUTING.md"]) assert(text(page).includes(`Rust ${stated}`) || text(page).includes(`Rust (${stated} or later)`), `${page} states Rust ${stated}`);
});

test("everything has one version, and the changelog has it", () => {
  for (const crate of ownCrates()) assert.equal(crate.version, ours, crate.name);
  for (const npm of ownNpm()) {
    assert.equal(npm.version, ours, npm.folder);
    assert.equal(json(`${npm.folder}/package-lock.json`).version, ours, npm.folder);
  }
  const changes = text("CHANGELOG.md");
  assert(changes.includes("## Unreleased") || changes.includes(`## ${ours}`), `CHANGELOG.md has a section for ${ours}`);
});

test("every crate that may be published says what it is, and needs only crates that are published too", () => {
  const names = published().map((crate) => crate.name);
  assert(names.includes("promethean") && names.includes("promethean-client"), String(names));
  for (const crate of published()) {
    for (const field of ["description", "license", "repository", "readme"]) assert(crate[field], `${crate.name} has no ${field}`);
    for (const need of crate.dependencies.filter((need) => need.path && need.kind !== "dev")) {
      assert(names.includes(need.name) && need.req !== "*", `${crate.name} needs ${need.name} ${need.req}`);
    }
  }
});

test("cargo package packs every crate with its licences and README, and nothing that does not belong there", () => {
  const target = `${root}target/package-check`;
  rmSync(`${target}/package`, { recursive: true, force: true });
  const crates = published().flatMap((crate) => ["-p", crate.name]);
  // Packed, not compiled: `cargo publish --dry-run` before a release does that.
  execFileSync("cargo", ["package", "--quiet", "--no-verify", "--allow-dirty", "--locked", "--target-dir", target, ...crates], { cwd: root, stdio: ["ignore", "ignore", "pipe"] });
  for (const crate of published()) {
    const file = `${target}/package/${crate.name}-${crate.version}.crate`;
    const files = execFileSync("tar", ["tzf", file], { encoding: "utf8" }).trim().split("\n").map((path) => path.split("/").slice(1).join("/"));
    for (const needed of ["Cargo.toml", "README.md", "LICENSE-MIT", "LICENSE-APACHE"]) assert(files.includes(needed), `${crate.name} has no ${needed}`);
    assert(files.some((path) => /^src\/(lib|main)\.rs$/.test(path)), crate.name);
    const odd = files.filter((path) => !/^(src|tests|examples)\/|^(Cargo\.(toml|lock|toml\.orig)|\.cargo_vcs_info\.json|README\.md|LICENSE-(MIT|APACHE)|build\.rs|promethean\.default\.toml)$/.test(path));
    assert.deepEqual(odd, [], crate.name);
  }
  assert.equal(readdirSync(`${target}/package`).filter((name) => name.endsWith(".crate")).length, published().length);
});

test("npm pack packs modules, types and licences, and no test", () => {
  const packed = (name) => {
    const cwd = `${root}sdk/${name}`;
    const [one] = JSON.parse(execFileSync("npm", ["pack", "--dry-run", "--json"], { cwd, encoding: "utf8", stdio: ["ignore", "pipe", "ignore"] }));
    return one.files.map((entry) => entry.path);
  };
  assert(existsSync(`${root}sdk/typescript/dist/index.js`), "sdk/typescript is not built: make web");
  const always = ["package.json", "README.md", "LICENSE-MIT", "LICENSE-APACHE"];
  const files = packed("typescript");
  for (const needed of [...always, "dist/index.js", "dist/index.d.ts", "dist/sdk.js", "src/index.ts"]) assert(files.includes(needed), `no ${needed} in ${files}`);
  assert.deepEqual(files.filter((path) => !/^(dist|src)\//.test(path) && !always.includes(path)), []);
  assert.deepEqual(packed("sibilant").sort(), [...always, "hub.js", "prom.sibilant"].sort());
});

test("the bill of materials has everything that is in the binary, once, with its licence and checksum", () => {
  const bom = sbom();
  assert.equal(bom.metadata.component.name, "promethean");
  const refs = bom.components.map((component) => component["bom-ref"]);
  assert.equal(new Set(refs).size, refs.length);
  assert.equal(refs.length, shippedCrates().length - 1 + npmPackages().filter((entry) => entry.shipped).length);
  for (const name of ["pkg:cargo/tokio@", "pkg:cargo/mongodb@", "pkg:cargo/promethean-store@", "pkg:npm/preact@"]) assert(refs.some((ref) => ref.startsWith(name)), name);
  assert(!refs.some((ref) => /proptest|insta|promethean-e2e|vitest/.test(ref)), "nothing of the tests");
  for (const component of bom.components) {
    assert.equal(component.licenses.length, 1, component.name);
    assert(component.hashes || component.name.startsWith("promethean"), `${component.name} has no checksum`);
  }
  const known = new Set([...refs, bom.metadata.component["bom-ref"]]);
  for (const { ref, dependsOn = [] } of bom.dependencies) for (const one of [ref, ...dependsOn]) assert(known.has(one), one);
  assert.deepEqual(new Set(bom.dependencies.map((entry) => entry.ref)), known);
  assert.deepEqual(sbom(), bom, "the same again");
});
