//! The law of reading, seeking and watching.

use super::*;
use crate::{Place as At, Seek, Start, Tail};

/// `from` below the first event is the first event.
pub async fn a_read_starts_at_the_first_event_there_is(place: Box<dyn Place>) {
    let store = place.open().await.expect("opens");
    append(&*store, &vec![event("r"); 10]).await;
    store.trim(&topic("r"), 4).await.expect("trimmed");
    for (from, first) in [(0, 4), (1, 4), (4, 4), (7, 7), (10, 10)] {
        let read = store.read(&topic("r"), from, ReadMax::events(2)).await.expect("read");
        assert_eq!(read[0].seq, first);
    }
    assert!(store.read(&topic("r"), 11, ReadMax::events(2)).await.expect("read").is_empty());
}

/// Events and bytes.
pub async fn a_read_keeps_its_bounds_and_returns_at_least_one(place: Box<dyn Place>) {
    let store = place.open().await.expect("opens");
    append(&*store, &vec![event("r").payload(format!("\"{}\"", "x".repeat(1000))); 20]).await;
    for flushed in [false, true] {
        if flushed {
            store.maintain(Millis(2_000)).await.expect("maintained");
        }
        let read = |events, bytes| store.read(&RTOPIC, 3, ReadMax { events, bytes });
        assert_eq!(read(7, 1 << 20).await.expect("read").len(), 7);
        assert_eq!(read(100, 1 << 20).await.expect("read").len(), 18);
        assert_eq!(read(100, 1).await.expect("read").len(), 1);
        let some = read(100, 5_000).await.expect("read");
        assert!((2..=5).contains(&some.len()), "{} events for 5000 bytes", some.len());
    }
}

/// Of a topic that does not exist, and behind the end.
pub async fn a_read_of_nothing_is_empty(place: Box<dyn Place>) {
    let store = place.open().await.expect("opens");
    assert!(store.read(&topic("nothing"), 1, ReadMax::events(9)).await.expect("read").is_empty());
    append(&*store, &[event("r")]).await;
    assert!(store.read(&topic("r"), 2, ReadMax::events(9)).await.expect("read").is_empty());
    assert!(store.read(&topic("r"), u64::MAX, ReadMax::events(9)).await.expect("read").is_empty());
}

/// Never before, always after.
pub async fn events_are_visible_once_they_are_answered(place: Box<dyn Place>) {
    let store = place.open().await.expect("opens");
    for n in 1..=30 {
        append(&*store, &[event("v"), event("w")]).await;
        for name in ["v", "w"] {
            let last = store.read(&topic(name), n, ReadMax::events(9)).await.expect("read");
            assert_eq!(last.iter().map(|event| event.seq).collect::<Vec<_>>(), [n]);
        }
    }
}

/// The watch has the last seq, now and later.
pub async fn watchers_see_the_end_of_the_topic_grow(place: Box<dyn Place>) {
    let store = place.open().await.expect("opens");
    append(&*store, &vec![event("w"); 3]).await;
    let mut watch = store.watch(&topic("w"));
    assert_eq!(*watch.borrow_and_update(), Tail { seq: 3, deletions: 0 });
    append(&*store, &vec![event("w"); 2]).await;
    watch.wait_for(|tail| tail.seq == 5).await.expect("the end");
    append(&*store, &[event("elsewhere")]).await;
    assert!(!watch.has_changed().expect("open"), "another topic's events are not this one's");
}

/// The subscriber may come first.
pub async fn a_topic_can_be_watched_before_it_exists(place: Box<dyn Place>) {
    let store = place.open().await.expect("opens");
    let mut watch = store.watch(&topic("later"));
    assert_eq!(*watch.borrow_and_update(), Tail::default());
    append(&*store, &[event("later")]).await;
    watch.wait_for(|tail| tail.seq == 1).await.expect("the end");
}

/// A change of the number says that there is a new one.
pub async fn new_topics_are_announced_and_listed_sorted(place: Box<dyn Place>) {
    let store = place.open().await.expect("opens");
    let mut watch = store.watch_topics();
    watch.borrow_and_update();
    for name in ["c", "a", "b.x"] {
        append(&*store, &[event(name)]).await;
        watch.changed().await.expect("announced");
    }
    append(&*store, &["a", "c"].map(event)).await;
    assert!(!watch.has_changed().expect("open"), "no new topic");
    let names: Vec<_> = store.topics().await.expect("listed").iter().map(ToString::to_string).collect();
    assert_eq!(names, ["a", "b.x", "c"]);
}

/// Earliest and latest, of a full, an empty and an unknown topic.
pub async fn seek_finds_the_ends(place: Box<dyn Place>) {
    let store = place.open().await.expect("opens");
    let seek = |to| store.seek(&RTOPIC, to);
    for to in [Seek::Earliest, Seek::Latest, Seek::Ts(Millis(1))] {
        assert_eq!(seek(to).await.expect("sought"), Some(Start::default()));
    }
    let appended = append(&*store, &vec![event("r").ts(77); 5]).await;
    for flushed in [false, true] {
        if flushed {
            store.maintain(Millis(2_000)).await.expect("maintained");
        }
        assert_eq!(seek(Seek::Earliest).await.expect("sought"), Some(Start { done: 0, last: None }));
        let last = Some((appended[4].id, Millis(77)));
        assert_eq!(seek(Seek::Latest).await.expect("sought"), Some(Start { done: 5, last }));
    }
    store.trim(&topic("r"), 3).await.expect("trimmed");
    assert_eq!(seek(Seek::Earliest).await.expect("sought"), Some(Start { done: 2, last: None }));
}

