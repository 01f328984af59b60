//! `kill -9` under load, with a ledger of what was `OK`ed. What was not answered is unknown: either is right.

use std::time::Duration;

use promethean_e2e::{Ledger, Setup, Wire};
use serde_json::json;

const CYCLES: usize = 12;
const PUBLISHERS: usize = 3;
const WINDOW: usize = 64;
const TOPIC: &str = "crash.load";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_that_was_oked_is_lost_and_nothing_acked_comes_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let ledger = Ledger::default();
    for cycle in 0..CYCLES {
        let mut hub = Setup::log(dir.path()).start();
        ledger.check(hub.http, TOPIC).await;
        let mut clients = tokio::task::JoinSet::new();
        for publisher in 0..PUBLISHERS {
            clients.spawn(publish(hub.ws, format!("{cycle}-{publisher}"), ledger.clone()));
        }
        clients.spawn(consume(hub.ws, ledger.clone()));
        // Killed at another moment each time.
        tokio::time::sleep(Duration::from_millis(150 + (cycle as u64 * 97) % 400)).await;
        hub.kill();
        while clients.join_next().await.is_some() {}
    }
    let hub = Setup::log(dir.path()).start();
    ledger.check(hub.http, TOPIC).await;
    let ledger = ledger.entries();
    assert!(ledger.published.len() > CYCLES * 100, "too little was published: {}", ledger.published.len());
    assert!(ledger.acked.len() > CYCLES * 20, "too little was acked: {}", ledger.acked.len());
}

/// Publishes with a window until the connection is gone; notes what was answered.
async fn publish(at: std::net::SocketAddr, name: String, ledger: Ledger) {
    let mut wire = Wire::connect(at).await;
    let mut unanswered = std::collections::VecDeque::new();
    for number in 0.. {
        let payload = format!("{name}-{number}");
        ledger.entries().sent.insert(payload.clone());
        let frame = json!({"op": "PUBLISH", "topic": TOPIC, "payload": payload, "opts": {"key": name}});
        if wire.send(&frame).await.is_err() {
            return;
        }
        unanswered.push_back(payload);
        while unanswered.len() >= WINDOW {
            let Some(answer) = wire.next().await else { return };
            assert_eq!(answer["op"], "OK", "{answer}");
            let payload = unanswered.pop_front().expect("as many answers as frames");
            ledger.entries().published.insert(payload, answer["seq"].as_u64().expect("a seq"));
        }
    }
}

/// Acks what comes until the connection is gone; notes which acks were answered.
async fn consume(at: std::net::SocketAddr, ledger: Ledger) {
    let mut wire = Wire::connect(at).await;
    let subscribe =
        json!({"op": "SUBSCRIBE", "topic": TOPIC, "group": "g", "opts": {"from": "earliest", "maxInFlight": 50}});
    wire.ok(subscribe).await;
    let mut unanswered = std::collections::VecDeque::new();
    while let Some(frame) = wire.next().await {
        if frame["op"] == "EVENT" {
            let id = ledger.delivered(&frame["event"]);
            let ack = json!({"op": "ACK", "topic": TOPIC, "group": "g", "id": id});
            if wire.send(&ack).await.is_err() {
                return;
            }
            unanswered.push_back(id);
        } else {
            assert_eq!(frame["op"], "OK", "{frame}");
            let id = unanswered.pop_front().expect("as many answers as acks");
            ledger.entries().acked.insert(id);
        }
    }
}
