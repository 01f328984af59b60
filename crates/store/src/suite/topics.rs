//! The law of creating and deleting topics, and of removing single events.

use super::groups::{group, state};
use super::*;
use crate::{Ranges, Retention, Saved, Seek, TopicSettings};

/// It is listed, and its first event has seq 1.
pub async fn a_created_topic_exists_without_events(place: Box<dyn Place>) {
    let store = place.open().await.expect("opens");
    let mut created = store.watch_topics();
    created.borrow_and_update();
    assert!(!store.exists(&topic("t")));
    for _ in 0..2 {
        store.create(&topic("t")).await.expect("created");
        assert!(store.exists(&topic("t")));
    }
    assert!(created.has_changed().expect("open"));
    assert_eq!(store.topics().await.expect("listed"), [topic("t")]);
    let info = store.info(&topic("t")).await.expect("known").expect("exists");
    assert_eq!((info.events, info.first_seq, info.last_seq, info.last), (0, 1, 0, None));
    assert_eq!(append(&*store, &[event("t")]).await[0].seq, 1);
}

async fn fill(store: &dyn Store, name: &'static str, ids: std::ops::Range<u128>) {
    append(store, &ids.map(|n| event(name).id(n).key(n.to_string())).collect::<Vec<_>>()).await;
}

async fn is_gone(store: &dyn Store, name: &'static str, ids: std::ops::Range<u128>) {
    let of = topic(name);
    assert!(!store.exists(&of) && store.info(&of).await.expect("known").is_none());
    assert!(!store.known_topics().await.expect("listed").contains(&of));
    assert!(!store.topics().await.expect("listed").contains(&of));
    assert_eq!(store.settings(&of), TopicSettings::default());
    assert!(store.groups(&of).await.expect("listed").is_empty() && seqs(store, name).await.is_empty());
    let ids: Vec<_> = ids.map(id).collect();
    assert!(store.locate(&ids).await.expect("located").iter().all(Option::is_none));
    let keys: Vec<String> = ids.iter().map(|id| u128::from_be_bytes(*id.as_bytes()).to_string()).collect();
    assert!(store.latest_by_key(&of, &keys).await.expect("looked up").iter().all(Option::is_none));
    assert!(store.keys(&of, None, 9).await.expect("listed").items.is_empty());
    assert_eq!(store.key_snapshot(&of).await.expect("opened").next(9).await.expect("read"), []);
}

/// Nothing of it is left but the number of its last event.
pub async fn a_deleted_topic_is_gone_and_its_seqs_continue(place: Box<dyn Place>) {
    let store = place.open().await.expect("opens");
    fill(&*store, "t", 1..6).await;
    store.maintain(Millis(2_000)).await.expect("maintained");
    fill(&*store, "t", 6..9).await;
    fill(&*store, "other", 100..103).await;
    let retention = Retention { max_events: Some(1_000), ..Retention::default() };
    let settings = TopicSettings { partitions: 3, retention, ..TopicSettings::default() };
    store.set_settings(&topic("t"), settings).await.expect("set");
    let saved = store.compare_and_set(&topic("t"), &group("g"), 0, state(4)).await.expect("saved");
    let Saved::Yes(version) = saved else { panic!("{saved:?}") };
    let (mut tail, mut topics) = (store.watch(&topic("t")), store.watch_topics());
    tail.borrow_and_update();
    topics.borrow_and_update();
    store.delete(&[topic("t")]).await.expect("deleted");
    assert_eq!(*tail.borrow_and_update(), crate::Tail { seq: 8, deletions: 1 });
    assert!(topics.has_changed().expect("open"));
    is_gone(&*store, "t", 1..9).await;
    assert_eq!(store.topics().await.expect("listed"), [topic("other")]);
    let late = store.compare_and_set(&topic("t"), &group("g"), version, state(5)).await.expect("answered");
    assert_eq!(late, Saved::Conflict, "what a group saves late is refused");
    store.maintain(Millis(2_000)).await.expect("maintained");
    is_gone(&*store, "t", 1..9).await;
    // The ids are free, on any topic.
    fill(&*store, "other", 1..3).await;
    let again = append(&*store, &[event("t").id(3).key("3"), event("t")]).await;
    assert_eq!(again.iter().map(|one| (one.seq, one.duplicate)).collect::<Vec<_>>(), [(9, false), (10, false)]);
    let info = store.info(&topic("t")).await.expect("known").expect("exists");
    assert_eq!((info.events, info.first_seq, info.last_seq), (2, 9, 10));
    let start = store.seek(&topic("t"), Seek::Earliest).await.expect("sought").expect("found");
    assert_eq!((start.done, start.last), (8, None));
    assert_eq!(
        store.latest_by_key(&topic("t"), &["3".to_owned()]).await.expect("found")[0].as_ref().map(|e| e.seq),
        Some(9)
    );
    assert_eq!(seqs(&*store, "other").await, [1, 2, 3, 4, 5]);
    for deletions in 2..4 {
        store.delete(&[topic("t"), topic("never")]).await.expect("deleted");
        assert_eq!(*store.watch(&topic("t")).borrow(), crate::Tail { seq: 8 + deletions, deletions });
        is_gone(&*store, "t", 3..4).await;
        assert!(!store.exists(&topic("never")));
        store.create(&topic("t")).await.expect("created");
        assert!(store.exists(&topic("t")) && seqs(&*store, "t").await.is_empty());
        assert_eq!(append(&*store, &[event("t")]).await[0].seq, 9 + deletions);
    }
}

/// In front, in the middle, at the end; flushed or not.
pub async fn removed_events_are_gone_and_the_others_stay(place: Box<dyn Place>) {
    let store = place.open().await.expect("opens");
    fill(&*store, "t", 1..11).await;
    store.maintain(Millis(2_000)).await.expect("maintained");
    fill(&*store, "t", 11..21).await;
    for (gone, left) in [
        (vec![(1, 3)], (4..=20).collect::<Vec<_>>()),
        (vec![(2, 4), (6, 6), (9, 12)], vec![5, 7, 8, 13, 14, 15, 16, 17, 18, 19, 20]),
        (vec![(20, 20), (14, 16)], vec![5, 7, 8, 13, 17, 18, 19]),
        (vec![(1, 1_000)], vec![]),
    ] {
        let seqs: Ranges<()> = gone.into_iter().map(|(first, last)| (first, last, ())).collect();
        store.remove(&topic("t"), &seqs).await.expect("removed");
        assert_eq!(super::seqs(&*store, "t").await, left);
        let info = store.info(&topic("t")).await.expect("known").expect("exists");
        assert_eq!((info.events, info.last_seq), (left.len() as u64, 20));
        assert_eq!(info.first_seq, left.first().copied().unwrap_or(21));
        let ids: Vec<_> = (1..21).map(id).collect();
        let there: Vec<Seq> =
            store.locate(&ids).await.expect("located").into_iter().flatten().map(|at| at.seq).collect();
        assert_eq!(there, left);
        let keys: Vec<String> = (1..21).map(|n: u32| n.to_string()).collect();
        let latest = store.latest_by_key(&topic("t"), &keys).await.expect("looked up");
        assert_eq!(latest.into_iter().flatten().map(|event| event.seq).collect::<Vec<_>>(), left);
    }
    assert_eq!(append(&*store, &[event("t").id(7)]).await[0].seq, 21);
    store.remove(&topic("unknown"), &Ranges::default()).await.expect("nothing to do");
}
