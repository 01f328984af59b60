//! A subscriber to several topics shares its room over them, also where another hub owns the group of one: what it does
//! not hold any more there is free for the others, though nothing else happens.

use std::sync::Arc;
use std::time::Duration;

use super::world::{Hub, World};
use super::{SECOND, earliest, group, next, publish, subscribe, topic};
use promethean_bus::{SubscribeOptions, Subscription};

/// Hub a owns the group on `ns.a` and has a member there that is paused; the subscriber at b takes `ns.*`.
async fn two(options: SubscribeOptions) -> (Arc<World>, [Hub; 2], [Subscription; 2]) {
    let world = World::new();
    let (a, b) = (world.hub("a"), world.hub("b"));
    publish(&a.bus, "ns.a", 0).await;
    let SubscribeOptions { max_attempts, ack_timeout, .. } = options.clone();
    let at_a = SubscribeOptions { max_attempts, ack_timeout, ..SubscribeOptions::default() };
    let at_a = subscribe(&a.bus, "ns.a", "g", at_a).await;
    at_a.pause(true);
    let at_b = subscribe(&b.bus, "ns.*", "g", options).await;
    assert_eq!(world.owner_of(&topic("ns.a"), &group("g")).await.as_deref(), Some("a"));
    (world, [a, b], [at_a, at_b])
}

fn one(max_attempts: u32, ack_timeout: Duration) -> SubscribeOptions {
    SubscribeOptions { max_in_flight: 1, max_attempts, ack_timeout, ..earliest() }
}

/// What is published on the other topic comes.
async fn goes_on(hub: &Hub, events: &mut Subscription, within: Duration) {
    publish(&hub.bus, "ns.b", "other").await;
    let delivery = tokio::time::timeout(within, next(events)).await.expect("the other topic goes on");
    assert_eq!(delivery.event().topic, topic("ns.b"));
}

#[tokio::test(start_paused = true)]
async fn an_event_that_another_member_took_after_its_lease_is_not_held_any_more() {
    let (_world, [a, b], [mut at_a, mut at_b]) = two(one(0, SECOND)).await;
    publish(&a.bus, "ns.a", 1).await;
    assert_eq!(next(&mut at_b).await.event().payload(), "1");
    // From here on it belongs to whoever is next, and the subscriber at b takes nothing more of it.
    at_b.pause(true);
    at_a.pause(false);
    next(&mut at_a).await.ack().await.expect("acked");
    at_b.pause(false);
    goes_on(&b, &mut at_b, 3 * SECOND).await;
}

#[tokio::test(start_paused = true)]
async fn an_event_that_was_given_up_is_not_held_any_more() {
    let (_world, [a, b], [_at_a, mut at_b]) = two(one(1, SECOND)).await;
    publish(&a.bus, "ns.a", 1).await;
    next(&mut at_b).await;
    tokio::time::sleep(2 * SECOND).await;
    goes_on(&b, &mut at_b, 3 * SECOND).await;
}

#[tokio::test(start_paused = true)]
async fn what_an_ack_up_to_did_is_not_held_any_more() {
    let (_world, [a, b], [_at_a, mut at_b]) = two(one(5, 60 * SECOND)).await;
    publish(&a.bus, "ns.a", 1).await;
    let id = next(&mut at_b).await.event().id;
    at_b.membership().ack_up_to(id, None).await.expect("acked");
    goes_on(&b, &mut at_b, SECOND).await;
}

#[tokio::test(start_paused = true)]
async fn an_event_that_is_given_again_takes_no_second_place() {
    let options = SubscribeOptions { max_in_flight: 6, ack_timeout: SECOND, ..earliest() };
    let (_world, [a, b], [_at_a, mut at_b]) = two(options).await;
    for n in 1..=5 {
        publish(&a.bus, "ns.a", n).await;
        assert_eq!(next(&mut at_b).await.attempt(), 1);
        let again = next(&mut at_b).await;
        assert_eq!(again.attempt(), 2);
        again.ack().await.expect("acked");
    }
    for n in 0..6 {
        publish(&b.bus, "ns.b", n).await;
    }
    for n in 0..6 {
        let delivery = tokio::time::timeout(SECOND / 2, next(&mut at_b)).await;
        assert_eq!(delivery.expect("all six at once").event().payload(), n.to_string());
    }
}
