//! What a subscriber was given and never saw is no attempt, and frames that come together do not trip over each other.

use std::sync::Arc;
use std::time::Duration;

use crate::ws_support::{Client, PATIENCE, Server, Setup, frame, id_of};
use promethean_event::{Group, Topic};
use promethean_gateway::EdgeConfig;
use promethean_store::memory::Memory;
use promethean_store::suite::{Call, Watched, Watcher};
use serde_json::{Value, json};
use tokio::sync::watch;

/// A store that does not load the states of groups while it is shut.
struct Shut(watch::Sender<bool>);

impl Watcher for Shut {
    async fn before(&self, call: Call) {
        if call == Call::Load {
            let _ = self.0.subscribe().wait_for(|shut| !shut).await;
        }
    }
}

/// A pattern over thousands of topics takes seconds to join, and leases run meanwhile.
#[tokio::test]
async fn answers_behind_a_subscribe_that_takes_long_are_taken_in() {
    let store = Arc::new(Watched { store: Memory::new(), watcher: Shut(watch::Sender::new(false)) });
    let server = Server::with(Setup { store: Arc::clone(&store) as _, ..Setup::default() }).await;
    let mut client = server.connect().await;
    client.subscribe("t", "g").await;
    let (mut publisher, mut ids) = (server.connect().await, Vec::new());
    for n in 0..3 {
        publisher.publish("t", json!(n)).await;
        ids.push(id_of(&client.event().await));
    }
    store.watcher.0.send_replace(true);
    let answer = |op: &str, id: &Value, corr: u64| json!({"op": op, "topic": "t", "group": "g", "id": id, "extend_ms": 1_000, "corr": corr});
    client.feed(json!({"op": "SUBSCRIBE", "topic": "w.*", "group": "g", "corr": 1})).await;
    client.feed(answer("ACK", &ids[0], 2)).await;
    client.feed(answer("MODACK", &ids[1], 3)).await;
    client.flush().await;
    let answers = [client.recv().await, client.recv().await];
    assert_eq!(answers.map(|answer| answer["corr"].clone()), [json!(2), json!(3)]);
    client.feed(answer("ACK", &ids[2], 4)).await;
    // What is not an answer waits, and so does what comes behind it.
    client.feed(json!({"op": "PING", "corr": 5})).await;
    client.flush().await;
    assert_eq!(client.recv().await["corr"], 4);
    store.watcher.0.send_replace(false);
    assert_eq!((client.recv().await["corr"].clone(), client.recv().await["corr"].clone()), (json!(1), json!(5)));
}

/// Sends all frames with one write, and returns their answers and how many events came in between.
async fn at_once(client: &mut Client, frames: &[Value]) -> (Vec<Value>, usize) {
    for frame in frames {
        client.feed(frame.clone()).await;
    }
    client.flush().await;
    let (mut answers, mut events) = (Vec::new(), 0);
    while answers.len() < frames.len() {
        let frame = client.recv().await;
        if frame["op"] == "EVENT" { events += 1 } else { answers.push(frame) }
    }
    (answers, events)
}

fn subscribe(opts: Value) -> Value {
    json!({"op": "SUBSCRIBE", "topic": "t", "group": "g", "opts": opts})
}

/// Where the dead letters of `t` end.
async fn letters(client: &mut Client) -> Value {
    let frame = json!({"op": "SUBSCRIBE", "topic": "dlq.t", "group": "g", "opts": {"from": "latest"}});
    client.ok(frame).await["cursor"]["seq"].clone()
}

#[tokio::test]
async fn what_waited_for_a_subscriber_that_went_away_was_no_attempt() {
    let server = Server::start().await;
    let mut client = server.connect().await;
    for n in 0..5 {
        client.publish("t", json!(n)).await;
    }
    let leave = json!({"op": "UNSUBSCRIBE", "topic": "t", "group": "g"});
    for _ in 0..10 {
        let opts = json!({"from": "earliest", "maxAttempts": 1});
        let (answers, events) = at_once(&mut client, &[subscribe(opts), leave.clone()]).await;
        assert!(answers.iter().all(|answer| answer["op"] == "OK"));
        assert_eq!(events, 0, "UNSUBSCRIBE is handled before the first delivery");
    }
    assert_eq!(letters(&mut client).await, 0, "nothing was sent, so nothing failed");
    client.ok(subscribe(json!({"from": "earliest"}))).await;
    for n in 0..5 {
        let event = client.event().await;
        assert_eq!((&event["event"]["payload"], &event["ctx"]["attempt"]), (&json!(n), &json!(1)));
    }
}

