//! The work: publishers with a window, consumers with a credit, every event acked.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use promethean_event::Code;
use promethean_event::frame::Answer;

use super::socket::{self, Receiver, Sender, is_timeout};

/// What to do.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) address: String,
    pub(super) token: Option<String>,
    pub(super) clients: usize,
    pub(super) groups: usize,
    pub(super) topics: usize,
    /// Prefix of topics and groups, new in each run.
    pub(super) name: String,
    pub(super) payload: usize,
    pub(super) batch: usize,
    pub(super) window: usize,
    pub(super) credit: usize,
    pub(super) events: u64,
    pub(super) duration: Option<Duration>,
    /// Events a second over all publishers; 0: as fast as it goes.
    pub(super) rate: u64,
}

/// What is added to the microseconds in a payload.
const T0: u64 = 1_000_000_000_000_000;
/// How long a consumer waits for anything before it gives up.
const PATIENCE: Duration = Duration::from_secs(30);

/// Times since the publish, in microseconds.
pub(super) struct Latencies {
    /// Until the event was delivered.
    pub(super) delivered: Histogram<u64>,
    /// Until its ack was answered.
    pub(super) acked: Histogram<u64>,
}

impl Latencies {
    pub(super) fn new() -> io::Result<Self> {
        let new = || Histogram::new(3).map_err(io::Error::other);
        Ok(Self { delivered: new()?, acked: new()? })
    }

    // The histograms resize by themselves; an hour is far beyond any run.
    fn delivered(&mut self, micros: u64) {
        let _ = self.delivered.record(micros.min(3_600_000_000));
    }

    fn acked(&mut self, micros: u64) {
        let _ = self.acked.record(micros.min(3_600_000_000));
    }

    pub(super) fn add(&mut self, other: &Self) -> io::Result<()> {
        self.delivered.add(&other.delivered).map_err(io::Error::other)?;
        self.acked.add(&other.acked).map_err(io::Error::other)
    }
}

/// What is counted while it runs.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) published: AtomicU64,
    pub(super) acked: AtomicU64,
    pub(super) stop: AtomicBool,
}

impl Plan {
    pub(super) fn topic(&self, number: usize) -> String {
        format!("bench.{}.{}", self.name, number % self.topics)
    }

    pub(super) fn group(&self, number: usize) -> String {
        format!("{}-{}", self.name, number % self.groups)
    }

    /// How many of the events the publisher `number` sends.
    fn share(&self, number: usize) -> u64 {
        let (all, clients) = (self.events, self.clients as u64);
        all / clients + u64::from((number as u64) < all % clients)
    }
}

