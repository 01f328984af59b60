// JSON as it was written: a tree whose leaves are their own text, so that no number is rounded and no key is lost. Pure.
import type { Event } from "./types";

export type Node =
  | { kind: "object"; text: string; entries: [string, Node][] }
  | { kind: "array"; text: string; items: Node[] }
  | { kind: "string" | "number" | "boolean" | "null"; text: string };

/** Reads JSON; throws as `JSON.parse` does where it is none. */
export function tree(text: string): Node {
  JSON.parse(text);
  let at = 0;
  const space = () => { while (text.charCodeAt(at) <= 32) at++; };
  const string = () => {
    const from = at++;
    for (; text[at] !== '"'; at++) if (text[at] === "\\") at++;
    return text.slice(from, ++at);
  };
  const inside = (each: () => void) => {
    at++;
    for (space(); text[at] !== "}" && text[at] !== "]"; space()) {
      if (text[at] === ",") { at++; space(); }
      each();
    }
    at++;
  };
  const value = (): Node => {
    space();
    const from = at;
    if (text[at] === "{") {
      const entries: [string, Node][] = [];
      inside(() => {
        const name = JSON.parse(string()) as string;
        space();
        at++;
        entries.push([name, value()]);
      });
      return { kind: "object", entries, text: text.slice(from, at) };
    }
    if (text[at] === "[") {
      const items: Node[] = [];
      inside(() => items.push(value()));
      return { kind: "array", items, text: text.slice(from, at) };
    }
    if (text[at] === '"') return { kind: "string", text: string() };
    while (at < text.length && !",}] \t\r\n".includes(text[at]!)) at++;
    const leaf = text.slice(from, at);
    return { kind: leaf === "null" ? "null" : leaf === "true" || leaf === "false" ? "boolean" : "number", text: leaf };
  };
  return value();
}

/** Writes a tree with two spaces an indent, each leaf as it was written. */
export function pretty(node: Node, indent = ""): string {
  const more = `${indent}  `;
  if (node.kind === "array") return node.items.length ? `[\n${node.items.map((item) => more + pretty(item, more)).join(",\n")}\n${indent}]` : "[]";
  if (node.kind !== "object") return node.text;
  if (!node.entries.length) return "{}";
  return `{\n${node.entries.map(([name, item]) => `${more}${JSON.stringify(name)}: ${pretty(item, more)}`).join(",\n")}\n${indent}}`;
}

/** Reads an answer of the hub; every object with a `payload` gets its exact text as `payloadText`. */
export function readAnswer(text: string): unknown {
  const value: unknown = JSON.parse(text);
  if (text.includes('"payload"')) mark(value, tree(text));
  return value;
}

function mark(value: unknown, node: Node): void {
  if (node.kind === "array") node.items.forEach((item, index) => mark((value as unknown[])[index], item));
  if (node.kind !== "object") return;
  for (const [name, item] of new Map(node.entries)) {
    if (name === "payload") Object.defineProperty(value, "payloadText", { value: item.text, configurable: true });
    mark((value as Record<string, unknown>)[name], item);
  }
}

/** The payload as it was published. */
export const payloadText = (event: Pick<Event, "payload" | "payloadText">): string => event.payloadText ?? JSON.stringify(event.payload) ?? "null";

/** The event's JSON on one line, the payload as it was published. */
export function line(event: Event): string {
  const { payload: _, ...rest } = event;
  return `${JSON.stringify(rest).slice(0, -1)},"payload":${payloadText(event).replace(/[\r\n]+/g, "")}}`; // line ends only lie between values
}
