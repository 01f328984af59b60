//! The law of trimming, retention and compaction.

use std::time::Duration;

use super::*;
use crate::{Compaction, GroupState, Retention, Saved, TopicSettings};

/// Before, not at.
pub async fn a_trim_takes_the_events_before_it_and_their_ids(place: Box<dyn Place>) {
    let store = place.open().await.expect("opens");
    append(&*store, &(1..=10_u128).map(|n| event("t").id(n).key(n.to_string())).collect::<Vec<_>>()).await;
    store.maintain(Millis(2_000)).await.expect("maintained");
    append(&*store, &(11..=20_u128).map(|n| event("t").id(n).key(n.to_string())).collect::<Vec<_>>()).await;
    for (before, flush) in [(4, false), (2, false), (10, true), (15, false), (15, true)] {
        store.trim(&topic("t"), before).await.expect("trimmed");
        if flush {
            store.maintain(Millis(2_000)).await.expect("maintained");
        }
        let first = if before == 2 { 4 } else { before };
        assert_eq!(seqs(&*store, "t").await, (first..=20).collect::<Vec<_>>());
        let found = store.locate(&[id(u128::from(first) - 1), id(u128::from(first))]).await.expect("located");
        assert!(found[0].is_none() && found[1].is_some(), "{found:?}");
        let keys = [(first - 1).to_string(), first.to_string()];
        let latest = store.latest_by_key(&topic("t"), &keys).await.expect("looked up");
        assert!(latest[0].is_none() && latest[1].is_some());
    }
    let again = append(&*store, &[event("t").id(3), event("t").id(19)]).await;
    assert_eq!((again[0].seq, again[0].duplicate), (21, false), "a removed id is free again");
    assert_eq!((again[1].seq, again[1].duplicate), (19, true));
}

/// Seqs are never reused.
pub async fn a_trim_may_take_everything_and_seqs_go_on(place: Box<dyn Place>) {
    let store = place.open().await.expect("opens");
    append(&*store, &vec![event("t"); 5]).await;
    store.trim(&topic("t"), 1_000).await.expect("trimmed");
    store.maintain(Millis(2_000)).await.expect("maintained");
    let info = store.info(&topic("t")).await.expect("known").expect("exists");
    assert_eq!((info.events, info.first_seq, info.last_seq), (0, 6, 5));
    assert_eq!(append(&*store, &[event("t")]).await[0].seq, 6);
    assert_eq!(seqs(&*store, "t").await, [6]);
    store.trim(&topic("unknown"), 5).await.expect("nothing to do");
}

async fn set(store: &dyn Store, retention: Retention, compaction: Option<Compaction>) {
    let settings = TopicSettings { retention, compaction, ..TopicSettings::default() };
    store.set_settings(&topic("t"), settings).await.expect("set");
}

/// A little more than the bound may stay, less never.
pub async fn retention_keeps_what_it_must_and_drops_what_it_may(place: Box<dyn Place>) {
    let store = place.open().await.expect("opens");
    set(&*store, Retention { max_events: Some(40), ..Retention::default() }, None).await;
    for _ in 0..20 {
        append(&*store, &vec![event("t"); 10]).await;
        store.maintain(Millis(2_000)).await.expect("maintained");
    }
    let left = seqs(&*store, "t").await;
    assert!((40..=80).contains(&left.len()), "{} events are left of 200, 40 must be", left.len());
    assert_eq!(left, (201 - left.len() as u64..=200).collect::<Vec<_>>());
    let wire = store.info(&topic("t")).await.expect("known").expect("exists").bytes;
    set(&*store, Retention { max_bytes: Some(wire / 4), ..Retention::default() }, None).await;
    store.maintain(Millis(2_000)).await.expect("maintained");
    let bytes = store.info(&topic("t")).await.expect("known").expect("exists").bytes;
    assert!(bytes < wire && bytes * 5 >= wire, "{bytes} bytes are left of {wire}, a quarter must be");
}

