// JSON with colours, folded where it is long, each value as it was written. Built of elements, never of HTML text.
import type { ComponentChildren } from "preact";
import { useMemo } from "preact/hooks";
import { tree, type Node } from "../exact";

const FOLD = 20;

function Entry({ name, node, depth }: { name: string | undefined; node: Node; depth: number }): ComponentChildren {
  const key = name !== undefined && <><span class="j-key">{name}</span>: </>;
  if (node.kind !== "object" && node.kind !== "array") return <li class="leaf">{key}<span class={`j-${node.kind}`}>{node.text}</span></li>;
  const entries = node.kind === "object" ? node.entries : node.items.map((item): [undefined, Node] => [undefined, item]);
  const [open, close] = node.kind === "array" ? ["[", "]"] : ["{", "}"];
  if (!entries.length) return <li class="leaf">{key}{open}{close}</li>;
  return (
    <li>
      <details open={entries.length <= FOLD && depth < 5}>
        <summary>{key}<span class="muted">{open} {entries.length} {close}</span></summary>
        <ul>{entries.map(([inner, item], index) => <Entry key={index} name={inner} node={item} depth={depth + 1} />)}</ul>
      </details>
    </li>
  );
}

export function Json({ text }: { text: string }) {
  const node = useMemo(() => tree(text), [text]);
  return <ul class="json" tabIndex={0} aria-label="JSON"><Entry name={undefined} node={node} depth={0} /></ul>;
}
