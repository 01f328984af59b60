// What led to an event and what followed: drawn, and as a list.
import { useEffect, useRef, useState } from "preact/hooks";
import { get, type ApiError } from "../api";
import { count, many, time } from "../format";
import { layout } from "../graph";
import { go, href } from "../route";
import type { Causality as Answer, Event, Hub } from "../types";
import { Field, Head, Problem } from "../ui/parts";
import { Table } from "../ui/table";
import { Inspector } from "./inspector";
import { Publish } from "./publish";

const W = 212, H = 54, GX = 70, GY = 18;

export function Causality({ query, hub }: { query: Record<string, string>; hub: Hub | undefined }) {
  const [id, setId] = useState(query.id ?? "");
  const [answer, setAnswer] = useState<Answer>();
  const [error, setError] = useState<ApiError>();
  const [open, setOpen] = useState<Event>();
  const [draft, setDraft] = useState<Partial<Event>>();
  useEffect(() => {
    setId(query.id ?? "");
    setError(undefined);
    setAnswer(undefined);
    setOpen(undefined);
    if (!query.id) return;
    const stop = new AbortController();
    get<Answer>("causality", { id: query.id }, stop.signal).then(
      (found) => { setAnswer(found); setOpen(found.events.find((event) => event.id === found.id)); },
      (cause) => { if (!stop.signal.aborted) setError(cause); },
    );
    return () => stop.abort();
  }, [query.id]);
  return (
    <>
      <Head title="Causality" note={answer && `${many(answer.events.length, "event")}${answer.missing.length ? `, ${many(answer.missing.length, "cause")} gone or hidden` : ""}${answer.complete ? "" : "; there may be more"}`} />
      <form class="filters panel" onSubmit={(event) => { event.preventDefault(); go("causality", { id: id.trim() }); }}>
        <Field label="Event id"><input class="long" required value={id} spellcheck={false} placeholder="0199d1c0-…" onInput={(e) => setId(e.currentTarget.value)} /></Field>
        <button type="submit" class="primary">Draw</button>
      </form>
      <Problem error={error} />
      {!query.id && <p class="empty">Events name what they follow from in <code>caused_by</code>. Enter an event's id, or choose “Causality” at any event.</p>}
      {answer && (
        <div class={open ? "split" : undefined}>
          <div>
            <Graph answer={answer} open={open} onOpen={setOpen} />
            <section class="panel">
              <h2>In order of time</h2>
              <Table label="Events of the graph" rows={answer.events} id={(x) => x.id} selected={open?.id ?? ""} empty="" cols={[
                { title: "Time", cell: (x) => <button type="button" class="link mono" onClick={() => setOpen(x)}>{time(x.ts)}</button> },
                { title: "Topic", wide: true, cell: (x) => x.topic },
                { title: "Seq", num: true, cell: (x) => count(x.seq) },
                { title: "Caused by", num: true, cell: (x) => x.caused_by?.length ?? 0 },
              ]} />
            </section>
          </div>
          {open && <Inspector event={open} hub={hub} onClose={() => setOpen(undefined)} onPublish={setDraft} />}
        </div>
      )}
      {draft && <Publish draft={draft} topics={[]} hub={hub} onClose={() => setDraft(undefined)} />}
    </>
  );
}

function Graph({ answer, open, onOpen }: { answer: Answer; open: Event | undefined; onOpen: (event: Event) => void }) {
  const { spots, edges, layers, rows } = layout(answer.events);
  const x = (layer: number) => layer * (W + GX) + 8;
  const y = (row: number) => row * (H + GY) + 8;
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => box.current?.querySelector(".root")?.scrollIntoView?.({ block: "nearest", inline: "center" }), [answer.id]);
  const cut = (text: string, most: number) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
  return (
    <div class="panel graph" ref={box}>
      <svg width={layers * (W + GX) - GX + 16} height={rows * (H + GY) - GY + 16} role="group" aria-label="Causality graph: causes on the left, effects on the right">
        <defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0 8 4 0 8z" class="arrow" /></marker></defs>
        {edges.map(([from, to]) => {
          const [x1, y1, x2, y2] = [x(from.layer) + W, y(from.row) + H / 2, x(to.layer) - 2, y(to.row) + H / 2];
          const bend = (x2 - x1) / 2;
          return <path key={`${from.event.id} ${to.event.id}`} class="edge" d={`M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`} marker-end="url(#arrow)" />;
        })}
        {spots.map(({ event, layer, row }) => (
          <a key={event.id} href={href("causality", { id: event.id })} aria-label={`${event.topic} seq ${event.seq}, ${time(event.ts)}`}
            class={`node ${event.id === answer.id ? "root" : ""} ${event.id === open?.id ? "on" : ""}`}
            onClick={(e) => { e.preventDefault(); onOpen(event); }}>
            <title>{event.topic} · {event.id}</title>
            <rect x={x(layer)} y={y(row)} width={W} height={H} rx="8" />
            <text x={x(layer) + 12} y={y(row) + 22} class="name">{cut(event.topic, 24)}</text>
            <text x={x(layer) + 12} y={y(row) + 41} class="sub">#{event.seq} · {time(event.ts).slice(-12)}{event.key ? ` · ${cut(event.key, 8)}` : ""}</text>
          </a>
        ))}
      </svg>
    </div>
  );
}