/// A bound that is set later, or is very small, counts as one that was there from the first event on.
pub async fn what_is_far_beyond_a_bound_goes_whenever_the_bound_was_set(place: Box<dyn Place>) {
    let store = place.open().await.expect("opens");
    for (name, count) in [("events", 3_000), ("bytes", 3_000), ("age", 3_000), ("small", 40)] {
        append(&*store, &(1..=count).map(|n| event(name).appended(1_000 + n)).collect::<Vec<_>>()).await;
    }
    store.maintain(Millis(2_000)).await.expect("maintained");
    let wire = store.info(&topic("bytes")).await.expect("known").expect("exists").bytes / 3_000;
    let bounds = [
        ("events", Retention { max_events: Some(100), ..Retention::default() }),
        ("bytes", Retention { max_bytes: Some(100 * wire), ..Retention::default() }),
        ("age", Retention { max_age: Some(Duration::from_millis(100)), ..Retention::default() }),
        ("small", Retention { max_events: Some(4), ..Retention::default() }),
    ];
    for (name, retention) in &bounds {
        let settings = TopicSettings { retention: *retention, ..TopicSettings::default() };
        store.set_settings(&topic(name), settings).await.expect("set");
    }
    store.maintain(Millis(4_000)).await.expect("maintained");
    for (name, least) in [("events", 100), ("bytes", 95), ("age", 100), ("small", 4)] {
        let info = store.info(&topic(name)).await.expect("known").expect("exists");
        assert!((least..=least.max(100) * 3 / 2).contains(&info.events), "{name}: {} events are left", info.events);
        assert!(name != "small" || info.events <= 6, "{} events are left of 4", info.events);
        let left = seqs(&*store, name).await;
        assert_eq!(left, (info.last_seq + 1 - info.events..=info.last_seq).collect::<Vec<_>>(), "{name}");
        assert_eq!(info.first_seq, left[0]);
    }
    append(&*store, &vec![event("small"); 3]).await;
    assert_eq!(store.info(&topic("small")).await.expect("known").expect("exists").last_seq, 43);
}

/// Sizes and what they are compared with are of one moment.
pub async fn nothing_within_its_bounds_goes_while_writers_run(place: Box<dyn Place>) {
    let store = place.open().await.expect("opens");
    set(&*store, Retention { max_events: Some(400), ..Retention::default() }, None).await;
    append(&*store, &vec![event("t"); 20]).await;
    let writer = {
        let store = store.clone();
        tokio::spawn(async move {
            for _ in 1..300 {
                append(&*store, &vec![event("t"); 20]).await;
            }
        })
    };
    while !writer.is_finished() {
        let before = store.info(&topic("t")).await.expect("known").map_or(0, |info| info.last_seq);
        store.maintain(Millis(2_000)).await.expect("maintained");
        let info = store.info(&topic("t")).await.expect("known").expect("exists");
        assert!(info.events >= before.min(400), "{} events are left of {before}", info.events);
        tokio::task::yield_now().await;
    }
    writer.await.expect("no panic");
    store.maintain(Millis(2_000)).await.expect("maintained");
    let left = seqs(&*store, "t").await;
    assert!((400..=600).contains(&left.len()) && left.last() == Some(&6_000), "{} are left", left.len());
}

/// Not by the client's time.
pub async fn retention_by_age_goes_by_the_time_of_append(place: Box<dyn Place>) {
    let store = place.open().await.expect("opens");
    let max_age = Some(Duration::from_secs(10));
    set(&*store, Retention { max_age, ..Retention::default() }, None).await;
    append(&*store, &vec![event("t").ts(900_000).appended(1_000); 5]).await;
    store.maintain(Millis(11_000)).await.expect("maintained");
    assert_eq!(seqs(&*store, "t").await, [1, 2, 3, 4, 5]);
    append(&*store, &vec![event("t").ts(1).appended(12_000); 5]).await;
    store.maintain(Millis(12_000)).await.expect("maintained");
    assert_eq!(seqs(&*store, "t").await, [6, 7, 8, 9, 10]);
}