/// Publishes its share; returns when all of it is answered, or when it is told to stop.
pub(super) fn publish(plan: &Plan, number: usize, counts: &Counts, started: Instant) -> io::Result<()> {
    let (mut sender, mut receiver) = socket::connect(&plan.address, plan.token.as_deref())?;
    let share = if plan.duration.is_some() { u64::MAX } else { plan.share(number) };
    let frames_window = (plan.window / plan.batch).max(1) as u64;
    let fill = "x".repeat(plan.payload.saturating_sub(r#"{"t":1234567890123456,"fill":""}"#.len()));
    let (mut sent, mut answered, mut unanswered, mut topic) = (0, 0, std::collections::VecDeque::new(), number);
    let mut frame = Vec::new();
    let every =
        (plan.rate > 0).then(|| Duration::from_secs_f64(plan.clients as f64 * plan.batch as f64 / plan.rate as f64));
    let (mut due, mut heard) = (Instant::now(), Instant::now());
    while answered < share {
        let stopping = counts.stop.load(Relaxed);
        if stopping && unanswered.is_empty() {
            return Ok(());
        }
        while !stopping && sent < share && (unanswered.len() as u64) < frames_window && !sender.is_full() {
            if let Some(every) = every {
                if due > Instant::now() {
                    break;
                }
                due += every;
            }
            let now = (plan.batch as u64).min(share - sent);
            frame.clear();
            write_publish(&mut frame, &plan.topic(topic), now, &fill, started);
            sender.push(&frame);
            sent += now;
            topic += plan.clients;
            unanswered.push_back(now);
        }
        sender.flush()?;
        receiver.wait_at_most(match every {
            _ if sender.has_rest() => socket::WRITE,
            // At a steady rate answers are read in the time that is left until the next event is due.
            Some(_) => due.saturating_duration_since(Instant::now()).max(Duration::from_micros(50)),
            None => socket::READ,
        })?;
        let mut failed = None;
        let received = receiver.frames(&mut sender, |text| match (text.starts_with(br#"{"op":"OK""#), unanswered.pop_front()) {
            (true, Some(events)) => {
                answered += events;
                counts.published.fetch_add(events, Relaxed);
            }
            _ => failed = Some(refusal(text)),
        });
        match received {
            Ok(()) => heard = Instant::now(),
            Err(error) if !is_timeout(&error) || heard.elapsed() > PATIENCE => return Err(error),
            Err(_) => {}
        }
        if let Some(error) = failed {
            return Err(error);
        }
    }
    Ok(())
}

fn write_publish(out: &mut Vec<u8>, topic: &str, events: u64, fill: &str, started: Instant) {
    use std::io::Write as _;
    // Sixteen digits always, so that the payload has one size.
    let now = T0 + started.elapsed().as_micros() as u64;
    // Writing into a vector cannot fail.
    let _ = if events == 1 {
        write!(out, r#"{{"op":"PUBLISH","topic":"{topic}","payload":{{"t":{now},"fill":"{fill}"}}}}"#)
    } else {
        let _ = write!(out, r#"{{"op":"PUBLISH","topic":"{topic}","events":["#);
        for index in 0..events {
            let comma = if index > 0 { "," } else { "" };
            let _ = write!(out, r#"{comma}{{"payload":{{"t":{now},"fill":"{fill}"}}}}"#);
        }
        write!(out, "]}}")
    };
}

/// Consumes the topics of one group until it has acked `expect` events, or is told to stop and nothing comes.
pub(super) fn consume(
    plan: &Plan,
    number: usize,
    expect: u64,
    counts: &Counts,
    started: Instant,
    ready: &std::sync::Barrier,
) -> io::Result<Latencies> {
    let mut latencies = Latencies::new()?;
    let opened = open(plan, number);
    ready.wait();
    let (mut sender, mut receiver) = opened?;
    let group = plan.group(number);
    // When the events of each unanswered frame were sent; the first ones are the subscribes.
    let mut pending: std::collections::VecDeque<Vec<u64>> = std::iter::repeat_n(Vec::new(), plan.topics).collect();
    let (mut seen, mut answered, mut heard) = (0_u64, 0_u64, Instant::now());
    while answered < expect {
        receiver.wait_at_most(if sender.has_rest() { socket::WRITE } else { socket::READ })?;
        let mut acks: Vec<(String, Vec<u64>)> = Vec::new();
        let mut failed = None;
        let received = receiver.frames(&mut sender, |text| {
            let now = started.elapsed().as_micros() as u64;
            if text.starts_with(br#"{"op":"OK""#) {
                let sent = pending.pop_front().unwrap_or_default();
                sent.iter().for_each(|sent| latencies.acked(now.saturating_sub(*sent)));
                answered += sent.len() as u64;
                counts.acked.fetch_add(sent.len() as u64, Relaxed);
            } else if text.starts_with(br#"{"op":"EVENT"#) {
                let (topic, ids, sent) = ids_of(text);
                sent.iter().for_each(|sent| latencies.delivered(now.saturating_sub(*sent)));
                seen += sent.len() as u64;
                let ack = format!(r#"{{"op":"ACK","topic":"{topic}","group":"{group}","ids":[{ids}]}}"#);
                acks.push((ack, sent));
            } else {
                failed = Some(refusal(text));
            }
        });
        match received {
            Ok(()) => heard = Instant::now(),
            Err(error) if !is_timeout(&error) || heard.elapsed() > PATIENCE => return Err(error),
            Err(_) => {}
        }
        if let Some(error) = failed {
            return Err(error);
        }
        for (ack, sent) in acks {
            sender.push(ack.as_bytes());
            pending.push_back(sent);
        }
        sender.flush()?;
        if counts.stop.load(Relaxed) && answered == seen && answered >= counts.published.load(Relaxed) {
            break;
        }
    }
    Ok(latencies)
}

/// What the hub says instead of `OK`.
fn refusal(text: &[u8]) -> io::Error {
    let text = String::from_utf8_lossy(text);
    let code = match Answer::parse(&text) {
        Ok(Some(Answer::Error(refusal))) => refusal.code,
        _ => None,
    };
    let denied = code.is_some_and(Code::is_denial);
    let kind = if denied { io::ErrorKind::PermissionDenied } else { io::ErrorKind::Other };
    io::Error::new(kind, format!("the hub says: {text}"))
}

fn open(plan: &Plan, number: usize) -> io::Result<(Sender, Receiver)> {
    let (mut sender, receiver) = socket::connect(&plan.address, plan.token.as_deref())?;
    let group = plan.group(number);
    for topic in 0..plan.topics {
        let frame = format!(
            r#"{{"op":"SUBSCRIBE","topic":"{}","group":"{group}","opts":{{"from":"earliest","maxInFlight":{},"batchSize":1000,"batch":true}}}}"#,
            plan.topic(topic),
            plan.credit
        );
        sender.push(frame.as_bytes());
        sender.flush()?;
    }
    Ok((sender, receiver))
}

/// Of an `EVENT` or `EVENTS` frame: the subscription's topic, the ids as JSON, when each event was sent.
fn ids_of(text: &[u8]) -> (String, String, Vec<u64>) {
    let text = String::from_utf8_lossy(text);
    let after = |mark: &str, from: usize| text[from..].find(mark).map(|at| from + at + mark.len());
    let topic = after(r#""topic":""#, 0).map_or("", |at| text[at..].split('"').next().unwrap_or(""));
    let (mut ids, mut sent, mut at) = (String::new(), Vec::new(), 0);
    while let Some(id) = after(r#""event":{"id":""#, at) {
        if !sent.is_empty() {
            ids.push(',');
        }
        ids.push('"');
        ids.push_str(&text[id..id + 36]);
        ids.push('"');
        at = id + 36;
        let t = after(r#""payload":{"t":"#, at).unwrap_or(at);
        sent.push(text.get(t..t + 16).and_then(|digits| digits.parse::<u64>().ok()).unwrap_or(T0) - T0);
        at = t;
    }
    (topic.to_owned(), ids, sent)
}

/// Stops everything after `duration`.
pub(super) fn stop_after(duration: Duration, counts: &Arc<Counts>) {
    let counts = Arc::clone(counts);
    std::thread::spawn(move || {
        std::thread::sleep(duration);
        counts.stop.store(true, Relaxed);
    });
}
