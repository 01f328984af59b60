// One event, closely.
import { useEffect, useRef } from "preact/hooks";
import { getToken } from "../api";
import { curl, httpBase } from "../curl";
import { payloadText, line, pretty, tree } from "../exact";
import { count, time } from "../format";
import { href } from "../route";
import { item } from "../tail";
import type { Event, Hub } from "../types";
import { Json } from "../ui/json";
import { Copy } from "../ui/parts";

interface Props { event: Event; hub: Hub | undefined; onClose: () => void; onPublish: (draft: Partial<Event>) => void }

export function Inspector({ event, hub, onClose, onPublish }: Props) {
  const box = useRef<HTMLElement>(null);
  useEffect(() => box.current?.focus({ preventScroll: true }), [event.id]);
  return (
    <aside ref={box} class="panel inspector" tabIndex={-1} aria-label="Event" onKeyDown={(e) => { if (e.key === "Escape") onClose(); }}>
      <div class="row spread"><h2>{event.topic}</h2><button type="button" class="icon" aria-label="Close" onClick={onClose}>✕</button></div>
      <dl>
        <dt>Id</dt><dd><code>{event.id}</code></dd>
        <dt>Seq</dt><dd>{count(event.seq)}{event.partition !== undefined && <span class="muted"> · partition {event.partition}</span>}</dd>
        <dt>Time</dt><dd>{time(event.ts)} <span class="muted">{new Date(event.ts).toISOString()}</span></dd>
        {event.key !== undefined && <><dt>Key</dt><dd><a href={href("events", { topic: event.topic, key: item(event.key) })}>{event.key}</a></dd></>}
        {event.sid !== undefined && <><dt>Session</dt><dd>{event.sid}</dd></>}
        {!!event.tags?.length && <><dt>Tags</dt><dd>{event.tags.map((tag) => <span key={tag} class="tag">{tag}</span>)}</dd></>}
        {Object.entries(event.headers ?? {}).map(([name, value]) => <><dt key={name} class="mono">{name}</dt><dd key={`${name}=`}>{value}</dd></>)}
        {!!event.caused_by?.length && <><dt>Caused by</dt><dd>{event.caused_by.map((id) => <div key={id}><a class="mono" href={href("causality", { id })}>{id}</a></div>)}</dd></>}
      </dl>
      <Json text={payloadText(event)} />
      <div class="row">
        <Copy text={() => pretty(tree(line(event)))}>Copy JSON</Copy>
        <Copy text={() => curl(event, httpBase(hub?.http, location), getToken() !== undefined)}>Copy as curl</Copy>
        <button type="button" onClick={() => onPublish(event)}>Publish again…</button>
        <a class="button" href={href("causality", { id: event.id })}>Causality</a>
      </div>
    </aside>
  );
}