/// Superseded events go, seqs stay.
pub async fn compaction_keeps_the_latest_of_each_key(place: Box<dyn Place>) {
    let store = place.open().await.expect("opens");
    set(&*store, Retention::default(), Some(Compaction::default())).await;
    for round in 0..6_u128 {
        let keyed = (0..5_u128).map(|n| event("t").key(n.to_string()).id(round * 10 + n + 1));
        append(&*store, &keyed.collect::<Vec<_>>()).await;
        if round % 2 == 0 {
            store.maintain(Millis(2_000)).await.expect("maintained");
        }
    }
    store.maintain(Millis(2_000)).await.expect("maintained");
    assert_eq!(seqs(&*store, "t").await, [26, 27, 28, 29, 30]);
    let info = store.info(&topic("t")).await.expect("known").expect("exists");
    assert_eq!((info.events, info.first_seq, info.last_seq), (5, 26, 30));
    assert_eq!(store.locate(&[id(1), id(51)]).await.expect("located").iter().flatten().count(), 1);
    let keys: Vec<_> = (0..5).map(|n| n.to_string()).collect();
    let latest = store.latest_by_key(&topic("t"), &keys).await.expect("looked up");
    assert_eq!(latest.into_iter().flatten().map(|event| event.seq).collect::<Vec<_>>(), [26, 27, 28, 29, 30]);
    append(&*store, &[event("t").key("2")]).await;
    store.maintain(Millis(2_000)).await.expect("maintained");
    assert_eq!(seqs(&*store, "t").await, [26, 27, 29, 30, 31]);
    let holes = store.read(&topic("t"), 28, ReadMax::events(2)).await.expect("read");
    assert_eq!(holes.iter().map(|event| event.seq).collect::<Vec<_>>(), [29, 30]);
}

/// They are nobody's earlier state.
pub async fn compaction_keeps_events_without_a_key(place: Box<dyn Place>) {
    let store = place.open().await.expect("opens");
    set(&*store, Retention::default(), Some(Compaction::default())).await;
    append(&*store, &[event("t"), event("t").key("a"), event("t"), event("t").key("a"), event("t")]).await;
    store.maintain(Millis(2_000)).await.expect("maintained");
    assert_eq!(seqs(&*store, "t").await, [1, 3, 4, 5]);
}

/// So that readers see that the key is gone.
pub async fn a_tombstone_stays_for_its_grace_and_goes_then(place: Box<dyn Place>) {
    let store = place.open().await.expect("opens");
    let grace = Compaction { tombstone_grace: Duration::from_secs(10) };
    set(&*store, Retention::default(), Some(grace)).await;
    let tombstone = event("t").key("a").payload("null").appended(5_000);
    append(&*store, &[event("t").key("a"), event("t").key("b"), tombstone]).await;
    store.maintain(Millis(15_000)).await.expect("maintained");
    assert_eq!(seqs(&*store, "t").await, [2, 3]);
    let key = ["a".to_owned()];
    assert!(store.latest_by_key(&topic("t"), &key).await.expect("looked up")[0].is_some());
    store.maintain(Millis(15_001)).await.expect("maintained");
    assert_eq!(seqs(&*store, "t").await, [2]);
    assert!(store.latest_by_key(&topic("t"), &key).await.expect("looked up")[0].is_none());
    append(&*store, &[event("t").key("a").ts(20_000)]).await;
    assert_eq!(store.latest_by_key(&topic("t"), &key).await.expect("looked up")[0].as_ref().map(|e| e.seq), Some(4));
}

