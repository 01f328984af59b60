//! What the tests of the bus share.

use std::sync::Arc;
use std::time::Duration;

use promethean_bus::{Bus, Delivery, Draft, From, Group, Published, SubscribeOptions, Subscription, Topic};
use promethean_store::memory::Memory;
use serde_json::Value;

pub(crate) fn bus() -> Bus {
    Bus::new(Arc::new(Memory::new()), Default::default())
}

pub(crate) fn topic(name: &str) -> Topic {
    Topic::parse(name).expect("a topic")
}

pub(crate) fn group(name: &str) -> Group {
    Group::parse(name).expect("a group")
}

pub(crate) fn earliest() -> SubscribeOptions {
    SubscribeOptions { from: From::Earliest, ..Default::default() }
}

pub(crate) async fn publish(bus: &Bus, name: &str, payload: impl Into<Value>) -> Published {
    bus.publish_value(&topic(name), &payload.into()).await.expect("published")
}

pub(crate) async fn publish_keyed(bus: &Bus, name: &str, key: &str, payload: impl Into<Value>) -> Published {
    let payload = promethean_event::payload_of(&payload.into()).expect("JSON");
    let mut draft = Draft::new(topic(name), std::borrow::Cow::Owned(payload));
    draft.options.key = Some(key.to_owned().into());
    bus.publish(&draft).await.expect("published")
}

/// An event of the topic `t`.
pub(crate) async fn publish_tagged(bus: &Bus, key: &str, tag: &str, payload: impl Into<Value>) -> Published {
    let payload = promethean_event::payload_of(&payload.into()).expect("JSON");
    let mut draft = Draft::new(topic("t"), std::borrow::Cow::Owned(payload));
    draft.options.key = Some(key.to_owned().into());
    draft.options.tags = vec![tag.to_owned().into()];
    bus.publish(&draft).await.expect("published")
}

pub(crate) async fn subscribe(bus: &Bus, name: &str, of: &str, options: SubscribeOptions) -> Subscription {
    bus.subscribe(name, Some(group(of)), options).await.expect("subscribed")
}

/// The next delivery, which has to come.
pub(crate) async fn next(events: &mut Subscription) -> Delivery {
    tokio::time::timeout(Duration::from_secs(60), events.next()).await.expect("a delivery in time").expect("open")
}

/// The payloads of the next `count` deliveries, acked one by one.
pub(crate) async fn drain(events: &mut Subscription, count: usize) -> Vec<String> {
    let mut payloads = Vec::new();
    for _ in 0..count {
        let delivery = next(events).await;
        payloads.push(delivery.event().payload().to_owned());
        delivery.ack().await.expect("acked");
    }
    payloads
}

/// Nothing comes for `quiet` of the runtime's (paused) time.
pub(crate) async fn nothing(events: &mut Subscription, quiet: Duration) {
    if let Ok(delivery) = tokio::time::timeout(quiet, events.next()).await {
        panic!("unexpected: {}", delivery.expect("open").event().to_json());
    }
}
