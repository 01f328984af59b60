//! Bad input gets a typed error that names the field, and nothing is stored.

use std::borrow::Cow;
use std::time::Duration;

use crate::common::{bus, group, publish, topic};
use promethean_bus::{
    Bus, Code, Draft, EventId, From, Group, Invalid, PublishOptions, SubscribeOptions, Topic, TopicPattern,
};
use serde_json::value::RawValue;

fn draft(options: PublishOptions<'_>) -> Draft<'_> {
    let payload = RawValue::from_string("1".to_owned()).expect("JSON");
    Draft { topic: topic("t"), payload: Cow::Owned(payload), options }
}

async fn refuse(bus: &Bus, options: PublishOptions<'_>, code: Code, field: &str) {
    let refused = bus.publish(&draft(options)).await.expect_err(field);
    assert_eq!(refused.code, code, "{refused}");
    assert!(refused.message.starts_with(field), "{refused}");
    assert_eq!(bus.store().info(&topic("t")).await.expect("readable"), None, "nothing is stored");
}

#[test]
fn names_that_are_not_names_are_refused() {
    let refusals: [(Result<(), Invalid>, Code, &str); 4] = [
        (Topic::parse("a..b").map(drop), Code::BadTopic, "topic"),
        (TopicPattern::parse("a*").map(drop), Code::BadTopic, "topic"),
        (Group::parse("a b").map(drop), Code::BadRequest, "group"),
        (EventId::parse("42").map(drop), Code::BadId, "id"),
    ];
    for (result, code, field) in refusals {
        let refused = result.expect_err(field);
        assert_eq!((refused.code, refused.field.as_str()), (code, field));
    }
}

#[tokio::test]
async fn options_of_a_publish_are_checked_and_named() {
    let bus = bus();
    let big = "x".repeat(1025);
    refuse(&bus, PublishOptions { key: Some((&*big).into()), ..Default::default() }, Code::BadRequest, "key").await;
    let many = (0..65).map(|n| (Cow::Owned(format!("h{n}")), "v".into())).collect();
    refuse(&bus, PublishOptions { headers: many, ..Default::default() }, Code::BadRequest, "headers").await;
    let large = vec![("h".into(), Cow::Owned("x".repeat(16 * 1024)))];
    refuse(&bus, PublishOptions { headers: large, ..Default::default() }, Code::BadRequest, "headers").await;
    let own = vec![("Promethean-Trace".into(), "1".into())];
    refuse(&bus, PublishOptions { headers: own, ..Default::default() }, Code::BadRequest, "headers").await;
    let absurd = PublishOptions { ts: Some(promethean_event::Millis(u64::MAX)), ..Default::default() };
    refuse(&bus, absurd, Code::BadRequest, "ts").await;
}

#[tokio::test]
async fn an_oversize_event_is_too_large_and_its_whole_batch_is_refused() {
    let bus = bus();
    let payload = RawValue::from_string(format!("\"{}\"", "x".repeat(1 << 20))).expect("JSON");
    let large = Draft { payload: Cow::Borrowed(&*payload), ..draft(PublishOptions::default()) };
    assert_eq!(bus.publish(&large).await.map_err(|error| error.code), Err(Code::TooLarge));
    let refused = bus.publish_batch([draft(PublishOptions::default()), large]).await.expect_err("too large");
    assert_eq!(refused.code, Code::TooLarge);
    assert!(refused.message.starts_with("events[1]."), "{refused}");
    assert_eq!(bus.store().info(&topic("t")).await.expect("readable"), None);
}

#[tokio::test]
async fn an_id_of_another_topic_is_refused_and_of_the_same_topic_is_answered_with_the_first() {
    let bus = bus();
    let id = Some(EventId::from_bytes([7; 16]));
    let first = bus.publish(&draft(PublishOptions { id, ..Default::default() })).await.expect("published");
    let again = bus.publish(&draft(PublishOptions { id, ..Default::default() })).await.expect("answered");
    assert_eq!((again.seq, again.id, first.duplicate, again.duplicate), (first.seq, first.id, false, true));
    let elsewhere = Draft { topic: topic("other"), ..draft(PublishOptions { id, ..Default::default() }) };
    let refused = bus.publish(&elsewhere).await.expect_err("taken");
    assert_eq!(refused.code, Code::DuplicateId);
    assert!(refused.message.contains("belongs to an event of another topic;"), "it names no topic: {refused}");
    let batch = [Draft { topic: topic("other"), ..draft(PublishOptions::default()) }, elsewhere];
    assert_eq!(bus.publish_batch(batch).await.map_err(|error| error.code), Err(Code::DuplicateId));
    assert_eq!(bus.store().info(&topic("other")).await.expect("readable"), None, "all or none");
}

#[tokio::test]
async fn absurd_options_of_a_subscribe_are_named_and_leave_no_group() {
    let bus = bus();
    publish(&bus, "t", 1).await;
    let default = SubscribeOptions::default;
    for (options, field) in [
        (SubscribeOptions { max_in_flight: 0, ..default() }, "opts.maxInFlight"),
        (SubscribeOptions { max_in_flight: 10_001, ..default() }, "opts.maxInFlight"),
        (SubscribeOptions { batch_size: 0, ..default() }, "opts.batchSize"),
        (SubscribeOptions { ack_timeout: Duration::from_millis(99), ..default() }, "opts.ackTimeoutMs"),
        (SubscribeOptions { from: From::Ts(promethean_event::Millis(u64::MAX)), ..default() }, "opts.ts"),
    ] {
        let refused = bus.subscribe("t", Some(group("g")), options).await.err().expect(field);
        assert_eq!(refused.code, Code::BadRequest);
        assert!(refused.message.starts_with(field), "{refused}");
    }
    assert_eq!(bus.subscribe("a*", None, default()).await.err().map(|error| error.code), Some(Code::BadTopic));
    assert_eq!(bus.cursors(&topic("t")).await, Ok(vec![]));
}
