//! Topics that are deleted and purged under their subscribers.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{bus, earliest, group, next, nothing, publish, subscribe, topic};
use promethean_bus::{Bus, BusOptions, Code, Purge, SubscribeOptions, Subscription};
use promethean_event::Millis;
use promethean_store::memory::Memory;

/// The code with which a subscription ends, after what was on its way.
async fn end_of(events: &mut Subscription) -> Code {
    loop {
        let next = tokio::time::timeout(Duration::from_secs(60), events.next()).await.expect("an end in time");
        if let Err(error) = next {
            return error.code;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_deleted_topic_ends_its_subscriptions_and_a_pattern_stays() {
    let bus = bus();
    for n in 0..3 {
        publish(&bus, "t.a", n).await;
    }
    publish(&bus, "t.other", 0).await;
    let mut member = subscribe(&bus, "t.a", "g", earliest()).await;
    let mut pattern = subscribe(&bus, "t.**", "wide", earliest()).await;
    let mut tail = bus.subscribe("t.a", None, SubscribeOptions::default()).await.expect("subscribed");
    let held = next(&mut member).await;
    for _ in 0..4 {
        next(&mut pattern).await.ack().await.expect("acked");
    }
    let size = bus.topic_size(&topic("t.a")).await.expect("known");
    assert_eq!((size.events, size.groups), (3, 2));
    bus.delete_topics(&[topic("t.a")]).await.expect("deleted");
    assert_eq!(end_of(&mut member).await, Code::TopicDeleted);
    assert_eq!(end_of(&mut tail).await, Code::TopicDeleted);
    nothing(&mut pattern, Duration::from_secs(5)).await;
    drop(held.ack().await);
    assert_eq!(bus.topic_size(&topic("t.a")).await.expect_err("gone").code, Code::UnknownTopic);
    assert!(bus.store().groups(&topic("t.a")).await.expect("listed").is_empty());
    // It is created again: the pattern has its first event, above the last seq.
    for seq in [4, 5] {
        publish(&bus, "t.a", 9).await;
        let delivery = next(&mut pattern).await;
        assert_eq!((delivery.event().topic.as_str(), delivery.event().seq), ("t.a", seq));
        delivery.ack().await.expect("acked");
    }
    let mut again = subscribe(&bus, "t.a", "g", earliest()).await;
    assert_eq!(next(&mut again).await.event().seq, 4);
    publish(&bus, "t.other", 1).await;
    assert_eq!(next(&mut pattern).await.event().topic.as_str(), "t.other");
}

#[tokio::test(start_paused = true)]
async fn a_topic_that_is_deleted_and_filled_at_once_is_joined_again_by_patterns() {
    let bus = bus();
    publish(&bus, "t.a", 0).await;
    let mut pattern = subscribe(&bus, "t.*", "g", earliest()).await;
    next(&mut pattern).await.ack().await.expect("acked");
    for seq in 2..8 {
        bus.delete_topics(&[topic("t.a")]).await.expect("deleted");
        publish(&bus, "t.a", 1).await;
        let delivery = next(&mut pattern).await;
        assert_eq!((delivery.event().seq, delivery.attempt()), (seq, 1));
        delivery.ack().await.expect("acked");
    }
}

#[tokio::test(start_paused = true)]
async fn a_created_topic_is_joined_by_patterns_before_its_first_event() {
    let bus = bus();
    let mut pattern = subscribe(&bus, "new.*", "g", SubscribeOptions::default()).await;
    assert!(bus.create_topic(&topic("new.one")).await.expect("created"));
    assert!(!bus.create_topic(&topic("new.one")).await.expect("there"));
    nothing(&mut pattern, Duration::from_secs(1)).await;
    publish(&bus, "new.one", 1).await;
    assert_eq!(next(&mut pattern).await.event().seq, 1);
}

async fn keyed(bus: &Bus, key: &str, ts: u64) {
    let mut draft = promethean_bus::Draft::new(
        topic("t"),
        std::borrow::Cow::Owned(promethean_event::payload_of(&1).expect("JSON")),
    );
    draft.options.key = Some(key.to_owned().into());
    draft.options.ts = Some(Millis(ts));
    bus.publish(&draft).await.expect("published");
}

#[tokio::test(start_paused = true)]
async fn a_purge_removes_what_it_names_and_groups_have_it_done() {
    for purge in [
        Purge::BeforeSeq(5),
        Purge::BeforeTs(Millis(1_004)),
        Purge::Keys(HashSet::from(["a".to_owned(), "nobody".to_owned()])),
    ] {
        let bus = bus();
        for n in 0..8 {
            keyed(&bus, if n % 2 == 0 { "a" } else { "b" }, 1_000 + n).await;
        }
        drop(subscribe(&bus, "t", "stopped", earliest()).await);
        let options = SubscribeOptions { max_in_flight: 3, ..earliest() };
        let mut running = subscribe(&bus, "t", "running", options).await;
        let held = [next(&mut running).await, next(&mut running).await];
        let dry = bus.purge_topic(&topic("t"), &purge, true).await.expect("counted");
        assert_eq!(dry.events, 4, "{purge:?}");
        assert_eq!(bus.store().info(&topic("t")).await.expect("known").expect("there").events, 8);
        assert_eq!(bus.purge_topic(&topic("t"), &purge, false).await.expect("purged"), dry);
        assert_eq!(bus.purge_topic(&topic("t"), &purge, false).await.expect("purged").events, 0);
        let left = match purge {
            Purge::Keys(_) => [2, 4, 6, 8],
            _ => [5, 6, 7, 8],
        };
        for name in ["stopped", "running"] {
            let lag = bus.lag(&topic("t"), &group(name)).await.expect("readable");
            assert_eq!(lag.events, 4, "{name} {purge:?}");
        }
        for delivery in held {
            delivery.ack().await.expect("an answer to a removed event counts");
        }
        let mut seen = Vec::new();
        let mut stopped = subscribe(&bus, "t", "stopped", earliest()).await;
        for _ in 0..4 {
            let delivery = next(&mut stopped).await;
            seen.push(delivery.event().seq);
            delivery.ack().await.expect("acked");
        }
        assert_eq!(seen, left, "{purge:?}");
        nothing(&mut stopped, Duration::from_secs(1)).await;
        assert_eq!(bus.lag(&topic("t"), &group("stopped")).await.expect("readable").events, 0);
    }
    let unknown = bus().purge_topic(&topic("nothing"), &Purge::BeforeSeq(1), false).await;
    assert_eq!(unknown.expect_err("refused").code, Code::UnknownTopic);
}

#[tokio::test(start_paused = true)]
async fn without_auto_create_only_topics_that_were_created_are_known() {
    let options = BusOptions { auto_create: false, ..BusOptions::default() };
    let bus = Bus::new(Arc::new(Memory::new()), options);
    let publishing = async |name: &str| bus.publish_value(&topic(name), &1).await.map(|placed| placed.seq);
    assert_eq!(publishing("t").await.expect_err("refused").code, Code::UnknownTopic);
    let refused = bus.subscribe("t", Some(group("g")), earliest()).await.err().expect("refused");
    assert_eq!(refused.code, Code::UnknownTopic);
    assert!(bus.subscribe("t", None, earliest()).await.is_err());
    let mut pattern = subscribe(&bus, "*", "wide", earliest()).await;
    bus.create_topic(&topic("t")).await.expect("created");
    assert_eq!(publishing("t").await.expect("published"), 1);
    assert_eq!(next(&mut pattern).await.event().topic.as_str(), "t");
    drop(subscribe(&bus, "t", "g", earliest()).await);
    // The hub's own topics are exempt.
    for own in ["dlq.t", "t.snapshot"] {
        publishing(own).await.expect("published");
        drop(bus.subscribe(own, Some(group("g")), earliest()).await.expect("subscribed"));
    }
    bus.delete_topics(&[topic("t")]).await.expect("deleted");
    assert_eq!(publishing("t").await.expect_err("refused").code, Code::UnknownTopic);
}
