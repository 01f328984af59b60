// The software bill of materials: CycloneDX 1.6 as JSON, of everything that is in the hub's binary (crates, and the npm
// packages of its page). The same input gives the same bytes. `make sbom` writes target/sbom.json.
import { checksums, npmPackages, shippedCrates } from "./packages.mjs";
import { fileURLToPath } from "node:url";

const purl = (crate) => `pkg:cargo/${crate.name}@${crate.version}`;
const licences = (expression) => (expression ? [{ expression: expression.replaceAll("/", " OR ") }] : []);

export function sbom() {
  const crates = shippedCrates();
  const sums = checksums();
  const npm = npmPackages().filter((entry) => entry.shipped);
  const npmPurl = (entry) => `pkg:npm/${entry.name.replace("@", "%40")}@${entry.version}`;
  const component = (crate) => {
    const sum = sums.get(`${crate.name}@${crate.version}`);
    return {
      type: crate.name === "promethean" ? "application" : "library",
      "bom-ref": purl(crate), name: crate.name, version: crate.version, purl: purl(crate),
      ...(crate.description && { description: crate.description.trim().replaceAll(/\s+/g, " ") }),
      ...(sum && { hashes: [{ alg: "SHA-256", content: sum }] }),
      licenses: licences(crate.license),
    };
  };
  const ours = crates.find((crate) => crate.name === "promethean");
  const components = crates.filter((crate) => crate !== ours).map(component);
  for (const entry of npm) {
    const content = Buffer.from(entry.integrity.replace(/^sha512-/, ""), "base64").toString("hex");
    components.push({ type: "library", "bom-ref": npmPurl(entry), name: entry.name, version: entry.version, purl: npmPurl(entry), hashes: [{ alg: "SHA-512", content }], licenses: licences(entry.license) });
  }
  const by = (key) => (a, b) => (a[key] < b[key] ? -1 : 1);
  const dependencies = crates.map((crate) => ({ ref: purl(crate), dependsOn: [...new Set(crate.needs.map(purl))].sort() }));
  const gateway = dependencies.find((entry) => entry.ref.startsWith("pkg:cargo/promethean-gateway@"));
  gateway.dependsOn.push(...npm.map(npmPurl));
  return {
    $schema: "http://cyclonedx.org/schema/bom-1.6.schema.json",
    bomFormat: "CycloneDX", specVersion: "1.6", version: 1,
    metadata: { component: component(ours) },
    components: components.sort(by("bom-ref")),
    dependencies: [...dependencies, ...npm.map((entry) => ({ ref: npmPurl(entry) }))].sort(by("ref")),
  };
}

if (process.argv[1] === fileURLToPath(import.meta.url)) console.log(JSON.stringify(sbom(), null, 2));
