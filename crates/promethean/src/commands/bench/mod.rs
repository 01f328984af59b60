//! `promethean bench`: a load generator for any hub.
//!
//! Publishers with a window of unanswered frames, consumers with a credit of unacked events, every event acked. Each
//! client is a thread with a plain connection, so that the generator costs little beside the hub.

mod cleanup;
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
use super::{interrupt, out};
use crate::args::{BenchArgs, BenchMode};
use crate::config::duration;
use crate::exit::{Exit, Failure};
use cleanup::Cleanup;
use load::{Counts, MIN_PAYLOAD, Measured, Plan};

/// Most bytes of payload in a frame: no hub takes as much.
const MAX_FRAME: usize = 64 << 20;
/// Most clients of a kind: each is a thread.
const MAX_THREADS: usize = 10_000;
/// Most events a second that can be asked for.
const MAX_RATE: u64 = 1_000_000_000;

/// What came out.
#[derive(Debug, Serialize)]
struct Report {
    mode: &'static str,
    events: u64,
    /// From the first event that was sent to the last answer; of subscribe, from before the connections.
    seconds: f64,
    events_per_second: f64,
    /// Publish to `OK`.
    #[serde(skip_serializing_if = "Option::is_none")]
    publish_latency_ms: Option<Latency>,
    /// Publish to delivery.
    #[serde(skip_serializing_if = "Option::is_none")]
    latency_ms: Option<Latency>,
    /// Publish to the answer of the ack.
    #[serde(skip_serializing_if = "Option::is_none")]
    ack_latency_ms: Option<Latency>,
    /// True if events were sent at the rate that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    rate_held: Option<bool>,
    /// How it was made.
    options: Options,
}

/// What a run was made with; only what counts in its mode.
#[derive(Debug, Serialize)]
struct Options {
    clients: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    groups: Option<usize>,
    topics: usize,
    payload: usize,
    batch: usize,
    window: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    credit: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    events: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    duration_ms: Option<u128>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rate: Option<u64>,
}

impl Options {
    fn of(plan: &Plan, mode: BenchMode) -> Self {
        let consumes = mode != BenchMode::Publish;
        Self {
            clients: plan.clients,
            groups: consumes.then_some(plan.groups),
            topics: plan.topics,
            payload: plan.payload,
            batch: plan.batch,
            window: plan.window,
            credit: consumes.then_some(plan.credit),
            events: plan.duration.is_none().then_some(plan.events),
            duration_ms: plan.duration.map(|time| time.as_millis()),
            rate: (plan.rate > 0).then_some(plan.rate),
        }
    }
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
    let cleanup = Cleanup::prepare(args, &plan);
    let report = match args.mode {
        BenchMode::Publish => publish(&plan),
        BenchMode::Subscribe => subscribe(&plan),
        BenchMode::E2e | BenchMode::Latency => end_to_end(&plan, args.mode),
    };
    let removed = interrupt::settled(|| cleanup.map_or(Ok(()), |cleanup| cleanup.run()));
    let report = report?;
    // The run is what was asked for: its result counts, whatever stays behind.
    if let Err(failure) = removed {
        out::done(&failure.to_string());
    }
    print(&report, args.json)?;
    if report.rate_held == Some(false) {
        let rate = plan.rate;
        out::done(&format!("--rate {rate} was not held: the hub or this machine is too slow, or --window too small"));
    }
    check(&report, args)
}

