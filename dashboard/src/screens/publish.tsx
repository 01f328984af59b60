// Publishing by hand, over the page's own connection.
import { useState } from "preact/hooks";
import type { PromError, Published } from "@promethean/client";
import { getToken, hub as client } from "../api";
import { curl, httpBase } from "../curl";
import { payloadText, pretty, tree } from "../exact";
import { count } from "../format";
import { headersOf, listOf } from "../tail";
import type { Event, Hub, Topic } from "../types";
import { Copy, Dialog, Field, Problem } from "../ui/parts";

interface Props { draft: Partial<Event>; topics: Topic[]; hub: Hub | undefined; onClose: () => void }

export function Publish({ draft, topics, hub, onClose }: Props) {
  const [topic, setTopic] = useState(draft.topic ?? "");
  const [key, setKey] = useState(draft.key ?? "");
  const [tags, setTags] = useState(draft.tags?.join(", ") ?? "");
  const [headers, setHeaders] = useState(Object.entries(draft.headers ?? {}).filter(([name]) => !name.startsWith("promethean-")).map((pair) => pair.join("=")).join(", "));
  const [text, setText] = useState(draft.payload === undefined ? "{\n  \n}" : pretty(tree(payloadText(draft as Event))));
  const [done, setDone] = useState<Published>();
  const [error, setError] = useState<Error>();
  let wrong = "";
  try { JSON.parse(text); } catch (cause) { wrong = (cause as Error).message; }
  const opts = { ...(key && { key }), ...(tags && { tags: listOf(tags) }), ...(headers && { headers: headersOf(headers) }) };
  const publish = async () => {
    setError(undefined);
    setDone(undefined);
    try { setDone(await client().publishRaw(topic.trim(), text.trim(), { ...opts, timeoutMs: 10_000 })); } catch (cause) { setError(cause as PromError); }
  };
  return (
    <Dialog title="Publish an event" onClose={onClose}>
      <form onSubmit={(event) => { event.preventDefault(); void publish(); }}>
        <Field label="Topic"><input required list="topics-publish" value={topic} spellcheck={false} placeholder="heartbeat.received" onInput={(e) => setTopic(e.currentTarget.value)} /></Field>
        <datalist id="topics-publish">{topics.slice(0, 200).map((x) => <option key={x.topic} value={x.topic} />)}</datalist>
        <div class="row">
          <Field label="Key"><input value={key} spellcheck={false} onInput={(e) => setKey(e.currentTarget.value)} /></Field>
          <Field label="Tags"><input value={tags} placeholder="#a, #b" spellcheck={false} onInput={(e) => setTags(e.currentTarget.value)} /></Field>
          <Field label="Headers"><input value={headers} placeholder="x-trace=1" spellcheck={false} onInput={(e) => setHeaders(e.currentTarget.value)} /></Field>
        </div>
        <Field label="Payload (JSON)"><textarea rows={10} value={text} spellcheck={false} aria-invalid={!!wrong} onInput={(e) => setText(e.currentTarget.value)} /></Field>
        {wrong && text.trim() !== "" && <p class="muted small">{wrong}</p>}
        <Problem error={error} />
        {done && <p class="done" role="status">Stored as seq {count(done.seq)}: <code>{done.id}</code></p>}
        <div class="row end">
          <Copy text={() => curl({ topic, payload: undefined, payloadText: text.trim(), ...opts }, httpBase(hub?.http, location), getToken() !== undefined)}>Copy as curl</Copy>
          <button type="submit" class="primary" disabled={!!wrong || !topic.trim()}>Publish</button>
        </div>
      </form>
    </Dialog>
  );
}
