//! Dead letters and their way back: each once, some of them or all, whatever the topic says to one of them.

use std::borrow::Cow;
use std::time::Duration;

use crate::common::{bus, drain, earliest, next, nothing, publish, subscribe, topic};
use promethean_bus::{Code, Draft, EventId, Letters, RedriveTo, SubscribeOptions};
use promethean_store::{ReadMax, TopicSettings};

/// Every letter, as a copy for every group.
fn to_topic() -> Letters {
    Letters { to: RedriveTo::Topic, ..Letters::default() }
}

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn dead_letters_are_never_dead_lettered_again() {
    let bus = bus();
    publish(&bus, "dlq.t", 1).await;
    let mut events = subscribe(&bus, "dlq.t", "g", SubscribeOptions { max_attempts: 1, ..earliest() }).await;
    for attempt in 1..=3 {
        let before = tokio::time::Instant::now();
        let delivery = next(&mut events).await;
        assert_eq!(delivery.attempt(), attempt);
        assert!(attempt == 1 || before.elapsed() >= Duration::from_secs(29), "the longest backoff");
        delivery.nack("still no").await.expect("nacked");
    }
    assert_eq!(bus.store().info(&topic("dlq.dlq.t")).await.expect("readable"), None);
}

#[tokio::test(start_paused = true)]
async fn a_redrive_sends_each_letter_back_once() {
    let bus = bus();
    let mut events = subscribe(&bus, "t", "g", SubscribeOptions { max_attempts: 1, ..earliest() }).await;
    for n in 1..=3 {
        publish(&bus, "t", n).await;
        next(&mut events).await.nack("no").await.expect("nacked");
    }
    nothing(&mut events, SECOND).await;
    let some = bus.redrive(&topic("t"), 2, &to_topic()).await.expect("redriven");
    assert_eq!((some.redriven, some.remaining), (2, 1));
    let rest = bus.redrive(&topic("t"), 100, &to_topic()).await.expect("redriven");
    assert_eq!((rest.redriven, rest.remaining), (1, 0));
    let none = bus.redrive(&topic("t"), 100, &to_topic()).await.expect("redriven");
    assert_eq!((none.redriven, none.remaining), (0, 0));
    let first = next(&mut events).await;
    assert_eq!(first.event().payload(), "1");
    let letters = bus.store().read(&topic("dlq.t"), 1, ReadMax::events(1)).await.expect("readable");
    assert_eq!(first.event().fields().caused_by, [letters[0].id]);
}

#[tokio::test(start_paused = true)]
async fn a_redriven_event_has_its_headers_in_the_order_they_were_sent() {
    let bus = bus();
    let mut events = subscribe(&bus, "t", "g", SubscribeOptions { max_attempts: 1, ..earliest() }).await;
    let sent = [("z", "1"), ("a", "2"), ("m", "3")];
    let mut draft = Draft::new(topic("t"), Cow::Owned(promethean_event::payload_of(&1).expect("JSON")));
    draft.options.headers = sent.map(|(name, value)| (name.into(), value.into())).to_vec();
    bus.publish(&draft).await.expect("published");
    next(&mut events).await.nack("no").await.expect("nacked");
    nothing(&mut events, SECOND).await;
    assert_eq!(bus.redrive(&topic("t"), 1, &to_topic()).await.expect("redriven").redriven, 1);
    let again = next(&mut events).await;
    let headers = again.event().fields().headers;
    assert_eq!(headers.iter().map(|(name, value)| (&**name, &**value)).collect::<Vec<_>>(), sent);
}

#[tokio::test(start_paused = true)]
async fn a_letter_that_its_topic_does_not_take_holds_up_no_other() {
    let bus = bus();
    let mut events = subscribe(&bus, "t", "g", SubscribeOptions { max_attempts: 1, ..earliest() }).await;
    for payload in ["one", &"x".repeat(2_000), "three"] {
        bus.publish_value(&topic("t"), payload).await.expect("published");
        next(&mut events).await.nack("no").await.expect("nacked");
    }
    nothing(&mut events, SECOND).await;
    let letters = bus.store().read(&topic("dlq.t"), 1, ReadMax::events(10)).await.expect("readable");
    let set = async |max_event_bytes| {
        let settings = TopicSettings { max_event_bytes, ..Default::default() };
        bus.store().set_settings(&topic("t"), settings).await.expect("set");
    };
    set(Some(1_024)).await;
    for redriven in [2, 0] {
        let done = bus.redrive(&topic("t"), 100, &to_topic()).await.expect("redriven");
        assert_eq!((done.redriven, done.remaining, done.refused), (redriven, 1, 1));
        let named: Vec<_> = done.refusals.iter().map(|(id, error)| (*id, error.code)).collect();
        assert_eq!(named, [(letters[1].id, Code::TooLarge)]);
    }
    set(None).await;
    let done = bus.redrive(&topic("t"), 100, &to_topic()).await.expect("redriven");
    assert_eq!((done.redriven, done.remaining, done.refused), (1, 0, 0));
    assert_eq!(drain(&mut events, 3).await[..2], ["\"one\"", "\"three\""]);
}

