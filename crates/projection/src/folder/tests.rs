//! Random kills against an uninterrupted run, and the sizes of what is published at once.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// Counts events of a key; the third removes it, so that what was removed must not be forgotten.
struct Threes;

impl Projection for Threes {
    type State = u32;
    fn fold(&mut self, event: &Input<'_>, states: &mut States<u32>) -> Result<(), Skip> {
        let key = event.key.as_deref().ok_or("no key")?;
        match states.get(key).copied().unwrap_or(0) + 1 {
            3 => states.remove(key),
            count => states.set(key, count),
        }
        Ok(())
    }
}

fn folder() -> Folder<Threes> {
    Folder::new(Settings::new("threes", "in", "out").expect("good"), Threes)
}

fn input(seq: Seq, key: Option<u8>) -> Input<'static> {
    let key = key.map(|key| Cow::Owned(key.to_string()));
    Input { id: EventId::derived(&[&seq.to_le_bytes()]), seq, ts: Millis(seq), key, payload: "{}" }
}

fn live(folder: &Folder<Threes>) -> BTreeMap<String, u32> {
    folder.states().iter().map(|(key, state)| (key.to_owned(), *state)).collect()
}

/// Publishes a batch to a log; ids that are there already are not stored again.
fn publish(log: &mut Vec<Output>, folder: &mut Folder<Threes>) {
    for output in folder.take().expect("JSON") {
        if !log.iter().any(|there| there.options.id == output.options.id) {
            log.push(output);
        }
    }
}

fn restored(log: &[Output]) -> Folder<Threes> {
    let mut folder = folder();
    for output in log {
        let find = |name: &str| output.options.headers.iter().find(|(this, _)| this == name);
        let key = output.options.key.as_deref().expect("a key");
        folder.restore(key, output.payload.get(), |name| find(name).map(|(_, value)| value.as_ref()));
    }
    folder
}

proptest! {
    #[test]
    fn however_often_it_is_killed_the_state_is_that_of_an_uninterrupted_run(
        keys in proptest::collection::vec(proptest::option::weighted(0.9, 0_u8..6), 1..120),
        // After how many events a batch is published, and whether the process dies before or after that.
        steps in proptest::collection::vec((1_usize..9, 0_u8..3), 1..60),
    ) {
        let events: Vec<_> = keys.iter().enumerate().map(|(at, key)| input(at as u64 + 1, *key)).collect();
        let mut whole = folder();
        for event in &events {
            whole.fold(event).expect("room");
        }
        let (mut log, mut folder) = (Vec::new(), folder());
        let mut steps = steps.into_iter().chain(std::iter::repeat((8, 2)));
        while (folder.position().seq as usize) < events.len() {
            let (count, fate) = steps.next().expect("endless");
            let from = folder.position().seq as usize;
            for event in events.iter().skip(from).take(count) {
                folder.fold(event).expect("room");
            }
            if fate > 0 {
                publish(&mut log, &mut folder);
            }
            if fate < 2 {
                let before = folder.position();
                folder = restored(&log);
                prop_assert!(folder.position().seq <= before.seq);
            }
        }
        publish(&mut log, &mut folder);
        prop_assert_eq!(live(&folder), live(&whole));
        prop_assert_eq!(live(&restored(&log)), live(&whole));
    }
}

#[test]
fn a_position_that_only_tombstones_carry_is_published_again_before_they_go() {
    let (mut folder, mut log) = (folder(), Vec::new());
    assert!(folder.mark(Millis(0)).is_none() && folder.mark(Millis(MARK_EVERY)).is_none(), "nothing folded");
    (1..=3).for_each(|seq| folder.fold(&input(seq, Some(1))).expect("room"));
    publish(&mut log, &mut folder);
    assert_eq!(log.pop().expect("a tombstone").payload.get(), "null");
    let early = folder.mark(Millis(MARK_EVERY - 1));
    assert!(early.is_none(), "{early:?}");
    // The tombstone has gone; what was folded is not folded again.
    log.extend(folder.mark(Millis(MARK_EVERY)));
    let mut again = restored(&log);
    assert_eq!((again.position(), live(&again).len()), (folder.position(), 0));
    assert!(folder.mark(Millis(MARK_EVERY + 1)).is_none(), "just said");
    assert!(folder.mark(Millis(2 * MARK_EVERY)).is_some(), "it is a tombstone too");
    // A state carries the position for good.
    again.fold(&input(4, Some(2))).expect("room");
    assert!(again.mark(Millis(0)).is_none() && again.mark(Millis(MARK_EVERY)).is_none(), "to be published first");
    publish(&mut log, &mut again);
    assert!(again.mark(Millis(9 * MARK_EVERY)).is_none());
}

