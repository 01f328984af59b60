// All groups, and one of them: why it does (not) move, who holds what, and moving its cursor.
import { useState } from "preact/hooks";
import { get, send, type ApiError } from "../api";
import { status } from "../attention";
import { count, duration, left as clock, many, rate, time } from "../format";
import { useGet, useList, useNow, useSamples, usePoll } from "../poll";
import { href } from "../route";
import type { Explanation, Group, Hub, InFlight, Seek } from "../types";
import { Chart } from "../ui/chart";
import { Dialog, Field, Head, Pill, Problem, Stat } from "../ui/parts";
import { Table } from "../ui/table";

export function Groups({ query, hub }: { query: Record<string, string>; hub: Hub | undefined }) {
  const [filter, setFilter] = useState("");
  const { data, error, again } = useList<Group>("groups", query.topic ? { topic: query.topic } : {}, 1_000);
  const groups = data ?? [];
  if (query.topic && query.group) {
    const group = groups.find((x) => x.group === query.group && x.topic === query.topic);
    return <One key={`${query.topic} ${query.group}`} topic={query.topic} name={query.group} group={group} hub={hub} error={error} moved={again} />;
  }
  const shown = groups.filter((x) => `${x.topic} ${x.group}`.includes(filter.trim()));
  return (
    <>
      <Head title="Groups" note={query.topic ? <>of {query.topic} · <a href={href("groups")}>all groups</a></> : data && many(groups.length, "group")}>
        <Field label="Filter"><input type="search" value={filter} placeholder="topic or group" onInput={(e) => setFilter(e.currentTarget.value)} /></Field>
      </Head>
      <Problem error={error} />
      <section class="panel">
        <Table label="Groups" rows={shown} id={(x) => `${x.topic}::${x.group}`} sort={["Lag", true]} empty={data ? "No group has subscribed yet." : "Loading…"} cols={[
          { title: "Group", by: (x) => x.group, cell: (x) => <a href={href("groups", { topic: x.topic, group: x.group })}>{x.group}</a> },
          { title: "Topic", by: (x) => x.topic, wide: true, cell: (x) => x.topic },
          { title: "State", by: (x) => status(x)[1], cell: (x) => <Pill tone={status(x)[0]}>{status(x)[1]}</Pill> },
          { title: "Members", num: true, by: (x) => x.members, cell: (x) => x.members },
          { title: "In flight", num: true, by: (x) => x.inflight, cell: (x) => count(x.inflight) },
          { title: "Lag", num: true, by: (x) => x.lag, cell: (x) => count(x.lag) },
          { title: "Behind", num: true, by: (x) => x.lagMs, cell: (x) => (x.lag ? duration(x.lagMs) : "–") },
          { title: "Again", num: true, by: (x) => x.redelivered, cell: (x) => count(x.redelivered) },
          { title: "Dead", num: true, by: (x) => x.deadLettered, cell: (x) => (x.deadLettered ? <a href={href("dead-letters", { topic: x.topic })}>{count(x.deadLettered)}</a> : "0") },
        ]} />
      </section>
    </>
  );
}

interface OneProps { topic: string; name: string; group: Group | undefined; hub: Hub | undefined; error: ApiError | undefined; moved: () => void }

