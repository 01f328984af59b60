// Who is connected, and what they hold.
import { useState } from "preact/hooks";
import { bytes, count, duration } from "../format";
import { useList, useNow } from "../poll";
import { href } from "../route";
import type { Connection } from "../types";
import { Field, Head, Pill, Problem } from "../ui/parts";
import { Table } from "../ui/table";

export function Connections({ query }: { query: Record<string, string> }) {
  const [filter, setFilter] = useState(query.id ?? "");
  const { data, error } = useList<Connection>("connections", {});
  const now = useNow();
  const all = data ?? [];
  const text = (x: Connection) => `${x.id} ${x.peer} ${x.sub ?? ""} ${x.subscriptions.map((s) => `${s.topic} ${s.group ?? ""}`).join(" ")}`;
  const held = (x: Connection) => x.subscriptions.reduce((sum, s) => sum + s.inflight, 0);
  const shown = all.filter((x) => text(x).includes(filter.trim()));
  return (
    <>
      <Head title="Connections" note={data && `${count(all.length)} connected`}>
        <Field label="Filter"><input type="search" value={filter} placeholder="address, name, topic" onInput={(e) => setFilter(e.currentTarget.value)} /></Field>
      </Head>
      <Problem error={error} />
      <section class="panel">
        <Table label="Connections" rows={shown} id={(x) => String(x.id)} sort={["Since"]} empty={data ? "Nobody is connected." : "Loading…"} cols={[
          { title: "Peer", by: (x) => x.peer, cell: (x) => <><code>{x.peer}</code><div class="muted small">{String(x.id)}</div></> },
          { title: "Who", by: (x) => x.sub ?? "", cell: (x) => x.sub ?? <span class="muted">–</span> },
          { title: "Since", num: true, by: (x) => -x.since, cell: (x) => duration(Math.max(0, now - x.since)) },
          { title: "Subscriptions", wide: true, cell: (x) => x.subscriptions.length === 0 ? <span class="muted">none</span> : (
            <ul class="plain">
              {x.subscriptions.map((s) => (
                <li key={`${s.topic} ${s.group}`}>
                  {s.group ? <a href={href("groups", { topic: s.topic, group: s.group })}>{s.topic} · {s.group}</a> : <>{s.topic} <span class="muted">tail</span></>}
                  {" "}<span class="muted">{count(s.inflight)} / {count(s.maxInFlight)}</span>{s.paused && <> <Pill tone="warn">paused</Pill></>}
                </li>
              ))}
            </ul>
          ) },
          { title: "In flight", num: true, by: held, cell: (x) => count(held(x)) },
          { title: "Buffered", num: true, by: (x) => x.bufferedBytes, cell: (x) => bytes(x.bufferedBytes) },
        ]} />
      </section>
    </>
  );
}
