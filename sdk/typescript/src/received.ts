// Events as the hub sent them: the parsed fields, and the payload's exact text for those who ask for it.
import type { EventRecord } from "./types.js";

export type Parse = (text: string) => unknown;

/** Returns the text of the payload of each event of a frame, in order; `depth` is how deep the fields of an event lie in it. */
function payloads(text: string, depth: number): string[] {
  const found: string[] = [];
  let [level, from, quote] = [0, 0, 0];
  let quoted = false;
  let name = "";
  // The text is valid JSON: quotes and brackets are all there is to see.
  for (const { 0: sign, index } of text.matchAll(/\\.|["{}[\],:]/gs)) {
    if (sign === '"') {
      quoted = !quoted;
      if (quoted) quote = index + 1;
      else name = text.slice(quote, index);
    } else if (quoted) continue;
    else if (sign === ":") {
      if (level === depth && name === "payload") from = index + 1;
    } else if (sign === "{" || sign === "[") level++;
    else {
      if (from && level === depth) {
        found.push(text.slice(from, index).trim());
        from = 0;
      }
      if (sign !== ",") level--;
    }
  }
  return found;
}

/** Returns the payload texts of the frame, which is looked through when the first of them is asked for. */
export function payloadsOf(text: string, depth: number): (index: number) => string {
  let found: string[] | undefined;
  return (index) => (found ??= payloads(text, depth))[index]!;
}

export class Received {
  readonly #text: (index: number) => string;
  readonly #index: number;

  constructor(event: EventRecord, text: (index: number) => string, index: number, parse: Parse | undefined) {
    Object.assign(this, event);
    this.#text = text;
    this.#index = index;
    let parsed: [unknown] | undefined;
    // Where it is read: text that `parse` refuses is the handler's error, not the connection's.
    if (parse) Object.defineProperty(this, "payload", { enumerable: true, get: () => (parsed ??= [parse(text(index))])[0] });
  }

  get payloadText(): string {
    return this.#text(this.#index);
  }
}
