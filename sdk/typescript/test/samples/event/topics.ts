// shared/js/prom-lib/event/topics.ts
export const Topics = {
  HeartbeatReceived: "heartbeat.received",
  ProcessState: "process.state",                 // compaction (key = processId)
  ProcessStateSnapshot: "process.state.snapshot" // snapshots
} as const;
