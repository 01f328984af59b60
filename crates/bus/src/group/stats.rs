//! Counts and latencies of a group on a topic, for metrics and operators.

use std::time::Duration;

/// Counts since the group was loaded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Counts {
    /// Deliveries, redeliveries included.
    pub delivered: u64,
    /// Deliveries after the first of an event.
    pub redelivered: u64,
    /// Events acked.
    pub acked: u64,
    /// Events nacked.
    pub nacked: u64,
    /// Events dead-lettered.
    pub dead_lettered: u64,
    /// Events passed over by the filter.
    pub skipped: u64,
}

/// The numbers that a group collects.
#[derive(Debug, Default)]
pub(super) struct Stats {
    pub(super) counts: Counts,
    /// Of each ack since the last call of `take_latencies`: time since the append, time since the delivery.
    pub(super) latencies: Vec<(Duration, Duration)>,
}
