// Events as they come: filter, hold still, look closely, publish, take along.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { get, request, type ApiError } from "../api";
import { line, payloadText } from "../exact";
import { count, preview, rate, time } from "../format";
import { useGet } from "../poll";
import { amend } from "../route";
import { headersOf, listOf, Tail, type Ask } from "../tail";
import type { Event, Hub, Topic } from "../types";
import { Dialog, download, Field, Head, Problem } from "../ui/parts";
import { Table } from "../ui/table";
import { Inspector } from "./inspector";
import { Publish } from "./publish";

const SHOWN = 200;
interface Form { topic: string; key: string; tag: string; header: string; from: string; since: string; to: string; id: string }
const FIELDS: (keyof Form)[] = ["topic", "key", "tag", "header", "from", "since", "to", "id"];

const formOf = (query: Record<string, string>) => Object.fromEntries(FIELDS.map((name) => [name, query[name] ?? ""])) as unknown as Form;

const askOf = (form: Form): Ask => ({
  topic: form.topic.trim() || "**",
  filter: {
    ...(form.key && { keys: listOf(form.key) }), ...(form.tag && { tags: listOf(form.tag) }), ...(form.header && { headers: headersOf(form.header) }),
  },
  ...(form.from === "earliest" && { from: "earliest" as const }),
  ...(form.from === "time" && form.since && { from: "ts" as const, ts: new Date(form.since).getTime() }),
  ...(form.to && { to: new Date(form.to).getTime() }),
});

