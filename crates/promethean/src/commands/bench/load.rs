//! The work: publishers with a window, consumers with a credit, every event acked.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use promethean_event::Code;
use promethean_event::frame::Answer;

use super::super::address::GIVE_A_TOKEN;
use super::socket::{self, Receiver, Sender, is_timeout};

/// What to do.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) address: String,
    pub(super) token: Option<String>,
    /// A client was connected.
    pub(super) touched: Arc<AtomicBool>,
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

/// Bytes of the smallest payload: one with its time and no fill.
pub(super) const MIN_PAYLOAD: usize = r#"{"t":1234567890123456,"fill":""}"#.len();
/// What is added to the microseconds in a payload.
const T0: u64 = 1_000_000_000_000_000;
/// How long a consumer waits for anything before it gives up.
const PATIENCE: Duration = Duration::from_secs(30);

/// What clients measured. Times are in microseconds since the start of the run.
pub(super) struct Measured {
    /// When the first event was sent.
    pub(super) first: u64,
    /// When the last one was.
    pub(super) sent: u64,
    /// When the last answer came: of a publish, or of an ack.
    pub(super) answered: u64,
    /// From the publish until its `OK`.
    pub(super) stored: Histogram<u64>,
    /// From the publish until the event was delivered.
    pub(super) delivered: Histogram<u64>,
    /// From the publish until its ack was answered.
    pub(super) acked: Histogram<u64>,
}

impl Measured {
    pub(super) fn new() -> io::Result<Self> {
        let new = || Histogram::new(3).map_err(io::Error::other);
        Ok(Self { first: u64::MAX, sent: 0, answered: 0, stored: new()?, delivered: new()?, acked: new()? })
    }

    pub(super) fn add(&mut self, other: &Self) -> io::Result<()> {
        self.first = self.first.min(other.first);
        self.sent = self.sent.max(other.sent);
        self.answered = self.answered.max(other.answered);
        self.stored.add(&other.stored).map_err(io::Error::other)?;
        self.delivered.add(&other.delivered).map_err(io::Error::other)?;
        self.acked.add(&other.acked).map_err(io::Error::other)
    }
}

/// Counts the time of so many events. The histograms resize by themselves; an hour is far beyond any run.
fn record(histogram: &mut Histogram<u64>, micros: u64, events: u64) {
    let _ = histogram.record_n(micros.min(3_600_000_000), events);
}

fn micros(started: Instant) -> u64 {
    started.elapsed().as_micros() as u64
}

/// What is counted while it runs.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) published: AtomicU64,
    pub(super) acked: AtomicU64,
    /// Nothing more is published; what is under way comes to its end.
    pub(super) stop: AtomicBool,
    /// A client failed: the others end at once.
    failed: AtomicBool,
}

impl Counts {
    /// What a client ended with; a failure ends the others.
    pub(super) fn ended<T>(&self, result: io::Result<T>) -> io::Result<T> {
        if result.is_err() {
            self.failed.store(true, Relaxed);
        }
        result
    }
}

/// When a publisher's frames are due at a fixed rate.
struct Pace {
    every: Duration,
    due: Instant,
}

impl Pace {
    fn new(plan: &Plan, number: usize) -> Option<Self> {
        // The publishers take turns: together they are as even as one.
        let gap = plan.gap()?;
        Some(Self { every: gap * plan.clients as u32, due: Instant::now() + gap * number as u32 })
    }

    /// True if a frame is due, which is sent then.
    fn take(&mut self) -> bool {
        let due = self.due <= Instant::now();
        if due {
            self.due += self.every;
        }
        due
    }

    /// Sleeps until the next frame is due. A read with a limit would not do: the kernel rounds that up to its ticks of
    /// several milliseconds. At the least the pause keeps a full window from spinning; at the most answers, pings and
    /// the end of the run are seen.
    fn pause(&self, is_more: bool, is_waiting: bool) {
        let most = Duration::from_millis(if is_waiting { 5 } else { 50 });
        let left = if is_more { self.due.saturating_duration_since(Instant::now()) } else { Duration::from_millis(1) };
        std::thread::sleep(left.clamp(Duration::from_micros(20), most));
    }
}

