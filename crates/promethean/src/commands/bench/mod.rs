//! `promethean bench`: a load generator for any hub.
//!
//! Publishers with a window of unanswered frames, consumers with a credit of unacked events, every event acked. Each
//! client is a thread with a plain connection, so that the generator costs little beside the hub.

mod load;
mod socket;

use std::io::ErrorKind;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use promethean_event::limits;
use serde::Serialize;

use super::address::{self, Port};
use super::out;
use crate::args::{BenchArgs, BenchMode};
use crate::config::duration;
use crate::exit::{Exit, Failure};
use load::{Counts, Latencies, Plan};

/// Most bytes of payload in a frame: no hub takes as much.
const MAX_FRAME: usize = 64 << 20;
/// Most clients of a kind: each is a thread.
const MAX_THREADS: usize = 10_000;

/// What came out.
#[derive(Debug, Serialize)]
struct Report {
    mode: &'static str,
    events: u64,
    seconds: f64,
    events_per_second: f64,
    /// Publish to delivery.
    #[serde(skip_serializing_if = "Option::is_none")]
    latency_ms: Option<Latency>,
    /// Publish to the answer of the ack.
    #[serde(skip_serializing_if = "Option::is_none")]
    ack_latency_ms: Option<Latency>,
}

/// Quantiles in milliseconds.
#[derive(Debug, Serialize)]
struct Latency {
    p50: f64,
    p90: f64,
    p99: f64,
    p999: f64,
    max: f64,
}

pub(crate) fn run(args: &BenchArgs) -> Result<(), Failure> {
    let plan = plan(args)?;
    let report = match args.mode {
        BenchMode::Publish => publish(&plan)?,
        BenchMode::Subscribe => subscribe(&plan)?,
        BenchMode::E2e => end_to_end(&plan, "e2e")?,
        BenchMode::Latency => end_to_end(&plan, "latency")?,
    };
    print(&report, args.json)?;
    check(&report, args)
}

fn plan(args: &BenchArgs) -> Result<Plan, Failure> {
    let target = address::resolve(&args.at, Port::Ws)?;
    let address = target.server.strip_prefix("ws://").unwrap_or(&target.server).trim_end_matches('/').to_owned();
    if address.contains("://") {
        return Err(Failure::usage("--server: bench speaks ws:// only; a TLS end in front would be what is measured"));
    }
    let latency = args.mode == BenchMode::Latency;
    let duration = args.duration.as_deref().map(duration).transpose();
    let duration = duration.map_err(|error| Failure::usage(format!("--duration: {error}")))?;
    let up_to = |most: usize, name: &str, value: usize| {
        let fits = (1..=most).contains(&value);
        fits.then_some(value)
            .ok_or_else(|| Failure::usage(format!("--{name} must be between 1 and {most}, is {value}")))
    };
    let (payload, batch) = (up_to(MAX_FRAME, "payload", args.payload)?, up_to(limits::MAX_BATCH, "batch", args.batch)?);
    if payload * batch > MAX_FRAME {
        let at_once = "--payload times --batch, what one frame carries, must be at most";
        return Err(Failure::usage(format!("{at_once} {MAX_FRAME} bytes, is {}", payload * batch)));
    }
    Ok(Plan {
        address,
        token: target.token,
        clients: up_to(MAX_THREADS, "clients", args.clients)?,
        groups: up_to(MAX_THREADS, "groups", args.groups)?,
        topics: up_to(100_000, "topics", args.topics)?,
        name: format!("{:x}-{:x}", std::process::id(), promethean_event::Millis::now().0),
        payload,
        batch,
        window: up_to(1_000_000, "window", args.window)?,
        credit: up_to(limits::MAX_IN_FLIGHT, "credit", args.credit)?,
        events: args.events,
        duration: duration.or(latency.then_some(Duration::from_secs(10))),
        rate: if latency { args.rate.max(1) } else { 0 },
    })
}

fn publish(plan: &Plan) -> Result<Report, Failure> {
    let counts = Arc::new(Counts::default());
    let started = Instant::now();
    watch(plan, 1, &counts, |counts| counts.published.load(Relaxed), || publishers(plan, &counts, started))?;
    Ok(report("publish", counts.published.load(Relaxed), started.elapsed(), None))
}

/// Publishes first, then measures how fast everything is consumed.
fn subscribe(plan: &Plan) -> Result<Report, Failure> {
    let counts = Arc::new(Counts::default());
    publishers(plan, &counts, Instant::now())?;
    let started = Instant::now();
    let consume = || consumers(plan, &counts, started, &Barrier::new(plan.groups)).map(drop);
    watch(plan, plan.groups, &counts, |counts| counts.acked.load(Relaxed), consume)?;
    Ok(report("subscribe", counts.acked.load(Relaxed), started.elapsed(), None))
}

fn end_to_end(plan: &Plan, mode: &'static str) -> Result<Report, Failure> {
    let counts = Arc::new(Counts::default());
    let ready = Barrier::new(plan.groups + 1);
    let started = Instant::now();
    let (mut latencies, mut elapsed) = (None, Duration::ZERO);
    let work = || {
        std::thread::scope(|scope| {
            let consuming = scope.spawn(|| consumers(plan, &counts, started, &ready));
            ready.wait();
            let began = Instant::now();
            let published = publishers(plan, &counts, started);
            counts.stop.store(true, Relaxed);
            published?;
            latencies = Some(consuming.join().map_err(|_| Failure::failed("a consumer panicked"))??);
            elapsed = began.elapsed();
            Ok(())
        })
    };
    watch(plan, plan.groups, &counts, |counts| counts.acked.load(Relaxed), work)?;
    Ok(report(mode, counts.acked.load(Relaxed), elapsed, latencies.as_ref()))
}

