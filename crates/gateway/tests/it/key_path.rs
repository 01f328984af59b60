//! `key_path`: a key from the payload, for every way to publish.

use http::Method;
use promethean_event::{Draft, KeyPath, Topic, payload_of};
use promethean_store::TopicSettings;
use serde_json::{Value, json};

use crate::ws_support::Server;

async fn set(server: &Server, path: Option<&str>) {
    let key_path = path.map(|path| KeyPath::parse(path).expect("a pointer"));
    let settings = TopicSettings { key_path, ..TopicSettings::default() };
    let topic = Topic::parse("t").expect("a topic");
    server.hub.bus.store().set_settings(&topic, settings).await.expect("set");
}

#[tokio::test]
async fn events_without_a_key_get_one_from_their_payload_however_they_are_published() {
    let server = Server::start().await;
    let mut client = server.connect().await;
    client.publish("t", json!({"order": {"id": "before"}})).await;
    set(&server, Some("/order/id")).await;
    client.publish("t", json!({"order": {"id": "frame"}})).await;
    let order = |id: Value| json!({"order": {"id": id}});
    let batch = json!([
        {"payload": order(json!("batch"))},
        {"payload": order(json!(42))},
        {"payload": order(json!("hidden")), "key": "own"},
        {"payload": order(json!(null))},
        {"payload": 7},
    ]);
    client.ok(json!({"op": "PUBLISH", "topic": "t", "events": batch})).await;
    let http = server.http().await;
    http.post("/publish/t", order(json!("http")).to_string()).await.ok();
    let lines = format!("{}\n{}\n", order(json!("line 1")), order(json!("line 2")));
    http.send(Method::POST, "/publish/t", &[("content-type", "application/x-ndjson")], lines).await.ok();
    let cloud = json!({"specversion": "1.0", "id": "c", "source": "/s", "type": "t", "data": order(json!("cloud"))});
    let content = [("content-type", "application/cloudevents+json")];
    http.send(Method::POST, "/publish/t", &content, cloud.to_string()).await.ok();
    let payload = payload_of(&order(json!("in process"))).expect("JSON");
    let topic = Topic::parse("t").expect("a topic");
    server.hub.bus.publish(&Draft::new(topic, std::borrow::Cow::Owned(payload))).await.expect("published");
    set(&server, None).await;
    client.publish("t", order(json!("after"))).await;
    let keys: Vec<_> = http.stored("t").await.iter().map(|event| event.key().map(|key| key.to_string())).collect();
    let expected = [
        None,
        Some("frame"),
        Some("batch"),
        Some("42"),
        Some("own"),
        None,
        None,
        Some("http"),
        Some("line 1"),
        Some("line 2"),
        Some("cloud"),
        Some("in process"),
        None,
    ];
    assert_eq!(keys.iter().map(Option::as_deref).collect::<Vec<_>>(), expected);
}

#[tokio::test]
async fn a_value_that_is_too_long_for_a_key_refuses_the_event() {
    let server = Server::start().await;
    set(&server, Some("/id")).await;
    let mut client = server.connect().await;
    let long = json!({"op": "PUBLISH", "topic": "t", "payload": {"id": "x".repeat(1_025)}});
    let refused = client.err(long, "bad_request").await;
    assert!(refused["msg"].as_str().expect("text").contains("key"), "{refused}");
}