fn plan(args: &BenchArgs) -> Result<Plan, Failure> {
    let target = address::resolve(&args.at, Port::Ws)?;
    let address = target.server.strip_prefix("ws://").unwrap_or(&target.server).trim_end_matches('/').to_owned();
    if address.contains("://") {
        return Err(Failure::usage("--server: bench speaks ws:// only; a TLS end in front would be what is measured"));
    }
    without_effect(args)?;
    let latency = args.mode == BenchMode::Latency;
    let duration = args.duration.as_deref().map(duration).transpose();
    let duration = duration.map_err(|error| Failure::usage(format!("--duration: {error}")))?;
    if duration == Some(Duration::ZERO) {
        return Err(Failure::usage("--duration must be more than 0"));
    }
    if args.events == Some(0) {
        return Err(Failure::usage("--events must be at least 1"));
    }
    let between = |least: usize, most: usize, name: &str, value: usize| {
        let fits = (least..=most).contains(&value);
        fits.then_some(value)
            .ok_or_else(|| Failure::usage(format!("--{name} must be between {least} and {most}, is {value}")))
    };
    let up_to = |most: usize, name: &str, value: usize| between(1, most, name, value);
    let payload = between(MIN_PAYLOAD, MAX_FRAME, "payload", args.payload)?;
    let batch = up_to(limits::MAX_BATCH, "batch", args.batch)?;
    if payload * batch > MAX_FRAME {
        let at_once = "--payload times --batch, what one frame carries, must be at most";
        return Err(Failure::usage(format!("{at_once} {MAX_FRAME} bytes, is {}", payload * batch)));
    }
    let rate = args.rate.unwrap_or(2_000);
    if !(1..=MAX_RATE).contains(&rate) {
        return Err(Failure::usage(format!("--rate must be between 1 and {MAX_RATE}, is {rate}")));
    }
    let until_told = latency && args.events.is_none();
    Ok(Plan {
        address,
        token: target.token,
        touched: Arc::default(),
        clients: up_to(MAX_THREADS, "clients", args.clients)?,
        groups: up_to(MAX_THREADS, "groups", args.groups.unwrap_or(1))?,
        topics: up_to(100_000, "topics", args.topics)?,
        name: format!("{:x}-{:x}", std::process::id(), promethean_event::Millis::now().0),
        payload,
        batch,
        window: between(batch, 1_000_000, "window", args.window.unwrap_or(1_024.max(batch)))?,
        credit: up_to(limits::MAX_IN_FLIGHT, "credit", args.credit.unwrap_or(500))?,
        events: args.events.unwrap_or(1_000_000),
        duration: duration.or(until_told.then_some(Duration::from_secs(10))),
        rate: if latency { rate } else { 0 },
    })
}

/// Says which options do nothing in this mode, and refuses thresholds that would never fail: they are worse than none.
fn without_effect(args: &BenchArgs) -> Result<(), Failure> {
    let (mode, publish) = (args.mode, args.mode == BenchMode::Publish);
    for (name, is_given, why) in [
        ("groups", publish && args.groups.is_some(), "publish has no consumers"),
        ("credit", publish && args.credit.is_some(), "publish has no consumers"),
        ("rate", mode != BenchMode::Latency && args.rate.is_some(), "only latency keeps to a rate"),
        ("events", args.duration.is_some() && args.events.is_some(), "--duration says when it ends"),
    ] {
        if is_given {
            out::done(&format!("--{name} is not used: {why}"));
        }
    }
    if mode == BenchMode::Subscribe && args.max_p99.is_some() {
        let why = "subscribe measures no latency, its events are older than the run";
        return Err(Failure::usage(format!("--max-p99: {why}")));
    }
    for (name, value) in [("min-rate", args.min_rate), ("max-p99", args.max_p99)] {
        if value.is_some_and(|value| !value.is_finite() || value < 0.0) {
            return Err(Failure::usage(format!("--{name} must be a number of at least 0")));
        }
    }
    Ok(())
}

fn publish(plan: &Plan) -> Result<Report, Failure> {
    let counts = Arc::new(Counts::default());
    let started = Instant::now();
    let work = || publishers(plan, &counts, started);
    let measured = watch(plan, 1, &counts, |counts| counts.published.load(Relaxed), work)?;
    let elapsed = between(measured.first, measured.answered, started);
    let report = report(plan, BenchMode::Publish, counts.published.load(Relaxed), elapsed);
    Ok(Report { publish_latency_ms: Some(latency(&measured.stored)), ..report })
}

/// Publishes first, then measures how fast everything is consumed.
fn subscribe(plan: &Plan) -> Result<Report, Failure> {
    let counts = Arc::new(Counts::default());
    let fill = || publishers(plan, &counts, Instant::now());
    watch(plan, 1, &counts, |counts| counts.published.load(Relaxed), fill)?;
    let started = Instant::now();
    let consume = || consumers(plan, &counts, started, &Barrier::new(plan.groups));
    let measured = watch(plan, plan.groups, &counts, |counts| counts.acked.load(Relaxed), consume)?;
    let elapsed = between(0, measured.answered, started);
    Ok(report(plan, BenchMode::Subscribe, counts.acked.load(Relaxed), elapsed))
}

