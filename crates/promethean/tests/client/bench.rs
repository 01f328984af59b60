//! `promethean bench`: what it sends, what it reports, and how it ends where the hub does not play along.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::{Hub, PATIENCE, ended, json_lines};

fn bench(hub: &Hub, args: &[&str]) -> Value {
    json_lines(&hub.ok(&[&["bench", "--json", "--keep"], args].concat(), "")).remove(0)
}

/// When each event of a bench was sent, in seconds; of a hub that has seen no other.
fn sent(hub: &Hub) -> Vec<f64> {
    let topics = json_lines(&hub.ok(&["topic", "list", "--json"], "")).remove(0);
    let topic = topics["topics"][0]["topic"].as_str().expect("a topic").to_owned();
    let events = json_lines(&hub.ok(&["export", &topic], ""));
    let mut times: Vec<f64> =
        events.iter().map(|event| event["payload"]["t"].as_f64().expect("a time") / 1e6).collect();
    times.sort_by(f64::total_cmp);
    times
}

/// The next frame of a client: its kind and its bytes.
fn frame(stream: &mut TcpStream) -> Option<(u8, Vec<u8>)> {
    let mut head = [0; 2];
    stream.read_exact(&mut head).ok()?;
    let length = match head[1] & 0x7f {
        126 => {
            let mut length = [0; 2];
            stream.read_exact(&mut length).ok()?;
            usize::from(u16::from_be_bytes(length))
        }
        short => usize::from(short),
    };
    let (mut mask, mut bytes) = ([0; 4], vec![0; length]);
    stream.read_exact(&mut mask).ok()?;
    stream.read_exact(&mut bytes).ok()?;
    bytes.iter_mut().zip(mask.iter().cycle()).for_each(|(byte, mask)| *byte ^= mask);
    Some((head[0], bytes))
}

fn send(stream: &mut TcpStream, kind: u8, bytes: &[u8]) {
    let head = match u8::try_from(bytes.len()).ok().filter(|length| *length < 126) {
        Some(length) => vec![kind, length],
        None => [&[kind, 126][..], &(bytes.len() as u16).to_be_bytes()].concat(),
    };
    // One that has what it wanted goes away.
    let _ = stream.write_all(&[&head, bytes].concat());
}

/// A hub that pings each client and answers nothing before the pong. A subscription gets one event.
fn pinging(mut stream: TcpStream) {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("a request");
        request.push(byte[0]);
    }
    stream.write_all(b"HTTP/1.1 101 Switching Protocols\r\n\r\n").expect("answered");
    send(&mut stream, 0x89, b"are you there?");
    let (mut waiting, mut alive) = (Vec::new(), false);
    while let Some((kind, bytes)) = frame(&mut stream) {
        if kind == 0x8a {
            assert_eq!(bytes, b"are you there?", "a pong says what the ping said");
            alive = true;
        } else {
            waiting.push(String::from_utf8(bytes).expect("text"));
        }
        for text in waiting.extract_if(.., |_| alive) {
            send(&mut stream, 0x81, br#"{"op":"OK"}"#);
            if text.contains("SUBSCRIBE") {
                let event = r#"{"id":"0199d1c0-7d3b-7cc2-8b1a-3f0e2c9a4b5d","payload":{"t":1000000000000001}}"#;
                let event = format!(r#"{{"op":"EVENTS","topic":"t","group":"g","events":[{{"event":{event}}}]}}"#);
                send(&mut stream, 0x81, event.as_bytes());
            }
        }
    }
}

#[test]
fn a_bench_answers_pings_as_a_hub_closes_a_connection_that_does_not() {
    let hub = Hub::start(&[]);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let server = format!("ws://{}", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || pinging(stream));
        }
    });
    for mode in [&["publish"][..], &["subscribe"], &["e2e"], &["latency"]] {
        let told = bench(&hub, &[mode, &["--events", "1", "--server", &server]].concat());
        assert_eq!(told["events"], 1, "{mode:?}: {told}");
    }
}

