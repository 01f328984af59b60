//! Bounds on topics, groups and patterns: a new one over the bound is refused, everything that exists is served.

use std::borrow::Cow;

use http::Method;
use promethean_bus::Bounds;
use promethean_event::{Code, Draft, Group, PublishOptions, SubscribeOptions, Topic};
use promethean_gateway::{EdgeConfig, ops};
use serde_json::json;

use crate::harness::{Served, Setup};
use crate::ws_support::Server;

async fn bounded(bounds: Bounds) -> Served {
    Setup { bounds, ..Setup::default() }.start(ops::router_with_http).await
}

#[tokio::test]
async fn a_topic_over_the_bound_is_refused_and_the_others_go_on() {
    let hub = bounded(Bounds { topics: 2, ..Bounds::default() }).await;
    for topic in ["a", "b", "a"] {
        hub.post(&format!("/publish/{topic}"), "1").await.ok();
    }
    let refused = hub.post("/publish/c", "1").await.refused(429, "limit_reached");
    assert!(refused.contains("max_topics"), "{refused}");
    let put = async |path: &str| {
        hub.send(Method::PUT, path, &[("content-type", "application/json")], r#"{"maxEvents":9}"#.to_owned()).await
    };
    put("/topics?topic=c").await.refused(429, "limit_reached");
    assert!(hub.get("/settings?topic=c").await.ok().get("maxEvents").is_none(), "a refusal changes nothing");
    put("/topics?topic=b").await.ok();
    hub.post("/publish/b", "2").await.ok();
    let metrics = hub.get("/metrics").await;
    for line in
        ["hub_topics 2", "hub_topics_max 2", "hub_groups 0", "hub_groups_max 1000000", "hub_patterns_max 100000"]
    {
        assert!(metrics.text().lines().any(|this| this == line), "{line} in {}", metrics.text());
    }
    // Of one burst, only the unit on the new topic.
    let topic = |name: &str| Topic::parse(name).expect("a topic");
    let mut burst = hub.hub.bus.burst();
    for name in ["a", "d", "b"] {
        let payload = Cow::Owned(serde_json::value::to_raw_value(&3).expect("JSON"));
        burst.add(&Draft { topic: topic(name), payload, options: PublishOptions::default() }).expect("sound");
    }
    let answers = hub.hub.bus.commit(burst).await;
    let codes: Vec<_> = answers.iter().map(|answer| answer.as_ref().err().map(|error| error.code)).collect();
    assert_eq!(codes, [None, Some(Code::LimitReached), None]);
    assert_eq!((hub.stored("a").await.len(), hub.stored("b").await.len(), hub.stored("d").await.len()), (3, 3, 0));
}

#[tokio::test]
async fn a_group_over_the_bound_is_refused_and_the_others_go_on() {
    let hub = bounded(Bounds { groups: 2, ..Bounds::default() }).await;
    for group in ["one", "two", "one"] {
        hub.post(&format!("/consume/a/{group}"), "{}").await.ok();
    }
    let refused = hub.post("/consume/a/three", "{}").await.refused(429, "limit_reached");
    assert!(refused.contains("max_groups"), "{refused}");
    hub.post("/publish/a", "1").await.ok();
    let consumed = hub.post("/consume/a/two", r#"{"waitMs":10000}"#).await.ok();
    assert_eq!(consumed["events"].as_array().map(Vec::len), Some(1), "{consumed}");
    // A pattern leaves out the topics for which there is no room, and its subscription stays.
    let all =
        hub.hub.bus.subscribe("**", Some(Group::parse("one").expect("a group")), SubscribeOptions::default()).await;
    let _all = all.expect("it has its place on a");
    hub.post("/publish/b", "1").await.ok();
    let [_, groups, _] = hub.hub.bus.usage();
    assert_eq!((groups.kind, groups.used), ("groups", 2));
}

#[tokio::test]
async fn patterns_are_bounded_for_the_hub_while_their_subscriptions_live() {
    let hub = bounded(Bounds { patterns: 2, ..Bounds::default() }).await;
    let subscribe = async |name: &str| hub.hub.bus.subscribe(name, None, SubscribeOptions::default()).await;
    let (one, _two) = (subscribe("a.*").await.expect("room"), subscribe("b.*").await.expect("room"));
    subscribe("a").await.expect("no pattern");
    assert_eq!(subscribe("c.*").await.err().map(|error| error.code), Some(Code::LimitReached));
    drop(one);
    subscribe("c.*").await.expect("there is room again");
}

#[tokio::test]
async fn patterns_of_a_connection_are_bounded() {
    let server = Server::configured(EdgeConfig { max_connection_patterns: 3, ..EdgeConfig::default() }).await;
    let mut client = server.connect().await;
    client.ok(json!({"op": "SUBSCRIBE", "topic": "a.*", "opts": {"topics": ["b.*", "c"]}})).await;
    let many = json!({"op": "SUBSCRIBE", "topic": "d.*", "opts": {"topics": ["e.*"]}, "corr": 1});
    let refused = client.ask(many).await;
    assert_eq!((&refused["op"], &refused["code"]), (&json!("ERR"), &json!("limit_reached")), "{refused}");
    client.ok(json!({"op": "SUBSCRIBE", "topic": "d.*"})).await;
    client.ok(json!({"op": "SUBSCRIBE", "topic": "e"})).await;
    client.ok(json!({"op": "UNSUBSCRIBE", "topic": "d.*"})).await;
    client.ok(json!({"op": "SUBSCRIBE", "topic": "f.*"})).await;
}