/// A tombstone is an event of its key like others: what comes after it replaces it.
pub async fn a_key_that_comes_back_after_its_tombstone_is_live(place: Box<dyn Place>) {
    let store = place.open().await.expect("opens");
    let grace = Compaction { tombstone_grace: Duration::from_secs(10) };
    set(&*store, Retention::default(), Some(grace)).await;
    append(&*store, &[event("t").key("a"), event("t").key("a").payload("null"), event("t").key("b")]).await;
    store.maintain(Millis(2_000)).await.expect("maintained");
    append(&*store, &[event("t").key("a").payload("5"), event("t").key("b").payload("null")]).await;
    store.maintain(Millis(2_000)).await.expect("maintained");
    assert_eq!(
        seqs(&*store, "t").await,
        [4, 5],
        "the tombstone of a went before its grace: it is no longer the latest"
    );
    store.maintain(Millis(90_000)).await.expect("maintained");
    assert_eq!(seqs(&*store, "t").await, [4]);
    let latest = store.latest_by_key(&topic("t"), &["a".to_owned(), "b".to_owned()]).await.expect("looked up");
    assert_eq!(latest[0].as_ref().map(|event| event.payload().to_owned()).as_deref(), Some("5"));
    assert!(latest[1].is_none());
}

/// Whoever reads on while events go sees each key's latest, in order, nothing twice.
pub async fn a_reader_goes_on_while_compaction_takes_events_away(place: Box<dyn Place>) {
    let store = place.open().await.expect("opens");
    set(&*store, Retention::default(), Some(Compaction::default())).await;
    let (mut next, mut seen) = (1, Vec::new());
    for round in 0..8_u64 {
        let keyed: Vec<_> = (0..12).map(|n| event("t").key(((n + round) % 9).to_string())).collect();
        append(&*store, &keyed).await;
        let part = store.read(&topic("t"), next, ReadMax::events(5)).await.expect("read");
        next = part.last().map_or(next, |event| event.seq + 1);
        seen.extend(part);
        store.maintain(Millis(2_000)).await.expect("maintained");
    }
    loop {
        let part = store.read(&topic("t"), next, ReadMax::events(5)).await.expect("read");
        let Some(last) = part.last() else { break };
        next = last.seq + 1;
        seen.extend(part);
    }
    assert!(seen.windows(2).all(|pair| pair[0].seq < pair[1].seq), "in order, nothing twice");
    let mut latest = std::collections::BTreeMap::new();
    for event in &seen {
        latest.insert(event.key().expect("a key").into_owned(), event.seq);
    }
    let live = store.keys(&topic("t"), None, 20).await.expect("paged").items;
    let expected = live.iter().map(|event| (event.key().expect("a key").into_owned(), event.seq));
    assert_eq!(latest, expected.collect());
}

