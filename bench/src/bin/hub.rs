//! The release binary over WebSocket, on the embedded store with `sync = always`: memory of idle connections, latency at
//! a fixed rate, the hub's CPU for each event. Load comes from `promethean bench` in a process of its own.

use std::process::Command;

use promethean_bench::{Bar, begin, end, report, sized};
use promethean_e2e::{Hub, Setup, Wire};
use serde_json::{Value, json};

fn main() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let dir = tempfile::tempdir().expect("a directory");
    begin("the release binary, embedded store, sync = always, 256-byte payloads");
    let mut ok = true;

    let hub = Setup::log(&dir.path().join("idle")).start();
    let each = runtime.block_on(idle(&hub)) / 1024.0;
    ok &= report("idle connection, resident memory", each, "KiB", Bar::AtMost(30.0));
    drop(hub);

    let hub = Setup::log(&dir.path().join("load")).start();
    let latency = load(&hub, &["latency", "--rate", "2000", "--duration", sized("10s", "1s")]);
    let quantile = |name: &str| latency["ack_latency_ms"][name].as_f64().unwrap_or(f64::INFINITY);
    ok &= report("publish, deliver, ack at 2,000/s: p50", quantile("p50"), "ms", Bar::AtMost(1.0));
    ok &= report("publish, deliver, ack at 2,000/s: p99", quantile("p99"), "ms", Bar::AtMost(5.0));

    let (before, events) = (cpu_micros(&hub), sized(500_000, 5_000));
    let end_to_end = load(&hub, &["e2e", "--events", &events.to_string()]);
    let each = (cpu_micros(&hub) - before) / f64::from(events);
    ok &= report("hub CPU for each event published, delivered, acked", each, "µs", Bar::AtMost(8.0));
    let rate = end_to_end["events_per_second"].as_f64().unwrap_or(0.0);
    println!("end to end with sync = always: {rate:.0} events/s");
    // Leaving by `exit` runs no destructors: end what was started first.
    drop((hub, runtime, dir));
    end(ok);
}

/// Bytes of resident memory for each of many idle connections.
async fn idle(hub: &Hub) -> f64 {
    // What the first connections cost once is not an idle connection's.
    let mut open = vec![Wire::connect(hub.ws).await];
    open[0].ok(json!({"op": "PING"})).await;
    let (before, idle) = (hub.rss(), sized(4_000, 100));
    for _ in 0..idle {
        let mut wire = Wire::connect(hub.ws).await;
        wire.ok(json!({"op": "PING"})).await;
        open.push(wire);
    }
    (hub.rss() - before) as f64 / f64::from(idle)
}

fn load(hub: &Hub, args: &[&str]) -> Value {
    let binary = std::env::var("PROMETHEAN_BIN").expect("PROMETHEAN_BIN names the binary: use `make bench`");
    let server = format!("ws://{}", hub.ws);
    let output =
        Command::new(binary).arg("bench").args(args).args(["--json", "--server", &server]).output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// User and system time of the hub so far.
fn cpu_micros(hub: &Hub) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", hub.pid())).expect("running");
    // After the name in parentheses: state is field 3, utime and stime are 14 and 15, in ticks of 10 ms.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let ticks: f64 = fields[11..13].iter().filter_map(|ticks| ticks.parse::<f64>().ok()).sum();
    ticks * 10_000.0
}
