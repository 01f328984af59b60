// What was given up on, why, and sending it back.
import { useState } from "preact/hooks";
import { send } from "../api";
import { line, payloadText } from "../exact";
import { ago, count, many, preview } from "../format";
import { useGet, useNow } from "../poll";
import { href } from "../route";
import type { DeadLetters as Letters, DeadTopics, Hub, Letter, Redriven } from "../types";
import { Json } from "../ui/json";
import { Dialog, Field, Head, Pill, Problem } from "../ui/parts";
import { Table } from "../ui/table";

type Choice = { err?: string; group?: string; ids?: string[]; limit?: number; words: string };

export function DeadLetters({ query, hub }: { query: Record<string, string>; hub: Hub | undefined }) {
  const { data, error, again } = useGet<DeadTopics>("dlq", {}, 3_000);
  const now = useNow();
  const topics = data?.topics ?? [];
  if (query.topic) return <One key={query.topic} topic={query.topic} hub={hub} now={now} changed={again} />;
  return (
    <>
      <Head title="Dead letters" note={data && (topics.length ? `${many(topics.reduce((sum, x) => sum + x.letters, 0), "letter")} of ${many(topics.length, "topic")}` : undefined)} />
      <Problem error={error} />
      <section class="panel">
        <Table label="Topics with dead letters" rows={topics} id={(x) => x.topic} sort={["Letters", true]} empty={data ? "No dead letters. Every event was acked within its attempts." : "Loading…"} cols={[
          { title: "Topic", by: (x) => x.topic, wide: true, cell: (x) => <a href={href("dead-letters", { topic: x.topic })}>{x.topic}</a> },
          { title: "Letters", num: true, by: (x) => x.letters, cell: (x) => count(x.letters) },
          { title: "Last", num: true, by: (x) => x.lastTs, cell: (x) => ago(x.lastTs, now) },
        ]} />
      </section>
    </>
  );
}

function One({ topic, hub, now, changed }: { topic: string; hub: Hub | undefined; now: number; changed: () => void }) {
  const [after, setAfter] = useState<string>();
  const { data, error, again } = useGet<Letters>("dlq", { topic, after, limit: 100 }, 3_000);
  const [open, setOpen] = useState<Letter>();
  const [asked, setAsked] = useState<Choice>();
  const may = hub?.admin !== false;
  return (
    <>
      <Head title={topic} note={<><a href={href("dead-letters")}>← all dead letters</a>{data && <> · {count(data.letters)} waiting{data.foreign ? `, ${count(data.foreign)} of them no dead letters` : ""}{data.counted !== undefined && `; by reason the oldest ${count(data.counted)}`}</>}</>}>
        <button type="button" class="primary" disabled={!may || !data?.letters} onClick={() => setAsked({ words: `all ${many(data!.letters, "letter")}` })}>Send all back…</button>
      </Head>
      <Problem error={error} />
      <section class="panel">
        <h2>By reason</h2>
        <Table label="Reasons" rows={data?.reasons ?? []} id={(x) => `${x.group} ${x.err}`} empty={data ? "No letters wait." : "Loading…"} cols={[
          { title: "Reason", wide: true, by: (x) => x.err, cell: (x) => x.err },
          { title: "Group", by: (x) => x.group ?? "", cell: (x) => (x.group ? <a href={href("groups", { topic, group: x.group })}>{x.group}</a> : "–") },
          { title: "Letters", num: true, by: (x) => x.count, cell: (x) => count(x.count) },
          // What is counted together under _other, or has none, has no reason to send back by.
          { title: "", cell: (x) => x.group && x.err && <button type="button" disabled={!may} onClick={() => setAsked({ err: x.err, group: x.group!, words: `${many(x.count, "letter")} with this reason` })}>Send back…</button> },
        ]} />
      </section>
      <section class="panel">
        <h2>Letters</h2>
        <Table label="Dead letters" rows={data?.entries ?? []} id={(x) => x.id} empty={data ? "No letters." : "Loading…"} cols={[
          { title: "When", cell: (x) => <button type="button" class="link" onClick={() => setOpen(x)}>{ago(x.ts, now)}</button> },
          { title: "Group", cell: (x) => x.group },
          { title: "Reason", wide: true, cell: (x) => x.err },
          { title: "Attempts", num: true, cell: (x) => x.attempts },
          { title: "Event", wide: true, cell: (x) => <code>{preview(payloadText(x.original), 80)}</code> },
          { title: "", cell: (x) => (x.foreign ? <Pill tone="calm">no dead letter</Pill> : x.redriven ? <Pill tone="good">sent back</Pill> : <Pill tone="warn">waits</Pill>) },
        ]} />
        {(after || data?.next) && <div class="row pad">
          {after && <button type="button" onClick={() => setAfter(undefined)}>Newest</button>}
          {data?.next && <button type="button" onClick={() => setAfter(data.next)}>Older</button>}
        </div>}
      </section>
      {open && (
        <Dialog title="Dead letter" onClose={() => setOpen(undefined)}>
          <p><b>{open.err}</b></p>
          <p class="muted">{!open.foreign && `${many(open.attempts, "attempt")} by ${open.group}, `}{ago(open.ts, now)}</p>
          <Json text={line(open.original)} />
          <div class="row end">
            <a class="button" href={href("causality", { id: open.id })}>Causality</a>
            <button type="button" class="primary" disabled={!may || open.redriven || open.foreign} onClick={() => { setAsked({ ids: [open.id], words: "this letter" }); setOpen(undefined); }}>Send back…</button>
          </div>
        </Dialog>
      )}
      {asked && <Redrive topic={topic} choice={asked} onClose={() => { setAsked(undefined); again(); changed(); }} />}
    </>
  );
}

function Redrive({ topic, choice, onClose }: { topic: string; choice: Choice; onClose: () => void }) {
  const [limit, setLimit] = useState("");
  const [toTopic, setToTopic] = useState(false);
  const [result, setResult] = useState<Redriven>();
  const [error, setError] = useState<Error>();
  const run = async () => {
    const { words: _, ...body } = choice;
    try { setResult(await send("POST", "dlq/redrive", { topic }, { ...body, to: toTopic ? "topic" : "group", ...(limit && { limit: Number(limit) }) })); } catch (cause) { setError(cause as Error); }
  };
  return (
    <Dialog title="Send back" onClose={onClose}>
      {result
        ? <p role="status">Sent {count(result.redriven)} back{toTopic && <> to <b>{topic}</b></>}; {count(result.remaining)} remain.{result.gone ? ` ${many(result.gone, "letter")} cannot go to their group: the event has left the log.` : ""}{result.refused ? ` ${many(result.refused, "letter")} refused: ${result.refusals?.map((x) => `${x.id}: ${x.error}`).join("; ")}` : ""}</p>
        : toTopic
          ? <p>Publishes copies of {choice.words} to <b>{topic}</b>. Every group of the topic gets them, not only the one that failed.</p>
          : <p>Delivers {choice.words} again to the group that failed, and to no other. Attempts count from 1.</p>}
      {!result && <Field label="To every group"><input type="checkbox" checked={toTopic} onChange={(e) => setToTopic(e.currentTarget.checked)} /></Field>}
      {!result && !choice.ids && <Field label="At most"><input type="number" min="1" placeholder="all" value={limit} onInput={(e) => setLimit(e.currentTarget.value)} /></Field>}
      <Problem error={error} />
      <div class="row end">{result ? <button type="button" class="primary" onClick={onClose}>Done</button> : <button type="button" class="primary" onClick={() => void run()}>Send back</button>}</div>
    </Dialog>
  );
}
