// What the project is made of: its own crates, and every crate and npm package it depends on, from `cargo metadata` and
// the lock files. Needs no network once the crates are fetched.
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

export const root = fileURLToPath(new URL("../..", import.meta.url));
export const text = (path) => readFileSync(`${root}${path}`, "utf8");
export const json = (path) => JSON.parse(text(path));

/** npm packages of ours, with whether their own dependencies end up in what we ship. */
const NPM = { "sdk/typescript": true, "sdk/sibilant": true, dashboard: true, "e2e/browser": false };

let metadata;
/** `cargo metadata` of the workspace. */
export function cargo() {
  metadata ??= JSON.parse(execFileSync("cargo", ["metadata", "--format-version", "1", "--locked"], { cwd: root, encoding: "utf8", maxBuffer: 1 << 28, stdio: ["ignore", "pipe", "inherit"] }));
  return metadata;
}

/** Our own crates; those with `publish = false` stay here. */
export const ownCrates = () => cargo().packages.filter((crate) => crate.source === null);
export const published = () => ownCrates().filter((crate) => crate.publish === null);
export const ownNpm = () => Object.keys(NPM).map((folder) => ({ folder, ...json(`${folder}/package.json`) }));

/** The crates that are compiled into `promethean`: dependencies of its dependencies, without those of tests. */
export function shippedCrates() {
  const nodes = new Map(cargo().resolve.nodes.map((node) => [node.id, node]));
  const start = ownCrates().find((crate) => crate.name === "promethean").id;
  const seen = new Map();
  const visit = (id) => {
    if (seen.has(id)) return;
    const needs = nodes.get(id).deps.filter((dep) => dep.dep_kinds.some((kind) => kind.kind !== "dev")).map((dep) => dep.pkg);
    seen.set(id, needs);
    needs.forEach(visit);
  };
  visit(start);
  const crates = new Map(cargo().packages.map((crate) => [crate.id, crate]));
  return [...seen].map(([id, needs]) => ({ ...crates.get(id), needs: needs.map((need) => crates.get(need)) }));
}

/** npm packages from the lock files: `shipped` ones are bundled into the page or the SDK, the others are tools. */
export function npmPackages() {
  const found = new Map();
  for (const [folder, ships] of Object.entries(NPM)) {
    for (const [path, entry] of Object.entries(json(`${folder}/package-lock.json`).packages)) {
      if (!path.includes("node_modules/") || entry.link) continue;
      const name = entry.name ?? path.split("node_modules/").at(-1);
      const shipped = ships && !entry.dev && !entry.peer && !entry.optional && !entry.devOptional;
      const before = found.get(`${name}@${entry.version}`);
      found.set(`${name}@${entry.version}`, { name, version: entry.version, license: entry.license, integrity: entry.integrity, shipped: shipped || Boolean(before?.shipped) });
    }
  }
  return [...found.values()];
}

/** The checksums of Cargo.lock. */
export function checksums() {
  const entries = [...text("Cargo.lock").matchAll(/name = "(.+)"\nversion = "(.+)"\nsource = .*\nchecksum = "(.+)"/g)];
  return new Map(entries.map(([, name, version, sum]) => [`${name}@${version}`, sum]));
}

/** Whether a licence expression can be kept with the licences of `allow`: one of an OR, all of an AND. */
export function licensed(expression, allow) {
  const words = expression.replaceAll("/", " OR ").match(/\(|\)|[^\s()]+/g) ?? [];
  let at = 0;
  const one = () => {
    if (words[at] === "(") {
      at++;
      const inner = any();
      at++;
      return inner;
    }
    let name = words[at++];
    if (words[at] === "WITH") { name += ` WITH ${words[at + 1]}`; at += 2; }
    return allow.includes(name);
  };
  const all = () => {
    let good = one();
    while (words[at] === "AND") { at++; good = one() && good; }
    return good;
  };
  const any = () => {
    let good = all();
    while (words[at] === "OR") { at++; good = all() || good; }
    return good;
  };
  return words.length > 0 && any() && at === words.length;
}

/** The licences that deny.toml allows. */
export const allowed = () => [...text("deny.toml").split("allow = [")[1].split("]")[0].matchAll(/"(.+)"/g)].map(([, name]) => name);