function One({ topic, name, group, hub, error, moved }: OneProps) {
  const which = { topic, group: name };
  const { data: samples } = useSamples(which);
  const explain = useGet<Explanation>("explain", which);
  // The hub's clock counts the leases down, not this machine's.
  const held = usePoll<InFlight & { skew: number }>(`inflight ${topic} ${name}`, async (signal) => {
    const answer = await get<InFlight>("inflight", which, signal);
    return { ...answer, skew: answer.now - Date.now() };
  }, 1_000);
  const now = useNow(250) + (held.data?.skew ?? 0);
  const [seeking, setSeeking] = useState(false);
  const missing = explain.data?.reasons.some((reason) => reason.code === "unknown_group") ?? false;
  return (
    <>
      <Head title={name} note={<><a href={href("groups")}>← all groups</a> · topic <a href={href("topics", { topic })}>{topic}</a></>}>
        {missing && <Pill tone="warn">no such group</Pill>}
        {group && <Pill tone={status(group)[0]}>{status(group)[1]}</Pill>}
        <button type="button" onClick={() => setSeeking(true)} disabled={hub?.admin === false} title={hub?.admin === false ? "The token has no admin right" : undefined}>Move cursor…</button>
      </Head>
      <Problem error={error} />
      <section class="stats" aria-label="Now">
        <Stat label="Lag" value={missing ? "–" : count(group?.lag ?? 0)} note={missing ? "no such group" : group?.lag ? `oldest ${duration(group.lagMs)}` : "caught up"} />
        <Stat label="In flight" value={count(group?.inflight ?? 0)} note={`${count(held.data?.waitingTotal ?? 0)} in backoff`} />
        <Stat label="Members" value={count(group?.members ?? 0)} />
        <Stat label="Done up to" value={count(group?.seq ?? 0)} />
        <Stat label="Redelivered" value={count(group?.redelivered ?? 0)} />
        <Stat label="Dead letters" value={count(group?.deadLettered ?? 0)} tone={group?.deadLettered ? "warn" : undefined} link={href("dead-letters", { topic })} />
      </section>
      <section class={`panel explain ${explain.data?.moving === false ? "stuck" : ""}`} aria-labelledby="explain" aria-live="polite">
        <h2 id="explain">{explain.data?.moving === false && explain.data.lag > 0 ? "Why it does not move" : "How it is going"}</h2>
        <Problem error={explain.error} />
        <ul>
          {explain.data?.reasons.map((reason) => (
            <li key={reason.code + reason.text}>
              <code>{reason.code}</code> {reason.text}
              {reason.connection && <> <a href={href("connections", { id: reason.connection })}>connection</a></>}
              {reason.id && <> <a href={href("events", { id: reason.id })}>event</a></>}
            </li>
          ))}
        </ul>
      </section>
      <section class="charts">
        <Chart title="Lag" t={samples?.t ?? []} format={count} lines={[{ label: "events not done", values: samples?.lag, color: "c4", fill: true }]} />
        <Chart title="Events per second" t={samples?.t ?? []} format={rate} lines={[
          { label: "delivered", values: samples?.delivered, color: "c2" },
          { label: "acked", values: samples?.acked, color: "c3" },
        ]} />
      </section>
      <section class="panel">
        <h2>In flight</h2>
        <Problem error={held.error} />
        <Table label="Events in flight" rows={held.data?.inflight ?? []} id={(x) => x.id} empty="Nothing is in flight." cols={[
          { title: "Seq", num: true, by: (x) => x.seq, cell: (x) => <a href={href("events", { id: x.id })}>{count(x.seq)}</a> },
          { title: "Key", wide: true, by: (x) => x.key ?? "", cell: (x) => x.key ?? <span class="muted">–</span> },
          { title: "Holder", by: (x) => x.connection ?? "", cell: (x) => (x.connection ? <a href={href("connections", { id: x.connection })}>{x.sub ?? x.connection}</a> : "in process") },
          { title: "Attempt", num: true, by: (x) => x.attempt, cell: (x) => x.attempt },
          { title: "Held for", num: true, by: (x) => -x.since, cell: (x) => duration(Math.max(0, now - x.since)) },
          { title: "Lease", num: true, by: (x) => x.deadline, cell: (x) => <Countdown left={x.deadline - now} of={x.deadline - x.since} /> },
        ]} />
        {held.data && held.data.total > held.data.inflight.length && <p class="muted small pad">{count(held.data.inflight.length)} of {count(held.data.total)}</p>}
      </section>
      {!!held.data?.waiting.length && (
        <section class="panel">
          <h2>In backoff</h2>
          <Table label="Events in backoff" rows={held.data.waiting} id={(x) => x.id} empty="" cols={[
            { title: "Seq", num: true, cell: (x) => <a href={href("events", { id: x.id })}>{count(x.seq)}</a> },
            { title: "Reason", wide: true, cell: (x) => x.reason ?? <span class="muted">–</span> },
            { title: "Attempts", num: true, cell: (x) => x.attempt },
            { title: "Again in", num: true, cell: (x) => duration(Math.max(0, x.until - now)) },
          ]} />
        </section>
      )}
      {seeking && <SeekDialog topic={topic} group={name} onClose={() => setSeeking(false)} moved={moved} />}
    </>
  );
}