/// What a backup does: where the topic ends is known first, then it is read up to there.
pub async fn a_pinned_reader_sees_each_key_while_writers_and_compaction_run(place: Box<dyn Place>) {
    let store = place.open().await.expect("opens");
    set(&*store, Retention::default(), Some(Compaction::default())).await;
    let keyed = |round: u32| (0..30).map(move |n| event("t").key(n.to_string()).payload(round.to_string()));
    append(&*store, &keyed(0).collect::<Vec<_>>()).await;
    for round in 1..6 {
        let pin = store.pin(&[topic("t"), topic("unknown")]).await.expect("pinned");
        let end = store.info(&topic("t")).await.expect("known").expect("exists").last_seq;
        let (mut next, mut seen) = (1, std::collections::BTreeMap::new());
        while next <= end {
            let part = store.read(&topic("t"), next, ReadMax::events(7)).await.expect("read");
            let Some(last) = part.last() else { break };
            next = last.seq + 1;
            for event in part.iter().filter(|event| event.seq <= end) {
                let value: u32 = event.payload().parse().expect("a number");
                seen.insert(event.key().expect("a key").into_owned(), value);
            }
            if next > end / 2 {
                append(&*store, &keyed(round).collect::<Vec<_>>()).await;
            }
            store.maintain(Millis(2_000)).await.expect("maintained");
        }
        pin.check().expect("it holds");
        drop(pin);
        assert_eq!(seen.len(), 30, "round {round}");
        assert!(seen.values().all(|value| *value + 1 >= round), "round {round}: {seen:?}");
    }
    // What the last pin let go is removed by then.
    for _ in 0..20 {
        store.maintain(Millis(2_000)).await.expect("maintained");
        if store.info(&topic("t")).await.expect("known").expect("exists").events == 30 {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("events that a pin kept are there after it was dropped");
}

/// A reader that has seen a key's event sees its end too.
pub async fn a_pin_keeps_tombstones_and_lets_go_when_it_is_dropped(place: Box<dyn Place>) {
    let store = place.open().await.expect("opens");
    let grace = Compaction { tombstone_grace: Duration::from_secs(10) };
    set(&*store, Retention::default(), Some(grace)).await;
    append(&*store, &[event("t").key("a"), event("t").key("b")]).await;
    let early = store.pin(&[topic("t")]).await.expect("pinned");
    append(&*store, &[event("t").key("a").payload("null")]).await;
    let late = store.pin(&[topic("t")]).await.expect("pinned");
    store.maintain(Millis(90_000)).await.expect("maintained");
    assert_eq!(seqs(&*store, "t").await, [1, 2, 3]);
    drop(early);
    store.maintain(Millis(90_000)).await.expect("maintained");
    assert!(seqs(&*store, "t").await.ends_with(&[2, 3]), "the tombstone is behind the other pin");
    drop(late);
    for _ in 0..20 {
        store.maintain(Millis(90_000)).await.expect("maintained");
        if seqs(&*store, "t").await == [2] {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("they are there after the pins were dropped");
}

/// What a group has not done is not kept for it: it goes on with what is there, and its state stays as it was saved.
pub async fn retention_does_not_wait_for_a_group_that_is_behind(place: Box<dyn Place>) {
    let store = place.open().await.expect("opens");
    set(&*store, Retention { max_events: Some(20), ..Retention::default() }, None).await;
    let (name, behind) = (topic("t"), promethean_event::Group::parse("behind").expect("a group"));
    append(&*store, &vec![event("t"); 10]).await;
    let mut state = GroupState { floor: 3, ..GroupState::default() };
    state.done.insert(6, 7, None);
    let saved = store.compare_and_set(&name, &behind, 0, state.clone()).await.expect("saved");
    let Saved::Yes(version) = saved else { panic!("there was none") };
    for _ in 0..12 {
        append(&*store, &vec![event("t"); 10]).await;
        store.maintain(Millis(2_000)).await.expect("maintained");
    }
    let info = store.info(&name).await.expect("known").expect("exists");
    let first = info.first_seq;
    assert!(first > 10, "nothing went: {first}");
    assert_eq!(state.lag(&info), 130 + 1 - first, "what is gone is not left to do");
    assert_eq!(store.load(&name, &behind).await.expect("loaded"), Some((state.clone(), version)));
    let next = store.read(&name, state.floor + 1, ReadMax::events(3)).await.expect("read");
    assert_eq!(next.iter().map(|event| event.seq).collect::<Vec<_>>(), [first, first + 1, first + 2]);
    state.floor = first;
    let saved = store.compare_and_set(&name, &behind, version, state).await.expect("saved");
    assert!(matches!(saved, Saved::Yes(_)), "it can go on");
    let earliest = store.seek(&name, crate::Seek::Earliest).await.expect("sought").expect("a place");
    assert_eq!(earliest.done + 1, first);
}

/// From memory, at once.
pub async fn settings_are_the_defaults_until_they_are_set(place: Box<dyn Place>) {
    let store = place.open().await.expect("opens");
    assert_eq!(store.settings(&topic("t")), TopicSettings::default());
    append(&*store, &[event("other")]).await;
    assert_eq!(store.all_settings(), []);
    let settings = TopicSettings { partitions: 3, ..TopicSettings::default() };
    store.set_settings(&topic("t"), settings.clone()).await.expect("set");
    assert_eq!(store.settings(&topic("t")), settings);
    assert_eq!(store.settings(&topic("other")), TopicSettings::default());
    assert_eq!(store.all_settings(), [(topic("t"), settings)], "of a topic without events too");
}
