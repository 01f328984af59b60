//! State by key: what compaction costs publishers, how fast a snapshot start is, what memory an export takes.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use promethean_bench::{Bar, begin, end, median, report, sized};
use promethean_bus::{Bus, Compactor, Draft, Topic};
use promethean_e2e::{Hub, Setup, Wire};
use promethean_event::Millis;
use promethean_store::log::{Log, Options};
use promethean_store::{Compaction, EventLog as _, SnapshotJob, Store as _, TopicSettings};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

#[global_allocator]
static GLOBAL: mimalloc::MiMalloc = mimalloc::MiMalloc;

const BATCH: usize = 500;

/// What is compacted, and exported.
fn events() -> usize {
    sized(1_000_000, 20_000)
}

fn keys() -> usize {
    sized(10_000, 1_000)
}

fn snapshot_keys() -> usize {
    sized(100_000, 1_000)
}

/// How long publishing is measured with nothing else going on.
fn quiet() -> Duration {
    sized(Duration::from_secs(3), Duration::from_millis(200))
}

fn main() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let mut ok = true;
    begin(&format!("embedded engine, sync = always, 256-byte payloads, batches of {BATCH}"));
    let runs: Vec<(f64, f64)> = (0..sized(7, 1)).map(|_| runtime.block_on(compaction())).collect();
    for (kept, seconds) in &runs {
        println!(
            "  compaction of 1 M events over 10 k keys and its snapshot: {seconds:.2} s, publishing kept {kept:.2}"
        );
    }
    let kept = median(runs.iter().map(|(kept, _)| *kept).collect());
    ok &= report("publishing while 1 M events over 10 k keys are compacted", kept, "of quiet", Bar::AtLeast(0.8));

    let dir = tempfile::tempdir().expect("a directory");
    let hub = Setup::log(&dir.path().join("keys")).start();
    let seconds = runtime.block_on(async {
        fill(&hub, "state", snapshot_keys(), snapshot_keys()).await;
        median(vec![snapshot(&hub).await, snapshot(&hub).await, snapshot(&hub).await])
    });
    ok &= report("snapshot start of 100 k keys, to the last, over WebSocket", seconds, "s", Bar::AtMost(1.0));
    drop(hub);

    let data = dir.path().join("export");
    let mut hub = Setup::log(&data).start();
    runtime.block_on(fill(&hub, "t", events(), 0));
    assert!(hub.terminate().success(), "the hub ends in order");
    let hub = Setup::log(&data).start();
    let grown = runtime.block_on(export(&hub)) as f64 / 1024.0 / 1024.0;
    ok &= report("resident memory that the export of 1 M events adds", grown, "MiB", Bar::AtMost(64.0));
    let peak = export_by_command(&hub) as f64 / 1024.0 / 1024.0;
    ok &= report("peak memory of `promethean export` of 1 M events", peak, "MiB", Bar::AtMost(64.0));
    // Leaving by `exit` runs no destructors: end what was started first.
    drop((hub, runtime, dir));
    end(ok);
}

async fn publish(bus: &Bus, topic: &Topic, payload: &RawValue, from: usize) {
    let drafts = (from..from + BATCH).map(|n| {
        let mut draft = Draft::new(topic.clone(), Cow::Borrowed(payload));
        draft.options.key = Some(Cow::Owned((n % keys()).to_string()));
        draft
    });
    bus.publish_batch(drafts).await.expect("published");
}

