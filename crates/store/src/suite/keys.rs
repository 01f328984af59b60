//! The law of keys: the latest event of each.

use super::*;

async fn latest(store: &dyn Store, keys: &[&str]) -> Vec<Option<Seq>> {
    let keys: Vec<String> = keys.iter().map(ToString::to_string).collect();
    let found = store.latest_by_key(&topic("k"), &keys).await.expect("looked up");
    for (key, event) in keys.iter().zip(&found) {
        assert!(event.as_ref().is_none_or(|event| event.key().as_deref() == Some(key)));
    }
    found.into_iter().map(|event| event.map(|event| event.seq)).collect()
}

async fn page(store: &dyn Store, after: Option<&str>, limit: usize) -> (Vec<(String, Seq)>, bool) {
    let page = store.keys(&topic("k"), after, limit).await.expect("paged");
    let key = |event: &Event| event.key().expect("a key").into_owned();
    (page.items.iter().map(|event| (key(event), event.seq)).collect(), page.more)
}

/// Tombstones included.
pub async fn the_latest_of_a_key_is_its_last_event(place: Box<dyn Place>) {
    let store = place.open().await.expect("opens");
    assert_eq!(latest(&*store, &["a"]).await, [None]);
    append(&*store, &[event("k").key("a"), event("k").key("b"), event("k"), event("k").key("a")]).await;
    append(&*store, &[event("other").key("c")]).await;
    for flushed in [false, true] {
        if flushed {
            store.maintain(Millis(2_000)).await.expect("maintained");
        }
        assert_eq!(latest(&*store, &["b", "a", "c", ""]).await, [Some(2), Some(4), None, None]);
    }
    append(&*store, &[event("k").key("b").payload("null"), event("k").key("")]).await;
    assert_eq!(latest(&*store, &["b", "a", ""]).await, [Some(5), Some(4), Some(6)]);
    store.maintain(Millis(2_000)).await.expect("maintained");
    assert_eq!(latest(&*store, &["b", "a", ""]).await, [Some(5), Some(4), Some(6)]);
}

/// By the keys' bytes.
pub async fn live_keys_are_paged_in_order_without_tombstones(place: Box<dyn Place>) {
    let store = place.open().await.expect("opens");
    assert_eq!(page(&*store, None, 5).await, (vec![], false));
    append(&*store, &["d", "b", "é", "a", "c"].map(|key| event("k").key(key))).await;
    for flushed in [false, true] {
        if flushed {
            store.maintain(Millis(2_000)).await.expect("maintained");
        }
        // Some keys flushed, some not, some both.
        append(&*store, &[event("k").key("b"), event("k").key("c").payload("null")]).await;
        let b = if flushed { 8 } else { 6 };
        let all = [("a", 4), ("b", b), ("d", 1), ("é", 3)].map(|(key, seq)| (key.to_owned(), seq));
        assert_eq!(page(&*store, None, 10).await, (all.to_vec(), false));
        assert_eq!(page(&*store, None, 4).await, (all.to_vec(), false));
        assert_eq!(page(&*store, None, 2).await, (all[..2].to_vec(), true));
        assert_eq!(page(&*store, Some("b"), 1).await, (all[2..3].to_vec(), true));
        assert_eq!(page(&*store, Some("bb"), 9).await, (all[2..].to_vec(), false));
        assert_eq!(page(&*store, Some("é"), 9).await, (vec![], false));
    }
}

/// However JSON writes them.
pub async fn keys_are_compared_as_what_they_mean(place: Box<dyn Place>) {
    let store = place.open().await.expect("opens");
    let odd = ["a\"b", "tab\there", "nul\0", "\u{1F525}", "\\", "a/b"];
    append(&*store, &odd.map(|key| event("k").key(key))).await;
    for flushed in [false, true] {
        if flushed {
            store.maintain(Millis(2_000)).await.expect("maintained");
        }
        assert_eq!(latest(&*store, &odd).await, (1..=6).map(Some).collect::<Vec<_>>());
        let mut sorted = odd.to_vec();
        sorted.sort_unstable();
        let (paged, _) = page(&*store, None, 10).await;
        assert_eq!(paged.iter().map(|(key, _)| key.as_str()).collect::<Vec<_>>(), sorted);
    }
}

/// None missing, none of a later time, whatever happens meanwhile.
pub async fn a_key_snapshot_is_of_one_moment(place: Box<dyn Place>) {
    let store = place.open().await.expect("opens");
    let key = |n: usize| format!("key-{n:03}");
    append(&*store, &(0..60).map(|n| event("k").key(key(n))).collect::<Vec<_>>()).await;
    store.maintain(Millis(2_000)).await.expect("maintained");
    let again: Vec<_> = (0..60).step_by(2).map(|n| event("k").key(key(n))).collect();
    append(&*store, &again).await;
    append(&*store, &[event("k").key(key(7)).payload("null"), event("k")]).await;
    let mut snapshot = store.key_snapshot(&topic("k")).await.expect("opened");
    assert_eq!(snapshot.cut(), 92);
    assert!(matches!(snapshot.left().await.expect("counted"), 59 | 60), "one key of 60 is deleted");
    let mut seen = Vec::new();
    for round in 0.. {
        let part = snapshot.next(7).await.expect("read");
        assert!(part.len() <= 7);
        if part.is_empty() {
            break;
        }
        seen.extend(part.iter().map(|event| (event.key().expect("a key").into_owned(), event.seq)));
        if round == 1 {
            assert!(matches!(snapshot.left().await.expect("counted"), 45 | 46), "14 were read");
            let later: Vec<_> = (0..80).map(|n| event("k").key(format!("late-{n}"))).collect();
            append(&*store, &later).await;
            store.maintain(Millis(2_000)).await.expect("maintained");
            append(&*store, &[event("k").key(key(59))]).await;
        }
    }
    let expected: Vec<_> = (0..60_usize)
        .filter(|n| *n != 7)
        .map(|n| (key(n), if n % 2 == 0 { 61 + n as u64 / 2 } else { n as u64 + 1 }))
        .collect();
    assert_eq!(seen, expected);

    // One that begins after a key has the rest.
    let mut rest = store.key_snapshot(&topic("k")).await.expect("opened");
    rest.begin_after("key-050x");
    assert_eq!(rest.left().await.expect("counted"), 9 + 80);
    let first = rest.next(100).await.expect("read").first().and_then(|event| event.key().map(|key| key.into_owned()));
    assert_eq!(first.as_deref(), Some("key-051"));
}

/// An unknown topic, and one without keys.
pub async fn a_key_snapshot_of_nothing_is_empty(place: Box<dyn Place>) {
    let store = place.open().await.expect("opens");
    append(&*store, &vec![event("keyless"); 2]).await;
    for (name, cut) in [("unknown", 0), ("keyless", 2)] {
        let mut snapshot = store.key_snapshot(&topic(name)).await.expect("opened");
        assert_eq!(snapshot.cut(), cut);
        assert!(snapshot.next(5).await.expect("read").is_empty());
    }
}
