// All topics, and one of them with its rate, groups and live keys.
import { useState } from "preact/hooks";
import { payloadText } from "../exact";
import { ago, bytes, count, many, preview, rate } from "../format";
import { useGet, useList, useNow, useSamples } from "../poll";
import { href } from "../route";
import type { Event, Group, Topic } from "../types";
import { Chart } from "../ui/chart";
import { Field, Head, Problem, Stat } from "../ui/parts";
import { Table } from "../ui/table";
import { CreateDialog, DeleteDialog, PurgeDialog } from "./topic-changes";

export function Topics({ query }: { query: Record<string, string> }) {
  const [filter, setFilter] = useState("");
  const [creating, setCreating] = useState(false);
  const { data, error } = useList<Topic>("topics", {});
  const now = useNow();
  const topics = data ?? [];
  if (query.topic) return <One name={query.topic} topic={topics.find((topic) => topic.topic === query.topic)} now={now} />;
  const shown = topics.filter((topic) => topic.topic.includes(filter.trim()));
  return (
    <>
      <Head title="Topics" note={data && `${many(topics.length, "topic")}, ${many(topics.reduce((sum, topic) => sum + topic.events, 0), "event")}`}>
        <Field label="Filter"><input type="search" value={filter} placeholder="part of a name" onInput={(e) => setFilter(e.currentTarget.value)} /></Field>
        <button type="button" onClick={() => setCreating(true)}>Create…</button>
      </Head>
      <Problem error={error} />
      {creating && <CreateDialog onClose={() => setCreating(false)} />}
      <section class="panel">
        <Table label="Topics" rows={shown} id={(topic) => topic.topic} sort={["Topic"]} empty={data ? <>No topics yet. <a href={href("events", { publish: "1" })}>Publish the first event</a>.</> : "Loading…"} cols={[
          { title: "Topic", by: (x) => x.topic, wide: true, cell: (x) => <a href={href("topics", { topic: x.topic })}>{x.topic}</a> },
          { title: "Events", num: true, by: (x) => x.events, cell: (x) => count(x.events) },
          { title: "Size", num: true, by: (x) => x.bytes, cell: (x) => bytes(x.bytes) },
          { title: "Published/s", num: true, by: (x) => x.publishRate, cell: (x) => rate(x.publishRate) },
          { title: "Groups", num: true, by: (x) => x.groups, cell: (x) => (x.groups ? <a href={href("groups", { topic: x.topic })}>{x.groups}</a> : "0") },
          { title: "Last event", num: true, by: (x) => x.lastTs ?? 0, cell: (x) => (x.lastTs ? ago(x.lastTs, now) : "–") },
          { title: "", cell: (x) => <a href={href("events", { topic: x.topic })} aria-label={`Tail ${x.topic}`}>tail</a> },
        ]} />
      </section>
    </>
  );
}

function One({ name, topic, now }: { name: string; topic: Topic | undefined; now: number }) {
  const [open, setOpen] = useState<"delete" | "purge">();
  const { data: samples } = useSamples({ topic: name });
  const groups = useList<Group>("groups", { topic: name });
  const keys = useGet<{ entries: Record<string, Event>; next?: string }>("latest-by-key", { topic: name, limit: 200 }, 5_000);
  return (
    <>
      <Head title={name} note={<a href={href("topics")}>← all topics</a>}>
        <a class="button" href={href("events", { topic: name })}>Tail</a>
        <a class="button" href={href("events", { topic: name, publish: "1" })}>Publish…</a>
        <button type="button" onClick={() => setOpen("purge")}>Purge…</button>
        <button type="button" onClick={() => setOpen("delete")}>Delete…</button>
      </Head>
      {open === "delete" && <DeleteDialog topic={name} onClose={() => setOpen(undefined)} />}
      {open === "purge" && <PurgeDialog topic={name} onClose={() => setOpen(undefined)} />}
      <section class="stats" aria-label="Now">
        <Stat label="Events" value={count(topic?.events ?? 0)} note={topic ? `seq ${count(topic.firstSeq)} – ${count(topic.lastSeq)}` : ""} />
        <Stat label="Size" value={bytes(topic?.bytes ?? 0)} />
        <Stat label="Published" value={`${rate(topic?.publishRate ?? 0)}/s`} />
        <Stat label="Last event" value={topic?.lastTs ? ago(topic.lastTs, now) : "–"} />
      </section>
      <section class="charts">
        <Chart title="Published per second" t={samples?.t ?? []} format={rate} lines={[{ label: "published", values: samples?.published, color: "c1", fill: true }]} />
        <Chart title="Stored" t={samples?.t ?? []} format={bytes} lines={[{ label: "bytes", values: samples?.bytes, color: "c2", fill: true }]} />
      </section>
      <section class="panel">
        <h2>Groups</h2>
        <Problem error={groups.error} />
        <Table label="Groups of the topic" rows={groups.data ?? []} id={(x) => x.group} empty="No group reads this topic." cols={[
          { title: "Group", wide: true, cell: (x) => <a href={href("groups", { topic: x.topic, group: x.group })}>{x.group}</a> },
          { title: "Members", num: true, cell: (x) => x.members },
          { title: "In flight", num: true, cell: (x) => count(x.inflight) },
          { title: "Lag", num: true, cell: (x) => count(x.lag) },
        ]} />
      </section>
      <section class="panel">
        <h2>Latest by key</h2>
        <Problem error={keys.error} />
        <Table label="Latest event of each key" rows={Object.entries(keys.data?.entries ?? {})} id={([key]) => key} empty="No keyed events." cols={[
          { title: "Key", by: ([key]) => key, cell: ([key, event]) => <a href={href("events", { topic: name, id: event.id })}>{key}</a> },
          { title: "Seq", num: true, by: ([, event]) => event.seq, cell: ([, event]) => count(event.seq) },
          { title: "Payload", wide: true, cell: ([, event]) => <code>{preview(payloadText(event), 120)}</code> },
          { title: "When", num: true, by: ([, event]) => event.ts, cell: ([, event]) => ago(event.ts, now) },
        ]} />
        {keys.data?.next && <p class="muted small pad">The first 200 keys. Others: <code>GET /latest-by-key?topic={name}&amp;key=…</code></p>}
      </section>
    </>
  );
}
