//! Many connections: thousands that are idle, hundreds with traffic.

use promethean_e2e::{Setup, Wire, get};
use serde_json::json;

const IDLE: usize = 5_000;
const BUSY: usize = 500;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_thousand_idle_connections_cost_little_and_hinder_nobody() {
    let hub = Setup::memory().start();
    let before = hub.rss();
    let mut idle = Vec::with_capacity(IDLE);
    for chunk in 0..IDLE / 100 {
        let mut opening = tokio::task::JoinSet::new();
        for _ in 0..100 {
            opening.spawn(Wire::connect(hub.ws));
        }
        idle.extend(opening.join_all().await);
        assert_eq!(idle.len(), (chunk + 1) * 100);
    }
    for wire in &mut idle {
        wire.ok(json!({"op": "PING"})).await;
    }
    let each = hub.rss().saturating_sub(before) / IDLE as u64;
    // The bar of 30 KiB is measured by the release build in `make bench`; this guards against growth by kinds.
    assert!(each < 100 * 1024, "{each} bytes of memory for each idle connection");
    let mut wire = Wire::connect(hub.ws).await;
    wire.ok(json!({"op": "PUBLISH", "topic": "t", "payload": 1})).await;
    let listed = get(hub.ops, "/metrics").await.text();
    let counted = listed.lines().find_map(|line| line.strip_prefix("ws_connections ")).expect("ws_connections");
    assert_eq!(counted.trim().parse::<f64>().ok(), Some(IDLE as f64 + 1.0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_hundred_connections_with_traffic_each_get_what_is_theirs() {
    let hub = Setup::memory().start();
    let mut clients = tokio::task::JoinSet::new();
    for client in 0..BUSY {
        let at = hub.ws;
        clients.spawn(async move {
            let mut wire = Wire::connect(at).await;
            let topic = format!("busy.{client}");
            wire.ok(json!({"op": "SUBSCRIBE", "topic": topic, "group": "g"})).await;
            for n in 0..20 {
                wire.ok(json!({"op": "PUBLISH", "topic": topic, "payload": n})).await;
            }
            for n in 0..20 {
                let event = wire.expect("EVENT").await;
                assert_eq!((&event["event"]["payload"], &event["event"]["seq"]), (&json!(n), &json!(n + 1)));
                wire.ok(json!({"op": "ACK", "topic": topic, "group": "g", "id": event["event"]["id"]})).await;
            }
        });
    }
    while let Some(done) = clients.join_next().await {
        done.expect("each client gets its events");
    }
}
