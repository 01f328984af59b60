//! The law of data that outlive the process.

use std::time::Duration;

use super::groups::{group, state};
use super::*;
use crate::{Compaction, Retention, Saved, SnapshotJob, TopicSettings};

async fn reopen(place: &dyn Place, store: Arc<dyn Store>) -> Arc<dyn Store> {
    store.close().await.expect("closed");
    drop(store);
    place.open().await.expect("opens again")
}

/// Flushed or not.
pub async fn everything_answered_is_there_after_a_reopen(place: Box<dyn Place>) {
    let mut store = place.open().await.expect("opens");
    for round in 0..6_u64 {
        append(&*store, &[event("a").key("k"), event("b").id(u128::from(round) + 1), event("a")]).await;
        if round % 3 == 1 {
            store.maintain(Millis(2_000)).await.expect("maintained");
        }
        let before = (read_all(&*store, "a").await, read_all(&*store, "b").await);
        let latest = store.latest_by_key(&topic("a"), &["k".to_owned()]).await.expect("looked up");
        let (topics, info) = (store.topics().await.expect("listed"), store.info(&topic("a")).await.expect("known"));
        store = reopen(&*place, store).await;
        assert_eq!((read_all(&*store, "a").await, read_all(&*store, "b").await), before);
        assert_eq!(store.latest_by_key(&topic("a"), &["k".to_owned()]).await.expect("looked up"), latest);
        assert_eq!(store.topics().await.expect("listed"), topics);
        assert_eq!(store.info(&topic("a")).await.expect("known"), info);
        assert_eq!(store.watch(&topic("a")).borrow().seq, round * 2 + 2);
    }
}

/// No seq twice, no id twice.
pub async fn seqs_and_ids_go_on_after_a_reopen(place: Box<dyn Place>) {
    let mut store = place.open().await.expect("opens");
    let first = append(&*store, &[event("a").id(7), event("a")]).await;
    for round in 0..3 {
        store = reopen(&*place, store).await;
        let hub = u128::from_be_bytes(*first[1].id.as_bytes());
        let again = append(&*store, &[event("a").id(7), event("a").id(hub), event("a")]).await;
        assert_eq!(again.iter().map(|one| one.seq).collect::<Vec<_>>(), [1, 2, 3 + round]);
        let other = store.append(vec![event("b").id(7).new_event()]).await.expect("answered");
        assert_eq!(other, [Outcome::DuplicateId { id: id(7), topic: topic("a") }]);
        store.maintain(Millis(2_000)).await.expect("maintained");
    }
}

/// Also of topics without events.
pub async fn settings_trims_and_groups_survive_a_reopen(place: Box<dyn Place>) {
    let mut store = place.open().await.expect("opens");
    let settings = TopicSettings {
        partitions: 5,
        retention: Retention {
            max_age: Some(Duration::from_millis(1_500)),
            max_bytes: Some(1 << 30),
            max_events: None,
        },
        compaction: Some(Compaction { tombstone_grace: Duration::from_secs(5) }),
        snapshot: Some(SnapshotJob {
            topic: Some(topic("elsewhere")),
            interval: Duration::from_millis(2_500),
            keys: vec!["k".to_owned()],
        }),
        max_event_bytes: Some(4_096),
        key_path: promethean_event::KeyPath::parse("/order/id").ok(),
    };
    store.set_settings(&topic("empty"), settings.clone()).await.expect("set");
    append(&*store, &vec![event("a"); 6]).await;
    store.trim(&topic("a"), 3).await.expect("trimmed");
    let Saved::Yes(version) = store.compare_and_set(&topic("a"), &group("g"), 0, state(4)).await.expect("saved") else {
        panic!("there was none")
    };
    store.compare_and_set(&topic("a"), &group("gone"), 0, state(4)).await.expect("saved");
    store.forget(&topic("a"), &group("gone")).await.expect("forgotten");
    for round in 0..3 {
        store = reopen(&*place, store).await;
        assert_eq!(store.settings(&topic("empty")), settings);
        assert_eq!(seqs(&*store, "a").await, [3, 4, 5, 6]);
        assert_eq!(store.load(&topic("a"), &group("g")).await.expect("loaded"), Some((state(4), version)));
        assert_eq!(store.load(&topic("a"), &group("gone")).await.expect("loaded"), None);
        if round == 1 {
            store.maintain(Millis(2_000)).await.expect("maintained");
        }
    }
    let next = store.compare_and_set(&topic("a"), &group("g"), version, state(5)).await.expect("saved");
    assert!(matches!(next, Saved::Yes(next) if next > version));
}

