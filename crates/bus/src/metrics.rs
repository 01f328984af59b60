//! What the bus counts. Plain numbers: the gateway turns them into Prometheus text.
//!
//! Bounded: over `max_series` topics or groups, the rest is counted under `_other`.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use promethean_event::{Group, Topic};

use crate::group::{Counts, Dispatcher};

/// The name under which what is over the bound is counted.
pub const OTHER: &str = "_other";

/// The upper bounds of the histograms' buckets, in milliseconds.
pub const BUCKETS_MS: [f64; 18] = [
    0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1_000.0, 2_500.0, 5_000.0, 10_000.0,
    20_000.0, 30_000.0,
];

/// The same in microseconds: whole numbers are compared once for every ack.
const BOUNDS_US: [u64; BUCKETS_MS.len()] = {
    let mut bounds = [0; BUCKETS_MS.len()];
    let mut at = 0;
    while at < bounds.len() {
        bounds[at] = (BUCKETS_MS[at] * 1_000.0) as u64;
        at += 1;
    }
    bounds
};

/// A histogram of durations.
#[derive(Debug, Default)]
pub struct Histogram {
    /// Counts of each bucket of [`BUCKETS_MS`], not cumulative; the last is above all bounds.
    buckets: [AtomicU64; BUCKETS_MS.len() + 1],
    sum_us: AtomicU64,
}

impl Histogram {
    /// Counts one.
    pub fn observe(&self, duration: Duration) {
        self.observe_many(duration, 1);
    }

    /// Counts one that came several times.
    fn observe_many(&self, duration: Duration, times: u64) {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let bucket = BOUNDS_US.iter().position(|bound| micros <= *bound).unwrap_or(BOUNDS_US.len());
        self.buckets[bucket].fetch_add(times, Relaxed);
        self.sum_us.fetch_add(micros.saturating_mul(times), Relaxed);
    }

    /// The counts of the buckets (the last: above all bounds), and the sum in milliseconds.
    pub fn read(&self) -> ([u64; BUCKETS_MS.len() + 1], f64) {
        (std::array::from_fn(|at| self.buckets[at].load(Relaxed)), self.sum_us.load(Relaxed) as f64 / 1_000.0)
    }
}

/// What is counted of a topic.
#[derive(Debug, Default)]
pub struct TopicMetrics {
    /// Events appended, duplicates not counted.
    pub published: AtomicU64,
}

/// What is counted of a group on a topic.
#[derive(Debug, Default)]
pub struct GroupMetrics {
    /// Deliveries, redeliveries too.
    pub delivered: AtomicU64,
    /// Deliveries after an event's first.
    pub redelivered: AtomicU64,
    /// Events acked.
    pub acked: AtomicU64,
    /// Events nacked.
    pub nacked: AtomicU64,
    /// Events dead-lettered.
    pub dead_lettered: AtomicU64,
    /// Events held by members now.
    pub in_flight: AtomicU64,
    times: OnceLock<Box<GroupTimes>>,
}

/// The durations of a group, from its first one on: idle groups have none.
#[derive(Debug, Default)]
pub struct GroupTimes {
    /// Publish to ack.
    pub delivery_latency: Histogram,
    /// Delivery to ack.
    pub handler_duration: Histogram,
    /// Reading events.
    pub poll_duration: Histogram,
}

impl GroupMetrics {
    /// The durations, if there were any.
    pub fn times(&self) -> Option<&GroupTimes> {
        self.times.get().map(AsRef::as_ref)
    }

    /// Counts a read of events.
    pub(crate) fn polled(&self, took: Duration) {
        self.timed().poll_duration.observe(took);
    }

    fn timed(&self) -> &GroupTimes {
        self.times.get_or_init(Box::default)
    }
}

/// The topic and group that something is counted under.
pub type GroupName = (Box<str>, Box<str>);

/// What is counted of a group, with the names it is counted under.
pub type GroupSeries = (GroupName, Arc<GroupMetrics>);

/// Everything the bus counts.
#[derive(Debug)]
pub struct Metrics {
    max_series: usize,
    topics: Mutex<HashMap<Box<str>, Arc<TopicMetrics>, RandomState>>,
    groups: Mutex<HashMap<GroupName, Arc<GroupMetrics>, RandomState>>,
    /// Appending a burst.
    pub append_duration: Histogram,
}