impl Plan {
    pub(super) fn topic(&self, number: usize) -> String {
        format!("bench.{}.{}", self.name, number % self.topics)
    }

    pub(super) fn group(&self, number: usize) -> String {
        format!("{}-{}", self.name, number % self.groups)
    }

    /// The time between two frames at a fixed rate.
    fn gap(&self) -> Option<Duration> {
        (self.rate > 0).then(|| Duration::from_secs_f64(self.batch as f64 / self.rate as f64))
    }

    /// How many of the events the publisher `number` sends.
    fn share(&self, number: usize) -> u64 {
        let (all, clients) = (self.events, self.clients as u64);
        all / clients + u64::from((number as u64) < all % clients)
    }
}

/// Publishes its share; returns when all of it is answered, or when it is told to stop.
pub(super) fn publish(plan: &Plan, number: usize, counts: &Counts, started: Instant) -> io::Result<Measured> {
    let (mut sender, mut receiver) = socket::connect(&plan.address, plan.token.as_deref())?;
    plan.touched.store(true, Relaxed);
    let mut measured = Measured::new()?;
    let share = if plan.duration.is_some() { u64::MAX } else { plan.share(number) };
    let frames_window = (plan.window / plan.batch).max(1) as u64;
    let fill = "x".repeat(plan.payload.saturating_sub(MIN_PAYLOAD));
    let (mut sent, mut answered, mut topic) = (0, 0, number);
    // How many events each unanswered frame has, and when it was sent.
    let mut unanswered: VecDeque<(u64, u64)> = VecDeque::new();
    let mut frame = Vec::new();
    let mut pace = Pace::new(plan, number);
    if pace.is_some() {
        receiver.do_not_wait()?;
    }
    let mut heard = Instant::now();
    while answered < share && !counts.failed.load(Relaxed) {
        let stopping = counts.stop.load(Relaxed);
        if stopping && unanswered.is_empty() {
            break;
        }
        while !stopping && sent < share && (unanswered.len() as u64) < frames_window && !sender.is_full() {
            if pace.as_mut().is_some_and(|pace| !pace.take()) {
                break;
            }
            let (events, now) = ((plan.batch as u64).min(share - sent), micros(started));
            frame.clear();
            write_publish(&mut frame, &plan.topic(topic), events, &fill, now);
            sender.push(&frame);
            sent += events;
            topic += plan.clients;
            unanswered.push_back((events, now));
            (measured.first, measured.sent) = (measured.first.min(now), now);
        }
        flush(&mut sender, &mut receiver)?;
        if pace.is_none() {
            receiver.wait_at_most(if sender.has_rest() { socket::WRITE } else { socket::READ })?;
        }
        let mut failed = None;
        let received =
            receiver.frames(&mut sender, |text| match (text.starts_with(br#"{"op":"OK""#), unanswered.pop_front()) {
                (true, Some((events, sent))) => {
                    measured.answered = micros(started);
                    record(&mut measured.stored, measured.answered - sent, events);
                    answered += events;
                    counts.published.fetch_add(events, Relaxed);
                }
                _ => failed = Some(refusal(text)),
            });
        match received {
            Ok(()) => heard = Instant::now(),
            // At a slow rate there is nothing to wait for.
            Err(error) if is_timeout(&error) && unanswered.is_empty() => heard = Instant::now(),
            Err(error) if !is_timeout(&error) || heard.elapsed() > PATIENCE => return Err(error),
            Err(_) => {}
        }
        if let Some(error) = failed {
            return Err(error);
        }
        if let Some(pace) = &pace {
            pace.pause(!stopping && sent < share, !unanswered.is_empty() || sender.has_rest());
        }
    }
    Ok(measured)
}

/// Writes what was collected. A hub that does not take it may have said why before it went.
fn flush(sender: &mut Sender, receiver: &mut Receiver) -> io::Result<()> {
    sender.flush().map_err(|error| receiver.last_words(sender).unwrap_or(error))
}

fn write_publish(out: &mut Vec<u8>, topic: &str, events: u64, fill: &str, now: u64) {
    use std::io::Write as _;
    // Sixteen digits always, so that the payload has one size.
    let now = T0 + now;
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
) -> io::Result<Measured> {
    let mut measured = Measured::new()?;
    let opened = open(plan, number);
    ready.wait();
    let (mut sender, mut receiver) = opened?;
    let group = plan.group(number);
    // When the events of each unanswered frame were sent; the first ones are the subscribes.
    let mut pending: VecDeque<Vec<u64>> = std::iter::repeat_n(Vec::new(), plan.topics).collect();
    let (mut seen, mut answered, mut heard) = (0_u64, 0_u64, Instant::now());
    // At a slow rate it takes a while until the next event is even sent.
    let patience = PATIENCE + plan.gap().unwrap_or_default();
    while answered < expect && !counts.failed.load(Relaxed) {
        receiver.wait_at_most(if sender.has_rest() { socket::WRITE } else { socket::READ })?;
        let mut acks: Vec<(String, Vec<u64>)> = Vec::new();
        let mut failed = None;
        let received = receiver.frames(&mut sender, |text| {
            let now = micros(started);
            if text.starts_with(br#"{"op":"OK""#) {
                let sent = pending.pop_front().unwrap_or_default();
                sent.iter().for_each(|sent| record(&mut measured.acked, now.saturating_sub(*sent), 1));
                if !sent.is_empty() {
                    measured.answered = now;
                }
                answered += sent.len() as u64;
                counts.acked.fetch_add(sent.len() as u64, Relaxed);
            } else if text.starts_with(br#"{"op":"EVENT"#) {
                let (topic, ids, sent) = ids_of(text);
                sent.iter().for_each(|sent| record(&mut measured.delivered, now.saturating_sub(*sent), 1));
                seen += sent.len() as u64;
                let ack = format!(r#"{{"op":"ACK","topic":"{topic}","group":"{group}","ids":[{ids}]}}"#);
                acks.push((ack, sent));
            } else {
                failed = Some(refusal(text));
            }
        });
        match received {
            Ok(()) => heard = Instant::now(),
            Err(error) if !is_timeout(&error) || heard.elapsed() > patience => return Err(error),
            Err(_) => {}
        }
        if let Some(error) = failed {
            return Err(error);
        }
        for (ack, sent) in acks {
            sender.push(ack.as_bytes());
            pending.push_back(sent);
        }
        flush(&mut sender, &mut receiver)?;
        if counts.stop.load(Relaxed) && answered == seen && answered >= counts.published.load(Relaxed) {
            break;
        }
    }
    Ok(measured)
}

/// What the hub says instead of `OK`.
fn refusal(text: &[u8]) -> io::Error {
    let text = String::from_utf8_lossy(text);
    let Ok(Some(Answer::Error(refusal))) = Answer::parse(&text) else {
        return io::Error::other(format!("the hub says: {text}"));
    };
    let said = format!("{}: {}", refusal.code_text, refusal.message);
    match refusal.code {
        Some(Code::ShuttingDown) => io::Error::new(io::ErrorKind::ConnectionReset, said),
        Some(Code::Forbidden) => io::Error::new(io::ErrorKind::PermissionDenied, said),
        Some(code) if code.is_denial() => {
            io::Error::new(io::ErrorKind::PermissionDenied, format!("{said}; {GIVE_A_TOKEN}"))
        }
        _ => io::Error::other(said),
    }
}

fn open(plan: &Plan, number: usize) -> io::Result<(Sender, Receiver)> {
    let (mut sender, receiver) = socket::connect(&plan.address, plan.token.as_deref())?;
    plan.touched.store(true, Relaxed);
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