fn end_to_end(plan: &Plan, mode: BenchMode) -> Result<Report, Failure> {
    let counts = Arc::new(Counts::default());
    let ready = Barrier::new(plan.groups + 1);
    let started = Instant::now();
    let work = || {
        std::thread::scope(|scope| {
            let consuming = scope.spawn(|| consumers(plan, &counts, started, &ready));
            ready.wait();
            let published = publishers(plan, &counts, started);
            counts.stop.store(true, Relaxed);
            let consumed = consuming.join().map_err(|_| Failure::failed("a consumer panicked"))?;
            Ok((published?, consumed?))
        })
    };
    let (published, consumed) = watch(plan, plan.groups, &counts, |counts| counts.acked.load(Relaxed), work)?;
    let elapsed = between(published.first, consumed.answered, started);
    let report = report(plan, mode, counts.acked.load(Relaxed), elapsed);
    Ok(Report {
        latency_ms: Some(latency(&consumed.delivered)),
        ack_latency_ms: Some(latency(&consumed.acked)),
        rate_held: (plan.rate > 0).then(|| is_held(plan, &published, counts.published.load(Relaxed))),
        ..report
    })
}

/// From the first event to the last answer. Where there is none, what has passed.
fn between(first: u64, last: u64, started: Instant) -> Duration {
    last.checked_sub(first).filter(|_| last > 0).map_or_else(|| started.elapsed(), Duration::from_micros)
}

/// True if as many were sent as the rate says, but for one in twenty.
fn is_held(plan: &Plan, published: &Measured, events: u64) -> bool {
    let time = Duration::from_micros(published.sent.saturating_sub(published.first));
    // The first is sent at the very beginning of that time.
    let due = plan.rate as f64 * time.as_secs_f64() + plan.batch as f64;
    events as f64 >= 0.95 * due
}

fn publishers(plan: &Plan, counts: &Arc<Counts>, started: Instant) -> Result<Measured, Failure> {
    if let Some(duration) = plan.duration {
        load::stop_after(duration, counts);
    }
    let publish = |number| load::publish(plan, number, counts, started);
    all(plan, plan.clients, counts, publish)
}

fn consumers(plan: &Plan, counts: &Counts, started: Instant, ready: &Barrier) -> Result<Measured, Failure> {
    let expect = if plan.duration.is_some() { u64::MAX } else { plan.events };
    all(plan, plan.groups, counts, |number| load::consume(plan, number, expect, counts, started, ready))
}

/// So many clients at once, and what they measured together.
fn all(
    plan: &Plan,
    clients: usize,
    counts: &Counts,
    client: impl Fn(usize) -> std::io::Result<Measured> + Sync,
) -> Result<Measured, Failure> {
    std::thread::scope(|scope| {
        let client = &client;
        let running: Vec<_> = (0..clients).map(|number| scope.spawn(move || counts.ended(client(number)))).collect();
        let mut all = Measured::new().map_err(Failure::failed)?;
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
            let remedy = address::START_ONE;
            Failure::new(Exit::Unreachable, format!("cannot connect to {}: {error}; {remedy}", plan.address))
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
fn watch<T>(
    plan: &Plan,
    times: usize,
    counts: &Arc<Counts>,
    done: fn(&Counts) -> u64,
    work: impl FnOnce() -> Result<T, Failure>,
) -> Result<T, Failure> {
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

/// A report without latencies.
fn report(plan: &Plan, mode: BenchMode, events: u64, elapsed: Duration) -> Report {
    let seconds = elapsed.as_secs_f64();
    Report {
        mode: match mode {
            BenchMode::Publish => "publish",
            BenchMode::Subscribe => "subscribe",
            BenchMode::E2e => "e2e",
            BenchMode::Latency => "latency",
        },
        events,
        seconds,
        events_per_second: events as f64 / seconds.max(f64::EPSILON),
        publish_latency_ms: None,
        latency_ms: None,
        ack_latency_ms: None,
        rate_held: None,
        options: Options::of(plan, mode),
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
    for (until, latency) in [
        ("OK", &report.publish_latency_ms),
        ("delivery", &report.latency_ms),
        ("the ack's answer", &report.ack_latency_ms),
    ] {
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
    let measured = report.latency_ms.as_ref().or(report.publish_latency_ms.as_ref());
    if let (Some(Latency { p99, .. }), Some(most)) = (measured, args.max_p99)
        && *p99 > most
    {
        return Err(Failure::failed(format!("p99 of {p99:.2} ms is above --max-p99 {most}")));
    }
    Ok(())
}
