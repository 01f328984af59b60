//! Takes the samples: differences of the bus's counters every second, and sizes and lags from the store.
//!
//! Asking the store about every topic costs with their number: it takes at most a fiftieth of the time, and in between
//! the last answer stands.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use promethean_bus::is_hidden;
use promethean_bus::metrics::{BUCKETS_MS, GroupMetrics};
use promethean_event::Millis;
use tokio::time::MissedTickBehavior;

use super::{GroupKey, INTERVAL, OfHub};
use crate::Hub;

/// The store may be asked for one part of the time in so many.
const SHARE: u32 = 50;

type Buckets = [u64; BUCKETS_MS.len() + 1];

/// What a group had counted: delivered, acked, redelivered, dead-lettered.
type Counted = [u64; 4];

#[derive(Default)]
struct Sampler {
    topics: HashMap<Box<str>, u64>,
    groups: HashMap<GroupKey, Counted>,
    latency: Buckets,
    bytes: HashMap<Box<str>, u64>,
    lags: HashMap<GroupKey, u64>,
    ask_again: Option<Instant>,
}

/// Samples until the hub drains.
pub(in crate::ops) async fn run(hub: Arc<Hub>) {
    let mut draining = hub.drain.watch();
    let mut ticks = tokio::time::interval(Duration::from_millis(INTERVAL));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut sampler = Sampler::default();
    // What was counted before the first sample belongs to none.
    sampler.differences(&hub);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = draining.begun() => return,
        }
        sampler.ask_store(&hub).await;
        sampler.sample(&hub, Millis::now().0);
    }
}

/// What was counted since the last time.
struct Differences {
    topics: Vec<(Box<str>, u64)>,
    groups: Vec<(GroupKey, Counted, u64)>,
    latency: Buckets,
}

impl Sampler {
    async fn ask_store(&mut self, hub: &Hub) {
        let started = Instant::now();
        if self.ask_again.is_some_and(|at| started < at) {
            return;
        }
        match look(hub).await {
            Ok((bytes, lags)) => (self.bytes, self.lags) = (bytes, lags),
            Err(error) => tracing::debug!(%error, "no sizes and lags for this sample"),
        }
        self.ask_again = Some(Instant::now() + started.elapsed() * SHARE);
    }

    fn differences(&mut self, hub: &Hub) -> Differences {
        let metrics = hub.bus.metrics();
        let topics = metrics.topics().into_iter().map(|(name, topic)| {
            let now = topic.published.load(Relaxed);
            let before = self.topics.insert(name.clone(), now).unwrap_or(0);
            (name, now - before)
        });
        let topics = topics.collect();
        let groups = metrics.groups().into_iter().map(|(name, group)| {
            let now = counted(&group);
            let before = self.groups.insert(name.clone(), now).unwrap_or_default();
            (name, std::array::from_fn(|at| now[at] - before[at]), group.in_flight.load(Relaxed))
        });
        let groups = groups.collect();
        let now = metrics.delivery_latency();
        let latency = std::array::from_fn(|at| now[at].saturating_sub(self.latency[at]));
        self.latency = now;
        Differences { topics, groups, latency }
    }

    fn sample(&mut self, hub: &Hub, now: u64) {
        let Differences { topics, groups, latency } = self.differences(hub);
        let sum = |at: usize| groups.iter().map(|(_, counted, _)| counted[at]).sum();
        let of_hub = OfHub {
            published: topics.iter().map(|(_, published)| published).sum(),
            delivered: sum(0),
            acked: sum(1),
            redelivered: sum(2),
            dead_lettered: sum(3),
            p50: quantile(&latency, 0.5),
            p99: quantile(&latency, 0.99),
            lag: self.lags.values().sum(),
            inflight: groups.iter().map(|(_, _, in_flight)| in_flight).sum(),
            connections: hub.connections.len() as u64,
            bytes: self.bytes.values().sum(),
        };
        let mut rings = hub.samples.0.lock();
        rings.begin(now, of_hub);
        for (name, published) in &topics {
            rings.add_topic(name, [*published, self.bytes.get(name).copied().unwrap_or(0)], now);
        }
        for (name, bytes) in self.bytes.iter().filter(|(name, _)| !self.topics.contains_key(*name)) {
            rings.add_topic(name, [0, *bytes], now);
        }
        for (name, counted, in_flight) in &groups {
            let lag = self.lags.get(name).copied().unwrap_or(0);
            rings.add_group(name, [counted[0], counted[1], lag, *in_flight], now);
        }
        for (name, lag) in self.lags.iter().filter(|(name, _)| !self.groups.contains_key(*name)) {
            rings.add_group(name, [0, 0, *lag, 0], now);
        }
    }
}

fn counted(group: &GroupMetrics) -> Counted {
    [&group.delivered, &group.acked, &group.redelivered, &group.dead_lettered].map(|counter| counter.load(Relaxed))
}

/// The bytes of every topic and the lag of every group, by what the store has saved.
async fn look(hub: &Hub) -> promethean_store::Result<(HashMap<Box<str>, u64>, HashMap<GroupKey, u64>)> {
    let store = hub.bus.store();
    let (mut bytes, mut lags) = (HashMap::new(), HashMap::new());
    for topic in store.topics().await? {
        let Some(info) = store.info(&topic).await? else { continue };
        bytes.insert(topic.as_str().into(), info.bytes);
        for (group, state) in store.groups(&topic).await? {
            if !is_hidden(&group) {
                lags.insert((topic.as_str().into(), group.as_str().into()), state.lag(&info));
            }
        }
    }
    Ok((bytes, lags))
}

/// The value below which `share` of what was counted lies, interpolated within its bucket; none of nothing.
fn quantile(buckets: &Buckets, share: f64) -> Option<f64> {
    let total: u64 = buckets.iter().sum();
    if total == 0 {
        return None;
    }
    let wanted = share * total as f64;
    let (mut below, mut low) = (0.0, 0.0);
    for (count, high) in buckets.iter().zip(BUCKETS_MS) {
        let count = *count as f64;
        if count > 0.0 && below + count >= wanted {
            return Some(low + (high - low) * ((wanted - below) / count));
        }
        (below, low) = (below + count, high);
    }
    BUCKETS_MS.last().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_lie_within_their_bucket() {
        let mut buckets: Buckets = [0; BUCKETS_MS.len() + 1];
        assert_eq!(quantile(&buckets, 0.5), None);
        buckets[2] = 100;
        assert_eq!(quantile(&buckets, 0.5), Some(0.75));
        buckets[6] = 100;
        let p99 = quantile(&buckets, 0.99).expect("a value");
        assert!(p99 > 9.0 && p99 < 10.0, "{p99}");
        let mut over: Buckets = [0; BUCKETS_MS.len() + 1];
        over[BUCKETS_MS.len()] = 1;
        assert_eq!(quantile(&over, 0.5), Some(30_000.0));
    }
}
