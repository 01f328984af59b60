//! Publishers on two hubs, one topic: one sequence for everybody.

use std::collections::BTreeMap;

use promethean_e2e::{Wire, replay};
use serde_json::{Value, json};

use crate::pair::{Pair, subscribe};

const EACH: usize = 150;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_publishers_on_each_of_two_hubs_make_one_gapless_sequence_that_both_hubs_read_alike() {
    let pair = Pair::start().await;
    let mut readers = tokio::task::JoinSet::new();
    for (at, group) in [(pair.a.ws, "a"), (pair.b.ws, "b"), (pair.b.ws, "a2")] {
        let mut wire = Wire::connect(at).await;
        subscribe(&mut wire, "load.t", group, json!({"from": "earliest", "maxInFlight": 100, "batch": true})).await;
        readers.spawn(read(wire, group.to_owned()));
    }
    let mut publishers = tokio::task::JoinSet::new();
    for number in 0..8 {
        let at = if number % 2 == 0 { pair.a.ws } else { pair.b.ws };
        publishers.spawn(publish(at, number));
    }
    let mut answered: BTreeMap<u64, Value> = BTreeMap::new();
    while let Some(seqs) = publishers.join_next().await {
        for (seq, payload) in seqs.expect("published") {
            assert_eq!(answered.insert(seq, payload), None, "seq {seq} was given twice");
        }
    }
    assert_eq!(answered.keys().copied().collect::<Vec<_>>(), (1..=8 * EACH as u64).collect::<Vec<_>>());
    let expected: Vec<Value> = answered.into_values().collect();
    for number in 0..8 {
        let of_one: Vec<u64> =
            expected.iter().filter(|one| one["by"] == number).filter_map(|one| one["n"].as_u64()).collect();
        assert_eq!(of_one, (0..EACH as u64).collect::<Vec<_>>(), "the order of publisher {number}");
    }
    while let Some(read) = readers.join_next().await {
        let (group, payloads) = read.expect("read");
        assert_eq!(payloads, expected, "the group {group}");
    }
    for hub in [&pair.a, &pair.b] {
        let stored: Vec<Value> =
            replay(hub.http, "load.t").await.into_iter().map(|mut event| event["payload"].take()).collect();
        assert_eq!(stored, expected);
    }
}

/// Publishes with a window; the seqs that were answered.
async fn publish(at: std::net::SocketAddr, number: usize) -> Vec<(u64, Value)> {
    let mut wire = Wire::connect(at).await;
    let payload = |n: usize| json!({"by": number, "n": n});
    let mut answered = Vec::new();
    for n in 0..EACH + 16 {
        if n < EACH {
            let frame = json!({"op": "PUBLISH", "topic": "load.t", "payload": payload(n)});
            wire.send(&frame).await.expect("open");
        }
        if n >= 16 {
            let answer = wire.next().await.expect("open");
            assert_eq!(answer["op"], "OK", "{answer}");
            answered.push((answer["seq"].as_u64().expect("a seq"), payload(n - 16)));
        }
    }
    answered
}

/// Acks everything that comes; what it was, in the order it came.
async fn read(mut wire: Wire, group: String) -> (String, Vec<Value>) {
    let mut payloads = Vec::new();
    while payloads.len() < 8 * EACH {
        let frame = wire.next().await.expect("open");
        if frame["op"] == "EVENTS" {
            let events = frame["events"].as_array().expect("events");
            payloads.extend(events.iter().map(|one| one["event"]["payload"].clone()));
            let ids: Vec<&Value> = events.iter().map(|one| &one["event"]["id"]).collect();
            wire.send(&json!({"op": "ACK", "topic": "load.t", "group": group, "ids": ids})).await.expect("open");
        } else {
            assert_eq!(frame["op"], "OK", "{frame}");
        }
    }
    (group, payloads)
}
