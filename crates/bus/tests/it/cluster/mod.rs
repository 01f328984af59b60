//! Groups whose members are on several hubs: one owner at a time, relays to it, failover. Paused time.

mod room;
mod world;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::{drain, earliest, group, next, nothing, publish, publish_keyed, subscribe, topic};
use promethean_bus::{Code, EventId, From, Ordered, SubscribeOptions, Subscription};
use world::World;

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn members_on_two_hubs_share_a_group_and_every_event_goes_to_one() {
    let world = World::new();
    let (a, b) = (world.hub("a"), world.hub("b"));
    let few = || SubscribeOptions { max_in_flight: 1, ..earliest() };
    let mut at_a = subscribe(&a.bus, "t", "g", few()).await;
    let mut at_b = subscribe(&b.bus, "t", "g", few()).await;
    for n in 0..20 {
        publish(&b.bus, "t", n).await;
    }
    let mut seen = Vec::new();
    for _ in 0..10 {
        seen.extend(drain(&mut at_a, 1).await);
        seen.extend(drain(&mut at_b, 1).await);
    }
    seen.sort_by_key(|text| text.parse::<u32>().expect("a number"));
    assert_eq!(seen, (0..20).map(|n| n.to_string()).collect::<Vec<_>>());
    nothing(&mut at_a, SECOND).await;
    nothing(&mut at_b, SECOND).await;
    assert_eq!(world.owner_of(&topic("t"), &group("g")).await.as_deref(), Some("a"));
    for hub in [&a, &b] {
        let lag = hub.bus.lag(&topic("t"), &group("g")).await.expect("known");
        assert_eq!((lag.events, lag.cursor.map(|cursor| cursor.seq)), (0, Some(20)));
        let status = hub.bus.group_status(&topic("t"), &group("g")).await.expect("known").expect("a group");
        assert_eq!(status.members.len(), 2, "each hub tells of all members");
    }
}

