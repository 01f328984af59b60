//! Patterns and topic lists: one subscription, many topics, each with its own cursor.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use crate::common::{bus, earliest, group, next, nothing, publish, subscribe, topic};
use promethean_bus::{Answer, Bus, Code, From, Inbox, Ordered, Receipt, Request, Selector, SubscribeOptions, Topic};
use promethean_store::memory::Memory;
use promethean_store::suite::{Call, Watched, Watcher};
use promethean_store::{Error as StoreError, GroupState, ReadMax};

#[tokio::test(start_paused = true)]
async fn a_pattern_takes_in_topics_that_exist_and_ones_that_turn_up_later() {
    let bus = bus();
    publish(&bus, "a.one", 1).await;
    publish(&bus, "b.other", 0).await;
    let mut events = subscribe(&bus, "a.**", "g", earliest()).await;
    publish(&bus, "a.two", 2).await;
    publish(&bus, "dlq.a.one", 0).await;
    publish(&bus, "a.x.three", 3).await;
    let mut seen = BTreeSet::new();
    for _ in 0..3 {
        let delivery = next(&mut events).await;
        seen.insert(delivery.event().topic.to_string());
        delivery.ack().await.expect("acked");
    }
    assert_eq!(seen, BTreeSet::from(["a.one", "a.two", "a.x.three"].map(str::to_owned)));
    nothing(&mut events, Duration::from_secs(60)).await;
    for name in ["a.one", "a.two", "a.x.three"] {
        let cursor = bus.cursor(&topic(name), &group("g")).await.expect("ok").expect("its own cursor");
        assert_eq!(cursor.seq, 1, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn topics_of_one_subscription_share_its_in_flight_limit() {
    let bus = bus();
    let topics = ["p", "q", "r"].map(|name| Selector::parse(name).expect("a topic")).to_vec();
    let options = SubscribeOptions { topics, max_in_flight: 4, ..earliest() };
    let mut events = subscribe(&bus, "p", "g", options).await;
    for n in 0..20 {
        for name in ["p", "q", "r"] {
            publish(&bus, name, n).await;
        }
    }
    let (mut held, mut seen) = (Vec::new(), 0);
    while seen < 60 {
        while held.len() < 4 && seen + held.len() < 60 {
            held.push(next(&mut events).await);
        }
        nothing(&mut events, Duration::from_millis(50)).await;
        held.remove(0).ack().await.expect("acked");
        seen += 1;
        if held.len() + seen == 60 {
            for delivery in held.drain(..) {
                delivery.ack().await.expect("acked");
                seen += 1;
            }
        }
    }
    nothing(&mut events, Duration::from_secs(60)).await;
}

#[tokio::test(start_paused = true)]
async fn a_gate_is_asked_for_every_topic_also_for_later_ones() {
    let bus = bus();
    publish(&bus, "a.secret", 0).await;
    publish(&bus, "a.open", 1).await;
    let inbox = Inbox::new();
    let request = Request {
        topic: Selector::parse("a.*").expect("a pattern"),
        group: None,
        options: earliest(),
        gate: Some(Arc::new(|topic| !topic.as_str().contains("secret"))),
        relayed: None,
    };
    let (_membership, _) = bus.attach(request, &inbox).await.expect("subscribed");
    publish(&bus, "a.secret2", 0).await;
    publish(&bus, "a.open2", 2).await;
    let mut seen = Vec::new();
    while seen.len() < 2 {
        tokio::time::timeout(Duration::from_secs(60), inbox.ready()).await.expect("deliveries");
        inbox.take(10, usize::MAX, bus.now(), &mut seen);
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    inbox.take(10, usize::MAX, bus.now(), &mut seen);
    let topics: BTreeSet<_> = seen.iter().map(|given| given.event.topic.to_string()).collect();
    assert_eq!(topics, BTreeSet::from(["a.open", "a.open2"].map(str::to_owned)));
}

#[tokio::test(start_paused = true)]
async fn a_cumulative_ack_reaches_only_topics_that_the_subscription_is_on() {
    let bus = bus();
    let secret = publish(&bus, "secret", 1).await.id;
    let hidden = publish(&bus, "a.secret", 1).await.id;
    let open = publish(&bus, "a.open", 1).await.id;
    let _victim = subscribe(&bus, "secret", "g", earliest()).await;
    let _other = subscribe(&bus, "a.secret", "g", earliest()).await;
    for (name, topics) in [("a.*", vec![]), ("a.open", vec![Selector::parse("a.more").expect("a topic")])] {
        let inbox = Inbox::new();
        let request = Request {
            topic: Selector::parse(name).expect("a selector"),
            group: Some(group("g")),
            options: SubscribeOptions { topics, ..earliest() },
            gate: Some(Arc::new(|topic| !topic.as_str().contains("secret"))),
            relayed: None,
        };
        let (membership, _) = bus.attach(request, &inbox).await.expect("subscribed");
        for id in [secret, hidden] {
            let refused = membership.ack_up_to(id, None).await.expect_err("not its topic");
            assert_eq!(refused.code, Code::UnknownId, "{refused}");
        }
        membership.ack_up_to(open, None).await.expect("its own topic");
    }
    for name in ["secret", "a.secret"] {
        assert_eq!(bus.lag(&topic(name), &group("g")).await.expect("readable").events, 1, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn leaving_one_topic_keeps_what_waits_of_the_others() {
    let bus = bus();
    publish(&bus, "a.one", 1).await;
    publish(&bus, "a.two", 2).await;
    let inbox = Inbox::new();
    let topic_name = Selector::parse("a.*").expect("a pattern");
    let request =
        Request { topic: topic_name, group: Some(group("g")), options: earliest(), gate: None, relayed: None };
    let (membership, _) = bus.attach(request, &inbox).await.expect("subscribed");
    tokio::time::sleep(Duration::from_millis(50)).await;
    membership.leave(&topic("a.one"));
    tokio::time::sleep(Duration::from_millis(50)).await;
    let mut given = Vec::new();
    inbox.take(10, usize::MAX, bus.now(), &mut given);
    let topics: Vec<&str> = given.iter().map(|one| one.event.topic.as_str()).collect();
    assert_eq!(topics, ["a.two"]);
}

#[tokio::test(start_paused = true)]
async fn what_came_to_a_new_topic_is_the_groups_though_its_subscriber_was_gone_before_it_could_join() {
    let bus = bus();
    let events = subscribe(&bus, "a.**", "g", SubscribeOptions::default()).await;
    publish(&bus, "a.new", 1).await;
    drop(events);
    let mut events = subscribe(&bus, "a.**", "g", SubscribeOptions::default()).await;
    assert_eq!(next(&mut events).await.event().payload(), "1");
}

#[tokio::test(start_paused = true)]
async fn a_groups_place_on_a_new_topic_is_saved_when_its_first_event_is() {
    let store = Arc::new(Memory::new());
    let bus = Bus::new(store.clone(), Default::default());
    let secret = Request {
        topic: Selector::parse("*.a").expect("a pattern"),
        group: Some(group("blind")),
        options: SubscribeOptions::default(),
        gate: Some(Arc::new(|topic| !topic.as_str().starts_with("new"))),
        relayed: None,
    };
    let _blind = bus.attach(secret, &Inbox::new()).await.expect("subscribed");
    let _one = subscribe(&bus, "new.*", "g", SubscribeOptions::default()).await;
    let _two = subscribe(&bus, "**", "g", SubscribeOptions::default()).await;
    let mut others = subscribe(&bus, "new.*", "letters", SubscribeOptions { max_attempts: 1, ..earliest() }).await;
    let _letters = subscribe(&bus, "dlq.**", "g", SubscribeOptions::default()).await;
    publish(&bus, "new.a", 1).await;
    let (place, version) = bus.store().load(&topic("new.a"), &group("g")).await.expect("readable").expect("a place");
    assert_eq!((&place, version), (&GroupState { generation: place.generation, ..GroupState::default() }, 1));
    assert!(place.generation > 0, "before anybody could join");
    next(&mut others).await.nack("no").await.expect("nacked");
    while bus.store().read(&topic("dlq.new.a"), 1, ReadMax::events(1)).await.expect("readable").is_empty() {
        tokio::task::yield_now().await;
    }
    // Another hub on the same store, as after a kill: nothing was saved at an end.
    let after = Bus::new(store, Default::default());
    for name in ["new.a", "dlq.new.a"] {
        let mut events = subscribe(&after, name, "g", SubscribeOptions::default()).await;
        assert_eq!(next(&mut events).await.event().topic.as_str(), name);
    }
    let blind = after.cursor(&topic("new.a"), &group("blind")).await.expect("readable");
    assert_eq!(blind, None, "what a group may not see it has no place on");
}

#[tokio::test(start_paused = true)]
async fn a_topic_that_is_let_in_later_starts_as_if_it_were_subscribed_to_then() {
    for (from, seen) in [(From::Latest, ["3"].as_slice()), (From::Earliest, &["1", "2", "3"])] {
        for of in [Some(group("g")), None] {
            let bus = bus();
            publish(&bus, "a.hidden", 1).await;
            let (open, inbox) = (Arc::new(AtomicBool::new(false)), Inbox::new());
            let gate = Arc::clone(&open);
            let request = Request {
                topic: Selector::parse("a.*").expect("a pattern"),
                group: of,
                options: SubscribeOptions { from, ..Default::default() },
                gate: Some(Arc::new(move |_| gate.load(Ordering::SeqCst))),
                relayed: None,
            };
            let (membership, _) = bus.attach(request, &inbox).await.expect("subscribed");
            publish(&bus, "a.hidden", 2).await;
            open.store(true, Ordering::SeqCst);
            membership.look_again();
            tokio::time::sleep(Duration::from_secs(1)).await;
            publish(&bus, "a.hidden", 3).await;
            tokio::time::sleep(Duration::from_secs(1)).await;
            let mut given = Vec::new();
            inbox.take(10, usize::MAX, bus.now(), &mut given);
            assert_eq!(given.iter().map(|one| one.event.payload()).collect::<Vec<_>>(), seen, "{from:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_ack_on_a_topic_that_went_out_of_reach_is_refused_and_the_others_of_it_count() {
    let bus = bus();
    let (open, inbox) = (Arc::new(AtomicBool::new(true)), Inbox::new());
    let gate = Arc::clone(&open);
    let request = Request {
        topic: Selector::parse("a.*").expect("a pattern"),
        group: Some(group("g")),
        options: earliest(),
        gate: Some(Arc::new(move |topic| topic.as_str() == "a.open" || gate.load(Ordering::SeqCst))),
        relayed: None,
    };
    let (membership, _) = bus.attach(request, &inbox).await.expect("subscribed");
    let ids = [publish(&bus, "a.gone", 1).await.id, publish(&bus, "a.open", 2).await.id];
    tokio::time::sleep(Duration::from_secs(1)).await;
    open.store(false, Ordering::SeqCst);
    membership.leave(&topic("a.gone"));
    for _ in 0..2 {
        let receipts = membership.answer(ids.map(|id| (id, None)).to_vec(), Answer::Ack).await.expect("answered");
        assert_eq!(receipts[0], Receipt::Forbidden, "as often as it is sent");
    }
    assert_eq!(bus.lag(&topic("a.open"), &group("g")).await.expect("readable").events, 0);
    let mut other = subscribe(&bus, "a.gone", "g", earliest()).await;
    assert_eq!(next(&mut other).await.event().id, ids[0]);
}

#[tokio::test(start_paused = true)]
async fn an_ack_of_an_event_that_was_never_in_reach_tells_nothing() {
    let bus = bus();
    let hidden = publish(&bus, "a.hidden", 1).await.id;
    let request = Request {
        topic: Selector::parse("a.*").expect("a pattern"),
        group: Some(group("g")),
        options: earliest(),
        gate: Some(Arc::new(|topic| topic.as_str() != "a.hidden")),
        relayed: None,
    };
    let (membership, _) = bus.attach(request, &Inbox::new()).await.expect("subscribed");
    let nowhere = promethean_bus::EventId::from_bytes([9; 16]);
    for answer in [Answer::Ack, Answer::Extend { by: Some(Duration::from_secs(9)) }] {
        let ids = [hidden, nowhere].map(|id| (id, None)).to_vec();
        let receipts = membership.answer(ids, answer).await.expect("answered");
        assert_eq!(receipts, [Receipt::NotInFlight; 2], "as of an id that is nowhere");
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_subscribe_to_many_topics_leaves_no_place_behind() {
    let bus = bus();
    for name in ["q.a", "q.b", "q.c"] {
        publish(&bus, name, 1).await;
    }
    let ordered = SubscribeOptions { ordered: Ordered::Key, ..earliest() };
    let _member = subscribe(&bus, "q.b", "g", ordered.clone()).await;
    let refused = bus.subscribe("q.*", Some(group("g")), SubscribeOptions::default()).await;
    assert_eq!(refused.err().map(|error| error.code), Some(Code::BadRequest));
    for name in ["q.a", "q.c"] {
        assert_eq!(bus.cursor(&topic(name), &group("g")).await, Ok(None), "{name}");
    }
    let request = Request {
        topic: Selector::parse("q.*").expect("a pattern"),
        group: Some(group("g")),
        options: ordered,
        gate: None,
        relayed: None,
    };
    let (_membership, cursors) = bus.attach(request, &Inbox::new()).await.expect("subscribed");
    let places: Vec<_> = cursors.iter().map(|cursor| (cursor.topic.as_str(), cursor.seq)).collect();
    assert_eq!(places, [("q.a", 0), ("q.b", 0), ("q.c", 0)], "from counts where there was no place");
}

#[tokio::test(start_paused = true)]
async fn what_is_not_acked_on_a_pattern_comes_again_after_its_lease_or_its_wait_though_nothing_else_happens() {
    let bus = bus();
    publish(&bus, "a.one", 1).await;
    let mut events = subscribe(&bus, "a.*", "g", earliest()).await;
    for attempt in 1..=3 {
        assert_eq!(next(&mut events).await.attempt(), attempt);
    }
    next(&mut events).await.nack_after("later", Duration::from_secs(5)).await.expect("nacked");
    assert_eq!(next(&mut events).await.attempt(), 5);
}

/// A store that tells nobody which topics there are, while it is away.
struct Away(Arc<AtomicBool>);

impl Watcher for Away {
    async fn before(&self, _: Call) {}
    fn refuses(&self, call: Call, _: Option<&Topic>) -> Option<StoreError> {
        let refused = call == Call::Topics && self.0.load(Ordering::SeqCst);
        refused.then(|| StoreError::Refused("away".into()))
    }
}

#[tokio::test(start_paused = true)]
async fn a_topic_that_was_made_while_topics_could_not_be_listed_joins_in_when_they_can_be() {
    let away = Arc::new(AtomicBool::new(false));
    let store = Watched { store: Memory::new(), watcher: Away(Arc::clone(&away)) };
    let bus = Bus::new(Arc::new(store), Default::default());
    publish(&bus, "a.one", 1).await;
    let mut events = subscribe(&bus, "a.*", "g", earliest()).await;
    assert_eq!(next(&mut events).await.event().topic, topic("a.one"));
    away.store(true, Ordering::SeqCst);
    publish(&bus, "a.two", 2).await;
    nothing(&mut events, Duration::from_secs(20)).await;
    away.store(false, Ordering::SeqCst);
    assert_eq!(next(&mut events).await.event().topic, topic("a.two"), "though nothing else happens");
}

/// Lets each task that is to run now run once: unlike `yield_now`, not until there is nothing left to do.
async fn moment() {
    let mut passed = false;
    std::future::poll_fn(|cx| {
        if passed {
            return Poll::Ready(());
        }
        passed = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_subscriber_that_goes_away_in_the_middle_of_a_join_leaves_no_member_behind() {
    let gone_after = async |moments: usize| {
        let bus = bus();
        let events = subscribe(&bus, "a.**", "g", SubscribeOptions::default()).await;
        publish(&bus, "a.new", 1).await;
        for _ in 0..moments {
            moment().await;
        }
        drop(events);
        let mut events = subscribe(&bus, "a.new", "g", SubscribeOptions::default()).await;
        let given = tokio::time::timeout(Duration::from_secs(1), events.next()).await;
        given.unwrap_or_else(|_| panic!("somebody who is gone has it, after {moments} moments")).expect("open");
        let status = bus.group_outline(&topic("a.new"), &group("g")).await.expect("readable").expect("a group");
        assert_eq!(status.members.len(), 1, "after {moments} moments");
    };
    for moments in 0..20 {
        tokio::spawn(async move { gone_after(moments).await }).await.expect("no panic");
    }
}