/// What publishing keeps of its rate while the topic is compacted and its snapshot written, and how long that took.
async fn compaction() -> (f64, f64) {
    let dir = tempfile::tempdir().expect("a directory");
    let log = Arc::new(Log::open(Options::new(dir.path())).expect("opens"));
    let bus = Bus::new(log.clone(), Default::default());
    let payload = RawValue::from_string(format!(r#"{{"fill":"{}"}}"#, "x".repeat(245))).expect("JSON");
    let (state, other) = (Topic::parse("bench.state").expect("a topic"), Topic::parse("bench.other").expect("a topic"));
    for n in (0..events()).step_by(BATCH) {
        publish(&bus, &state, &payload, n).await;
    }
    // Flushed before anything is measured.
    log.maintain(Millis::now()).await.expect("maintained");
    let rate = async |goes_on: &dyn Fn() -> bool| {
        let (started, mut published) = (Instant::now(), 0);
        while goes_on() {
            publish(&bus, &other, &payload, published).await;
            published += BATCH;
        }
        published as f64 / started.elapsed().as_secs_f64()
    };
    let started = Instant::now();
    let before = rate(&|| started.elapsed() < quiet()).await;
    let settings = TopicSettings { compaction: Some(Compaction::default()), ..TopicSettings::default() };
    log.set_settings(&state, settings).await.expect("set");
    let done = Arc::new(AtomicBool::new(false));
    let work = {
        let (bus, state, log, done) = (bus.clone(), state.clone(), log.clone(), done.clone());
        tokio::spawn(async move {
            let started = Instant::now();
            log.maintain(Millis::now()).await.expect("compacted");
            let mut compactor = Compactor::new(&bus, &state, &SnapshotJob::default()).expect("a compactor");
            let written = compactor.run_once().await.expect("written");
            assert_eq!(written.states, keys() as u64);
            done.store(true, Ordering::Release);
            started.elapsed().as_secs_f64()
        })
    };
    let during = rate(&|| !done.load(Ordering::Acquire)).await;
    let seconds = work.await.expect("no panic");
    let started = Instant::now();
    let after = rate(&|| started.elapsed() < quiet()).await;
    let left = log.info(&state).await.expect("known").expect("exists").events;
    assert!(left < events() as u64 / 2, "{left} events are left: nothing was compacted");
    log.close().await.expect("closed");
    (during / f64::midpoint(before, after), seconds)
}

async fn fill(hub: &Hub, topic: &str, events: usize, keys: usize) {
    let mut wire = Wire::connect(hub.ws).await;
    let fill = "x".repeat(245);
    for first in (0..events).step_by(1_000) {
        let one = |n: usize| match keys {
            0 => json!({"payload": {"fill": fill}}),
            _ => json!({"payload": {"fill": fill}, "key": (n % keys).to_string()}),
        };
        let batch: Vec<Value> = (first..first + 1_000).map(one).collect();
        wire.ok(json!({"op": "PUBLISH", "topic": topic, "events": batch})).await;
    }
}

/// Seconds from the subscribe to the last event of the snapshot. The bytes are counted, not parsed: a client's parser
/// is not what is measured.
async fn snapshot(hub: &Hub) -> f64 {
    let mut stream = TcpStream::connect(hub.ws).await.expect("connected");
    let request = format!(
        "GET / HTTP/1.1\r\nhost: {}\r\nupgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-version: 13\r\n\
         sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        hub.ws
    );
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut buffer = vec![0; 1 << 20];
    let count = stream.read(&mut buffer).await.expect("answered");
    assert!(buffer[..count].starts_with(b"HTTP/1.1 101"), "upgraded");
    let frame = json!({"op": "SUBSCRIBE", "topic": "state", "opts": {"from": "snapshot"}}).to_string();
    // One masked text frame of less than 126 bytes; a mask of zeros leaves it readable.
    let mut out = vec![0x81, 0x80 | u8::try_from(frame.len()).expect("short"), 0, 0, 0, 0];
    out.extend_from_slice(frame.as_bytes());
    let started = Instant::now();
    stream.write_all(&out).await.expect("sent");
    // Every event of the snapshot says so once; marks may lie across two reads.
    let (mark, mut seen, mut rest) = (&b"\"snapshot\":true"[..], 0, Vec::new());
    while seen < snapshot_keys() {
        let count = stream.read(&mut buffer).await.expect("readable");
        assert!(count > 0, "closed after {seen} events");
        rest.extend_from_slice(&buffer[..count]);
        let mut at = 0;
        while let Some(next) = find(&rest[at..], mark) {
            (seen, at) = (seen + 1, at + next + mark.len());
        }
        let keep = at.max(rest.len().saturating_sub(mark.len() - 1));
        rest.drain(..keep);
    }
    started.elapsed().as_secs_f64()
}

fn find(bytes: &[u8], mark: &[u8]) -> Option<usize> {
    let mut from = 0;
    while let Some(at) = bytes[from..].iter().position(|byte| *byte == mark[1]) {
        let start = (from + at).checked_sub(1);
        if let Some(start) = start.filter(|start| bytes[*start..].starts_with(mark)) {
            return Some(start);
        }
        from += at + 1;
    }
    None
}

/// Bytes of resident memory that an export adds at its most.
async fn export(hub: &Hub) -> u64 {
    let before = hub.rss();
    let mut stream = TcpStream::connect(hub.http).await.expect("connected");
    let request = format!("GET /export?topic=t&ndjson=1 HTTP/1.0\r\nhost: {}\r\n\r\n", hub.http);
    stream.write_all(request.as_bytes()).await.expect("sent");
    let (mut buffer, mut lines, mut most, mut reads) = (vec![0; 256 * 1024], 0, before, 0_u64);
    loop {
        let count = stream.read(&mut buffer).await.expect("readable");
        if count == 0 {
            break;
        }
        lines += buffer[..count].iter().filter(|byte| **byte == b'\n').count();
        reads += 1;
        if reads.is_multiple_of(16) {
            most = most.max(hub.rss());
        }
    }
    assert!(lines >= events(), "only {lines} lines came");
    most - before
}

/// Bytes of memory that the command line's own export has at its most.
fn export_by_command(hub: &Hub) -> u64 {
    let server = format!("http://{}", hub.ops);
    let mut command = std::process::Command::new(promethean_e2e::binary());
    command.args(["export", "t", "--server", &server]).stdout(std::process::Stdio::null());
    let mut export = command.spawn().expect("it starts");
    let mut peak = 0;
    while export.try_wait().expect("waitable").is_none() {
        let status = std::fs::read_to_string(format!("/proc/{}/status", export.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB")).and_then(|kib| kib.parse::<u64>().ok());
        peak = peak.max(kib.unwrap_or(0) * 1024);
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(export.wait().expect("ended").success() && peak > 0, "the export has failed, or was not seen");
    peak
}