#[tokio::test]
async fn an_ack_and_a_leave_together_give_nothing_to_who_leaves() {
    let server = Server::start().await;
    let mut client = server.connect().await;
    for n in 0..20 {
        client.publish("t", json!(n)).await;
    }
    for n in 0..20 {
        // Another policy each time: the member before has to be gone.
        client.ok(subscribe(json!({"from": "earliest", "maxInFlight": 1, "maxAttempts": n % 3 + 1}))).await;
        let event = client.event().await;
        assert_eq!((&event["event"]["payload"], &event["ctx"]["attempt"]), (&json!(n), &json!(1)));
        let ack = json!({"op": "ACK", "topic": "t", "group": "g", "id": id_of(&event)});
        let leave = json!({"op": "UNSUBSCRIBE", "topic": "t", "group": "g"});
        let (answers, _) = at_once(&mut client, &[ack, leave]).await;
        assert!(answers.iter().all(|answer| answer["op"] == "OK"), "{answers:?}");
    }
    assert_eq!(letters(&mut client).await, 0);
}

#[tokio::test]
async fn a_lease_does_not_run_out_behind_a_pause() {
    let server = Server::start().await;
    let mut client = server.connect().await;
    client.publish("t", json!(1)).await;
    let opts = json!({"from": "earliest", "ackTimeoutMs": 100, "maxAttempts": 1});
    let pause = |op: &str| json!({"op": op, "topic": "t", "group": "g"});
    at_once(&mut client, &[subscribe(opts), pause("PAUSE")]).await;
    // Longer than the lease would have been.
    tokio::time::sleep(Duration::from_millis(400)).await;
    client.assert_silent().await;
    client.ok(pause("RESUME")).await;
    let event = client.event().await;
    assert_eq!((&event["event"]["payload"], &event["ctx"]["attempt"]), (&json!(1), &json!(1)));
}

#[tokio::test]
async fn a_group_of_a_pattern_that_has_its_places_needs_no_id_to_start_after() {
    let server = Server::start().await;
    let mut client = server.connect().await;
    client.publish("x.a", json!(1)).await;
    let unknown = "0199d1c0-7d3b-7cc2-8b1a-3f0e2c9a4b5d";
    let after = |group: &str| {
        let opts = json!({"from": "afterId", "afterId": unknown});
        json!({"op": "SUBSCRIBE", "topic": "x.*", "group": group, "opts": opts})
    };
    client.err(after("g"), "unknown_id").await;
    let earliest = json!({"op": "SUBSCRIBE", "topic": "x.*", "group": "g", "opts": {"from": "earliest"}});
    client.ok(earliest).await;
    let event = client.event().await;
    client.ok(json!({"op": "ACK", "topic": "x.*", "group": "g", "id": id_of(&event)})).await;
    client.ok(json!({"op": "UNSUBSCRIBE", "topic": "x.*", "group": "g"})).await;
    client.publish("x.a", json!(2)).await;
    client.ok(after("g")).await;
    assert_eq!(client.event().await["event"]["payload"], 2, "it goes on where it was");
}

#[tokio::test]
async fn up_to_within_a_snapshot_is_refused() {
    let server = Server::start().await;
    let mut client = server.connect().await;
    // The keys come in another order than the events.
    for n in (1..=30).rev() {
        let opts = json!({"key": format!("k{n:02}")});
        client.ok(json!({"op": "PUBLISH", "topic": "t", "payload": n, "opts": opts})).await;
    }
    client.ok(subscribe(json!({"from": "snapshot", "maxInFlight": 3}))).await;
    let first = client.event().await;
    assert_eq!((&first["event"]["key"], &first["event"]["seq"]), (&json!("k01"), &json!(30)));
    client.send(json!({"op": "ACK", "topic": "t", "group": "g", "upTo": id_of(&first), "corr": "all"})).await;
    let mut answer = client.recv().await;
    while answer["corr"] != "all" {
        answer = client.recv().await;
    }
    assert_eq!((&answer["op"], &answer["code"]), (&json!("ERR"), &json!("bad_request")), "{answer}");
}

#[tokio::test]
async fn what_a_client_that_reads_slowly_acks_counts_while_events_fill_its_connection() {
    let config = EdgeConfig { max_outbound_bytes: 64 * 1024, ..EdgeConfig::default() };
    let server = Server::configured(config).await;
    let (mut slow, mut publisher) = (server.raw().await, server.connect().await);
    let payload = "x".repeat(100_000);
    // Far more than the sockets' buffers hold.
    for _ in 0..400 {
        publisher.publish("t", json!(payload)).await;
    }
    slow.send(&frame(0x81, subscribe(json!({"from": "earliest", "maxInFlight": 1000})).to_string().as_bytes())).await;
    assert_eq!(slow.text().await["op"], "OK");
    for seq in 1..=3 {
        let event = slow.text().await;
        assert_eq!(event["event"]["seq"], seq);
        let ack = json!({"op": "ACK", "topic": "t", "group": "g", "id": id_of(&event)});
        slow.send(&frame(0x81, ack.to_string().as_bytes())).await;
        // It reads nothing more until this counts: what is on its way fills the connection.
        let (topic, group) = (Topic::parse("t").expect("a topic"), Group::parse("g").expect("a group"));
        let bus = &server.hub.bus;
        let counted = async {
            while bus.cursor(&topic, &group).await.expect("readable").is_none_or(|cursor| cursor.seq < seq) {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, counted).await.expect("the ack is read");
    }
}
