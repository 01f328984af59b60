//! Redriving dead letters to the group that failed.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{bus, drain, earliest, group, next, nothing, publish, subscribe, topic};
use promethean_bus::{Bus, Code, Letters, Ordered, SubscribeOptions};
use promethean_store::ReadMax;
use promethean_store::memory::Memory;

const SECOND: Duration = Duration::from_secs(1);

fn once() -> SubscribeOptions {
    SubscribeOptions { max_attempts: 1, ..earliest() }
}

/// Publishes 1 to 3; the group fails the second one.
async fn fail_the_second(bus: &Bus, of: &str) {
    let mut events = subscribe(bus, "t", of, once()).await;
    for n in 1..=3 {
        publish(bus, "t", n).await;
        let delivery = next(&mut events).await;
        if n == 2 { delivery.nack("no").await.expect("nacked") } else { delivery.ack().await.expect("acked") }
    }
    nothing(&mut events, SECOND).await;
}

#[tokio::test(start_paused = true)]
async fn the_event_itself_goes_to_the_group_that_failed_and_to_no_other() {
    let bus = bus();
    fail_the_second(&bus, "g").await;
    let mut other = subscribe(&bus, "t", "other", earliest()).await;
    drain(&mut other, 3).await;
    let mut failed = subscribe(&bus, "t", "g", once()).await;
    let done = bus.redrive(&topic("t"), 10, &Letters::default()).await.expect("redriven");
    assert_eq!((done.redriven, done.remaining, done.gone, done.refused), (1, 0, 0, 0));
    let again = next(&mut failed).await;
    assert_eq!((again.event().seq, again.attempt(), again.given().redriven), (2, 1, true));
    assert_eq!(bus.lag(&topic("t"), &group("g")).await.expect("lag").events, 1);
    let letter = bus.store().read(&topic("dlq.t"), 1, ReadMax::events(1)).await.expect("readable").remove(0);
    assert_eq!(letter.fields().caused_by, [again.event().id], "the same id");
    again.ack().await.expect("acked");
    let cursor = bus.cursor(&topic("t"), &group("g")).await.expect("readable").expect("a cursor");
    assert_eq!((cursor.seq, cursor.last_id.is_some()), (3, true));
    nothing(&mut other, SECOND).await;
    nothing(&mut failed, SECOND).await;
    assert_eq!(bus.store().info(&topic("t")).await.expect("readable").expect("there").last_seq, 3, "no copy");
    let done = bus.redrive(&topic("t"), 10, &Letters::default()).await.expect("redriven");
    assert_eq!((done.redriven, done.remaining), (0, 0), "each letter once");
}

#[tokio::test(start_paused = true)]
async fn a_redriven_event_survives_a_restart_and_fails_into_a_letter_of_its_own() {
    let store = Arc::new(Memory::new());
    let first = Bus::new(Arc::clone(&store) as _, Default::default());
    fail_the_second(&first, "g").await;
    first.redrive(&topic("t"), 10, &Letters::default()).await.expect("redriven");
    first.drain().await;
    let bus = Bus::new(store, Default::default());
    let cursor = bus.cursor(&topic("t"), &group("g")).await.expect("readable").expect("a cursor");
    assert_eq!((cursor.seq, cursor.last_id.is_some()), (1, true), "the event before it");
    for letters in 2..=3 {
        let mut events = subscribe(&bus, "t", "g", once()).await;
        let again = next(&mut events).await;
        assert_eq!((again.event().seq, again.attempt(), again.given().redriven), (2, 1, true));
        again.nack("still no").await.expect("nacked");
        nothing(&mut events, SECOND).await;
        assert_eq!(bus.store().info(&topic("dlq.t")).await.expect("readable").expect("there").events, letters);
        assert_eq!(bus.lag(&topic("t"), &group("g")).await.expect("lag").events, 0);
        assert_eq!(bus.redrive(&topic("t"), 10, &Letters::default()).await.expect("redriven").redriven, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_letter_whose_event_has_left_the_log_stays_and_is_counted() {
    let bus = bus();
    fail_the_second(&bus, "g").await;
    bus.store().trim(&topic("t"), 3).await.expect("trimmed");
    for dry_run in [true, false] {
        let letters = Letters { dry_run, ..Letters::default() };
        let done = bus.redrive(&topic("t"), 10, &letters).await.expect("answered");
        assert_eq!((done.redriven, done.remaining, done.gone), (0, 1, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn a_group_that_was_forgotten_takes_none_of_its_letters() {
    let bus = bus();
    fail_the_second(&bus, "g").await;
    assert!(bus.forget_group(&topic("t"), &group("g")).await.expect("forgotten"));
    let done = bus.redrive(&topic("t"), 10, &Letters::default()).await.expect("answered");
    assert_eq!((done.redriven, done.remaining, done.refused), (0, 1, 1));
    assert_eq!(done.refusals[0].1.code, Code::NotFound);
}

#[tokio::test(start_paused = true)]
async fn a_redriven_event_waits_for_the_one_that_is_out_where_the_topic_is_ordered() {
    let bus = bus();
    let mut events = subscribe(&bus, "t", "g", SubscribeOptions { ordered: Ordered::Topic, ..once() }).await;
    publish(&bus, "t", 1).await;
    next(&mut events).await.nack("no").await.expect("nacked");
    for n in 2..=3 {
        publish(&bus, "t", n).await;
    }
    let two = next(&mut events).await;
    bus.redrive(&topic("t"), 10, &Letters::default()).await.expect("redriven");
    nothing(&mut events, SECOND).await;
    two.ack().await.expect("acked");
    assert_eq!(drain(&mut events, 2).await, ["1", "3"]);
}
