//! One system, one round: publish, consume from a filled topic, end to end, latency at a steady rate.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::load::{self, CREDIT, Limit};
use crate::server::Server;
use crate::systems::{Programs, System};

/// How long, how much.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    /// Of publishing, of the end-to-end run, of the run at a steady rate.
    pub(crate) time: Duration,
    /// Events in the topic that is consumed.
    pub(crate) fill: u64,
    /// Events a second at which latency is measured.
    pub(crate) rate: u32,
    /// Events of each part of the long topic.
    pub(crate) step: u64,
}

/// What came out of a round, or the medians of several.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(crate) struct Numbers {
    /// Events a second.
    pub(crate) published: f64,
    pub(crate) consumed: f64,
    pub(crate) end_to_end: f64,
    /// Milliseconds from publish to delivery.
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    /// CPU time of the server for each event, in microseconds; the same as seconds for a million.
    pub(crate) publish_cpu: f64,
    pub(crate) consume_cpu: f64,
    pub(crate) end_to_end_cpu: f64,
    /// The most resident memory of the server in the round, in bytes.
    pub(crate) peak_rss: f64,
}

/// How many of something in what time, and what it cost the server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rate {
    pub(crate) per_second: f64,
    pub(crate) cpu_micros: f64,
}

/// Runs `work` and relates the events it returns to its time and the server's CPU time.
fn rate(server: &Server, work: impl FnOnce() -> io::Result<u64>) -> io::Result<Rate> {
    let (began, before) = (Instant::now(), server.cpu_micros());
    let events = work()?.max(1) as f64;
    let seconds = began.elapsed().as_secs_f64();
    Ok(Rate { per_second: events / seconds, cpu_micros: (server.cpu_micros() - before) / events })
}

/// Publishes to `topics` in turn.
pub(crate) fn publish(system: System, server: &Server, topics: &[String], limit: Limit) -> io::Result<(u64, Rate)> {
    let mut publisher = system.publisher(server.address, topics)?;
    let mut events = 0;
    let rate = rate(server, || {
        events = load::publish(&mut publisher, limit)?;
        Ok(events)
    })?;
    Ok((events, rate))
}

/// Consumes `events` of a filled topic.
fn consume(system: System, server: &Server, topic: &str, events: u64) -> io::Result<Rate> {
    let mut consumer = system.consumer(server.address, topic, "consume", CREDIT)?;
    rate(server, || load::consume(&mut consumer, &AtomicU64::new(events), None))
}

/// Publishes to `topics` and consumes `selector` at the same time, until all that was published is acked.
pub(crate) fn end_to_end(
    system: System,
    server: &Server,
    topics: &[String],
    selector: &str,
    limit: Limit,
) -> io::Result<Rate> {
    let mut publisher = system.publisher(server.address, topics)?;
    let mut consumer = system.consumer(server.address, selector, "both", CREDIT)?;
    let expect = AtomicU64::new(u64::MAX);
    rate(server, || {
        at_once(|| load::consume(&mut consumer, &expect, None), || load::publish(&mut publisher, limit), &expect)
    })
}

/// Microseconds from publish to delivery at a steady rate, sorted.
fn latencies(system: System, server: &Server, topic: &str, plan: Plan) -> io::Result<Vec<u64>> {
    let mut publisher = system.publisher(server.address, &[topic.to_owned()])?;
    let mut consumer = system.consumer(server.address, topic, "latency", CREDIT)?;
    let (expect, began, mut samples) = (AtomicU64::new(u64::MAX), Instant::now(), Vec::new());
    let limit = Limit { events: u64::MAX, time: plan.time };
    at_once(
        || load::consume(&mut consumer, &expect, Some((&mut samples, began))),
        || load::publish_at(&mut publisher, plan.rate, limit, began),
        &expect,
    )?;
    samples.sort_unstable();
    Ok(samples)
}

/// Runs a consumer beside a publisher, and tells it how many events there were once that is known.
fn at_once(
    consume: impl FnOnce() -> io::Result<u64> + Send,
    publish: impl FnOnce() -> io::Result<u64>,
    expect: &AtomicU64,
) -> io::Result<u64> {
    std::thread::scope(|scope| {
        let consuming = scope.spawn(consume);
        let published = publish();
        // A publisher that failed lets its consumer go.
        expect.store(*published.as_ref().unwrap_or(&0), Relaxed);
        let consumed = consuming.join().map_err(|_| io::Error::other("a consumer panicked"))?;
        published?;
        consumed
    })
}

/// One round of one system, on a server of its own with new data in `dir`.
pub(crate) fn round(system: System, programs: &Programs, dir: &Path, plan: Plan) -> io::Result<Numbers> {
    let [warm, filled, both, steady] = ["bench.warm", "bench.filled", "bench.both", "bench.steady"].map(String::from);
    let mut server = system.start(programs, dir)?;
    for topic in [&warm, &filled, &both, &steady] {
        system.prepare(server.address, topic)?;
    }
    let limit = |time| Limit { events: u64::MAX, time };
    publish(system, &server, &[warm], limit(Duration::from_millis(300)))?;
    let (in_topic, published) = publish(system, &server, std::slice::from_ref(&filled), limit(plan.time))?;
    let mut peak = server.peak_rss();
    if in_topic < plan.fill {
        // A server that syncs each event would take minutes; the log is the same.
        drop(server);
        let lazy = system.lazy().start(programs, dir)?;
        let rest = Limit { events: plan.fill - in_topic, time: Duration::from_secs(60) };
        publish(system, &lazy, std::slice::from_ref(&filled), rest)?;
        drop(lazy);
        server = system.start(programs, dir)?;
    }
    let consumed = consume(system, &server, &filled, plan.fill)?;
    let end_to_end = end_to_end(system, &server, std::slice::from_ref(&both), &both, limit(plan.time))?;
    let latencies = latencies(system, &server, &steady, plan)?;
    peak = peak.max(server.peak_rss());
    let millis = |share| load::quantile(&latencies, share) as f64 / 1_000.0;
    Ok(Numbers {
        published: published.per_second,
        consumed: consumed.per_second,
        end_to_end: end_to_end.per_second,
        p50: millis(0.5),
        p99: millis(0.99),
        publish_cpu: published.cpu_micros,
        consume_cpu: consumed.cpu_micros,
        end_to_end_cpu: end_to_end.cpu_micros,
        peak_rss: peak as f64,
    })
}

/// The middle of each number.
pub(crate) fn medians(rounds: &[Numbers]) -> Numbers {
    let middle = |number: fn(&Numbers) -> f64| {
        let mut all: Vec<f64> = rounds.iter().map(number).collect();
        all.sort_by(f64::total_cmp);
        all.get(all.len() / 2).copied().unwrap_or(0.0)
    };
    Numbers {
        published: middle(|numbers| numbers.published),
        consumed: middle(|numbers| numbers.consumed),
        end_to_end: middle(|numbers| numbers.end_to_end),
        p50: middle(|numbers| numbers.p50),
        p99: middle(|numbers| numbers.p99),
        publish_cpu: middle(|numbers| numbers.publish_cpu),
        consume_cpu: middle(|numbers| numbers.consume_cpu),
        end_to_end_cpu: middle(|numbers| numbers.end_to_end_cpu),
        peak_rss: middle(|numbers| numbers.peak_rss),
    }
}
