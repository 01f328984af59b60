//! `kill -9` under load, with a ledger of what was `OK`ed. What was not answered is unknown: either is right.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use promethean_e2e::{Hub, Setup, Wire, get};
use serde_json::{Value, json};
use tokio::sync::Mutex;

const CYCLES: usize = 12;
const PUBLISHERS: usize = 3;
const WINDOW: usize = 64;

/// What the hub has promised.
#[derive(Default)]
struct Ledger {
    /// Payload → seq, of publishes that were answered.
    published: BTreeMap<String, u64>,
    /// Everything that was ever sent.
    sent: BTreeSet<String>,
    /// Ids whose ack was answered.
    acked: BTreeSet<String>,
    /// Ids that came after their ack had been answered.
    acked_and_came_again: Vec<String>,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_that_was_oked_is_lost_and_nothing_acked_comes_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let ledger = Arc::new(Mutex::new(Ledger::default()));
    for cycle in 0..CYCLES {
        let mut hub = Setup::log(dir.path()).start();
        check(&hub, &ledger).await;
        let mut clients = tokio::task::JoinSet::new();
        for publisher in 0..PUBLISHERS {
            clients.spawn(publish(hub.ws, format!("{cycle}-{publisher}"), Arc::clone(&ledger)));
        }
        clients.spawn(consume(hub.ws, Arc::clone(&ledger)));
        // Killed at another moment each time.
        tokio::time::sleep(Duration::from_millis(150 + (cycle as u64 * 97) % 400)).await;
        hub.kill();
        while clients.join_next().await.is_some() {}
    }
    let hub = Setup::log(dir.path()).start();
    check(&hub, &ledger).await;
    let ledger = ledger.lock().await;
    assert!(ledger.published.len() > CYCLES * 100, "too little was published: {}", ledger.published.len());
    assert!(ledger.acked.len() > CYCLES * 20, "too little was acked: {}", ledger.acked.len());
}

/// Publishes with a window until the connection is gone; notes what was answered.
async fn publish(at: std::net::SocketAddr, name: String, ledger: Arc<Mutex<Ledger>>) {
    let mut wire = Wire::connect(at).await;
    let mut unanswered = std::collections::VecDeque::new();
    for number in 0.. {
        let payload = format!("{name}-{number}");
        ledger.lock().await.sent.insert(payload.clone());
        let frame = json!({"op": "PUBLISH", "topic": "crash.load", "payload": payload, "opts": {"key": name}});
        if wire.send(&frame).await.is_err() {
            return;
        }
        unanswered.push_back(payload);
        while unanswered.len() >= WINDOW {
            let Some(answer) = wire.next().await else { return };
            assert_eq!(answer["op"], "OK", "{answer}");
            let payload = unanswered.pop_front().expect("as many answers as frames");
            ledger.lock().await.published.insert(payload, answer["seq"].as_u64().expect("a seq"));
        }
    }
}

/// Acks what comes until the connection is gone; notes which acks were answered.
async fn consume(at: std::net::SocketAddr, ledger: Arc<Mutex<Ledger>>) {
    let mut wire = Wire::connect(at).await;
    let subscribe = json!({"op": "SUBSCRIBE", "topic": "crash.load", "group": "g", "opts": {"from": "earliest", "maxInFlight": 50}});
    wire.ok(subscribe).await;
    let mut unanswered = std::collections::VecDeque::new();
    while let Some(frame) = wire.next().await {
        if frame["op"] == "EVENT" {
            let id = frame["event"]["id"].as_str().expect("an id").to_owned();
            let mut ledger = ledger.lock().await;
            if ledger.acked.contains(&id) {
                ledger.acked_and_came_again.push(id.clone());
            }
            drop(ledger);
            let ack = json!({"op": "ACK", "topic": "crash.load", "group": "g", "id": id});
            if wire.send(&ack).await.is_err() {
                return;
            }
            unanswered.push_back(id);
        } else {
            assert_eq!(frame["op"], "OK", "{frame}");
            let id = unanswered.pop_front().expect("as many answers as acks");
            ledger.lock().await.acked.insert(id);
        }
    }
}

/// Every promise is kept: what was answered is there at its place, nothing else appears, no hole.
async fn check(hub: &Hub, ledger: &Mutex<Ledger>) {
    let stored = replay(hub).await;
    let ledger = ledger.lock().await;
    assert_eq!(ledger.acked_and_came_again, Vec::<String>::new());
    for (index, event) in stored.iter().enumerate() {
        assert_eq!(event["seq"].as_u64(), Some(index as u64 + 1), "seqs are gapless");
        let payload = event["payload"].as_str().expect("a string");
        assert!(ledger.sent.contains(payload), "{payload} was never published");
    }
    let by_payload: BTreeMap<&str, u64> =
        stored.iter().filter_map(|event| Some((event["payload"].as_str()?, event["seq"].as_u64()?))).collect();
    assert_eq!(by_payload.len(), stored.len(), "nothing is there twice");
    for (payload, seq) in &ledger.published {
        assert_eq!(by_payload.get(payload.as_str()), Some(seq), "{payload} was OKed at {seq}");
    }
}

async fn replay(hub: &Hub) -> Vec<Value> {
    let (mut events, mut after) = (Vec::new(), String::new());
    loop {
        let from = if after.is_empty() { "from=earliest".to_owned() } else { format!("from=afterId&afterId={after}") };
        let page = get(hub.http, &format!("/replay?topic=crash.load&{from}&limit=5000")).await;
        assert_eq!(page.status, 200, "{}", page.text());
        let mut page = page.json();
        events.append(page["events"].as_array_mut().expect("events"));
        match page["next"].as_str() {
            Some(next) => after = next.to_owned(),
            None => return events,
        }
    }
}
