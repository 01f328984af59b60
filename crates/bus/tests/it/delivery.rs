//! What a group promises (PROTOCOL.md section 2), against the bus on the memory engine, with paused time.

use std::time::Duration;

use crate::common::{
    bus, drain, earliest, group, next, nothing, publish, publish_keyed, publish_tagged, subscribe, topic,
};
use promethean_bus::{Answer, Bus, Code, Filter, From, Inbox, Ordered, Request, Selector, SubscribeOptions};
use promethean_store::ReadMax;
use promethean_store::memory::Memory;

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn latest_means_only_what_is_appended_after_the_subscribe() {
    let bus = bus();
    publish(&bus, "t", 1).await;
    let mut events = subscribe(&bus, "t", "g", SubscribeOptions::default()).await;
    publish(&bus, "t", 2).await;
    assert_eq!(drain(&mut events, 1).await, ["2"]);
}

#[tokio::test(start_paused = true)]
async fn a_group_resumes_where_it_was_whatever_from_says() {
    let bus = bus();
    for n in 1..=4 {
        publish(&bus, "t", n).await;
    }
    drain(&mut subscribe(&bus, "t", "g", earliest()).await, 2).await;
    let mut again = subscribe(&bus, "t", "g", SubscribeOptions::default()).await;
    assert_eq!(drain(&mut again, 2).await, ["3", "4"]);
    nothing(&mut again, SECOND).await;
}

#[tokio::test(start_paused = true)]
async fn from_ts_and_after_id_start_where_they_say_and_an_unknown_id_is_named() {
    let bus = bus();
    let mut ids = Vec::new();
    for (n, ts) in [(1, 10), (2, 30), (3, 20), (4, 40)] {
        let payload = promethean_event::payload_of(&n).expect("JSON");
        let mut draft = promethean_bus::Draft::new(topic("t"), std::borrow::Cow::Owned(payload));
        draft.options.ts = Some(promethean_event::Millis(ts));
        ids.push(bus.publish(&draft).await.expect("published").id);
    }
    let options = SubscribeOptions { from: From::Ts(promethean_event::Millis(20)), ..Default::default() };
    let mut by_ts = subscribe(&bus, "t", "ts", options).await;
    assert_eq!(drain(&mut by_ts, 3).await, ["2", "3", "4"]);
    let mut after =
        subscribe(&bus, "t", "id", SubscribeOptions { from: From::AfterId(ids[2]), ..Default::default() }).await;
    assert_eq!(drain(&mut after, 1).await, ["4"]);
    let unknown = From::AfterId(promethean_bus::EventId::from_bytes([9; 16]));
    let refused = bus.subscribe("t", Some(group("x")), SubscribeOptions { from: unknown, ..Default::default() }).await;
    assert_eq!(refused.err().map(|error| error.code), Some(Code::UnknownId));
    assert_eq!(bus.cursor(&topic("t"), &group("x")).await, Ok(None), "a refused subscribe leaves no cursor");
}

#[tokio::test(start_paused = true)]
async fn an_unacked_event_returns_after_its_lease_with_the_next_attempt() {
    let bus = bus();
    let mut events = subscribe(&bus, "t", "g", earliest()).await;
    publish(&bus, "t", 1).await;
    let first = next(&mut events).await;
    let before = tokio::time::Instant::now();
    let second = next(&mut events).await;
    assert_eq!((first.attempt(), second.attempt()), (1, 2));
    assert!(before.elapsed() >= Duration::from_secs(29), "it came back before its lease ran out");
    assert_ne!(first.given().lease, second.given().lease);
    assert_eq!(first.ack().await.map_err(|error| error.code), Err(Code::LeaseLost));
    second.ack().await.expect("acked");
    nothing(&mut events, 60 * SECOND).await;
}