#[tokio::test(start_paused = true)]
async fn a_redrive_passes_over_what_one_before_it_sent_back_further_on() {
    let bus = bus();
    for n in 1..=700 {
        let group = if n <= 500 { "old" } else { "new" };
        let letter = serde_json::json!({ "group": group, "err": "no", "original": { "payload": n } });
        bus.publish_value(&topic("dlq.t"), &letter).await.expect("published");
    }
    let new = Letters { group: Some("new".to_owned()), ..to_topic() };
    assert_eq!(bus.redrive(&topic("t"), 1_000, &new).await.expect("redriven").redriven, 200);
    // As if retention had taken them: the log does not know their ids any more.
    bus.store().trim(&topic("t"), 201).await.expect("trimmed");
    let rest = bus.redrive(&topic("t"), 1_000, &to_topic()).await.expect("redriven");
    assert_eq!((rest.redriven, rest.remaining), (500, 0));
    assert_eq!(bus.store().info(&topic("t")).await.expect("readable").expect("there").last_seq, 700);
}

#[tokio::test(start_paused = true)]
async fn a_redrive_of_some_letters_leaves_the_others_for_later() {
    let bus = bus();
    let mut events = subscribe(&bus, "t", "g", SubscribeOptions { max_attempts: 1, ..earliest() }).await;
    for (n, err) in [(1, "odd"), (2, "even"), (3, "odd"), (4, "even"), (5, "odd")] {
        publish(&bus, "t", n).await;
        next(&mut events).await.nack(err).await.expect("nacked");
    }
    nothing(&mut events, SECOND).await;
    let letters = bus.store().read(&topic("dlq.t"), 1, ReadMax::events(10)).await.expect("readable");
    let only = |group: Option<&str>, err: Option<&str>, ids: Vec<EventId>| Letters {
        group: group.map(str::to_owned),
        err: err.map(str::to_owned),
        ids,
        ..to_topic()
    };
    for (wanted, limit, expected) in [
        (only(Some("other"), None, vec![]), 100, (0, 5)),
        (only(Some("g"), Some("even"), vec![]), 1, (1, 4)),
        (only(None, Some("even"), vec![]), 100, (1, 3)),
        (only(None, Some("even"), vec![letters[4].id]), 100, (0, 3)),
        (only(None, None, vec![letters[4].id, letters[1].id]), 100, (1, 2)),
        (to_topic(), 100, (2, 0)),
    ] {
        let done = bus.redrive(&topic("t"), limit, &wanted).await.expect("redriven");
        assert_eq!((done.redriven, done.remaining), expected, "{wanted:?}");
    }
    let back = bus.store().read(&topic("t"), 6, ReadMax::events(10)).await.expect("readable");
    assert_eq!(back.iter().map(|event| event.payload()).collect::<Vec<_>>(), ["2", "4", "5", "1", "3"]);
}

#[tokio::test(start_paused = true)]
async fn letters_that_retention_took_are_not_left() {
    let bus = bus();
    for n in 1..=10 {
        let letter = serde_json::json!({ "group": "g", "err": "no", "original": { "payload": n } });
        bus.publish_value(&topic("dlq.t"), &letter).await.expect("published");
    }
    for (first, redriven, remaining) in [(4, 1, 6), (8, 1, 2), (11, 0, 0)] {
        bus.store().trim(&topic("dlq.t"), first).await.expect("trimmed");
        let done = bus.redrive(&topic("t"), 1, &to_topic()).await.expect("redriven");
        assert_eq!((done.redriven, done.remaining), (redriven, remaining), "from {first}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_event_that_the_topic_just_took_can_be_sent_back_as_often_as_it_fails() {
    let bus = bus();
    let settings = TopicSettings { max_event_bytes: Some(1_024), ..TopicSettings::default() };
    bus.store().set_settings(&topic("t"), settings).await.expect("set");
    let mut events = subscribe(&bus, "t", "g", SubscribeOptions { max_attempts: 1, ..earliest() }).await;
    // The shortest time that an event can say, which the hub's own is longer than.
    let draft = |len: usize| {
        let payload = promethean_event::payload_of(&"x".repeat(len)).expect("JSON");
        let mut draft = promethean_event::Draft::new(topic("t"), std::borrow::Cow::Owned(payload));
        draft.options.ts = Some(promethean_event::Millis(1));
        draft
    };
    let mut taken = 0;
    for len in (800..1_024).rev() {
        if bus.publish(&draft(len)).await.is_ok() {
            taken = len;
            break;
        }
    }
    assert!(taken > 900, "just under the limit: {taken}");
    for _ in 0..3 {
        next(&mut events).await.nack("no").await.expect("nacked");
        nothing(&mut events, SECOND).await;
        let done = bus.redrive(&topic("t"), 10, &to_topic()).await.expect("redriven");
        assert_eq!((done.redriven, done.refused), (1, 0), "{:?}", done.refusals);
    }
    // The partition, which follows from the id, has one digit or two.
    bus.publish(&draft(taken + 2)).await.expect_err("the limit is what it was");
}

#[tokio::test(start_paused = true)]
async fn a_group_that_was_forgotten_and_begins_anew_gets_its_own_dead_letters() {
    let bus = bus();
    publish(&bus, "t", 1).await;
    let give_up = async || {
        let mut events = subscribe(&bus, "t", "g", SubscribeOptions { max_attempts: 1, ..earliest() }).await;
        next(&mut events).await.nack("no").await.expect("nacked");
        nothing(&mut events, SECOND).await;
    };
    give_up().await;
    let group = promethean_bus::Group::parse("g").expect("a group");
    while bus.forget_group(&topic("t"), &group).await.is_err() {
        tokio::time::sleep(SECOND).await;
    }
    // The wall clock is real here.
    std::thread::sleep(Duration::from_millis(2));
    give_up().await;
    let letters = bus.store().read(&topic("dlq.t"), 1, ReadMax::events(9)).await.expect("readable");
    assert_eq!(letters.len(), 2, "a letter for each time that it was given up");
}
