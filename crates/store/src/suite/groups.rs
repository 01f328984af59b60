//! The law of groups.

use promethean_event::Group;

use super::*;
use crate::{Error, GroupState, Save, Saved, Unfinished};

pub(super) fn group(name: &str) -> Group {
    Group::parse(name).expect("a valid group")
}

pub(super) fn state(floor: Seq) -> GroupState {
    let mut state = GroupState { floor, last: Some((id(7), Millis(9))), generation: 2, ..GroupState::default() };
    state.done.insert(floor + 2, floor + 5, None);
    state.unfinished.push(Unfinished { seq: floor + 1, attempts: 3, not_before: Millis(1), redriven: 0 });
    state
}

/// Only who knows the last version.
pub async fn a_group_is_saved_by_compare_and_set(place: Box<dyn Place>) {
    let store = place.open().await.expect("opens");
    let (name, group) = (topic("a"), group("g"));
    assert_eq!(store.load(&name, &group).await.expect("loaded"), None);
    assert_eq!(store.compare_and_set(&name, &group, 5, state(1)).await.expect("answered"), Saved::Conflict);
    let Saved::Yes(first) = store.compare_and_set(&name, &group, 0, state(1)).await.expect("answered") else {
        panic!("there was none")
    };
    assert!(first > 0);
    assert_eq!(store.compare_and_set(&name, &group, 0, state(9)).await.expect("answered"), Saved::Conflict);
    assert_eq!(store.load(&name, &group).await.expect("loaded"), Some((state(1), first)));
    let Saved::Yes(second) = store.compare_and_set(&name, &group, first, state(2)).await.expect("answered") else {
        panic!("the version was right")
    };
    assert_ne!(first, second);
    assert_eq!(store.compare_and_set(&name, &group, first, state(9)).await.expect("answered"), Saved::Conflict);
    assert_eq!(store.load(&name, &group).await.expect("loaded"), Some((state(2), second)));
    assert_eq!(store.load(&topic("b"), &group).await.expect("loaded"), None);
}

/// In order, also where two are of the same group; a conflict of one leaves the others alone.
pub async fn many_states_are_saved_at_once_each_with_its_own_outcome(place: Box<dyn Place>) {
    let store = place.open().await.expect("opens");
    let one = |name: &str, of: &str, expected, floor| Save {
        topic: topic(name),
        group: group(of),
        expected,
        state: state(floor),
    };
    assert_eq!(store.save_many(Vec::new()).await.expect("answered"), []);
    let first = vec![one("a", "g", 0, 1), one("a", "h", 0, 2), one("b", "g", 7, 3), one("c", "g", 0, 4)];
    let saved = store.save_many(first).await.expect("answered");
    let [Ok(Saved::Yes(ag)), Ok(Saved::Yes(ah)), Ok(Saved::Conflict), Ok(Saved::Yes(_))] = saved[..] else {
        panic!("{saved:?}")
    };
    assert_eq!(store.load(&topic("b"), &group("g")).await.expect("loaded"), None);
    let next = vec![one("a", "g", ag, 5), one("c", "g", 99, 6), one("a", "h", ah, 7), one("b", "g", 0, 8)];
    let saved = store.save_many(next).await.expect("answered");
    let [Ok(Saved::Yes(ag)), Ok(Saved::Conflict), Ok(Saved::Yes(ah)), Ok(Saved::Yes(bg))] = saved[..] else {
        panic!("{saved:?}")
    };
    for (name, of, floor, version) in [("a", "g", 5, ag), ("a", "h", 7, ah), ("b", "g", 8, bg)] {
        let loaded = store.load(&topic(name), &group(of)).await.expect("loaded");
        assert_eq!(loaded, Some((state(floor), version)), "{name} {of}");
    }
    let large = |floor| GroupState {
        unfinished: (0..20_000)
            .map(|n| Unfinished { seq: floor + n, attempts: 1, not_before: Millis(n), redriven: 0 })
            .collect(),
        ..state(floor)
    };
    let many: Vec<String> = (0..50).map(|n| format!("m{n}")).collect();
    let saves = many.iter().map(|name| Save { state: large(1_000_000), ..one(name, "g", 0, 1) }).collect();
    let saved = store.save_many(saves).await.expect("answered");
    assert!(saved.iter().all(|saved| matches!(saved, Ok(Saved::Yes(_)))) && saved.len() == 50, "{saved:?}");
    let loaded = store.load(&topic("m49"), &group("g")).await.expect("loaded");
    assert_eq!(loaded.map(|(state, _)| state), Some(large(1_000_000)));
}

