// JSON with colours, folded where it is long. Built of elements, never of HTML text.
import type { ComponentChildren } from "preact";

const FOLD = 20;

function Leaf({ value }: { value: unknown }) {
  const kind = value === null ? "null" : typeof value;
  return <span class={`j-${kind}`}>{JSON.stringify(value)}</span>;
}

function Entry({ name, value, depth }: { name: string | undefined; value: unknown; depth: number }): ComponentChildren {
  const key = name !== undefined && <><span class="j-key">{name}</span>: </>;
  if (value === null || typeof value !== "object") return <li class="leaf">{key}<Leaf value={value} /></li>;
  const list = Array.isArray(value);
  const entries = Object.entries(value);
  const [open, close] = list ? ["[", "]"] : ["{", "}"];
  if (!entries.length) return <li class="leaf">{key}{open}{close}</li>;
  return (
    <li>
      <details open={entries.length <= FOLD && depth < 5}>
        <summary>{key}<span class="muted">{open} {entries.length} {close}</span></summary>
        <ul>{entries.map(([inner, item]) => <Entry key={inner} name={list ? undefined : inner} value={item} depth={depth + 1} />)}</ul>
      </details>
    </li>
  );
}

export const Json = ({ value }: { value: unknown }) => <ul class="json" tabIndex={0} aria-label="JSON"><Entry name={undefined} value={value} depth={0} /></ul>;
