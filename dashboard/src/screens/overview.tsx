// How the hub is doing, at a glance.
import { attention } from "../attention";
import { bytes, count, duration, rate } from "../format";
import { useGet, useList, useSamples } from "../poll";
import { href } from "../route";
import type { Connection, DeadTopics, Group, Hub, Samples } from "../types";
import { Chart } from "../ui/chart";
import { Head, Problem, Stat } from "../ui/parts";

/** The mean of the last few seconds: a tile that jumps every second cannot be read. */
const recent = (column: Samples["published"], n = 5): number => {
  const last = (column ?? []).slice(-n).filter((v): v is number => v !== null);
  return last.length ? last.reduce((a, b) => a + b, 0) / last.length : 0;
};
const lastOf = (column: Samples["published"]): number => column?.at(-1) ?? 0;

export function Overview({ hub }: { hub: Hub | undefined }) {
  const { data: samples, error } = useSamples({});
  const groups = useList<Group>("groups", {}).data ?? [];
  const connections = useList<Connection>("connections", {}).data ?? [];
  const dead = useGet<DeadTopics>("dlq", {}, 5_000).data?.topics ?? [];
  const notices = attention(groups, connections, hub, dead);
  const letters = dead.reduce((sum, topic) => sum + topic.letters, 0);
  const behind = groups.reduce((worst, group) => Math.max(worst, group.lagMs), 0);
  const t = samples?.t ?? [];
  const p99 = samples?.p99?.slice(-10).filter((v): v is number => v !== null) ?? [];
  return (
    <>
      <Head title="Overview" note={hub && <>Promethean {hub.version} · store {hub.store} · up {duration(hub.now - hub.startedAt)}</>} />
      <Problem error={error} />
      <section class="stats" aria-label="Now">
        <Stat label="Published" value={`${rate(recent(samples?.published))}/s`} link={href("topics")} />
        <Stat label="Delivered" value={`${rate(recent(samples?.delivered))}/s`} note={`${rate(recent(samples?.redelivered))}/s again`} link={href("groups")} />
        <Stat label="Publish → ack, p99" value={p99.length ? duration(Math.max(...p99)) : "–"} note="last 10 s" />
        <Stat label="Lag" value={count(lastOf(samples?.lag))} note={behind ? `oldest ${duration(behind)}` : "all caught up"} tone={behind > 60_000 ? "warn" : undefined} link={href("groups")} />
        <Stat label="In flight" value={count(lastOf(samples?.inflight))} link={href("groups")} />
        <Stat label="Dead letters" value={count(letters)} tone={letters ? "warn" : undefined} link={href("dead-letters")} />
        <Stat label="Connections" value={count(connections.length)} link={href("connections")} />
        <Stat label="Stored" value={bytes(hub?.disk?.used ?? lastOf(samples?.bytes))} note={hub?.disk?.free === undefined ? "" : `${bytes(hub.disk.free)} free`} link={href("topics")} />
      </section>
      <section class="panel attention" aria-labelledby="attention">
        <h2 id="attention">Needs attention</h2>
        {notices.length === 0
          ? <p class="muted">Nothing. Every group keeps up and there are no dead letters.</p>
          : <ul>{notices.slice(0, 8).map((notice) => <li key={notice.text} class={notice.tone}><a href={notice.link}>{notice.text}</a></li>)}</ul>}
        {notices.length > 8 && <p class="muted small">and {notices.length - 8} more</p>}
      </section>
      <section class="charts" aria-label="The last 15 minutes">
        <Chart title="Events per second" t={t} format={rate} lines={[
          { label: "published", values: samples?.published, color: "c1", fill: true },
          { label: "delivered", values: samples?.delivered, color: "c2" },
          { label: "acked", values: samples?.acked, color: "c3" },
        ]} />
        <Chart title="Publish → ack" t={t} format={duration} lines={[
          { label: "p50", values: samples?.p50, color: "c2" },
          { label: "p99", values: samples?.p99, color: "c1" },
        ]} />
        <Chart title="Lag" t={t} format={count} lines={[{ label: "events not done", values: samples?.lag, color: "c4", fill: true }]} />
        <Chart title="In flight" t={t} format={count} lines={[{ label: "events held", values: samples?.inflight, color: "c3", fill: true }]} />
        <Chart title="Redelivered and dead-lettered per second" t={t} format={rate} lines={[
          { label: "redelivered", values: samples?.redelivered, color: "c4" },
          { label: "dead-lettered", values: samples?.deadLettered, color: "c5" },
        ]} />
        <Chart title="Stored" t={t} format={bytes} lines={[{ label: "bytes", values: samples?.bytes, color: "c2", fill: true }]} />
      </section>
    </>
  );
}