function Countdown({ left, of }: { left: number; of: number }) {
  const share = Math.max(0, Math.min(1, left / (of || 1)));
  return <span class="countdown"><span>{clock(left)}</span><meter min={0} max={1} low={0.25} optimum={1} value={share} aria-label="Lease left" /></span>;
}

function SeekDialog({ topic, group, onClose, moved }: { topic: string; group: string; onClose: () => void; moved: () => void }) {
  const [from, setFrom] = useState("ts");
  const [at, setAt] = useState(() => new Date(Date.now() - 600_000 - new Date().getTimezoneOffset() * 60_000).toISOString().slice(0, 19));
  const [afterId, setAfterId] = useState("");
  const [plan, setPlan] = useState<Seek>();
  const [error, setError] = useState<Error>();
  const [seq, setSeq] = useState("");
  const body = () => ({ from, ...(from === "ts" && { ts: new Date(at).getTime() }), ...(from === "afterId" && { afterId: afterId.trim() }), ...(from === "seq" && { seq: Number(seq) }) });
  const change = (set: (value: string) => void) => (value: string) => { set(value); setPlan(undefined); };
  const ask = async (dryRun: boolean) => {
    setError(undefined);
    try {
      setPlan(await send<Seek>("PUT", "cursors", { topic, group, dryRun: dryRun ? 1 : undefined }, body()));
      if (!dryRun) moved();
    } catch (cause) { setError(cause as Error); }
  };
  const done = plan && !plan.dryRun;
  return (
    <Dialog title={`Move the cursor of ${group}`} onClose={onClose}>
      <form onSubmit={(event) => { event.preventDefault(); void ask(true); }}>
        <Field label="To"><select value={from} onChange={(e) => change(setFrom)(e.currentTarget.value)}>
          <option value="earliest">the first event</option><option value="ts">a time</option><option value="afterId">after an event</option><option value="seq">a seq</option><option value="latest">the end</option>
        </select></Field>
        {from === "ts" && <Field label="Time"><input type="datetime-local" step="1" required value={at} onInput={(e) => change(setAt)(e.currentTarget.value)} /></Field>}
        {from === "afterId" && <Field label="Event id"><input required value={afterId} spellcheck={false} onInput={(e) => change(setAfterId)(e.currentTarget.value)} /></Field>}
        {from === "seq" && <Field label="Seq"><input type="number" min="1" required value={seq} onInput={(e) => change(setSeq)(e.currentTarget.value)} /></Field>}
        <Problem error={error} />
        {plan && (
          <div class="plan" role="status">
            <p>{done ? "Moved" : "Would move"} from seq <b>{count(plan.before.seq)}</b> to <b>{count(plan.after.seq)}</b>{plan.after.lastTs ? <> ({time(plan.after.lastTs)})</> : null}.</p>
            <p>
              {plan.again > 0 && <>{many(plan.again, "event")} {done ? "will be" : "would be"} delivered again. </>}
              {plan.skipped > 0 && <>{many(plan.skipped, "event")} {done ? "will be" : "would be"} passed over. </>}
              {plan.again + plan.skipped === 0 && "Nothing that was done comes again, nothing is passed over. "}
              Lag {count(plan.lagBefore)} → {count(plan.lagAfter)}.
            </p>
          </div>
        )}
        <div class="row end">
          <button type="submit">Try (changes nothing)</button>
          {done ? <button type="button" class="primary" onClick={onClose}>Done</button> : <button type="button" class="primary" disabled={!plan} onClick={() => void ask(false)}>Move</button>}
        </div>
      </form>
    </Dialog>
  );
}
