//! The source documents, sentence by sentence: one case for each that can be run against the binary.
//!
//! Elsewhere: the documents' clients and code samples (`e2e/browser/seed.test.ts`, `sdk/typescript/test/samples`), their outbox
//! (`outbox.rs`, `outbox_mongo.rs`), the set-up of part 3 (`deploy.rs`), the demo with its sample heartbeats (`state.rs`), the
//! in-process bus (`crates/bus/tests/it/seed.rs`).

mod bus;
mod edge;
mod gateway;

use promethean_e2e::{Hub, Response, Setup, Wire, get, request};
use serde_json::{Value, json};

const UNKNOWN: &str = "0199d1c0-7d3b-7cc2-8b1a-3f0e2c9a4b5d";

/// A hub in memory and a connection to it.
async fn hub() -> (Hub, Wire) {
    let hub = Setup::memory().start();
    let wire = Wire::connect(hub.ws).await;
    (hub, wire)
}

async fn publish(wire: &mut Wire, topic: &str, payload: Value) -> Value {
    wire.ok(json!({"op": "PUBLISH", "topic": topic, "payload": payload})).await
}

async fn subscribe(wire: &mut Wire, topic: &str, group: &str, opts: Value) -> Value {
    wire.ok(json!({"op": "SUBSCRIBE", "topic": topic, "group": group, "opts": opts})).await
}

/// A frame about a delivery.
fn about(op: &str, given: &Value) -> Value {
    json!({"op": op, "topic": given["topic"], "group": given["group"], "id": given["event"]["id"]})
}

async fn ops(hub: &Hub, path: &str) -> Value {
    get(hub.ops, path).await.json()
}

async fn post(hub: &Hub, path: &str, body: &str) -> Response {
    request(hub.http, "POST", path, &[("content-type", "application/json")], body.as_bytes()).await
}

async fn put(hub: &Hub, path: &str, body: &Value) -> Value {
    request(hub.ops, "PUT", path, &[], body.to_string().as_bytes()).await.json()
}

/// Asks until `good` takes the answer.
async fn until(hub: &Hub, path: &str, good: impl Fn(&Value) -> bool) -> Value {
    let mut last = Value::Null;
    for _ in 0..600 {
        last = ops(hub, path).await;
        if good(&last) {
            return last;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    panic!("{path}: {last} after half a minute; {}", hub.log());
}
