//! The hub's bounds of leases and of unacked events, over WebSocket and HTTP.

use std::time::Duration;

use promethean_gateway::{Caps, EdgeConfig, http};
use serde_json::{Value, json};

use crate::harness::Setup;
use crate::ws_support::{Server, id_of};

fn capped() -> EdgeConfig {
    let caps = Caps { ack_timeout: Duration::from_secs(7), max_ack_timeout: Duration::from_secs(60), max_in_flight: 2 };
    EdgeConfig { caps, ..EdgeConfig::default() }
}

fn left(event: &Value) -> u64 {
    event["ctx"]["ack_deadline_ms"].as_u64().expect("a number")
}

#[tokio::test]
async fn a_subscription_above_the_caps_is_lowered_and_warned() {
    let server = Server::configured(capped()).await;
    let mut client = server.connect().await;
    let events = json!([{"payload": 0}, {"payload": 1}, {"payload": 2}]);
    client.ok(json!({"op": "PUBLISH", "topic": "a", "events": events})).await;
    let opts = json!({"from": "earliest", "ackTimeoutMs": 999_999_999_u64, "maxInFlight": 20_000});
    let ok = client.ok(json!({"op": "SUBSCRIBE", "topic": "a", "group": "g", "opts": opts})).await;
    let warnings = json!([
        "ackTimeoutMs: lowered to 60000, the hub's max_ack_timeout",
        "maxInFlight: lowered to 2, the hub's max_in_flight"
    ]);
    assert_eq!(ok["warnings"], warnings);
    let first = client.event().await;
    assert!((50_000..=60_000).contains(&left(&first)), "{first}");
    client.event().await;
    client.assert_silent().await;
}

#[tokio::test]
async fn a_subscription_that_names_nothing_has_the_hubs_lease_without_a_warning() {
    let server = Server::configured(capped()).await;
    let mut client = server.connect().await;
    let ok = client.subscribe("a", "g").await;
    assert_eq!(ok.get("warnings"), None);
    client.publish("a", json!(1)).await;
    let event = client.event().await;
    assert!((5_000..=7_000).contains(&left(&event)), "{event}");
}

#[tokio::test]
async fn modack_without_extend_ms_takes_the_subscriptions_lease() {
    let server = Server::start().await;
    let mut client = server.connect().await;
    let opts = json!({"ackTimeoutMs": 100, "maxAttempts": 0});
    client.ok(json!({"op": "SUBSCRIBE", "topic": "a", "group": "g", "opts": opts})).await;
    client.publish("a", json!(1)).await;
    let event = client.event().await;
    // Raised to a second: without the extension the event is redelivered within 100 ms.
    client.ok(json!({"op": "MODACK", "topic": "a", "group": "g", "id": id_of(&event)})).await;
    client
        .ok(json!({"op": "ACK", "topic": "a", "group": "g", "id": id_of(&event), "lease": event["ctx"]["lease"]}))
        .await;
}

#[tokio::test]
async fn consume_is_lowered_too_and_extend_takes_its_lease() {
    let hub = Setup { edge: capped(), ..Setup::default() }.start(http::router).await;
    for n in 0..2 {
        hub.post("/publish/t", n.to_string()).await.ok();
    }
    let body = json!({"from": "earliest", "ackTimeoutMs": 90_000, "max": 1}).to_string();
    let answer = hub.post("/consume/t/g", body).await.ok();
    assert_eq!(answer["warnings"], json!(["ackTimeoutMs: lowered to 60000, the hub's max_ack_timeout"]));
    let one = &answer["events"][0];
    assert!((50_000..=60_000).contains(&left(one)), "{one}");
    let ids = json!({"ids": [one["event"]["id"]]});
    assert_eq!(hub.post("/extend/t/g", ids.to_string()).await.ok()["done"], 1);
    let plain = hub.post("/consume/t/g", "{}").await.ok();
    assert_eq!(plain.get("warnings"), None);
    assert!((5_000..=7_000).contains(&left(&plain["events"][0])), "{plain}");
}
