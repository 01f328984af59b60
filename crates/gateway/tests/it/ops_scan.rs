//! Routes whose cost depends on the data keep to their bounds.

use std::borrow::Cow;

use promethean_event::{Draft, EventId, PublishOptions, Topic};
use promethean_gateway::EdgeConfig;
use promethean_gateway::ops::router;
use serde_json::json;

use crate::harness::{Served, Setup};

async fn publish(hub: &Served, name: &str, payload: &serde_json::Value, caused_by: Vec<EventId>) -> EventId {
    let payload = Cow::Owned(serde_json::value::to_raw_value(payload).expect("JSON"));
    let options = PublishOptions { caused_by, ..PublishOptions::default() };
    let draft = Draft { topic: Topic::parse(name).expect("a topic"), payload, options };
    hub.hub.bus.publish(&draft).await.expect("published").id
}

#[tokio::test]
async fn causality_has_no_more_bytes_than_a_frame() {
    let edge = EdgeConfig { max_frame_bytes: 64 * 1024, ..EdgeConfig::default() };
    let hub = Setup { edge, ..Setup::default() }.start(router).await;
    let root = publish(&hub, "a", &json!(1), vec![]).await;
    for _ in 0..10 {
        publish(&hub, "b", &json!("x".repeat(20 * 1024)), vec![root]).await;
    }
    let answer = hub.get(&format!("/causality?id={root}")).await;
    assert!(answer.body.len() < 70 * 1024, "{} bytes", answer.body.len());
    let shown = answer.ok();
    assert_eq!((shown["events"].as_array().map(Vec::len), &shown["complete"]), (Some(4), &json!(false)));
}

#[tokio::test]
async fn causality_counts_every_cause_that_it_notes() {
    let hub = Setup::default().start(router).await;
    let root = publish(&hub, "a", &json!(1), vec![]).await;
    let others = vec![root; 255];
    for _ in 0..400 {
        publish(&hub, "a", &json!(1), others.clone()).await;
    }
    let shown = hub.get(&format!("/causality?id={root}&limit=1000")).await.ok();
    assert_eq!(shown["complete"], false, "400 times 255 causes are more than 100,000 steps");
    assert!(shown["events"].as_array().is_some_and(|events| events.len() > 300), "the others are shown");
}
