//! The tables: numbers, ratios, bars.

use serde::Serialize;

use crate::measure::Numbers;
use crate::systems::System;

/// Something that was promised.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Bar {
    what: String,
    /// At most, instead of at least.
    at_most: bool,
    bar: f64,
    got: f64,
    pub(crate) met: bool,
}

impl Bar {
    pub(crate) fn at_least(what: impl Into<String>, bar: f64, got: f64) -> Self {
        Self { what: what.into(), at_most: false, bar, got, met: got >= bar }
    }

    pub(crate) fn at_most(what: impl Into<String>, bar: f64, got: f64) -> Self {
        Self { what: what.into(), at_most: true, bar, got, met: got <= bar }
    }
}

/// Medians by system, in the order they were asked for.
pub(crate) type Results = Vec<(System, Numbers)>;

fn of(results: &Results, system: System) -> Option<Numbers> {
    results.iter().find(|(this, _)| *this == system).map(|(_, numbers)| *numbers)
}

/// The bars of what was measured.
pub(crate) fn bars(results: &Results) -> Vec<Bar> {
    let mut bars = Vec::new();
    let lazy = (System::Hub, System::Nats, System::Redis, "`100ms`");
    let strict = (System::HubAlways, System::NatsAlways, System::RedisAlways, "`always`");
    for (hub, nats, redis, name) in [lazy, strict] {
        let Some(ours) = of(results, hub) else { continue };
        let is_lazy = hub == System::Hub;
        let mut ratio = |what: &str, other: Option<Numbers>, whose: &str, bar: f64, number: fn(&Numbers) -> f64| {
            if let Some(other) = other {
                let got = number(&ours) / number(&other);
                bars.push(Bar::at_least(format!("{name}: {what}, times {whose}"), bar, got));
            }
        };
        let (times_nats, times_redis) = if is_lazy { (2.0, 1.0) } else { (20.0, 2.0) };
        let redis_end_to_end = if is_lazy { 1.2 } else { 2.0 };
        ratio("published/s", of(results, nats), "NATS", times_nats, |numbers| numbers.published);
        ratio("published/s", of(results, redis), "Redis", times_redis, |numbers| numbers.published);
        ratio("consumed/s", of(results, nats), "NATS", 1.5, |numbers| numbers.consumed);
        ratio("consumed/s", of(results, redis), "Redis", 1.5, |numbers| numbers.consumed);
        ratio("end to end/s", of(results, nats), "NATS", times_nats, |numbers| numbers.end_to_end);
        ratio("end to end/s", of(results, redis), "Redis", redis_end_to_end, |numbers| numbers.end_to_end);
        if is_lazy {
            ratio("end to end/s", of(results, System::Null), "the null hub", 0.55, |numbers| numbers.end_to_end);
        }
        let (whose, other) = if is_lazy { ("NATS", of(results, nats)) } else { ("Redis", of(results, redis)) };
        if let Some(other) = other {
            let what = format!("{name}: p99 at a steady rate, ms, against {whose}");
            bars.push(Bar::at_most(what, other.p99, ours.p99));
        }
        let most = if is_lazy { 5.0 } else { 6.0 };
        bars.push(Bar::at_most(format!("{name}: hub CPU for each event end to end, µs"), most, ours.end_to_end_cpu));
        bars.push(Bar::at_most(format!("{name}: peak RSS, MB"), 500.0, ours.peak_rss / 1e6));
    }
    bars
}

/// The numbers as Markdown.
pub(crate) fn table(results: &Results) -> String {
    let mut out = String::from(
        "| system | published/s | consumed/s | end to end/s | p50 ms | p99 ms | CPU µs/event: publish | consume | end to end | peak RSS MB |\n\
         |---|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n",
    );
    for (system, n) in results {
        out += &format!(
            "| {} | {} | {} | {} | {:.2} | {:.2} | {:.1} | {:.1} | {:.1} | {:.0} |\n",
            system.title(),
            thousands(n.published),
            thousands(n.consumed),
            thousands(n.end_to_end),
            n.p50,
            n.p99,
            n.publish_cpu,
            n.consume_cpu,
            n.end_to_end_cpu,
            n.peak_rss / 1e6,
        );
    }
    out
}

/// The bars as Markdown.
pub(crate) fn bars_table(bars: &[Bar]) -> String {
    let mut out = String::from("| bar | needed | measured | |\n|---|---:|---:|---|\n");
    for bar in bars {
        let sign = if bar.at_most { "≤" } else { "≥" };
        let verdict = if bar.met { "met" } else { "**missed**" };
        out += &format!("| {} | {sign} {:.2} | {:.2} | {verdict} |\n", bar.what, bar.bar, bar.got);
    }
    out
}

/// `1234567.8` as `1,234,568`.
pub(crate) fn thousands(value: f64) -> String {
    let digits = format!("{value:.0}");
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().map(|group| std::str::from_utf8(group).unwrap_or("")).collect();
    groups.join(",")
}

/// What it ran on.
pub(crate) fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let value = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or("").to_owned();
        line.split(':').nth(1).unwrap_or("unknown").trim().to_owned()
    };
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let model = value(&read("/proc/cpuinfo"), "model name");
    let memory = value(&read("/proc/meminfo"), "MemTotal");
    format!("{cores} cores of {model}, memory {memory}, Linux {}", read("/proc/sys/kernel/osrelease").trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_met_at_its_value_and_missed_beyond_it() {
        let numbers =
            |rate, p99| Numbers { published: rate, consumed: rate, end_to_end: rate, p99, ..Numbers::default() };
        let results = vec![
            (System::Hub, numbers(200.0, 1.0)),
            (System::Nats, numbers(100.0, 1.0)),
            (System::Redis, numbers(201.0, 1.0)),
        ];
        let missed: Vec<String> = bars(&results).into_iter().filter(|bar| !bar.met).map(|bar| bar.what).collect();
        assert_eq!(
            missed,
            [
                "`100ms`: published/s, times Redis",
                "`100ms`: consumed/s, times Redis",
                "`100ms`: end to end/s, times Redis"
            ]
        );
    }

    #[test]
    fn numbers_are_grouped_by_thousands() {
        assert_eq!([1.0, 999.4, 1_000.0, 1_234_567.8].map(thousands), ["1", "999", "1,000", "1,234,568"]);
    }
}