#[tokio::test(start_paused = true)]
async fn a_late_ack_without_a_lease_still_counts() {
    let bus = bus();
    let mut events = subscribe(&bus, "t", "g", earliest()).await;
    let published = publish(&bus, "t", 1).await;
    next(&mut events).await;
    let again = next(&mut events).await;
    assert_eq!(again.attempt(), 2);
    let receipts = events.membership().answer(vec![(published.id, None)], promethean_bus::Answer::Ack).await;
    assert_eq!(receipts, Ok(vec![promethean_bus::Receipt::Done]));
    nothing(&mut events, 120 * SECOND).await;
}

#[tokio::test(start_paused = true)]
async fn an_old_lease_stays_lost_after_the_newer_holder_has_given_the_event_back() {
    let bus = bus();
    let options = SubscribeOptions { max_attempts: 0, ..earliest() };
    let mut events = subscribe(&bus, "t", "g", options).await;
    let id = publish(&bus, "t", 1).await.id;
    let first = next(&mut events).await;
    let second = next(&mut events).await;
    second.nack_after("failed", 10 * SECOND).await.expect("nacked");
    let lost = Err(Code::LeaseLost);
    assert_eq!(first.ack().await.map_err(|error| error.code), lost);
    assert_eq!(first.nack("late").await.map_err(|error| error.code), lost);
    assert_eq!(first.extend(SECOND).await.map_err(|error| error.code), lost);
    let membership = events.membership();
    assert_eq!(membership.ack_up_to(id, Some(first.given().lease)).await.map_err(|error| error.code), lost);
    let third = next(&mut events).await;
    assert_eq!(third.attempt(), 3, "no answer under the old lease counted");
    third.ack().await.expect("acked");
    assert_eq!(first.ack().await, Ok(()), "what is done stays done");
    assert_eq!(events.membership().ack_up_to(id, Some(first.given().lease)).await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_ran_out_counts_until_the_event_is_given_out_again() {
    let bus = bus();
    let mut events = subscribe(&bus, "t", "g", earliest()).await;
    publish(&bus, "t", 1).await;
    let delivery = next(&mut events).await;
    events.pause(true);
    tokio::time::sleep(60 * SECOND).await;
    assert_eq!(delivery.extend(SECOND).await.map_err(|error| error.code), Err(Code::UnknownId));
    delivery.ack().await.expect("nobody has it since");
    events.pause(false);
    nothing(&mut events, 60 * SECOND).await;
}

#[tokio::test(start_paused = true)]
async fn extending_keeps_an_event_from_coming_back() {
    let bus = bus();
    let mut events = subscribe(&bus, "t", "g", earliest()).await;
    publish(&bus, "t", 1).await;
    let delivery = next(&mut events).await;
    for _ in 0..5 {
        delivery.extend(40 * SECOND).await.expect("extended");
        nothing(&mut events, 35 * SECOND).await;
    }
    delivery.ack().await.expect("acked");
    assert_eq!(delivery.extend(SECOND).await.map_err(|error| error.code), Err(Code::UnknownId));
}

#[tokio::test(start_paused = true)]
async fn nacks_come_back_at_once_then_after_100_200_400_ms_and_then_as_a_dead_letter() {
    let bus = bus();
    let mut events = subscribe(&bus, "t", "g", earliest()).await;
    let published = publish_keyed(&bus, "t", "k", 1).await;
    let mut waits = Vec::new();
    for _ in 0..5 {
        let before = tokio::time::Instant::now();
        let delivery = next(&mut events).await;
        waits.push(before.elapsed().as_millis() / 50 * 50);
        delivery.nack("no luck").await.expect("nacked");
    }
    assert_eq!(waits, [0, 0, 100, 200, 400]);
    nothing(&mut events, 60 * SECOND).await;

    let letters = bus.store().read(&topic("dlq.t"), 1, ReadMax::events(10)).await.expect("readable");
    let [letter] = letters.as_slice() else { panic!("one dead letter, not {}", letters.len()) };
    let payload: serde_json::Value = letter.payload_as().expect("JSON");
    assert_eq!((&payload["topic"], &payload["group"], &payload["attempts"]), (&"t".into(), &"g".into(), &5.into()));
    assert_eq!((&payload["err"], &payload["original"]["seq"]), (&"no luck".into(), &1.into()));
    assert_eq!((letter.key().as_deref(), letter.fields().caused_by), (Some("k"), vec![published.id]));
    let cursor = bus.cursor(&topic("t"), &group("g")).await.expect("readable").expect("a cursor");
    assert_eq!((cursor.seq, cursor.last_id), (1, Some(published.id)), "the group moves on");
}

#[tokio::test(start_paused = true)]
async fn a_nack_with_a_delay_waits_that_long_and_does_not_count_as_in_flight() {
    let bus = bus();
    let mut events = subscribe(&bus, "t", "g", SubscribeOptions { max_in_flight: 1, ..earliest() }).await;
    publish(&bus, "t", 1).await;
    publish(&bus, "t", 2).await;
    next(&mut events).await.nack_after("later", 10 * SECOND).await.expect("nacked");
    assert_eq!(drain(&mut events, 1).await, ["2"]);
    nothing(&mut events, 9 * SECOND).await;
    assert_eq!(drain(&mut events, 1).await, ["1"]);
}

#[tokio::test(start_paused = true)]
async fn released_events_come_back_without_counting_the_attempt() {
    let bus = bus();
    let mut events = subscribe(&bus, "t", "g", SubscribeOptions { max_attempts: 2, ..earliest() }).await;
    publish(&bus, "t", 1).await;
    for _ in 0..10 {
        let delivery = next(&mut events).await;
        assert_eq!(delivery.attempt(), 1);
        delivery.release().await.expect("released");
    }
    drain(&mut events, 1).await;
}

#[tokio::test(start_paused = true)]
async fn what_nobody_saw_is_given_back_without_counting_the_attempt() {
    let bus = bus();
    for name in ["t.one", "t.two"] {
        publish(&bus, name, 1).await;
    }
    let inbox = Inbox::new();
    let request = Request {
        topic: Selector::parse("t.*").expect("a pattern"),
        group: Some(group("g")),
        options: earliest(),
        gate: None,
        relayed: None,
    };
    let (membership, _) = bus.attach(request, &inbox).await.expect("subscribed");
    let mut given = Vec::new();
    while given.len() < 2 {
        inbox.ready().await;
        inbox.take(10, usize::MAX, bus.now(), &mut given);
    }
    membership.pause(true);
    let ids = given.iter().map(|given| (given.event.id, Some(given.lease))).collect();
    let release = Answer::Nack { reason: None, delay: None, release: true };
    membership.answer(ids, release).await.expect("given back");
    drop(membership);
    let mut events = subscribe(&bus, "t.*", "g", earliest()).await;
    for _ in 0..2 {
        assert_eq!(next(&mut events).await.attempt(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_subscriber_that_goes_away_gives_its_events_to_the_others_at_once() {
    let bus = bus();
    let mut leaving = subscribe(&bus, "t", "g", earliest()).await;
    publish(&bus, "t", 1).await;
    let held = next(&mut leaving).await;
    let mut staying = subscribe(&bus, "t", "g", earliest()).await;
    nothing(&mut staying, SECOND).await;
    drop(held);
    drop(leaving);
    let before = tokio::time::Instant::now();
    assert_eq!(next(&mut staying).await.attempt(), 2);
    assert!(before.elapsed() < SECOND);
}

#[tokio::test(start_paused = true)]
async fn a_subscriber_goes_away_though_its_deliveries_are_kept_and_their_late_acks_count() {
    for name in ["t", "*"] {
        let bus = bus();
        publish(&bus, "t", 1).await;
        publish(&bus, "t", 2).await;
        let mut leaving = subscribe(&bus, name, "g", earliest()).await;
        let (first, second) = (next(&mut leaving).await, next(&mut leaving).await);
        drop(leaving);
        second.ack().await.expect("a late ack");
        let mut staying = subscribe(&bus, name, "g", earliest()).await;
        let again = next(&mut staying).await;
        assert_eq!((again.event().seq, again.attempt()), (1, 2), "at once, though the first delivery still exists");
        let lost = first.ack().await.expect_err("it is another's now");
        assert_eq!(lost.code, promethean_event::Code::LeaseLost);
        again.ack().await.expect("acked");
        nothing(&mut staying, 120 * SECOND).await;
        assert_eq!(bus.cursor(&topic("t"), &group("g")).await.expect("ok").expect("some").seq, 2);
    }
}

#[tokio::test(start_paused = true)]
async fn dropping_a_delivery_sends_nothing() {
    let bus = bus();
    let mut events = subscribe(&bus, "t", "g", earliest()).await;
    publish(&bus, "t", 1).await;
    drop(next(&mut events).await);
    nothing(&mut events, 29 * SECOND).await;
    assert_eq!(next(&mut events).await.attempt(), 2);
}

#[tokio::test(start_paused = true)]
async fn out_of_order_acks_are_kept_and_the_cursor_is_the_contiguous_floor() {
    let bus = bus();
    let mut events = subscribe(&bus, "t", "g", earliest()).await;
    for n in 1..=4 {
        publish(&bus, "t", n).await;
    }
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(next(&mut events).await);
    }
    let seq =
        async |bus: &promethean_bus::Bus| bus.cursor(&topic("t"), &group("g")).await.expect("ok").expect("some").seq;
    held[1].ack().await.expect("acked");
    held[3].ack().await.expect("acked");
    assert_eq!(seq(&bus).await, 0);
    held[0].ack().await.expect("acked");
    assert_eq!(seq(&bus).await, 2);
    drop((held, events));
    let mut again = subscribe(&bus, "t", "g", earliest()).await;
    assert_eq!(drain(&mut again, 1).await, ["3"]);
    nothing(&mut again, 120 * SECOND).await;
    assert_eq!(seq(&bus).await, 4);
}

#[tokio::test(start_paused = true)]
async fn a_cumulative_ack_finishes_all_before_it() {
    let bus = bus();
    let mut events = subscribe(&bus, "t", "g", SubscribeOptions { max_in_flight: 2, ..earliest() }).await;
    let mut ids = Vec::new();
    for n in 1..=5 {
        ids.push(publish(&bus, "t", n).await.id);
    }
    next(&mut events).await;
    events.membership().ack_up_to(ids[3], None).await.expect("acked");
    let lag = bus.lag(&topic("t"), &group("g")).await.expect("readable");
    assert_eq!((lag.events, lag.cursor.and_then(|cursor| cursor.last_id), lag.tail), (1, Some(ids[3]), Some(ids[4])));
    // What was already on its way may still come out of the inbox; the fifth comes in any case.
    loop {
        let delivery = next(&mut events).await;
        delivery.ack().await.expect("acked");
        if delivery.event().id == ids[4] {
            break;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_subscriber_never_holds_more_than_its_share() {
    let bus = bus();
    let mut events = subscribe(&bus, "t", "g", SubscribeOptions { max_in_flight: 3, ..earliest() }).await;
    for n in 1..=10 {
        publish(&bus, "t", n).await;
    }
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(next(&mut events).await);
    }
    nothing(&mut events, SECOND).await;
    held.remove(1).ack().await.expect("acked");
    assert_eq!(next(&mut events).await.event().seq, 4);
    nothing(&mut events, SECOND).await;
}

#[tokio::test(start_paused = true)]
async fn members_share_a_group_and_each_event_goes_to_one_of_them() {
    let bus = bus();
    let options = SubscribeOptions { max_in_flight: 5, ..earliest() };
    let (mut one, mut two) =
        (subscribe(&bus, "t", "g", options.clone()).await, subscribe(&bus, "t", "g", options).await);
    for n in 1..=10 {
        publish(&bus, "t", n).await;
    }
    let mut seqs = Vec::new();
    for _ in 0..5 {
        seqs.push(next(&mut one).await.event().seq);
        seqs.push(next(&mut two).await.event().seq);
    }
    seqs.sort_unstable();
    assert_eq!(seqs, (1..=10).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn ordered_by_key_lets_other_keys_pass_and_keeps_each_keys_order() {
    let bus = bus();
    let options = SubscribeOptions { ordered: Ordered::Key, ..earliest() };
    let mut events = subscribe(&bus, "t", "g", options).await;
    for (key, n) in [("a", 1), ("a", 2), ("b", 3), ("a", 4)] {
        publish_keyed(&bus, "t", key, n).await;
    }
    publish(&bus, "t", 5).await;
    let a1 = next(&mut events).await;
    let b3 = next(&mut events).await;
    let none5 = next(&mut events).await;
    assert_eq!([&a1, &b3, &none5].map(|delivery| delivery.event().seq), [1, 3, 5]);
    nothing(&mut events, SECOND).await;
    a1.nack("again").await.expect("nacked");
    let a1 = next(&mut events).await;
    assert_eq!(a1.event().seq, 1, "the later ones of its key wait while it is retried");
    a1.ack().await.expect("acked");
    assert_eq!(drain(&mut events, 2).await, ["2", "4"]);
}

#[tokio::test(start_paused = true)]
async fn ordered_by_topic_is_strictly_one_after_another() {
    let bus = bus();
    let options = SubscribeOptions { ordered: Ordered::Topic, ..earliest() };
    let (mut one, mut two) =
        (subscribe(&bus, "t", "g", options.clone()).await, subscribe(&bus, "t", "g", options).await);
    for n in 1..=4 {
        publish(&bus, "t", n).await;
    }
    for seq in 1..=4 {
        let delivery = tokio::select! { first = next(&mut one) => first, second = next(&mut two) => second };
        assert_eq!(delivery.event().seq, seq);
        nothing(&mut one, SECOND).await;
        nothing(&mut two, SECOND).await;
        delivery.ack().await.expect("acked");
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_filter_skips_counts_as_done() {
    let bus = bus();
    let filter = Filter { keys: vec!["b".to_owned()], ..Default::default() };
    let mut events = subscribe(&bus, "t", "g", SubscribeOptions { filter, ..earliest() }).await;
    for (key, n) in [("a", 1), ("b", 2), ("a", 3)] {
        publish_keyed(&bus, "t", key, n).await;
    }
    assert_eq!(drain(&mut events, 1).await, ["2"]);
    nothing(&mut events, SECOND).await;
    let lag = bus.lag(&topic("t"), &group("g")).await.expect("readable");
    assert_eq!((lag.events, lag.cursor.map(|cursor| cursor.seq)), (0, Some(3)));
}

#[tokio::test(start_paused = true)]
async fn the_groups_own_options_have_to_agree_and_the_error_names_the_one_in_force() {
    let bus = bus();
    let _first = subscribe(&bus, "t", "g", SubscribeOptions { max_attempts: 7, ..earliest() }).await;
    let refused = bus.subscribe("t", Some(group("g")), earliest()).await.err().expect("refused");
    assert_eq!(refused.code, Code::BadRequest);
    assert!(refused.message.contains("maxAttempts") && refused.message.contains('7'), "{refused}");
    let other = SubscribeOptions { max_attempts: 7, max_in_flight: 2, ack_timeout: SECOND, ..earliest() };
    subscribe(&bus, "t", "g", other).await;
}

#[tokio::test(start_paused = true)]
async fn a_filter_is_the_same_whatever_the_order_of_its_words_and_however_often_they_stand_there() {
    let bus = bus();
    let filter = |tags: &[&str], keys: &[&str], headers: &[(&str, &str)]| Filter {
        tags: tags.iter().map(|tag| (*tag).to_owned()).collect(),
        keys: keys.iter().map(|key| (*key).to_owned()).collect(),
        headers: headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
    };
    let one = filter(&["x", "y"], &["a", "b"], &[("h", "1"), ("i", "2")]);
    let same = filter(&["y", "x", "y"], &["b", "a", "a"], &[("i", "2"), ("h", "1"), ("i", "2")]);
    let other = filter(&["x", "y"], &["a", "b"], &[("h", "2"), ("i", "1")]);
    let _first = subscribe(&bus, "t", "g", SubscribeOptions { filter: one, ..earliest() }).await;
    let _second = subscribe(&bus, "t", "g", SubscribeOptions { filter: same, ..earliest() }).await;
    let refused = bus.subscribe("t", Some(group("g")), SubscribeOptions { filter: other, ..earliest() }).await;
    assert_eq!(refused.err().map(|error| error.code), Some(Code::BadRequest));
}

#[tokio::test(start_paused = true)]
async fn a_paused_subscriber_gets_nothing_until_it_resumes() {
    let bus = bus();
    let mut events = subscribe(&bus, "t", "g", earliest()).await;
    events.pause(true);
    publish(&bus, "t", 1).await;
    nothing(&mut events, SECOND).await;
    events.pause(false);
    assert_eq!(drain(&mut events, 1).await, ["1"]);
}

#[tokio::test(start_paused = true)]
async fn an_ephemeral_tail_needs_no_acks_and_leaves_no_cursor() {
    let bus = bus();
    publish(&bus, "t", 1).await;
    let mut tail = bus.subscribe("t", None, SubscribeOptions::default()).await.expect("subscribed");
    let mut whole = bus.subscribe("t", None, earliest()).await.expect("subscribed");
    publish(&bus, "t", 2).await;
    assert_eq!(next(&mut tail).await.event().payload(), "2");
    assert_eq!([next(&mut whole).await, next(&mut whole).await].map(|one| one.event().seq), [1, 2]);
    nothing(&mut tail, 120 * SECOND).await;
    assert_eq!(bus.cursors(&topic("t")).await, Ok(vec![]));
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_start_gives_every_live_key_then_what_comes_after() {
    let bus = bus();
    for (key, n) in [("a", 1), ("b", 2), ("a", 3), ("c", 4)] {
        publish_keyed(&bus, "t", key, n).await;
    }
    publish_keyed(&bus, "t", "b", serde_json::Value::Null).await;
    let mut events = subscribe(&bus, "t", "g", SubscribeOptions { from: From::Snapshot, ..Default::default() }).await;
    publish_keyed(&bus, "t", "a", 6).await;
    let mut seen = Vec::new();
    for _ in 0..3 {
        let delivery = next(&mut events).await;
        seen.push((delivery.event().payload().to_owned(), delivery.given().snapshot));
        delivery.ack().await.expect("acked");
    }
    assert_eq!(seen, [("3".to_owned(), true), ("4".to_owned(), true), ("6".to_owned(), false)]);
    let cursor = bus.cursor(&topic("t"), &group("g")).await.expect("ok").expect("some");
    assert_eq!(cursor.seq, 6);
    drop(events);
    let mut again = subscribe(&bus, "t", "g", SubscribeOptions { from: From::Snapshot, ..Default::default() }).await;
    nothing(&mut again, SECOND).await;
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_start_goes_on_after_the_subscriber_was_away() {
    let bus = bus();
    for key in ["a", "b", "c", "d"] {
        publish_keyed(&bus, "t", key, key).await;
    }
    let options = SubscribeOptions { from: From::Snapshot, max_in_flight: 2, ..Default::default() };
    let mut events = subscribe(&bus, "t", "g", options.clone()).await;
    assert_eq!(drain(&mut events, 1).await, ["\"a\""]);
    drop(events);
    let mut again = subscribe(&bus, "t", "g", options).await;
    assert_eq!(drain(&mut again, 3).await, ["\"b\"", "\"c\"", "\"d\""]);
    nothing(&mut again, 120 * SECOND).await;
}

#[tokio::test(start_paused = true)]
async fn what_a_snapshot_start_gave_out_comes_again_though_its_key_was_written_since() {
    for shut_down in [false, true] {
        let store = std::sync::Arc::new(Memory::new());
        let bus = Bus::new(store.clone(), Default::default());
        for (key, tag, payload) in [("a", "x", 1), ("b", "x", 2), ("c", "x", 3)] {
            publish_tagged(&bus, key, tag, payload).await;
        }
        let filter = Filter { tags: vec!["x".to_owned()], ..Filter::default() };
        let options = SubscribeOptions { from: From::Snapshot, filter, ..Default::default() };
        let mut events = subscribe(&bus, "t", "g", options.clone()).await;
        for _ in 0..3 {
            next(&mut events).await;
        }
        // The later one of its key is not for this group.
        publish_tagged(&bus, "a", "y", 4).await;
        if shut_down {
            bus.drain().await;
        }
        drop(events);
        let after = if shut_down { Bus::new(store, Default::default()) } else { bus };
        let mut events = subscribe(&after, "t", "g", options).await;
        let mut again = drain(&mut events, 3).await;
        again.sort();
        assert_eq!(again, ["1", "2", "3"], "shut down: {shut_down}");
        nothing(&mut events, SECOND).await;
        assert_eq!(after.lag(&topic("t"), &group("g")).await.expect("readable").events, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_seek_moves_the_group_and_what_was_acked_comes_again() {
    let bus = bus();
    for n in 1..=3 {
        publish(&bus, "t", n).await;
    }
    let mut events = subscribe(&bus, "t", "g", earliest()).await;
    drain(&mut events, 3).await;
    bus.set_cursor(&topic("t"), &group("g"), From::Earliest).await.expect("moved");
    assert_eq!(drain(&mut events, 3).await, ["1", "2", "3"]);
    bus.set_cursor(&topic("t"), &group("new"), From::Earliest).await.expect("made");
    assert_eq!(drain(&mut subscribe(&bus, "t", "new", SubscribeOptions::default()).await, 3).await.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn the_last_event_of_a_tails_snapshot_says_where_it_was_taken() {
    let bus = bus();
    for n in 0..1_200 {
        publish_keyed(&bus, "t", &format!("k{n}"), n).await;
    }
    publish(&bus, "t", "without a key").await;
    let cut = bus.store().read(&topic("t"), 1_201, ReadMax::events(1)).await.expect("read")[0].id;
    for (keys, expected) in [(vec![], 1_200), (vec!["k7".to_owned(), "k500".to_owned()], 2)] {
        let filter = Filter { keys, ..Filter::default() };
        let options = SubscribeOptions { from: From::Snapshot, filter, ..Default::default() };
        let mut tail = bus.subscribe("t", None, options).await.expect("subscribed");
        for left in (0..expected).rev() {
            let delivery = next(&mut tail).await;
            assert_eq!((delivery.given().snapshot, delivery.given().cut), (true, (left == 0).then_some(cut)));
        }
        nothing(&mut tail, SECOND).await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_given_back_goes_out_before_what_was_never_out() {
    let bus = bus();
    for n in 1..=20 {
        publish(&bus, "t", n).await;
    }
    let options = SubscribeOptions { max_in_flight: 10, ..earliest() };
    let mut events = subscribe(&bus, "t", "g", options).await;
    let mut taken = Vec::new();
    while taken.len() < 10 {
        taken.extend(events.next_batch(10).await.expect("open"));
    }
    let ids = |which: &[promethean_bus::Delivery]| which.iter().map(|one| (one.event().id, None)).collect::<Vec<_>>();
    let release = Answer::Nack { reason: None, delay: None, release: true };
    let membership = events.membership();
    // Both reach the group before its next turn: half of the room goes to what came back, half to new events.
    let released = membership.answer(ids(&taken[..5]), release);
    let (released, acked) =
        futures_util::future::join(released, membership.answer(ids(&taken[5..]), Answer::Ack)).await;
    released.and(acked).expect("answered");
    let mut seqs = Vec::new();
    while seqs.len() < 10 {
        seqs.extend(events.next_batch(10).await.expect("open").iter().map(|one| one.event().seq));
    }
    assert_eq!(seqs, (1..=5).chain(11..=15).collect::<Vec<_>>());
}