#[tokio::test(start_paused = true)]
async fn while_the_owner_hangs_every_hub_tells_how_its_groups_stand_by_what_was_saved() {
    let world = World::new();
    let (a, b, c) = (world.hub("a"), world.hub("b"), world.hub("c"));
    let mut at_a = subscribe(&a.bus, "t", "g", earliest()).await;
    for n in 0..3 {
        publish(&a.bus, "t", n).await;
    }
    next(&mut at_a).await.ack().await.expect("acked");
    let _at_b = subscribe(&b.bus, "t", "g", earliest()).await;
    world.silent.store(true, Ordering::SeqCst);
    let began = tokio::time::Instant::now();
    for (hub, what) in [(&b, "one with members"), (&c, "one without")] {
        let lag = hub.bus.lag(&topic("t"), &group("g")).await.expect(what);
        assert_eq!((lag.events, lag.cursor.map(|cursor| cursor.seq)), (2, Some(1)), "{what}");
        let status = hub.bus.group_status(&topic("t"), &group("g")).await.expect(what).expect("a group");
        assert_eq!((status.cursor.seq, status.lag), (1, 2), "{what}");
        assert_eq!(status.owner_silent.as_deref(), Some("ws://a (no answer within 2s)"), "{what}");
        assert_eq!(status.members.len(), usize::from(hub.name == b.name), "{what}: its own");
    }
    let own = a.bus.group_status(&topic("t"), &group("g")).await.expect("known").expect("a group");
    assert_eq!((own.owner_silent, own.members.len()), (None, 2), "the owner itself knows");
    assert!(began.elapsed() < 10 * SECOND, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn when_the_owner_dies_its_events_come_again_elsewhere_and_acked_ones_do_not() {
    let world = World::new();
    let (a, b) = (world.hub("a"), world.hub("b"));
    let mut at_a = subscribe(&a.bus, "t", "g", earliest()).await;
    for n in 0..4 {
        publish(&a.bus, "t", n).await;
    }
    let first = next(&mut at_a).await;
    first.ack().await.expect("acked");
    let mut at_b = subscribe(&b.bus, "t", "g", earliest()).await;
    nothing(&mut at_b, SECOND).await;
    a.dies();
    assert_eq!(drain(&mut at_b, 3).await, ["1", "2", "3"]);
    assert_eq!(world.owner_of(&topic("t"), &group("g")).await.as_deref(), Some("b"));
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_was_stopped_saves_nothing_steps_down_and_its_subscriber_goes_on_at_the_new_owner() {
    let world = World::new();
    let (a, b) = (world.hub("a"), world.hub("b"));
    let mut at_a = subscribe(&a.bus, "t", "g", SubscribeOptions { max_in_flight: 2, ..earliest() }).await;
    for n in 0..4 {
        publish(&a.bus, "t", n).await;
    }
    let (zero, one) = (next(&mut at_a).await, next(&mut at_a).await);
    a.is_declared_dead();
    let mut at_b = subscribe(&b.bus, "t", "g", SubscribeOptions { max_in_flight: 1, ..earliest() }).await;
    let again = next(&mut at_b).await;
    assert_eq!((again.event().payload(), again.event().id), ("0", zero.event().id), "the new owner gives it out");
    a.comes_back();
    // Its save matches nothing. The ack goes to the new owner, which has given the event to somebody else.
    let late = at_a.ack_all(std::slice::from_ref(&zero)).await.expect_err("it is somebody else's");
    assert_eq!(late.code, Code::AckFailed, "{late}");
    assert_eq!(zero.ack().await.expect_err("an old number").code, Code::LeaseLost);
    again.ack().await.expect("acked");
    // What the old owner had given to this one, the new owner gives to this one again.
    let mut rest = std::collections::BTreeMap::new();
    while rest.len() < 3 {
        let delivery = tokio::select! {
            one = at_a.next() => one.expect("open"),
            one = at_b.next() => one.expect("open"),
        };
        delivery.ack().await.expect("acked");
        assert_eq!(rest.insert(delivery.event().seq, delivery.event().payload().to_owned()), None, "once");
    }
    assert_eq!(rest.into_values().collect::<Vec<_>>(), ["1", "2", "3"]);
    assert_eq!(b.bus.lag(&topic("t"), &group("g")).await.expect("known").events, 0);
    drop(one);
}

#[tokio::test(start_paused = true)]
async fn what_waits_at_an_owner_that_lost_its_lease_is_not_passed_on() {
    let world = World::new();
    let (a, b) = (world.hub("a"), world.hub("b"));
    let mut at_a = subscribe(&a.bus, "t", "g", earliest()).await;
    publish(&a.bus, "t", 1).await;
    tokio::time::sleep(SECOND).await;
    // It waits in the inbox of a's subscriber, who has not asked for it yet.
    a.dies();
    let mut at_b = subscribe(&b.bus, "t", "g", earliest()).await;
    assert_eq!(drain(&mut at_b, 1).await, ["1"]);
    nothing(&mut at_a, SECOND).await;
}

#[tokio::test(start_paused = true)]
async fn the_last_member_to_leave_gives_the_group_up() {
    let world = World::new();
    let (a, b) = (world.hub("a"), world.hub("b"));
    let at_a = subscribe(&a.bus, "t", "g", earliest()).await;
    let at_b = subscribe(&b.bus, "t", "g", earliest()).await;
    drop(at_a);
    tokio::time::sleep(SECOND).await;
    assert_eq!(world.owner_of(&topic("t"), &group("g")).await.as_deref(), Some("a"), "b's member is served by a");
    drop(at_b);
    tokio::time::sleep(SECOND).await;
    assert_eq!(world.owner_of(&topic("t"), &group("g")).await, None);
    let _at_b = subscribe(&b.bus, "t", "g", earliest()).await;
    assert_eq!(world.owner_of(&topic("t"), &group("g")).await.as_deref(), Some("b"));
}

#[tokio::test(start_paused = true)]
async fn what_the_owner_refuses_is_told_through_the_relay() {
    let world = World::new();
    let (a, b) = (world.hub("a"), world.hub("b"));
    let _at_a = subscribe(&a.bus, "t", "g", earliest()).await;
    let ordered = SubscribeOptions { ordered: Ordered::Key, ..earliest() };
    let refused = b.bus.subscribe("t", Some(group("g")), ordered).await.err().expect("refused");
    assert!(refused.code == Code::BadRequest && refused.message.contains("ordered"), "{refused}");
    let unknown = From::AfterId(EventId::from_bytes([9; 16]));
    let seek = b.bus.set_cursor(&topic("t"), &group("g"), unknown).await.expect_err("refused");
    assert_eq!(seek.code, Code::UnknownId);
}

#[tokio::test(start_paused = true)]
async fn leases_nacks_extensions_and_pauses_work_through_the_relay() {
    let world = World::new();
    let (a, b) = (world.hub("a"), world.hub("b"));
    let none = SubscribeOptions { max_in_flight: 1, ..earliest() };
    let at_a = subscribe(&a.bus, "t", "g", none).await;
    at_a.pause(true);
    let mut at_b = subscribe(&b.bus, "t", "g", earliest()).await;
    publish(&b.bus, "t", 1).await;
    let first = next(&mut at_b).await;
    assert_eq!((first.attempt(), first.given().max_attempts), (1, 5));
    first.nack("no").await.expect("nacked");
    let second = next(&mut at_b).await;
    assert_eq!(second.attempt(), 2);
    second.extend(60 * SECOND).await.expect("extended");
    nothing(&mut at_b, 50 * SECOND).await;
    let third = next(&mut at_b).await;
    assert_eq!(third.attempt(), 3, "the lease ran out");
    assert_eq!(second.ack().await.expect_err("an old number").code, Code::LeaseLost);
    third.ack().await.expect("acked");
    at_b.pause(true);
    tokio::time::sleep(SECOND).await;
    publish(&a.bus, "t", 2).await;
    nothing(&mut at_b, SECOND).await;
    at_b.pause(false);
    assert_eq!(drain(&mut at_b, 1).await, ["2"]);
}

#[tokio::test(start_paused = true)]
async fn a_pattern_joins_topics_at_their_owners_and_never_holds_more_than_it_may() {
    let world = World::new();
    let (a, b) = (world.hub("a"), world.hub("b"));
    let mut paused: Vec<Subscription> = Vec::new();
    for name in ["t.1", "t.2", "t.3"] {
        let at_a = subscribe(&a.bus, name, "g", earliest()).await;
        at_a.pause(true);
        paused.push(at_a);
        for n in 0..10 {
            publish(&a.bus, name, n).await;
        }
    }
    let mut at_b = subscribe(&b.bus, "t.*", "g", SubscribeOptions { max_in_flight: 5, ..earliest() }).await;
    let mut held = Vec::new();
    let mut seen = 0;
    while seen < 30 {
        while let Ok(delivery) = tokio::time::timeout(SECOND, at_b.next()).await {
            let delivery = delivery.expect("open");
            assert_eq!(delivery.attempt(), 1, "what did not fit went back uncounted");
            held.push(delivery);
            assert!(held.len() <= 5, "{} held", held.len());
        }
        assert!(!held.is_empty(), "stuck after {seen}");
        for delivery in held.drain(..) {
            delivery.ack().await.expect("acked");
            seen += 1;
        }
    }
    publish(&a.bus, "t.4", 1).await;
    assert_eq!(drain(&mut at_b, 1).await, ["1"], "a topic that comes later is joined");
}

#[tokio::test(start_paused = true)]
async fn ordered_by_key_holds_over_hubs_and_over_a_failover() {
    let world = World::new();
    let (a, b) = (world.hub("a"), world.hub("b"));
    let ordered = || SubscribeOptions { ordered: Ordered::Key, ..earliest() };
    let mut at_a = subscribe(&a.bus, "t", "g", ordered()).await;
    let mut at_b = subscribe(&b.bus, "t", "g", ordered()).await;
    for n in 0..4 {
        publish_keyed(&a.bus, "t", "k", n).await;
    }
    let held = next(&mut at_a).await;
    nothing(&mut at_b, SECOND).await;
    held.ack().await.expect("acked");
    let one = tokio::select! {
        one = at_a.next() => one.expect("open"),
        one = at_b.next() => one.expect("open"),
    };
    assert_eq!(one.event().payload(), "1");
    a.dies();
    assert_eq!(drain(&mut at_b, 3).await, ["1", "2", "3"]);
}

#[tokio::test(start_paused = true)]
async fn a_drain_gives_back_what_relayed_members_hold_without_counting_it() {
    let world = World::new();
    let (a, b) = (world.hub("a"), world.hub("b"));
    let mut at_a = subscribe(&a.bus, "t", "g", earliest()).await;
    at_a.pause(true);
    let mut at_b = subscribe(&b.bus, "t", "g", earliest()).await;
    publish(&a.bus, "t", 1).await;
    let held = next(&mut at_b).await;
    assert_eq!(held.attempt(), 1);
    b.bus.drain().await;
    assert_eq!(at_b.next().await.err().expect("ended").code, Code::ShuttingDown);
    at_a.pause(false);
    let again = next(&mut at_a).await;
    assert_eq!(again.attempt(), 1, "the hub's end is not the event's failure");
}

#[tokio::test(start_paused = true)]
async fn while_nobody_can_be_asked_subscribers_stay_and_go_on_afterwards() {
    let world = World::new();
    let (a, b) = (world.hub("a"), world.hub("b"));
    let _at_a = subscribe(&a.bus, "t", "g", SubscribeOptions { max_in_flight: 1, ..earliest() }).await;
    let mut at_b = subscribe(&b.bus, "t", "g", earliest()).await;
    world.down.store(true, Ordering::SeqCst);
    a.dies();
    publish(&b.bus, "t", 1).await;
    nothing(&mut at_b, 30 * SECOND).await;
    let refused = b.bus.set_cursor(&topic("t"), &group("g"), From::Earliest).await.expect_err("no store");
    assert_eq!(refused.code, Code::AckFailed);
    world.down.store(false, Ordering::SeqCst);
    assert_eq!(drain(&mut at_b, 1).await, ["1"]);
}

/// Counts the warnings of this thread that say that a group cannot be claimed.
#[derive(Clone, Default)]
struct Warned(Arc<AtomicUsize>);

impl tracing::Subscriber for Warned {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut |field: &tracing::field::Field, value: &dyn std::fmt::Debug| {
            let this = field.name() == "message" && format!("{value:?}").contains("cannot be claimed");
            self.0.fetch_add(usize::from(this), Ordering::SeqCst);
        });
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[tokio::test(start_paused = true)]
async fn a_group_that_cannot_be_claimed_is_warned_of_once_an_outage_by_each_hub() {
    let warned = Warned::default();
    let _guard = tracing::subscriber::set_default(warned.clone());
    let world = World::new();
    let (a, b) = (world.hub("a"), world.hub("b"));
    let _at_a = subscribe(&a.bus, "t", "g", SubscribeOptions { max_in_flight: 1, ..earliest() }).await;
    let mut at_b = subscribe(&b.bus, "t", "g", earliest()).await;
    world.down.store(true, Ordering::SeqCst);
    a.dies();
    publish(&b.bus, "t", 1).await;
    nothing(&mut at_b, 30 * SECOND).await;
    world.down.store(false, Ordering::SeqCst);
    assert_eq!(drain(&mut at_b, 1).await, ["1"]);
    assert_eq!(warned.0.load(Ordering::SeqCst), 2, "each of the two hubs once, for some thirty tries");
}

#[tokio::test(start_paused = true)]
async fn of_hubs_that_cannot_reach_each_other_the_one_with_the_subscribers_takes_the_group_over() {
    let world = World::new();
    let (a, b) = (world.hub("a"), world.hub("b"));
    let at_a = subscribe(&a.bus, "t", "g", earliest()).await;
    let mut at_b = subscribe(&b.bus, "t", "g", earliest()).await;
    drop(at_a);
    publish(&b.bus, "t", 1).await;
    let held = next(&mut at_b).await;
    assert_eq!(world.owner_of(&topic("t"), &group("g")).await.as_deref(), Some("a"));
    world.cut(true);
    publish(&b.bus, "t", 2).await;
    let mut again = Vec::new();
    for _ in 0..2 {
        let delivery = next(&mut at_b).await;
        delivery.ack().await.expect("acked");
        again.push(delivery.event().payload().to_owned());
    }
    assert_eq!(again, ["1", "2"], "what it held comes again, and the next one");
    assert_eq!(world.owner_of(&topic("t"), &group("g")).await.as_deref(), Some("b"));
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn a_subscriber_whose_owner_lives_and_cannot_be_reached_is_told_and_its_events_go_to_others() {
    let world = World::new();
    let (a, b) = (world.hub("a"), world.hub("b"));
    let few = || SubscribeOptions { max_in_flight: 1, ..earliest() };
    let mut at_a = subscribe(&a.bus, "t", "g", few()).await;
    let mut at_b = subscribe(&b.bus, "t", "g", few()).await;
    for n in 0..3 {
        publish(&b.bus, "t", n).await;
    }
    let held = next(&mut at_b).await;
    world.cut(true);
    let cut = tokio::time::Instant::now();
    assert_eq!(drain(&mut at_a, 3).await.len(), 3, "also what the other held");
    let told = at_b.next().await.err().expect("told");
    assert!((14 * SECOND..20 * SECOND).contains(&cut.elapsed()), "after {:?}", cut.elapsed());
    assert_eq!(told.code, Code::AckFailed);
    assert!(told.message.contains("cannot be reached") && told.message.contains("another hub"), "{told}");
    let refused = b.bus.subscribe("t", Some(group("g")), earliest()).await.err().expect("refused");
    assert_eq!(refused.code, Code::AckFailed, "{refused}");
    world.cut(false);
    let mut at_b = subscribe(&b.bus, "t", "g", earliest()).await;
    at_a.pause(true);
    publish(&a.bus, "t", 3).await;
    assert_eq!(drain(&mut at_b, 1).await, ["3"], "with the way mended it is served again");
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn a_subscriber_stays_while_neither_the_owner_nor_the_store_can_be_asked() {
    let world = World::new();
    let (a, b) = (world.hub("a"), world.hub("b"));
    let at_a = subscribe(&a.bus, "t", "g", earliest()).await;
    at_a.pause(true);
    let mut at_b = subscribe(&b.bus, "t", "g", earliest()).await;
    world.down.store(true, Ordering::SeqCst);
    world.cut(true);
    nothing(&mut at_b, 60 * SECOND).await;
    world.down.store(false, Ordering::SeqCst);
    world.cut(false);
    publish(&a.bus, "t", 1).await;
    assert_eq!(drain(&mut at_b, 1).await, ["1"]);
}

#[tokio::test(start_paused = true)]
async fn what_is_refused_while_the_store_is_away_is_not_blamed_on_the_way_to_the_owner() {
    let world = World::new();
    let (a, b) = (world.hub("a"), world.hub("b"));
    let _at_a = subscribe(&a.bus, "t", "g", earliest()).await;
    let _at_b = subscribe(&b.bus, "t", "g", earliest()).await;
    world.down.store(true, Ordering::SeqCst);
    world.cut(true);
    let refused = b.bus.subscribe("t", Some(group("g")), earliest()).await.err().expect("refused");
    assert_eq!((refused.code, refused.message.as_str()), (Code::AckFailed, "nobody answers"));
}

#[tokio::test(start_paused = true)]
async fn an_ack_that_was_under_way_when_the_place_was_lost_is_said_to_be_unknown() {
    let world = World::new();
    let a = world.hub("a");
    let mut at_a = subscribe(&a.bus, "t", "g", earliest()).await;
    publish(&a.bus, "t", 1).await;
    let held = next(&mut at_a).await;
    world.down.store(true, Ordering::SeqCst);
    a.dies();
    let told = held.ack().await.expect_err("nobody takes it");
    assert_eq!((told.code, told.message.as_str()), (Code::AckFailed, "the outcome is unknown: nobody answers"));
}

#[tokio::test(start_paused = true)]
async fn a_seek_from_another_hub_is_done_by_the_owner() {
    let world = World::new();
    let (a, b) = (world.hub("a"), world.hub("b"));
    for n in 0..3 {
        publish(&a.bus, "t", n).await;
    }
    let mut at_a = subscribe(&a.bus, "t", "g", earliest()).await;
    drain(&mut at_a, 3).await;
    let cursor = b.bus.set_cursor(&topic("t"), &group("g"), From::Earliest).await.expect("moved");
    assert_eq!(cursor.seq, 0);
    assert_eq!(drain(&mut at_a, 3).await, ["0", "1", "2"]);
    assert_eq!(world.owner_of(&topic("t"), &group("g")).await.as_deref(), Some("a"));
}
