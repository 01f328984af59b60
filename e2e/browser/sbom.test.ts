// The bill of materials (make sbom) is CycloneDX by the schema of the specification.
import { Ajv } from "ajv";
import formats from "ajv-formats";
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { expect, it } from "vitest";

const library = dirname(createRequire(import.meta.url).resolve("@cyclonedx/cyclonedx-library/package.json"));
// The library keeps them with references by file name.
const schema = (name: string) => JSON.parse(readFileSync(join(library, "res/schema", `${name}.SNAPSHOT.schema.json`), "utf8").replaceAll(".SNAPSHOT.", "."));

it("is CycloneDX 1.6", () => {
  const script = fileURLToPath(new URL("../../scripts/release/sbom.mjs", import.meta.url));
  const bom = JSON.parse(execFileSync(process.execPath, [script], { encoding: "utf8", maxBuffer: 1 << 26 }));
  const ajv = new Ajv({ strict: false, allErrors: true, schemas: [schema("spdx"), schema("jsf-0.82"), schema("cryptography-defs")] });
  formats.default(ajv);
  for (const name of ["iri-reference", "idn-email"]) ajv.addFormat(name, true);
  const validate = ajv.compile(schema("bom-1.6"));
  expect(validate(bom) ? [] : validate.errors!.slice(0, 5).map((error) => `${error.instancePath} ${error.message}`)).toEqual([]);
  expect(bom.components.length).toBeGreaterThan(100);
});
