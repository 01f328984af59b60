//! Fifteen minutes of samples, one a second, in memory: charts work without Prometheus.
//!
//! Bounded: [`KEPT`] samples a series, at most [`SERIES`] series of topics and groups. A new series that is active takes
//! the place of the one whose activity lies back furthest; one that is not active is kept only while there is room.

mod sampler;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use parking_lot::Mutex;
use promethean_event::{Code, Group, Topic};
use serde_json::{Map, Value, json};

use crate::Hub;
use crate::http::{Caller, Query, json_body};
use crate::rejection::Rejection;

pub(super) use sampler::run;

/// Samples a series: fifteen minutes.
const KEPT: usize = 900;
/// Series of topics and groups.
const SERIES: usize = 512;
/// The time between samples in milliseconds.
const INTERVAL: u64 = 1_000;
/// Samples that a publish rate is the mean of.
const RATE_OVER: usize = 10;
/// Samples that "lately" is.
const LATELY: usize = 5;

/// The samples of a hub.
#[derive(Debug, Default)]
pub struct Samples(Mutex<Rings>);

/// The hub as a whole within one second, or at its end.
#[derive(Debug, Default, Clone, Copy)]
struct OfHub {
    published: u64,
    delivered: u64,
    acked: u64,
    redelivered: u64,
    dead_lettered: u64,
    p50: Option<f64>,
    p99: Option<f64>,
    lag: u64,
    inflight: u64,
    connections: u64,
    bytes: u64,
}

type GroupKey = (Box<str>, Box<str>);

#[derive(Debug, Default)]
struct Rings {
    /// The times of the samples; the last one of every ring is of the last time.
    t: VecDeque<u64>,
    hub: VecDeque<OfHub>,
    /// Published, bytes.
    topics: HashMap<Box<str>, Series<2>>,
    /// Delivered, acked, lag, in flight.
    groups: HashMap<GroupKey, Series<4>>,
}

#[derive(Debug)]
struct Series<const N: usize> {
    rows: VecDeque<[u64; N]>,
    active_at: u64,
}

impl<const N: usize> Series<N> {
    fn push(&mut self, row: [u64; N], active: bool, now: u64) {
        push(&mut self.rows, row);
        if active {
            self.active_at = now;
        }
    }
}

fn push<T>(ring: &mut VecDeque<T>, sample: T) {
    if ring.len() >= KEPT {
        ring.pop_front();
    }
    ring.push_back(sample);
}

impl Rings {
    fn begin(&mut self, now: u64, hub: OfHub) {
        push(&mut self.t, now);
        push(&mut self.hub, hub);
    }

    /// Makes room for one more series, if it is active; whether there is room now.
    fn make_room(&mut self, active: bool) -> bool {
        if self.topics.len() + self.groups.len() < SERIES {
            return true;
        }
        if !active {
            return false;
        }
        let topic = self.topics.iter().min_by_key(|(_, series)| series.active_at);
        let group = self.groups.iter().min_by_key(|(_, series)| series.active_at);
        let topic = topic.map(|(name, series)| (series.active_at, name.clone()));
        let group = group.map(|(name, series)| (series.active_at, name.clone()));
        match (topic, group) {
            (Some((at, name)), Some((other, _))) if at <= other => drop(self.topics.remove(&name)),
            (_, Some((_, name))) => drop(self.groups.remove(&name)),
            (Some((_, name)), None) => drop(self.topics.remove(&name)),
            (None, None) => {}
        }
        true
    }

    fn add_topic(&mut self, name: &str, row: [u64; 2], now: u64) {
        let active = row[0] > 0;
        if !self.topics.contains_key(name) && self.make_room(active) {
            self.topics.insert(name.into(), Series { rows: VecDeque::new(), active_at: 0 });
        }
        if let Some(series) = self.topics.get_mut(name) {
            series.push(row, active, now);
        }
    }

    fn add_group(&mut self, name: &GroupKey, row: [u64; 4], now: u64) {
        let active = row[0] > 0 || row[1] > 0;
        if !self.groups.contains_key(name) && self.make_room(active) {
            self.groups.insert(name.clone(), Series { rows: VecDeque::new(), active_at: 0 });
        }
        if let Some(series) = self.groups.get_mut(name) {
            series.push(row, active, now);
        }
    }

    /// The times of the last `len` samples that came after `since`, and how many of a ring's samples they are.
    fn times(&self, len: usize, since: u64) -> Vec<u64> {
        let from = self.t.len().saturating_sub(len);
        self.t.iter().skip(from).copied().filter(|t| *t > since).collect()
    }
}

impl Samples {
    /// Events published to `topic` a second, over the last seconds.
    pub(super) fn publish_rate(&self, topic: &Topic) -> f64 {
        let rings = self.0.lock();
        let Some(series) = rings.topics.get(topic.as_str()) else { return 0.0 };
        let over = series.rows.len().min(RATE_OVER);
        let sum: u64 = series.rows.iter().rev().take(over).map(|row| row[0]).sum();
        if over == 0 { 0.0 } else { sum as f64 / over as f64 }
    }

    /// Events acked by `group` within the last seconds.
    pub(super) fn acked_lately(&self, topic: &Topic, group: &Group) -> u64 {
        let rings = self.0.lock();
        let series = rings.groups.get(&(topic.as_str().into(), group.as_str().into()));
        series.map_or(0, |series| series.rows.iter().rev().take(LATELY).map(|row| row[1]).sum())
    }
}

