//! One scrape, written with the names that the contract fixes.

use std::fmt::Error;
use std::sync::atomic::Ordering::Relaxed;

use promethean_bus::Usage;
use promethean_bus::metrics::{BUCKETS_MS, GroupMetrics};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, MetricEncoder};
use prometheus_client::metrics::MetricType;

use super::process::Process;
use super::{OfGroups, OfTopics};

/// The counts of a histogram's buckets and its sum.
pub(super) type Histogram = ([u64; BUCKETS_MS.len() + 1], f64);

/// One of a group's counts.
type Count = fn(&OfGroup) -> u64;
/// One of a group's histograms.
type Times = fn(&OfTimes) -> &Histogram;

/// Everything as of one moment.
#[derive(Debug)]
pub(super) struct Scrape {
    pub(super) store: &'static str,
    pub(super) published: OfTopics,
    pub(super) groups: Vec<OfGroup>,
    pub(super) ws_inflight: OfGroups,
    pub(super) group_lag: OfGroups,
    pub(super) store_bytes: OfTopics,
    pub(super) append_duration: Histogram,
    pub(super) ws_connections: u64,
    pub(super) buffered_bytes: u64,
    pub(super) outbox_pending: u64,
    pub(super) outbox_oldest_age_ms: u64,
    pub(super) outbox_parked: u64,
    pub(super) outbox_sent: u64,
    pub(super) outbox_errors: u64,
    pub(super) spans_dropped: u64,
    pub(super) store_refused: u64,
    pub(super) usage: [Usage; 3],
    pub(super) process: Process,
}

/// What is counted of a group.
#[derive(Debug)]
pub(super) struct OfGroup {
    topic: String,
    group: String,
    delivered: u64,
    acked: u64,
    nacked: u64,
    redelivered: u64,
    dead_lettered: u64,
    in_flight: u64,
    times: Option<OfTimes>,
}

/// The durations of a group.
#[derive(Debug)]
struct OfTimes {
    poll: Histogram,
    handler: Histogram,
    latency: Histogram,
}

impl OfGroup {
    pub(super) fn new(topic: Box<str>, group: Box<str>, counts: &GroupMetrics) -> Self {
        Self {
            topic: topic.into(),
            group: group.into(),
            delivered: counts.delivered.load(Relaxed),
            acked: counts.acked.load(Relaxed),
            nacked: counts.nacked.load(Relaxed),
            redelivered: counts.redelivered.load(Relaxed),
            dead_lettered: counts.dead_lettered.load(Relaxed),
            in_flight: counts.in_flight.load(Relaxed),
            times: counts.times().map(|times| OfTimes {
                poll: times.poll_duration.read(),
                handler: times.handler_duration.read(),
                latency: times.delivery_latency.read(),
            }),
        }
    }

    fn labels(&self) -> [(&str, &str); 2] {
        [("topic", &self.topic), ("group", &self.group)]
    }
}

