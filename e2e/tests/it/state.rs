//! State by key on the real binary: the compactor and the demo over `kill -9`, export in constant memory.

use std::collections::HashSet;
use std::path::Path;
use std::time::{Duration, Instant};

use promethean_e2e::{Hub, Setup, Wire, get, request};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const PATIENCE: Duration = Duration::from_secs(60);

/// Asks until the answer is one that `done` likes.
async fn until(what: &str, hub: &Hub, path: &str, done: impl Fn(&Value) -> bool) -> Value {
    let started = Instant::now();
    loop {
        let answer = get(hub.ops, path).await.json();
        if done(&answer) {
            return answer;
        }
        assert!(started.elapsed() < PATIENCE, "in vain: {what}; the last answer was {answer}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Waits until the topic has an event.
async fn until_there(hub: &Hub, topic: &str) {
    let started = Instant::now();
    while events_of(hub, topic).await.is_empty() {
        assert!(started.elapsed() < PATIENCE, "in vain: an event on {topic}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn put(wire: &mut Wire, key: &str, payload: Value) {
    wire.ok(json!({"op": "PUBLISH", "topic": "s", "payload": payload, "opts": {"key": key}})).await;
}

async fn events_of(hub: &Hub, topic: &str) -> Vec<Value> {
    let page = get(hub.http, &format!("/replay?topic={topic}&from=earliest&limit=10000")).await.json();
    page["events"].as_array().expect("events").clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_compactor_goes_on_after_a_kill_and_writes_nothing_twice() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("promethean.toml");
    std::fs::write(&file, "[topics.s]\ncompaction = true\nsnapshot = true\nintervalMs = 100\n").expect("written");
    let start = || Setup::log(&dir.path().join("data")).arg("--config").arg(&file.display().to_string()).start();
    let mut hub = start();
    let snapshot = |topic: &str| format!("/latest-by-key?topic={topic}");
    for round in 0..4_u64 {
        let mut wire = Wire::connect(hub.ws).await;
        for n in 0..50_u64 {
            put(&mut wire, &format!("k{n:02}"), json!({"round": round})).await;
        }
        put(&mut wire, "gone", json!(round)).await;
        put(&mut wire, &format!("k{round:02}"), Value::Null).await;
        if round == 3 {
            put(&mut wire, "gone", Value::Null).await;
        }
        // Killed with some of it written, or all, or none.
        tokio::time::sleep(Duration::from_millis(round * 60)).await;
        hub.kill();
        hub = start();
        let state = until("the snapshot follows", &hub, &snapshot("s.snapshot"), |answer| {
            let entries = answer["entries"].as_object().expect("entries");
            let fresh = |event: &Value| event["payload"]["payload"]["round"] == json!(round);
            entries.len() == if round == 3 { 49 } else { 50 }
                && entries.iter().all(|(key, event)| key == "gone" || fresh(event))
        })
        .await;
        assert!(state["entries"].get(format!("k{round:02}")).is_none(), "{state}");
    }
    let all = events_of(&hub, "s.snapshot").await;
    let mut causes = HashSet::new();
    for event in &all {
        assert!(causes.insert(event["caused_by"][0].to_string()), "written twice: {event}");
        assert!(event["payload"].is_null() || event["payload"]["key"] == event["key"], "{event}");
    }
    let last = all.iter().rfind(|event| event["key"] == "gone").expect("it was there");
    assert_eq!(last["payload"], Value::Null);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_demo_shows_its_processes_and_goes_on_after_a_kill() {
    let dir = tempfile::tempdir().expect("a directory");
    let start = || Setup::log(dir.path()).run("demo").start();
    let mut hub = start();
    let path = "/latest-by-key?topic=process.state";
    let alive = |answer: &Value| {
        let entries = answer["entries"].as_object().expect("entries");
        entries.len() == 3 && entries.values().all(|event| event["payload"]["status"] == "alive")
    };
    let first = until("three processes", &hub, path, alive).await;
    let stt = &first["entries"]["local:stt:1234"]["payload"];
    assert_eq!((&stt["processId"], &stt["pid"]), (&json!("local:stt:1234"), &json!(1234)), "{first}");
    hub.kill();
    hub = start();
    // All three, not one: their states are published one after the other.
    let seen = |answer: &Value, key: &str| answer["entries"][key]["payload"]["last_seen_ts"].as_u64();
    let later = |answer: &Value| {
        let entries = first["entries"].as_object().expect("entries");
        alive(answer) && entries.keys().all(|key| seen(answer, key) > seen(&first, key))
    };
    until("it goes on", &hub, path, later).await;
    // A heartbeat makes at most one state, and every state was made by one: none was folded twice.
    let states = events_of(&hub, "process.state").await;
    let causes: Vec<&Value> = states.iter().filter_map(|event| event["caused_by"].get(0)).collect();
    let beats = events_of(&hub, "heartbeat.received").await;
    let beats: HashSet<String> = beats.iter().map(|beat| beat["id"].to_string()).collect();
    let causes_once: HashSet<String> = causes.iter().map(|id| id.to_string()).collect();
    assert_eq!(causes_once.len(), causes.len(), "a heartbeat was folded twice");
    assert!(causes.len() >= 6 && causes_once.is_subset(&beats), "{causes_once:?} are not all of {beats:?}");
    let page = get(hub.ops, "/demo").await;
    let built = get(hub.ops, "/").await.text().contains("<script");
    assert_eq!(page.status, if built { 200 } else { 404 });
    let plain = Setup::memory().start();
    assert_eq!(get(plain.ops, "/demo").await.status, 404, "a hub without the demo has no page of it");
}

/// Reads an export to its end; returns the events and the most memory that the hub had meanwhile.
async fn export(hub: &Hub, topic: &str) -> (u64, u64) {
    let mut stream = TcpStream::connect(hub.http).await.expect("connected");
    let request = format!("GET /export?topic={topic}&ndjson=1 HTTP/1.0\r\nhost: {}\r\n\r\n", hub.http);
    stream.write_all(request.as_bytes()).await.expect("sent");
    let (mut buffer, mut lines, mut most, mut reads) = (vec![0; 256 * 1024], 0, hub.rss(), 0_u64);
    let mut head = true;
    loop {
        let count = stream.read(&mut buffer).await.expect("readable");
        if count == 0 {
            return (lines, most);
        }
        let mut bytes = &buffer[..count];
        if head {
            let end = bytes.windows(4).position(|bytes| bytes == b"\r\n\r\n").expect("a head at once");
            assert!(bytes.starts_with(b"HTTP/1.0 200") || bytes.starts_with(b"HTTP/1.1 200"));
            (head, bytes) = (false, &bytes[end + 4..]);
        }
        lines += bytes.iter().filter(|byte| **byte == b'\n').count() as u64;
        reads += 1;
        if reads.is_multiple_of(16) {
            most = most.max(hub.rss());
        }
    }
}

async fn fill(hub: &Hub, topic: &str, events: usize) {
    let mut wire = Wire::connect(hub.ws).await;
    let fill = "x".repeat(800);
    for batch in 0..events / 1_000 {
        let batch: Vec<Value> =
            (0..1_000).map(|n| json!({"payload": {"n": batch * 1_000 + n, "fill": fill}})).collect();
        wire.ok(json!({"op": "PUBLISH", "topic": topic, "events": batch})).await;
    }
}

fn flushed(dir: &Path) -> bool {
    std::fs::read_dir(dir.join("topics")).is_ok_and(|topics| topics.count() > 0)
}

/// `make bench` does the same with a million.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_export_takes_memory_that_does_not_grow_with_what_is_exported() {
    const EVENTS: usize = 150_000;
    let dir = tempfile::tempdir().expect("a directory");
    let mut hub = Setup::log(dir.path()).start();
    fill(&hub, "t", EVENTS).await;
    // What lies in the memory tail is not the export's: a fresh process has it in its files.
    assert!(hub.terminate().success());
    let hub = Setup::log(dir.path()).start();
    assert!(flushed(dir.path()), "nothing was written to segments");
    let before = hub.rss();
    let (lines, most) = export(&hub, "t").await;
    assert_eq!(lines, EVENTS as u64);
    let grown = most.saturating_sub(before) / 1024 / 1024;
    assert!(grown < 64, "{grown} MiB more while 130 MB were exported");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_hub_has_put_around_events_at_the_limits_is_exported_and_imported_too() {
    const LIMIT: usize = 4096;
    let start = || Setup::memory().env("PROMETHEAN_MAX_EVENT_BYTES", &LIMIT.to_string()).start();
    let (one, two) = (start(), start());
    let mut wire = Wire::connect(one.ws).await;
    // As large as an event may be, and a key that is longer in JSON.
    let large = |fill: usize| json!("x".repeat(fill));
    let publish = |payload: Value| json!({"op": "PUBLISH", "topic": "a", "payload": payload, "opts": {"key": "\u{1}".repeat(200)}});
    let mut most = LIMIT;
    while wire.call(publish(large(most))).await["op"] == "ERR" {
        most -= 1;
    }
    assert!(most > 1_000, "{most}");
    let opts = json!({"from": "earliest", "maxAttempts": 1});
    wire.ok(json!({"op": "SUBSCRIBE", "topic": "a", "group": "g", "opts": opts})).await;
    let id = wire.expect("EVENT").await["event"]["id"].clone();
    wire.ok(json!({"op": "NACK", "topic": "a", "group": "g", "id": id, "reason": "\u{1}".repeat(300)})).await;
    until_there(&one, "dlq.a").await;
    let redriven = request(one.ops, "POST", "/dlq/redrive?topic=a", &[], br#"{"to":"topic"}"#).await.json();
    assert_eq!(redriven["redriven"], 1, "{redriven}");
    let settings = br#"{"snapshot": true, "snapshotIntervalMs": 1000}"#;
    assert_eq!(request(one.ops, "PUT", "/settings?topic=a", &[], settings).await.status, 200);
    until_there(&one, "a.snapshot").await;

    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("exported").display().to_string();
    let export = |hub: &Hub, topic: &str| {
        promethean_e2e::run(&["export", topic, "--server", &format!("http://{}", hub.ops)]).stdout
    };
    let import = |lines: &[u8]| {
        std::fs::write(&file, lines).expect("written");
        promethean_e2e::run(&["import", &file, "--server", &format!("http://{}", two.ops)])
    };
    for topic in ["a", "dlq.a", "a.snapshot"] {
        let exported = export(&one, topic);
        let largest = exported.split(|byte| *byte == b'\n').map(<[u8]>::len).max().unwrap_or(0);
        assert!(largest > LIMIT + 20, "{topic}: {largest} bytes are not over the limit");
        let imported = import(&exported);
        assert!(imported.status.success(), "{topic}: {imported:?}");
        assert_eq!(export(&two, topic), exported, "{topic}");
    }
    // A payload of 128 levels, inside what the hub puts around it.
    for (topic, levels) in [("b", 128), ("dlq.b", 130), ("b.snapshot", 129), ("dlq.b.snapshot", 131)] {
        let line = |levels: usize| {
            let (id, payload) = (uuid_of(topic), format!("{}{}", "[".repeat(levels), "]".repeat(levels)));
            format!("{{\"id\":\"{id}\",\"seq\":1,\"ts\":5,\"topic\":\"{topic}\",\"payload\":{payload}}}\n")
        };
        assert!(!import(line(levels + 1).as_bytes()).status.success(), "{topic}");
        let imported = import(line(levels).as_bytes());
        assert!(imported.status.success(), "{topic}: {imported:?}");
        assert_eq!(export(&two, topic).iter().filter(|byte| **byte == b'[').count(), levels, "{topic}");
    }
    // A client may send no more than before.
    let refused = Wire::connect(two.ws).await.call(publish(large(most + 2))).await;
    assert_eq!(refused["code"], "too_large", "{refused}");
}

/// An id that each name has for itself.
fn uuid_of(name: &str) -> String {
    let number = name.bytes().fold(7_u64, |number, byte| number.wrapping_mul(31) + u64::from(byte));
    format!("00000000-0000-4000-8000-{:012x}", number & 0xffff_ffff_ffff)
}