fn publishers(plan: &Plan, counts: &Arc<Counts>, started: Instant) -> Result<(), Failure> {
    if let Some(duration) = plan.duration {
        load::stop_after(duration, counts);
    }
    std::thread::scope(|scope| {
        let running: Vec<_> =
            (0..plan.clients).map(|number| scope.spawn(move || load::publish(plan, number, counts, started))).collect();
        running.into_iter().try_for_each(|thread| joined(plan, thread.join()))
    })
}

fn consumers(plan: &Plan, counts: &Counts, started: Instant, ready: &Barrier) -> Result<Latencies, Failure> {
    let expect = if plan.duration.is_some() { u64::MAX } else { plan.events };
    std::thread::scope(|scope| {
        let consume = |number| move || load::consume(plan, number, expect, counts, started, ready);
        let running: Vec<_> = (0..plan.groups).map(|number| scope.spawn(consume(number))).collect();
        let mut all = Latencies::new().map_err(Failure::failed)?;
        for thread in running {
            let one = joined(plan, thread.join())?;
            all.add(&one).map_err(Failure::failed)?;
        }
        Ok(all)
    })
}

fn joined<T>(plan: &Plan, result: std::thread::Result<std::io::Result<T>>) -> Result<T, Failure> {
    let result = result.map_err(|_| Failure::failed("a client of the load generator panicked"))?;
    result.map_err(|error| match error.kind() {
        ErrorKind::NotConnected => {
            let remedy = "start one with `promethean serve`, or name it with --server";
            Failure::new(Exit::Unreachable, format!("no hub answers at {}: {error}; {remedy}", plan.address))
        }
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
            Failure::new(Exit::Unreachable, format!("the connection to {} was lost: {error}", plan.address))
        }
        ErrorKind::PermissionDenied => Failure::new(Exit::Denied, error),
        ErrorKind::TimedOut | ErrorKind::WouldBlock => {
            Failure::new(Exit::Timeout, format!("{}: nothing came for too long", plan.address))
        }
        _ => Failure::failed(error),
    })
}

/// Runs `work` with a progress bar on a terminal, which counts every event so many `times`.
fn watch(
    plan: &Plan,
    times: usize,
    counts: &Arc<Counts>,
    done: fn(&Counts) -> u64,
    work: impl FnOnce() -> Result<(), Failure>,
) -> Result<(), Failure> {
    let length = plan.duration.is_none().then_some(plan.events * times as u64);
    let bar = out::progress(length, "events");
    let (shown, counts) = (bar.clone(), Arc::clone(counts));
    let ticker = std::thread::spawn(move || {
        while !shown.is_finished() {
            shown.set_position(done(&counts));
            std::thread::sleep(Duration::from_millis(100));
        }
    });
    let result = work();
    bar.finish_and_clear();
    let _ = ticker.join();
    result
}

fn report(mode: &'static str, events: u64, elapsed: Duration, latencies: Option<&Latencies>) -> Report {
    let seconds = elapsed.as_secs_f64();
    Report {
        mode,
        events,
        seconds,
        events_per_second: events as f64 / seconds.max(f64::EPSILON),
        latency_ms: latencies.map(|all| latency(&all.delivered)),
        ack_latency_ms: latencies.map(|all| latency(&all.acked)),
    }
}

fn latency(histogram: &Histogram<u64>) -> Latency {
    let at = |quantile| histogram.value_at_quantile(quantile) as f64 / 1_000.0;
    Latency { p50: at(0.5), p90: at(0.9), p99: at(0.99), p999: at(0.999), max: histogram.max() as f64 / 1_000.0 }
}

fn print(report: &Report, json: bool) -> Result<(), Failure> {
    if json {
        return out::report(&serde_json::to_string(report).map_err(Failure::failed)?);
    }
    out::report(&format!(
        "{}: {} events in {:.2} s, {:.0} events/s",
        report.mode, report.events, report.seconds, report.events_per_second
    ))?;
    for (until, latency) in [("delivery", &report.latency_ms), ("the ack's answer", &report.ack_latency_ms)] {
        if let Some(Latency { p50, p90, p99, p999, max }) = latency {
            let rest = format!("p90 {p90:.2}, p99 {p99:.2}, p99.9 {p999:.2}, max {max:.2}");
            out::report(&format!("publish to {until}: p50 {p50:.2} ms, {rest}"))?;
        }
    }
    Ok(())
}

/// Fails when a threshold is missed.
fn check(report: &Report, args: &BenchArgs) -> Result<(), Failure> {
    if let Some(least) = args.min_rate.filter(|least| report.events_per_second < *least) {
        return Err(Failure::failed(format!("{:.0} events/s is below --min-rate {least}", report.events_per_second)));
    }
    let p99 = report.latency_ms.as_ref().map_or(0.0, |latency| latency.p99);
    if let Some(most) = args.max_p99.filter(|most| p99 > *most) {
        return Err(Failure::failed(format!("p99 of {p99:.2} ms is above --max-p99 {most}")));
    }
    Ok(())
}