/// Open, append, close, again and again.
pub async fn many_reopens_lose_nothing(place: Box<dyn Place>) {
    let mut store = place.open().await.expect("opens");
    for round in 1..=25 {
        append(&*store, &[event("a")]).await;
        if round % 4 == 0 {
            store.maintain(Millis(2_000)).await.expect("maintained");
        }
        store = reopen(&*place, store).await;
        assert_eq!(seqs(&*store, "a").await, (1..=round).collect::<Vec<_>>());
    }
}

/// What retention and compaction took stays away.
pub async fn what_was_maintained_stays_so_after_a_reopen(place: Box<dyn Place>) {
    let mut store = place.open().await.expect("opens");
    let settings = TopicSettings { compaction: Some(Compaction::default()), ..TopicSettings::default() };
    store.set_settings(&topic("a"), settings).await.expect("set");
    for _ in 0..3 {
        append(&*store, &["x", "y", "z"].map(|key| event("a").key(key))).await;
        store.maintain(Millis(2_000)).await.expect("maintained");
    }
    append(&*store, &[event("a").key("y")]).await;
    for _ in 0..2 {
        store = reopen(&*place, store).await;
        assert_eq!(seqs(&*store, "a").await, [7, 8, 9, 10]);
    }
    store.maintain(Millis(2_000)).await.expect("maintained");
    store = reopen(&*place, store).await;
    assert_eq!(seqs(&*store, "a").await, [7, 9, 10]);
    assert_eq!(append(&*store, &[event("a")]).await[0].seq, 11);
}

/// A key that a tombstone removed does not come back when the tombstone itself has gone.
pub async fn a_removed_key_stays_removed_after_its_tombstone_is_gone(place: Box<dyn Place>) {
    let mut store = place.open().await.expect("opens");
    let settings = TopicSettings {
        compaction: Some(Compaction { tombstone_grace: Duration::from_secs(10) }),
        ..TopicSettings::default()
    };
    store.set_settings(&topic("a"), settings).await.expect("set");
    append(&*store, &["x", "y", "x"].map(|key| event("a").key(key).appended(1_000))).await;
    store.maintain(Millis(2_000)).await.expect("maintained");
    append(&*store, &[event("a").key("x").payload("null").appended(5_000)]).await;
    for now in [6_000, 20_000] {
        store.maintain(Millis(now)).await.expect("maintained");
        store = reopen(&*place, store).await;
        let live = store.keys(&topic("a"), None, 10).await.expect("paged").items;
        assert_eq!(live.iter().map(|event| event.seq).collect::<Vec<_>>(), [2], "at {now}");
        let mut snapshot = store.key_snapshot(&topic("a")).await.expect("opened");
        assert_eq!((snapshot.cut(), snapshot.next(10).await.expect("read").len()), (4, 1), "at {now}");
    }
    assert_eq!(seqs(&*store, "a").await, [2], "the tombstone is gone too");
    assert_eq!(append(&*store, &[event("a").key("x")]).await[0].seq, 5);
}

/// Flushed before, after, or never; and seqs are not used twice.
pub async fn created_and_deleted_topics_stay_so_after_a_reopen(place: Box<dyn Place>) {
    let mut store = place.open().await.expect("opens");
    store.create(&topic("created")).await.expect("created");
    let mut last = 0;
    for round in 0..4_u64 {
        let stored = append(&*store, &[event("t").id(1).key("k"), event("t"), event("stays")]).await;
        assert_eq!((stored[0].seq, stored[0].duplicate), (last + 1, false), "round {round}");
        last += 2;
        if round % 2 == 0 {
            store.maintain(Millis(2_000)).await.expect("maintained");
        }
        let settings = TopicSettings { partitions: 5, ..TopicSettings::default() };
        store.set_settings(&topic("t"), settings).await.expect("set");
        let saved = store.compare_and_set(&topic("t"), &group("g"), 0, state(1)).await.expect("saved");
        assert!(matches!(saved, Saved::Yes(_)));
        store.delete(&[topic("t")]).await.expect("deleted");
        if round > 1 {
            store.maintain(Millis(2_000)).await.expect("maintained");
        }
        store = reopen(&*place, store).await;
        assert_eq!(store.known_topics().await.expect("listed"), [topic("created"), topic("stays")]);
        assert!(store.exists(&topic("created")) && !store.exists(&topic("t")));
        assert_eq!(*store.watch(&topic("t")).borrow(), crate::Tail { seq: last, deletions: round + 1 });
        assert!(read_all(&*store, "t").await.is_empty() && store.groups(&topic("t")).await.expect("listed").is_empty());
        assert_eq!(store.latest_by_key(&topic("t"), &["k".to_owned()]).await.expect("looked up"), [None]);
    }
    assert_eq!(read_all(&*store, "stays").await.len(), 4);
}
