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
        for round in 1..=2 {
            taken.clear();
            while taken.is_empty() {
                inbox.ready().await;
                inbox.take(1, usize::MAX, bus.now(), &mut taken);
            }
            assert_eq!((taken[0].event.payload(), taken[0].attempt), ("0", round), "shared: {shared}");
            tokio::time::sleep(LEASE).await;
        }
        tokio::time::sleep(LEASE / 2).await;
        assert_eq!(letters(&bus).await, 1, "of the first alone, which was taken twice; shared: {shared}");
        taken.clear();
        inbox.take(9, usize::MAX, bus.now(), &mut taken);
        let attempts: Vec<_> = taken.iter().map(|given| (given.event.payload(), given.attempt)).collect();
        assert_eq!(attempts, [("1", 1), ("2", 1)], "shared: {shared}");
    }
}