/// An event sets as many keys as its payload says, to a state of a kilobyte; so does a tick, of other keys.
struct Wide;

impl Projection for Wide {
    type State = String;
    fn fold(&mut self, event: &Input<'_>, states: &mut States<String>) -> Result<(), Skip> {
        let keys: usize = event.payload_as()?;
        (0..keys).for_each(|key| states.set(format!("{}-{key}", event.seq), "x".repeat(1_024)));
        Ok(())
    }
    fn tick(&mut self, now: Millis, states: &mut States<String>) {
        (0..now.0).for_each(|key| states.set(format!("tick {key}"), "x".repeat(1_024)));
    }
}

fn wide() -> Folder<Wide> {
    Folder::new(Settings::new("wide", "in", "out").expect("good"), Wide)
}

fn wide_input(seq: Seq, payload: &'static str) -> Input<'static> {
    Input { payload, ..input(seq, None) }
}

#[test]
fn what_was_folded_is_one_unit_however_much_and_a_tick_as_many_as_it_takes() {
    let mut folder = wide();
    let sizes = |folder: &mut Folder<Wide>| -> Vec<usize> {
        folder.units().expect("JSON").iter().map(|unit| unit.len()).collect()
    };
    folder.fold(&wide_input(1, "9000")).expect("room");
    assert_eq!(sizes(&mut folder), [9_000], "a part of it would say that all of it was folded");
    folder.tick(Millis(2_000)).expect("room");
    assert_eq!(sizes(&mut folder), [2_000], "where it fits it is one");
    let mut folder = wide();
    folder.tick(Millis(9_000)).expect("room");
    let units = folder.units().expect("JSON");
    assert!(units.len() > 2 && units.iter().map(Vec::len).sum::<usize>() == 9_000, "{}", units.len());
    for unit in &units {
        let bytes: usize = unit.iter().map(Output::bytes).sum();
        assert!(bytes <= AT_ONCE_BYTES, "{bytes} bytes");
    }
    let mut folder = wide();
    folder.fold(&wide_input(1, "1")).expect("room");
    folder.tick(Millis(9_000)).expect("room");
    assert_eq!(sizes(&mut folder), [9_001], "the position does not count before what was folded is there");
    assert!(folder.units().expect("JSON").is_empty());
}

#[test]
fn a_batch_is_full_before_its_bytes_are_more_than_a_quarter_of_a_frame() {
    let mut folder = wide();
    let mut seq = 0;
    while !folder.is_full() {
        seq += 1;
        folder.fold(&wide_input(seq, "1")).expect("room");
    }
    assert_eq!(seq, AT_ONCE as u64, "small ones by their number");
    folder.units().expect("JSON");
    assert!(!folder.is_full());
    let mut large = Folder::new(Settings::new("large", "in", "out").expect("good"), Large);
    let mut seq = 0;
    while !large.is_full() {
        seq += 1;
        large.fold(&wide_input(seq, "1")).expect("room");
    }
    assert!((50..110).contains(&seq), "{seq} of 40 KB");
}

/// A state of 40 KB for each event.
struct Large;

impl Projection for Large {
    type State = String;
    fn fold(&mut self, event: &Input<'_>, states: &mut States<String>) -> Result<(), Skip> {
        states.set(event.seq.to_string(), "x".repeat(40_000));
        Ok(())
    }
}

#[test]
fn an_event_that_cannot_be_folded_is_left_out_and_counts_as_folded() {
    let mut folder = folder();
    folder.fold(&input(1, Some(7))).expect("room");
    folder.fold(&input(2, None)).expect("left out");
    folder.fold(&input(2, Some(7))).expect("folded before");
    assert_eq!((folder.skipped(), folder.position().seq, live(&folder)["7"]), (1, 2, 1));
}

#[test]
fn a_position_is_read_as_it_was_written() {
    let id = Some(EventId::derived(&[b"x"]));
    for position in [Position { seq: 0, id: None }, Position { seq: 42, id }] {
        assert_eq!(Position::parse(&position.encode()), Some(position));
    }
    for bad in ["", "x", "1 2", "-1"] {
        assert_eq!(Position::parse(bad), None, "{bad}");
    }
}