#[test]
fn the_rate_of_a_latency_run_is_even() {
    // The middle one of the times between two events, as a share of what the rate says. On a machine that stands still for
    // a while events pile up: one of several runs has to be even.
    let even = |args: &[&str], rate: f64| {
        let hub = Hub::start(&[]);
        bench(&hub, &[&["latency", "--duration", "500ms"], args].concat());
        let times = sent(&hub);
        let mut gaps: Vec<f64> = times.windows(2).map(|pair| (pair[1] - pair[0]) * rate).collect();
        gaps.sort_by(f64::total_cmp);
        gaps[gaps.len() / 2]
    };
    for (args, rate) in [(&["--rate", "1000"][..], 1_000.0), (&["--rate", "400", "--clients", "8"], 400.0)] {
        let mut seen = Vec::new();
        let found = (0..10).any(|_| {
            seen.push(even(args, rate));
            seen.last().is_some_and(|share| (0.5..2.0).contains(share))
        });
        assert!(found, "{args:?}: {seen:?}");
    }
}

#[test]
fn the_time_of_a_bench_is_from_its_first_event_to_its_last_answer() {
    for (args, latency) in [
        (&["publish", "--events", "10"][..], "publish_latency_ms"),
        (&["e2e", "--events", "10"], "ack_latency_ms"),
        (&["e2e", "--duration", "100ms"], "ack_latency_ms"),
        (&["latency", "--rate", "100", "--duration", "300ms"], "ack_latency_ms"),
    ] {
        let hub = Hub::start(&[]);
        let told = bench(&hub, args);
        let times = sent(&hub);
        let span = times[times.len() - 1] - times[0];
        let slowest = told[latency]["max"].as_f64().unwrap_or_else(|| panic!("{args:?}: no {latency} in {told}")) / 1e3;
        let seconds = told["seconds"].as_f64().expect("a number");
        // No event can be answered later than the last one was sent and the slowest took.
        assert!((span..span + slowest + 0.002).contains(&seconds), "{args:?}: {span} s of events: {told}");
        let rate = told["events"].as_f64().expect("a number") / seconds;
        assert!((told["events_per_second"].as_f64().expect("a number") / rate - 1.0).abs() < 0.001, "{told}");
    }
    // There the events are older than the run: not all of several can be held up by the machine.
    let hub = Hub::start(&[]);
    let seconds: Vec<_> = (0..10).map(|_| bench(&hub, &["subscribe", "--events", "1"])["seconds"].as_f64()).collect();
    assert!(seconds.iter().any(|seconds| seconds.is_some_and(|seconds| seconds < 0.09)), "{seconds:?}");
}

#[test]
fn a_report_says_how_it_was_made_and_publishing_has_percentiles() {
    let hub = Hub::start(&[]);
    let told = bench(&hub, &["publish", "--events", "20", "--clients", "2", "--batch", "3", "--payload", "40"]);
    let options = json!({"clients": 2, "topics": 1, "payload": 40, "batch": 3, "window": 1024, "events": 20});
    assert_eq!(told["options"], options, "{told}");
    let of = |name: &str| told["publish_latency_ms"][name].as_f64().expect("a number");
    assert!(0.0 < of("p50") && of("p50") <= of("p99") && of("p99") <= of("max"), "{told}");
    let text = hub.ok(&["bench", "publish", "--events", "5"], "");
    assert!(text.contains("publish to OK: p50"), "{text}");
    let told = bench(&hub, &["latency", "--rate", "50", "--events", "7", "--groups", "2", "--credit", "9"]);
    let options = json!({"clients": 1, "groups": 2, "topics": 1, "payload": 256, "batch": 1, "window": 1024, "credit": 9,
        "events": 7, "rate": 50});
    assert_eq!((&told["options"], &told["events"]), (&options, &14.into()), "{told}");
    assert_eq!(told["rate_held"], true, "{told}");
    let told = bench(&hub, &["e2e", "--duration", "50ms", "--batch", "2000"]);
    assert_eq!((&told["options"]["duration_ms"], &told["options"]["events"]), (&50.into(), &Value::Null), "{told}");
    assert_eq!(told["options"]["window"], 2_000, "a whole batch at least: {told}");
}

