// The Grafana file asks only for metrics of the contract.
import { readFileSync } from "node:fs";
import { expect, it } from "vitest";

const METRICS = `events_published_total events_delivered_total events_acked_total events_nacked_total events_redelivered_total
  events_dead_lettered_total events_inflight ws_inflight group_lag subscribe_poll_duration_ms_bucket delivery_handler_duration_ms_bucket
  delivery_latency_ms_bucket ws_connections outbox_pending store_append_duration_ms_bucket store_bytes
  process_cpu_seconds_total process_resident_memory_bytes process_open_fds`.split(/\s+/);

it("docs/grafana-dashboard.json shows every metric of the contract and no other", () => {
  const board = JSON.parse(readFileSync(new URL("../../docs/grafana-dashboard.json", import.meta.url), "utf8"));
  const asked = board.panels.flatMap((panel: any) => (panel.targets ?? []).flatMap((target: any) => [...target.expr.matchAll(/([a-z_]+)\{/g)].map((m) => m[1])));
  expect([...new Set(asked)].sort()).toEqual([...METRICS].sort());
});
