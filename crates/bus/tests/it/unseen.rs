//! A delivery that waited in the inbox until its lease was over was seen by nobody: it is no attempt.

use std::time::Duration;

use crate::common::{bus, earliest, group, next, nothing, publish, topic};
use promethean_bus::{Bus, Inbox, Request, Selector, SubscribeOptions};
use promethean_store::ReadMax;

const LEASE: Duration = Duration::from_secs(1);

fn options() -> SubscribeOptions {
    SubscribeOptions { max_attempts: 2, ack_timeout: LEASE, max_in_flight: 4, ..earliest() }
}

async fn letters(bus: &Bus) -> usize {
    bus.store().read(&topic("dlq.t"), 1, ReadMax::events(10)).await.expect("readable").len()
}

#[tokio::test(start_paused = true)]
async fn a_subscriber_that_does_not_look_for_many_leases_finds_first_attempts() {
    let bus = bus();
    for n in 0..6 {
        publish(&bus, "t", n).await;
    }
    let mut events = bus.subscribe("t", Some(group("g")), options()).await.expect("subscribed");
    tokio::time::sleep(20 * LEASE).await;
    for n in 0..6 {
        let delivery = next(&mut events).await;
        assert_eq!((delivery.event().payload(), delivery.attempt()), (n.to_string().as_str(), 1));
        delivery.ack().await.expect("acked");
    }
    nothing(&mut events, 20 * LEASE).await;
    assert_eq!(letters(&bus).await, 0);
}

#[tokio::test(start_paused = true)]
async fn what_was_taken_counts_and_what_was_not_does_not() {
    for shared in [false, true] {
        let bus = bus();
        for n in 0..3 {
            publish(&bus, "t", n).await;
        }
        let inbox = Inbox::new();
        let selectors = if shared { vec!["t", "other"] } else { Vec::new() };
        let topics = selectors.into_iter().map(|name| Selector::parse(name).expect("a topic")).collect();
        let request = Request {
            topic: Selector::parse("t").expect("a topic"),
            group: Some(group("g")),
            options: SubscribeOptions { topics, ..options() },
            gate: None,
            relayed: None,
        };
        let (_membership, _) = bus.attach(request, &inbox).await.expect("subscribed");
        let mut taken = Vec::new();
        inbox.ready().await;
        inbox.take(1, usize::MAX, bus.now(), &mut taken);
        tokio::time::sleep(LEASE + LEASE / 2).await;
        inbox.take(9, usize::MAX, bus.now(), &mut taken);
        let attempts: Vec<_> = taken.iter().map(|given| (given.event.payload(), given.attempt)).collect();
        assert_eq!(attempts, [("0", 1), ("1", 1), ("2", 1), ("0", 2)], "shared: {shared}");
        assert_eq!(letters(&bus).await, 0);
        tokio::time::sleep(LEASE + LEASE / 2).await;
        assert_eq!(letters(&bus).await, 1, "of the first alone, which was taken twice; shared: {shared}");
        taken.clear();
        inbox.take(9, usize::MAX, bus.now(), &mut taken);
        let attempts: Vec<_> = taken.iter().map(|given| (given.event.payload(), given.attempt)).collect();
        assert_eq!(attempts, [("1", 2), ("2", 2)], "shared: {shared}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_begins_when_the_delivery_is_handed_over_and_lasts_in_full() {
    let bus = bus();
    for n in 0..3 {
        publish(&bus, "t", n).await;
    }
    let inbox = Inbox::new();
    let request = Request {
        topic: Selector::parse("t").expect("a topic"),
        group: Some(group("g")),
        options: SubscribeOptions { max_attempts: 1, ..options() },
        gate: None,
        relayed: None,
    };
    let (membership, _) = bus.attach(request, &inbox).await.expect("subscribed");
    tokio::time::sleep(20 * LEASE + LEASE / 3).await;
    let mut taken = Vec::new();
    for _ in 0..2 {
        inbox.take(1, usize::MAX, bus.now(), &mut taken);
        tokio::time::sleep(LEASE / 2).await;
    }
    assert!(taken.iter().all(|given| given.attempt == 1));
    assert_eq!(taken[1].deadline.since(taken[0].deadline), LEASE / 2);
    // The first is over at its deadline, not before and not after; the second is answered in time.
    assert_eq!(letters(&bus).await, 0);
    tokio::time::sleep(LEASE / 20).await;
    assert_eq!(letters(&bus).await, 1);
    membership.answer(vec![(taken[1].event.id, None)], promethean_bus::Answer::Ack).await.expect("acked");
    tokio::time::sleep(20 * LEASE).await;
    assert_eq!(letters(&bus).await, 1);
    taken.clear();
    inbox.take(9, usize::MAX, bus.now(), &mut taken);
    assert_eq!((taken.len(), taken[0].attempt), (1, 1), "the third was never handed over");
}

#[tokio::test(start_paused = true)]
async fn a_subscriber_that_leaves_has_failed_only_at_what_it_was_handed() {
    let bus = bus();
    for n in 0..3 {
        publish(&bus, "t", n).await;
    }
    let mut first = bus.subscribe("t", Some(group("g")), options()).await.expect("subscribed");
    next(&mut first).await;
    drop(first);
    let mut second = bus.subscribe("t", Some(group("g")), options()).await.expect("subscribed");
    for attempt in [2, 1, 1] {
        assert_eq!(next(&mut second).await.attempt(), attempt);
    }
}