pub(super) async fn samples(State(hub): State<Arc<Hub>>, caller: Caller, query: Query) -> Result<Response, Rejection> {
    let since = query.number("since")?.unwrap_or(0);
    match (query.one("topic")?, query.one("group")?) {
        (None, None) => Ok(json_body(&of_hub(&hub.samples.0.lock(), since))),
        (None, Some(_)) => Err(Rejection::new(Code::BadRequest, "topic required")),
        (Some(topic), None) => {
            let topic = Topic::parse(topic)?;
            caller.must_see(&topic)?;
            let rings = hub.samples.0.lock();
            let series = rings.topics.get(topic.as_str());
            let mut shown = columns(&rings, series, since, ["published", "bytes"]);
            shown.insert("topic".to_owned(), json!(topic.as_str()));
            Ok(json_body(&shown))
        }
        (Some(topic), Some(group)) => {
            let (topic, group) = (Topic::parse(topic)?, Group::parse(group)?);
            caller.must_see_group(&topic, &group)?;
            let rings = hub.samples.0.lock();
            let series = rings.groups.get(&(topic.as_str().into(), group.as_str().into()));
            let mut shown = columns(&rings, series, since, ["delivered", "acked", "lag", "inflight"]);
            shown.insert("topic".to_owned(), json!(topic.as_str()));
            shown.insert("group".to_owned(), json!(group.as_str()));
            Ok(json_body(&shown))
        }
    }
}

fn columns<const N: usize>(
    rings: &Rings,
    series: Option<&Series<N>>,
    since: u64,
    names: [&str; N],
) -> Map<String, Value> {
    let rows = series.map(|series| &series.rows);
    let t = rings.times(rows.map_or(0, VecDeque::len), since);
    let mut shown = Map::new();
    shown.insert("interval".to_owned(), json!(INTERVAL));
    for (index, name) in names.into_iter().enumerate() {
        let skipped = rows.map_or(0, VecDeque::len) - t.len();
        let column: Vec<u64> = rows.into_iter().flatten().skip(skipped).map(|row| row[index]).collect();
        shown.insert(name.to_owned(), json!(column));
    }
    shown.insert("t".to_owned(), json!(t));
    shown
}

fn of_hub(rings: &Rings, since: u64) -> Value {
    let t = rings.times(rings.hub.len(), since);
    let rows: Vec<&OfHub> = rings.hub.iter().skip(rings.hub.len() - t.len()).collect();
    let column = |value: fn(&OfHub) -> u64| -> Vec<u64> { rows.iter().map(|row| value(row)).collect() };
    json!({
        "interval": INTERVAL,
        "t": t,
        "published": column(|row| row.published),
        "delivered": column(|row| row.delivered),
        "acked": column(|row| row.acked),
        "redelivered": column(|row| row.redelivered),
        "deadLettered": column(|row| row.dead_lettered),
        "p50": rows.iter().map(|row| row.p50).collect::<Vec<_>>(),
        "p99": rows.iter().map(|row| row.p99).collect::<Vec<_>>(),
        "lag": column(|row| row.lag),
        "inflight": column(|row| row.inflight),
        "connections": column(|row| row.connections),
        "bytes": column(|row| row.bytes),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_keeps_fifteen_minutes() {
        let mut rings = Rings::default();
        for now in 1..=1_000 {
            rings.begin(now, OfHub { published: now, ..OfHub::default() });
            rings.add_topic("a", [now, 0], now);
        }
        let all = of_hub(&rings, 0);
        assert_eq!((all["t"].as_array().map(Vec::len), &all["t"][0]), (Some(900), &json!(101)));
        assert_eq!(all["published"][899], 1_000);
        let last = columns(&rings, rings.topics.get("a"), 998, ["published", "bytes"]);
        assert_eq!((&last["t"], &last["published"]), (&json!([999, 1_000]), &json!([999, 1_000])));
        let none = columns(&rings, rings.topics.get("unknown"), 0, ["published", "bytes"]);
        assert_eq!((&none["t"], &none["bytes"]), (&json!([]), &json!([])));
    }

    #[test]
    fn a_series_that_begins_late_has_the_times_of_its_own_samples() {
        let mut rings = Rings::default();
        for now in 1..=5 {
            rings.begin(now, OfHub::default());
            if now >= 4 {
                rings.add_group(&("t".into(), "g".into()), [1, 1, now, 0], now);
            }
        }
        let late =
            columns(&rings, rings.groups.get(&("t".into(), "g".into())), 0, ["delivered", "acked", "lag", "inflight"]);
        assert_eq!((&late["t"], &late["lag"]), (&json!([4, 5]), &json!([4, 5])));
    }

    #[test]
    fn the_number_of_series_is_bounded_and_activity_decides_which_stay() {
        let mut rings = Rings::default();
        rings.begin(1, OfHub::default());
        for n in 0..SERIES {
            rings.add_topic(&format!("t{n}"), [1, 0], n as u64 + 1);
        }
        rings.add_topic("idle", [0, 9], 1_000);
        assert!(!rings.topics.contains_key("idle"), "no room for one that does nothing");
        rings.add_topic("t0", [1, 0], 1_001);
        rings.add_group(&("t".into(), "g".into()), [1, 0, 0, 0], 1_002);
        rings.add_topic("busy", [1, 0], 1_003);
        assert_eq!(rings.topics.len() + rings.groups.len(), SERIES);
        assert!(rings.topics.contains_key("t0") && rings.topics.contains_key("busy") && rings.groups.len() == 1);
        assert!(!rings.topics.contains_key("t1") && !rings.topics.contains_key("t2"), "the longest idle went");
    }
}