export function Events({ query, hub }: { query: Record<string, string>; hub: Hub | undefined }) {
  const [form, setForm] = useState<Form>(() => formOf(query));
  const [, redraw] = useState(0);
  const [paused, setPaused] = useState(false);
  const [held, setHeld] = useState(false); // somebody points at the list: it stands still
  const still = useRef<{ events: Event[]; total: number } | undefined>(undefined);
  const [open, setOpen] = useState<Event>();
  const [found, setFound] = useState<ApiError>();
  const [publishing, setPublishing] = useState<Partial<Event>>();
  const [exporting, setExporting] = useState(false);
  const topics = useGet<{ topics: Topic[] }>("topics", {}, 10_000).data?.topics ?? [];

  // One tail at a time; a change of the form starts another after a moment of rest.
  const ask = useMemo(() => askOf(form), [JSON.stringify(askOf(form))]);
  const tail = useRef<Tail | undefined>(undefined);
  const last = useRef<Promise<unknown>>(Promise.resolve());
  useEffect(() => {
    const rest = setTimeout(() => {
      setPaused(false);
      still.current = undefined;
      tail.current = new Tail(ask, () => redraw((n) => n + 1), last.current);
    }, tail.current ? 300 : 0);
    return () => {
      clearTimeout(rest);
      if (tail.current) last.current = tail.current.stop();
    };
  }, [ask]);

  useEffect(() => amend("events", form as unknown as Record<string, string>), [form]);
  // A link to this screen: its question replaces the one in the form.
  useEffect(() => {
    setForm(formOf(query));
    if (query.publish) setPublishing({ topic: query.topic ?? "" });
  }, [query]);
  useEffect(() => {
    const id = form.id.trim();
    setFound(undefined);
    if (id.length < 36) return;
    const stop = new AbortController();
    get<Event>("event", { id }, stop.signal).then(setOpen, (error) => { if (!stop.signal.aborted) setFound(error); });
    return () => stop.abort();
  }, [form.id]);

  const live = tail.current;
  const frozen = paused || held;
  if (!frozen) still.current = undefined;
  else still.current ??= { events: [...(live?.events ?? [])], total: live?.total ?? 0 };
  const view = still.current ?? { events: live?.events ?? [], total: live?.total ?? 0 };
  const rows = view.events.slice(-SHOWN).reverse();
  const set = (name: keyof Form) => (event: { currentTarget: { value: string } }) => { const { value } = event.currentTarget; setForm((old) => ({ ...old, [name]: value })); };
  const newer = (live?.total ?? 0) - view.total;
  return (
    <>
      <Head title="Events" note={<span role="status">{rate(live?.rate ?? 0)}/s · {count(live?.total ?? 0)} seen{frozen && newer > 0 ? ` · ${count(newer)} newer${paused ? "" : ", held while you look"}` : ""}</span>}>
        <button type="button" aria-pressed={paused} onClick={() => setPaused(!paused)}>{paused ? "▶ Go on" : "❚❚ Pause"}</button>
        <button type="button" onClick={() => { live?.clear(); setPaused(false); }}>Clear</button>
        <button type="button" onClick={() => setExporting(true)}>Export…</button>
        <button type="button" class="primary" onClick={() => setPublishing({ topic: form.topic.includes("*") ? "" : form.topic })}>Publish…</button>
      </Head>
      <form class="filters panel" role="search" aria-label="Filter events" onSubmit={(event) => event.preventDefault()}>
        <Field label="Topic or pattern"><input list="topics" value={form.topic} placeholder="**" spellcheck={false} onInput={set("topic")} /></Field>
        <datalist id="topics">{topics.slice(0, 200).map((topic) => <option key={topic.topic} value={topic.topic} />)}</datalist>
        <Field label="Key"><input value={form.key} placeholder='any of a, b, "c,d"' spellcheck={false} onInput={set("key")} /></Field>
        <Field label="Tag"><input value={form.tag} placeholder="any of #a, #b" spellcheck={false} onInput={set("tag")} /></Field>
        <Field label="Header"><input value={form.header} placeholder="x-trace=1" spellcheck={false} onInput={set("header")} /></Field>
        <Field label="From"><select value={form.from || "live"} onChange={(e) => setForm({ ...form, from: e.currentTarget.value === "live" ? "" : e.currentTarget.value })}><option value="live">now on</option><option value="time">a time</option><option value="earliest">the first</option></select></Field>
        {form.from === "time" && <Field label="Since"><input type="datetime-local" step="1" value={form.since} onInput={set("since")} /></Field>}
        <Field label="Until"><input type="datetime-local" step="1" value={form.to} onInput={set("to")} /></Field>
        <Field label="Event id"><input value={form.id} placeholder="find one" spellcheck={false} onInput={set("id")} /></Field>
      </form>
      <Problem error={live?.error ?? found} />
      <div class={open ? "split" : undefined}>
        <section class="panel" onPointerEnter={(e) => setHeld(e.pointerType === "mouse")} onPointerLeave={() => setHeld(false)} onFocusIn={() => setHeld(true)} onFocusOut={() => setHeld(false)}>
          <Table label="Events, newest first" rows={rows} id={(x) => x.id} most={SHOWN} selected={open?.id ?? ""} empty={live?.error ? "No tail." : "Waiting for events…"} cols={[
            { title: "Time", cell: (x) => <button type="button" class="link mono" onClick={() => setOpen(x)}>{time(x.ts)}</button> },
            { title: "Topic", cell: (x) => x.topic },
            { title: "Seq", num: true, cell: (x) => count(x.seq) },
            { title: "Key", cell: (x) => x.key ?? <span class="muted">–</span> },
            { title: "Payload", wide: true, cell: (x) => <code>{preview(payloadText(x))}</code> },
            { title: "Tags", cell: (x) => x.tags?.map((tag) => <span key={tag} class="tag">{tag}</span>) },
          ]} />
        </section>
        {open && <Inspector event={open} hub={hub} onClose={() => setOpen(undefined)} onPublish={setPublishing} />}
      </div>
      {publishing && <Publish draft={publishing} topics={topics} hub={hub} onClose={() => setPublishing(undefined)} />}
      {exporting && <Export ask={ask} shown={view.events} onClose={() => setExporting(false)} />}
    </>
  );
}

function Export({ ask, shown, onClose }: { ask: Ask; shown: Event[]; onClose: () => void }) {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<Error>();
  const single = !ask.topic.includes("*");
  const all = async () => {
    setBusy(true);
    try {
      const response = await request("export", { topic: ask.topic, fromTs: ask.ts, toTs: ask.to, ndjson: 1 });
      download(`${ask.topic}.ndjson`, "application/x-ndjson", await response.blob());
      onClose();
    } catch (cause) { setError(cause as Error); }
    setBusy(false);
  };
  return (
    <Dialog title="Export" onClose={onClose}>
      <p>As NDJSON, one event a line.</p>
      <Problem error={error} />
      <div class="row end">
        <button type="button" onClick={() => { download("events.ndjson", "application/x-ndjson", shown.map((event) => `${line(event)}\n`).join("")); onClose(); }}>The {count(shown.length)} in view</button>
        <button type="button" class="primary" disabled={!single || busy} title={single ? undefined : "Choose one topic first"} onClick={() => void all()}>{busy ? "Reading…" : single ? `All of ${ask.topic}` : "All of a topic"}</button>
      </div>
    </Dialog>
  );
}