#[test]
fn a_rate_that_was_not_held_is_said() {
    let hub = Hub::start(&[]);
    let output = hub.run(&["bench", "latency", "--rate", "1000000000", "--duration", "100ms", "--json"], "");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("--rate 1000000000 was not held"), "{said}");
    assert_eq!(json_lines(&String::from_utf8_lossy(&output.stdout))[0]["rate_held"], false);
}

#[test]
fn what_a_mode_does_not_do_is_said_and_a_threshold_that_cannot_fail_is_a_usage_error() {
    let hub = Hub::start(&[]);
    for (args, said) in [
        (&["subscribe", "--max-p99", "1"][..], "--max-p99"),
        (&["latency", "--rate", "0"], "--rate must be between 1 and"),
        (&["e2e", "--events", "0"], "--events must be at least 1"),
        (&["e2e", "--duration", "0s"], "--duration must be more than 0"),
        (&["publish", "--payload", "31"], "--payload must be between 32 and"),
        (&["publish", "--batch", "10", "--window", "9"], "--window"),
        (&["publish", "--min-rate", "NaN"], "--min-rate"),
        (&["publish", "--min-rate=-1"], "--min-rate"),
        (&["e2e", "--max-p99", "inf"], "--max-p99"),
    ] {
        let (code, talk) = hub.exit(&[&["bench"], args].concat());
        assert_eq!((code, talk.contains(said)), (2, true), "{args:?}: {talk}");
    }
    for (mode, args) in [
        ("publish", ["--groups", "2"]),
        ("publish", ["--credit", "2"]),
        ("publish", ["--rate", "2"]),
        ("e2e", ["--rate", "2"]),
        ("e2e", ["--duration", "50ms"]),
    ] {
        let (code, talk) = hub.exit(&[&["bench", mode, "--events", "5"], &args[..]].concat());
        assert!(code == 0 && talk.contains("is not used: "), "{mode} {args:?}: {talk}");
    }
    let (code, said) = hub.exit(&["bench", "publish", "--events", "5", "--max-p99", "0.000001"]);
    assert_eq!((code, said.contains("--max-p99")), (1, true), "{said}");
}

#[test]
fn a_refused_bench_ends_at_once_with_the_reason_and_the_remedy() {
    let hub = Hub::start(&[("JWT_SECRET", "a secret of thirty-two bytes, or more")]);
    let publishes = ["token", "--secret", "a secret of thirty-two bytes, or more", "--scope", "publish:**"];
    let token = hub.ok(&publishes, "").trim().to_owned();
    // Not after the ten minutes.
    let child = hub.spawn(&["bench", "e2e", "--duration", "10m", "--token", &token]);
    assert_eq!(ended(child), Some(4));
    let (code, said) = hub.exit(&["bench", "e2e", "--events", "5", "--token", &token]);
    assert!(code == 4 && said.contains("forbidden: ") && !said.contains('{'), "{said}");
    for args in [&["--token", "wrong"][..], &[]] {
        let (code, said) = hub.exit(&[&["bench", "publish", "--events", "5"], args].concat());
        assert!(code == 4 && said.contains("give a token") && !said.contains('{'), "{args:?}: {said}");
    }
    let hub = Hub::start(&[]);
    let (code, said) = hub.exit(&["bench", "publish", "--events", "1", "--payload", "60000000"]);
    assert!(code == 1 && said.contains("--payload") && said.contains("1009"), "{said}");
}

#[test]
fn a_hub_that_is_shut_down_under_a_bench_is_unreachable_as_one_that_was_killed() {
    for signal in [Signal::TERM, Signal::KILL] {
        let hub = Hub::start(&[]);
        let child = hub.spawn(&["bench", "e2e", "--duration", "10m"]);
        let start = Instant::now();
        while !hub.ok(&["topic", "list", "--json"], "").contains("bench.") {
            assert!(start.elapsed() < PATIENCE, "nothing is published");
            std::thread::sleep(Duration::from_millis(5));
        }
        kill_process(Pid::from_child(&hub.child), signal).expect("signalled");
        assert_eq!(ended(child), Some(3), "{signal:?}");
    }
}
