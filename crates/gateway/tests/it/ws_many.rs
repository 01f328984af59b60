//! Many connections at once: each event goes to one member of each group, whoever comes and goes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use crate::ws_support::{Server, id_of};
use serde_json::{Value, json};

const CONNECTIONS: usize = 200;
const GROUPS: usize = 4;
const EACH: usize = 10;

/// Which event went how often to which group.
type Ledger = Arc<Mutex<HashMap<(usize, String), usize>>>;

/// Publishes its events, and takes and acks what comes until every group has had everything.
async fn member(server: Arc<Server>, number: usize, ledger: Ledger) {
    let group = number % GROUPS;
    let mut client = server.connect().await;
    client.ok(json!({"op": "AUTH", "quiet": true})).await;
    let opts = json!({"maxInFlight": 50, "batch": number.is_multiple_of(3), "from": "earliest"});
    client.send(json!({"op": "SUBSCRIBE", "topic": "t", "group": format!("g{group}"), "opts": opts})).await;
    for n in 0..EACH {
        client
            .feed(json!({"op": "PUBLISH", "topic": "t", "payload": [number, n], "opts": {"key": format!("k{n}")}}))
            .await;
    }
    client.flush().await;
    loop {
        if ledger.lock().expect("a ledger").len() >= GROUPS * CONNECTIONS * EACH {
            return;
        }
        // The PING brings an answer even where no event is left for this member.
        client.send(json!({"op": "PING", "corr": 1})).await;
        loop {
            let frame = client.recv().await;
            let events: Vec<Value> = match frame["op"].as_str() {
                Some("EVENT") => vec![frame.clone()],
                Some("EVENTS") => frame["events"].as_array().expect("a list").clone(),
                _ => break,
            };
            let ids: Vec<Value> = events.iter().map(id_of).collect();
            {
                let mut ledger = ledger.lock().expect("a ledger");
                for event in &events {
                    assert_eq!(event["ctx"]["attempt"], 1, "{event}");
                    *ledger.entry((group, event["event"]["id"].to_string())).or_default() += 1;
                }
            }
            client.send(json!({"op": "ACK", "topic": "t", "group": format!("g{group}"), "ids": ids})).await;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_members_of_four_groups_get_every_event_once_a_group() {
    let server = Arc::new(Server::start().await);
    let ledger = Ledger::default();
    let members: Vec<_> =
        (0..CONNECTIONS).map(|number| tokio::spawn(member(Arc::clone(&server), number, Arc::clone(&ledger)))).collect();
    for member in members {
        member.await.expect("it went well");
    }
    let ledger = ledger.lock().expect("a ledger");
    assert_eq!(ledger.len(), GROUPS * CONNECTIONS * EACH);
    assert!(ledger.values().all(|count| *count == 1), "no event twice in a group");
}
