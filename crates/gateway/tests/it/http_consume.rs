//! `POST /consume`, `/ack`, `/nack` and `/extend` over a real port.

use std::sync::Arc;
use std::time::Duration;

use crate::harness::{Served, Setup, jwt};
use http::Method;
use promethean_event::Millis;
use promethean_gateway::{Hub, http as api};
use serde_json::{Value, json};

fn router(hub: Arc<Hub>) -> axum::Router {
    api::router(hub)
}

async fn open_hub() -> Served {
    Setup::default().start(router).await
}

async fn publish(hub: &Served, topic: &str, count: u32) {
    for n in 0..count {
        hub.post(&format!("/publish/{topic}"), n.to_string()).await.ok();
    }
}

async fn ask(hub: &Served, path: &str, body: Value) -> Value {
    hub.post(path, body.to_string()).await.ok()
}

async fn consume(hub: &Served, name: &str, body: Value) -> Vec<Value> {
    let answer = ask(hub, &format!("/consume/{name}/g"), body).await;
    answer["events"].as_array().expect("a list").clone()
}

fn ids(events: &[Value]) -> Vec<Value> {
    events.iter().map(|one| one["event"]["id"].clone()).collect()
}

#[tokio::test]
async fn events_are_leased_over_the_request_and_acked_by_id() {
    let hub = open_hub().await;
    publish(&hub, "t", 3).await;
    let events = consume(&hub, "t", json!({"from": "earliest", "max": 2})).await;
    assert_eq!(events.iter().map(|one| one["event"]["seq"].clone()).collect::<Vec<_>>(), [1, 2]);
    let ctx = &events[0]["ctx"];
    assert_eq!((&ctx["attempt"], &ctx["maxAttempts"]), (&json!(1), &json!(5)));
    assert!(ctx["lease"].as_u64() > Some(0) && ctx["ack_deadline_ms"].as_u64() > Some(20_000), "{ctx}");
    let done = ask(&hub, "/ack/t/g", json!({"ids": ids(&events)})).await;
    assert_eq!(done, json!({"done": 2, "lost": [], "unknown": []}));
    let rest = hub.post("/consume/t/g?max=10&waitMs=100", "").await.ok();
    assert_eq!(rest["events"][0]["event"]["seq"], 3);
    assert_eq!(ask(&hub, "/consume/t/g", json!({})).await, json!({"events": []}));
}

#[tokio::test]
async fn nacks_come_back_and_extensions_and_old_leases_are_told_apart() {
    let hub = open_hub().await;
    publish(&hub, "t", 2).await;
    let events = consume(&hub, "t", json!({"from": "earliest", "maxAttempts": 0})).await;
    let first = &ids(&events)[..1];
    let lease = &events[0]["ctx"]["lease"];
    assert_eq!(ask(&hub, "/nack/t/g", json!({"ids": first, "reason": "no"})).await["done"], 1);
    let again = consume(&hub, "t", json!({"waitMs": 1_000, "maxAttempts": 0})).await;
    assert_eq!((&again[0]["event"]["id"], &again[0]["ctx"]["attempt"]), (&first[0], &json!(2)));
    let leases = json!({first[0].as_str().expect("text"): lease});
    let lost = ask(&hub, "/ack/t/g", json!({"ids": first, "leases": leases})).await;
    assert_eq!(lost, json!({"done": 0, "lost": first, "unknown": []}));
    let extended = ask(&hub, "/extend/t/g", json!({"ids": ids(&events), "extendMs": 60_000})).await;
    assert_eq!(extended["done"], 2);
    assert_eq!(ask(&hub, "/ack/t/g", json!({"upTo": ids(&events)[1]})).await["done"], 2);
    let unknown = ask(&hub, "/extend/t/g", json!({"ids": first})).await;
    assert_eq!(unknown, json!({"done": 0, "lost": [], "unknown": first}));
    assert_eq!(ask(&hub, "/nack/t/g", json!({"ids": first})).await["done"], 1, "it is not in flight any more");
}

#[tokio::test]
async fn auto_ack_a_filter_and_a_pattern() {
    let hub = open_hub().await;
    publish(&hub, "a.x", 1).await;
    hub.post("/publish/a.y?tag=%23red", "1").await.ok();
    let filter = json!({"tags": ["#red"]});
    let events = consume(&hub, "a.*", json!({"from": "earliest", "filter": filter, "autoAck": true})).await;
    assert_eq!(events.iter().map(|one| one["event"]["topic"].clone()).collect::<Vec<_>>(), ["a.y"]);
    assert!(consume(&hub, "a.*", json!({"filter": filter})).await.is_empty());
    let query = "/consume/a.*/h?from=earliest&filter=%7B%22tags%22%3A%5B%22%23red%22%5D%7D&autoAck=1";
    assert_eq!(hub.post(query, "").await.ok()["events"].as_array().map(Vec::len), Some(1));
}

#[tokio::test]
async fn a_client_that_goes_away_while_it_waits_gets_nothing_leased() {
    let hub = open_hub().await;
    let waiting = hub.post("/consume/t/g", json!({"waitMs": 60_000, "from": "earliest"}).to_string());
    assert!(tokio::time::timeout(Duration::from_millis(300), waiting).await.is_err());
    publish(&hub, "t", 1).await;
    let events = consume(&hub, "t", json!({"waitMs": 5_000})).await;
    assert_eq!(events[0]["ctx"]["attempt"], 1);
}

#[tokio::test]
async fn bad_requests_name_the_field() {
    let hub = open_hub().await;
    for (path, body, named) in [
        ("/consume/t/g", json!({"max": 0}), "max"),
        ("/consume/t/g", json!({"max": 1_001}), "max"),
        ("/consume/t/g", json!({"waitMs": 60_001}), "waitMs"),
        ("/consume/t/g", json!({"maxx": 1}), "maxx"),
        ("/consume/t/g", json!({"from": "nowhere"}), "from"),
        ("/consume/t/g", json!({"from": "ts"}), "ts"),
        ("/consume/t/g", json!({"ackTimeoutMs": 1}), "ackTimeoutMs"),
        ("/consume/t/promethean:x", json!({}), "promethean:"),
        ("/ack/t/g", json!({}), "upTo"),
        ("/ack/t/g", json!({"ids": []}), "ids"),
        ("/nack/t/g", json!({"ids": ["0199d1c0-7d3b-7cc2-8b1a-3f0e2c9a4b5d"], "delayMs": 43_200_001}), "delayMs"),
        ("/extend/t/g", json!({"ids": "x"}), "ids"),
    ] {
        let error = hub.post(path, body.to_string()).await.refused(400, "bad_request");
        assert!(error.contains(named) && !error.contains("opts."), "{path} {body}: {error}");
    }
}

#[tokio::test]
async fn the_policy_is_that_of_subscribers_of_the_group() {
    let hub = Setup::with_jwt().start(router).await;
    let rules = json!([{"effect": "allow", "action": "subscribe", "topics": ["t"], "groups": ["g"]}]);
    let token = jwt(&json!({"exp": Millis::now().0 / 1000 + 600, "policy": {"rules": rules}}));
    let bearer = format!("Bearer {token}");
    for (path, status) in [("/consume/t/g", 200), ("/consume/t/h", 403), ("/consume/u/g", 403), ("/ack/u/g", 403)] {
        let answer = hub.send(Method::POST, path, &[("authorization", &bearer)], "{}").await;
        assert_eq!(answer.status, status, "{path}");
    }
}