impl Scrape {
    /// Keeps the series for whose topic, and group where they have one, `shown` says so.
    pub(super) fn retain(&mut self, shown: impl Fn(&str, Option<&str>) -> bool) {
        for of_topics in [&mut self.published, &mut self.store_bytes] {
            of_topics.retain(|(topic, _)| shown(topic, None));
        }
        for of_groups in [&mut self.ws_inflight, &mut self.group_lag] {
            of_groups.retain(|((topic, group), _)| shown(topic, Some(group)));
        }
        self.groups.retain(|group| shown(&group.topic, Some(&group.group)));
    }
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let out = &mut encoder;
        let published = self.published.iter().map(|(topic, count)| ([("topic", topic.as_str())], *count));
        counters(out, "events_published", "Events appended, duplicates not counted", published)?;
        let of_groups: [(&str, &str, Count); 5] = [
            ("events_delivered", "Deliveries, redeliveries too", |group| group.delivered),
            ("events_acked", "Events acked", |group| group.acked),
            ("events_nacked", "Events nacked", |group| group.nacked),
            ("events_redelivered", "Deliveries after an event's first", |group| group.redelivered),
            ("events_dead_lettered", "Events given up and sent to the dead letters", |group| group.dead_lettered),
        ];
        for (name, help, value) in of_groups {
            counters(out, name, help, self.groups.iter().map(|group| (group.labels(), value(group))))?;
        }
        let in_flight = self.groups.iter().map(|group| (group.labels(), group.in_flight));
        gauges(out, "events_inflight", "Events delivered and not answered", in_flight)?;
        gauges(out, "ws_inflight", "Events delivered over WebSockets and not answered", named(&self.ws_inflight))?;
        gauges(out, "group_lag", "Events that are not done", named(&self.group_lag))?;
        let bytes = self.store_bytes.iter().map(|(topic, bytes)| ([("topic", topic.as_str())], *bytes));
        gauges(out, "store_bytes", "Bytes of a topic's events", bytes)?;
        let of_times: [(&str, &str, Times); 3] = [
            ("subscribe_poll_duration_ms", "Reading events for a group", |times| &times.poll),
            ("delivery_handler_duration_ms", "From delivery to ack", |times| &times.handler),
            ("delivery_latency_ms", "From publish to ack", |times| &times.latency),
        ];
        for (name, help, one) in of_times {
            let timed = self.groups.iter().filter_map(|group| Some((group.labels(), one(group.times.as_ref()?))));
            histograms(out, name, help, timed)?;
        }
        let append =
            out.encode_descriptor("store_append_duration_ms", "Appending a burst", None, MetricType::Histogram)?;
        histogram(append, &self.append_duration)?;
        gauge(out, "ws_connections", "Open WebSockets", self.ws_connections)?;
        let buffered = "Bytes of half-read requests and of answers that are not read";
        gauge(out, "gateway_buffered_bytes", buffered, self.buffered_bytes)?;
        gauge(out, "outbox_pending", "Rows of the outbox that wait to be published", self.outbox_pending)?;
        gauge(out, "outbox_oldest_age_ms", "How long the oldest of them has waited", self.outbox_oldest_age_ms)?;
        gauge(out, "outbox_parked", "Rows of the outbox that were given up", self.outbox_parked)?;
        counter(out, "outbox_sent", "Rows of the outbox published by this hub", self.outbox_sent)?;
        counter(out, "outbox_errors", "Tries to publish a row of the outbox that failed", self.outbox_errors)?;
        counter(out, "store_refused", "Events refused because the disk had no room", self.store_refused)?;
        for Usage { kind, used, max } in self.usage {
            gauge(out, &format!("hub_{kind}"), &format!("The {kind} of the hub"), used as u64)?;
            gauge(out, &format!("hub_{kind}_max"), &format!("The most {kind} of the hub (max_{kind})"), max as u64)?;
        }
        counter(out, "otel_spans_dropped", "Spans that did not reach the collector", self.spans_dropped)?;
        let build = [("version", env!("CARGO_PKG_VERSION")), ("store", self.store)];
        gauges(out, "promethean_build_info", "What this hub is", std::iter::once((build, 1)))?;
        self.process.encode(out)
    }
}

fn named(of_groups: &OfGroups) -> impl Iterator<Item = ([(&'static str, &str); 2], u64)> {
    of_groups.iter().map(|((topic, group), value)| ([("topic", topic.as_str()), ("group", group.as_str())], *value))
}

fn counters<L: EncodeLabelSet>(
    out: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    series: impl Iterator<Item = (L, u64)>,
) -> Result<(), Error> {
    let mut metric = out.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (labels, value) in series {
        metric.encode_family(&labels)?.encode_counter::<[(&str, &str); 0], _, u64>(&value, None)?;
    }
    Ok(())
}

fn gauges<L: EncodeLabelSet>(
    out: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    series: impl Iterator<Item = (L, u64)>,
) -> Result<(), Error> {
    let mut metric = out.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (labels, value) in series {
        metric.encode_family(&labels)?.encode_gauge(&value)?;
    }
    Ok(())
}

/// One counter without labels.
fn counter(out: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64) -> Result<(), Error> {
    let mut metric = out.encode_descriptor(name, help, None, MetricType::Counter)?;
    metric.encode_counter::<[(&str, &str); 0], _, u64>(&value, None)
}

/// One gauge without labels.
pub(super) fn gauge(out: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64) -> Result<(), Error> {
    out.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&value)
}

fn histograms<'h, L: EncodeLabelSet>(
    out: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    series: impl Iterator<Item = (L, &'h Histogram)>,
) -> Result<(), Error> {
    let mut metric = out.encode_descriptor(name, help, None, MetricType::Histogram)?;
    for (labels, one) in series.filter(|(_, (counts, _))| counts.iter().any(|count| *count > 0)) {
        histogram(metric.encode_family(&labels)?, one)?;
    }
    Ok(())
}

fn histogram(mut metric: MetricEncoder<'_>, (counts, sum): &Histogram) -> Result<(), Error> {
    let bounds = BUCKETS_MS.into_iter().chain([f64::INFINITY]);
    let buckets: Vec<(f64, u64)> = bounds.zip(counts.iter().copied()).collect();
    metric.encode_histogram::<[(&str, &str); 0]>(*sum, counts.iter().sum(), &buckets, None)
}