impl Metrics {
    pub(crate) fn new(max_series: usize) -> Arc<Self> {
        Arc::new(Self {
            max_series: max_series.max(1),
            topics: Mutex::default(),
            groups: Mutex::default(),
            append_duration: Histogram::default(),
        })
    }

    /// Counts events appended to topics, or to all others once there are too many. One look-up a topic, one lock for all.
    pub(crate) fn published<'a>(&self, counts: impl Iterator<Item = (&'a Topic, u64)>) {
        let mut topics = self.topics.lock();
        for (topic, count) in counts {
            if let Some(metrics) = topics.get(topic.as_str()) {
                metrics.published.fetch_add(count, Relaxed);
                continue;
            }
            let name = if topics.len() < self.max_series { topic.as_str() } else { OTHER };
            topics.entry(name.into()).or_default().published.fetch_add(count, Relaxed);
        }
    }

    /// The counters of a group, or of all others once there are too many.
    pub fn group(&self, topic: &Topic, group: &Group) -> Arc<GroupMetrics> {
        let mut groups = self.groups.lock();
        let mut name: GroupName = (topic.as_str().into(), group.as_str().into());
        if groups.len() >= self.max_series && !groups.contains_key(&name) {
            name = (OTHER.into(), OTHER.into());
        }
        Arc::clone(groups.entry(name).or_default())
    }

    /// All topics counted.
    pub fn topics(&self) -> Vec<(Box<str>, Arc<TopicMetrics>)> {
        self.topics.lock().iter().map(|(name, metrics)| (name.clone(), Arc::clone(metrics))).collect()
    }

    /// Publish to ack, of all groups together: the counts as [`Histogram::read`] returns them.
    pub fn delivery_latency(&self) -> [u64; BUCKETS_MS.len() + 1] {
        let mut sum = [0; BUCKETS_MS.len() + 1];
        for times in self.groups.lock().values().filter_map(|metrics| metrics.times()) {
            let (counts, _) = times.delivery_latency.read();
            sum.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
        sum
    }

    /// All groups counted.
    pub fn groups(&self) -> Vec<GroupSeries> {
        self.groups.lock().iter().map(|(name, metrics)| (name.clone(), Arc::clone(metrics))).collect()
    }
}

/// Carries a dispatcher's counts over into the shared ones.
pub(crate) struct GroupObserver {
    group: Arc<GroupMetrics>,
    before: Counts,
    in_flight: u64,
}

impl GroupObserver {
    pub(crate) fn new(metrics: &Arc<Metrics>, topic: &Topic, group: &Group) -> Self {
        Self { group: metrics.group(topic, group), before: Counts::default(), in_flight: 0 }
    }

    pub(crate) fn observe(&mut self, dispatcher: &mut Dispatcher) {
        let now = dispatcher.counts();
        if now != self.before {
            let add = |counter: &AtomicU64, now: u64, before: u64| counter.fetch_add(now - before, Relaxed);
            add(&self.group.delivered, now.delivered, self.before.delivered);
            add(&self.group.redelivered, now.redelivered, self.before.redelivered);
            add(&self.group.acked, now.acked, self.before.acked);
            add(&self.group.nacked, now.nacked, self.before.nacked);
            add(&self.group.dead_lettered, now.dead_lettered, self.before.dead_lettered);
            self.before = now;
        }
        self.set_in_flight(dispatcher.in_flight() as u64);
        // Events that were delivered and acked together took the same time, to the millisecond.
        let same = |one: &(Duration, Duration), next: &(Duration, Duration)| one == next;
        for run in dispatcher.take_latencies().chunk_by(same) {
            let ((since_append, since_delivery), times) = (run[0], run.len() as u64);
            let timed = self.group.timed();
            timed.delivery_latency.observe_many(since_append, times);
            timed.handler_duration.observe_many(since_delivery, times);
        }
    }

    /// The group's own metrics.
    pub(crate) fn of_group(&self) -> Arc<GroupMetrics> {
        Arc::clone(&self.group)
    }

    fn set_in_flight(&mut self, now: u64) {
        // The series may be shared by several groups (`_other`): add the difference.
        self.group.in_flight.fetch_add(now.wrapping_sub(self.in_flight), Relaxed);
        self.in_flight = now;
    }
}

impl Drop for GroupObserver {
    fn drop(&mut self) {
        self.set_in_flight(0);
    }
}