/// Times need not ascend: the first event in seq order counts.
pub async fn seek_by_time_finds_the_first_in_seq_order(place: Box<dyn Place>) {
    let store = place.open().await.expect("opens");
    let times = [50, 10, 70, 20, 60, 90, 30];
    let appended = append(&*store, &times.map(|ts| event("r").ts(ts))).await;
    for flushed in [false, true] {
        if flushed {
            store.maintain(Millis(2_000)).await.expect("maintained");
        }
        for ts in 0..=100 {
            let first = times.iter().position(|time| *time >= ts).unwrap_or(times.len());
            let start = store.seek(&topic("r"), Seek::Ts(Millis(ts))).await.expect("sought").expect("a place");
            let last = first.checked_sub(1).map(|before| (appended[before].id, Millis(times[before])));
            assert_eq!(start, Start { done: first as u64, last }, "first since {ts}");
        }
    }
}

/// `None`: unknown, or elsewhere.
pub async fn seek_after_an_id_needs_it_on_the_topic(place: Box<dyn Place>) {
    let store = place.open().await.expect("opens");
    let hub = append(&*store, &[event("r").ts(5), event("r").ts(6).id(7), event("other").id(8)]).await;
    for flushed in [false, true] {
        if flushed {
            store.maintain(Millis(2_000)).await.expect("maintained");
        }
        let seek = |id| store.seek(&RTOPIC, Seek::AfterId(id));
        let found = Some(Start { done: 1, last: Some((hub[0].id, Millis(5))) });
        assert_eq!(seek(hub[0].id).await.expect("sought"), found);
        let found = Some(Start { done: 2, last: Some((id(7), Millis(6))) });
        assert_eq!(seek(id(7)).await.expect("sought"), found);
        assert_eq!(seek(id(8)).await.expect("sought"), None);
        assert_eq!(seek(id(9)).await.expect("sought"), None);
        let nowhere = store.seek(&topic("nowhere"), Seek::AfterId(id(7))).await.expect("sought");
        assert_eq!(nowhere, None);
    }
}

/// Over all topics.
pub async fn locate_answers_in_order_and_knows_what_it_does_not_know(place: Box<dyn Place>) {
    let store = place.open().await.expect("opens");
    let hub = append(&*store, &[event("a").ts(1), event("b").ts(2), event("b").ts(3).id(7)]).await;
    for flushed in [false, true] {
        if flushed {
            store.maintain(Millis(2_000)).await.expect("maintained");
        }
        let at = |name, seq, ts| Some(At { topic: topic(name), seq, ts: Millis(ts) });
        let ids = [id(7), id(1), hub[0].id, hub[1].id, id(u128::MAX)];
        let found = store.locate(&ids).await.expect("located");
        assert_eq!(found, [at("b", 2, 3), None, at("a", 1, 1), at("b", 1, 2), None]);
        assert_eq!(store.locate(&[]).await.expect("located"), Vec::new());
    }
}

/// Events, bytes, first, last.
pub async fn info_counts_what_is_there(place: Box<dyn Place>) {
    let store = place.open().await.expect("opens");
    let appended = append(&*store, &vec![event("i").ts(9); 10]).await;
    let wire: u64 = read_all(&*store, "i").await.iter().map(|event| event.wire_len() as u64).sum();
    for flushed in [false, true] {
        if flushed {
            store.maintain(Millis(2_000)).await.expect("maintained");
        }
        let info = store.info(&topic("i")).await.expect("known").expect("exists");
        assert_eq!((info.events, info.first_seq, info.last_seq), (10, 1, 10));
        assert_eq!(info.last, Some((appended[9].id, Millis(9))));
        assert!(info.bytes.abs_diff(wire) * 10 <= wire, "{} is not about {wire}", info.bytes);
    }
    store.trim(&topic("i"), 8).await.expect("trimmed");
    let info = store.info(&topic("i")).await.expect("known").expect("exists");
    assert_eq!((info.events, info.first_seq, info.last_seq), (3, 8, 10));
    assert!(info.bytes < wire / 2);
}

/// Settings, groups and watchers alone make no topic.
pub async fn a_topic_without_events_does_not_exist(place: Box<dyn Place>) {
    let store = place.open().await.expect("opens");
    let _watch = store.watch(&topic("none"));
    store.set_settings(&topic("none"), crate::TopicSettings::default()).await.expect("set");
    let group = promethean_event::Group::parse("g").expect("group");
    store.compare_and_set(&topic("none"), &group, 0, crate::GroupState::default()).await.expect("saved");
    assert_eq!(store.info(&topic("none")).await.expect("known"), None);
    assert_eq!(store.topics().await.expect("listed"), Vec::<Topic>::new());
}

/// What a backup has to have, although nobody has published there yet.
pub async fn a_topic_with_settings_or_a_group_alone_is_known(place: Box<dyn Place>) {
    let store = place.open().await.expect("opens");
    let group = promethean_event::Group::parse("g").expect("group");
    append(&*store, &[event("c")]).await;
    for name in ["b", "c", "b.x"] {
        store.compare_and_set(&topic(name), &group, 0, crate::GroupState::default()).await.expect("saved");
    }
    let settings = crate::TopicSettings { partitions: 3, ..crate::TopicSettings::default() };
    store.set_settings(&topic("a"), settings).await.expect("set");
    assert_eq!(store.topics_of_groups().await.expect("listed"), [topic("b"), topic("b.x"), topic("c")]);
    assert_eq!(store.known_topics().await.expect("listed"), [topic("a"), topic("b"), topic("b.x"), topic("c")]);
    assert!(store.forget(&topic("b"), &group).await.expect("forgotten"));
    assert_eq!(store.known_topics().await.expect("listed"), [topic("a"), topic("b.x"), topic("c")]);
}

static RTOPIC: std::sync::LazyLock<Topic> = std::sync::LazyLock::new(|| topic("r"));