/// Never both, never none.
pub async fn of_two_savers_one_wins(place: Box<dyn Place>) {
    let store = place.open().await.expect("opens");
    let mut version = 0;
    for round in 0..20 {
        let mut running = Vec::new();
        for saver in 0..4 {
            let store = store.clone();
            let save = async move {
                store.compare_and_set(&topic("a"), &group("g"), version, state(round * 10 + saver)).await
            };
            running.push(tokio::spawn(save));
        }
        let mut won = Vec::new();
        for (saver, one) in (0..).zip(running) {
            if let Saved::Yes(version) = one.await.expect("no panic").expect("answered") {
                won.push((saver, version));
            }
        }
        assert_eq!(won.len(), 1, "{won:?}");
        version = won[0].1;
        let saved = store.load(&topic("a"), &group("g")).await.expect("loaded");
        assert_eq!(saved, Some((state(round * 10 + won[0].0), version)));
    }
}

/// Sorted by name.
pub async fn groups_are_listed_by_topic_and_forgotten_one_by_one(place: Box<dyn Place>) {
    let store = place.open().await.expect("opens");
    for (floor, name) in (1..).zip(["b", "a", "c"]) {
        store.compare_and_set(&topic("t"), &group(name), 0, state(floor)).await.expect("saved");
    }
    store.compare_and_set(&topic("u"), &group("z"), 0, state(9)).await.expect("saved");
    let listed = store.groups(&topic("t")).await.expect("listed");
    assert_eq!(listed, [(group("a"), state(2)), (group("b"), state(1)), (group("c"), state(3))]);
    assert!(store.forget(&topic("t"), &group("b")).await.expect("forgotten"));
    assert!(!store.forget(&topic("t"), &group("b")).await.expect("not there"));
    assert!(!store.forget(&topic("unknown"), &group("b")).await.expect("not there"));
    let listed = store.groups(&topic("t")).await.expect("listed");
    assert_eq!(listed, [(group("a"), state(2)), (group("c"), state(3))]);
    assert_eq!(store.groups(&topic("u")).await.expect("listed"), [(group("z"), state(9))]);
    assert_eq!(store.groups(&topic("unknown")).await.expect("listed"), []);
}

/// As if it had never been.
pub async fn a_forgotten_group_begins_anew(place: Box<dyn Place>) {
    let store = place.open().await.expect("opens");
    let (name, group) = (topic("t"), group("g"));
    let Saved::Yes(old) = store.compare_and_set(&name, &group, 0, state(1)).await.expect("saved") else {
        panic!("there was none")
    };
    assert!(store.forget(&name, &group).await.expect("forgotten"));
    assert_eq!(store.load(&name, &group).await.expect("loaded"), None);
    assert_eq!(store.compare_and_set(&name, &group, old, state(2)).await.expect("answered"), Saved::Conflict);
    assert!(matches!(store.compare_and_set(&name, &group, 0, state(3)).await.expect("answered"), Saved::Yes(_)));
}

/// With an error that says so.
pub async fn after_close_everything_is_refused(place: Box<dyn Place>) {
    let store = place.open().await.expect("opens");
    append(&*store, &[event("a")]).await;
    assert!(store.ready().is_ok());
    store.close().await.expect("closed");
    let appended = store.append(vec![event("a").new_event()]).await;
    assert!(matches!(appended, Err(Error::Closed(_))), "{appended:?}");
    let saved = store.compare_and_set(&topic("a"), &group("g"), 0, state(1)).await;
    assert!(matches!(saved, Err(Error::Closed(_))), "{saved:?}");
    let read = store.read(&topic("a"), 1, ReadMax::events(1)).await;
    assert!(matches!(read, Err(Error::Closed(_))), "{read:?}");
    assert!(matches!(store.ready(), Err(Error::Closed(_))));
}
