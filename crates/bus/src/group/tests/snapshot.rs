//! A snapshot start: its state stays small, its lag counts the keys, and nothing comes twice over a restart.

use std::time::Duration;

use promethean_event::Seq;
use promethean_store::{GroupState, SnapshotState, TopicInfo};

use super::super::Policy;
use super::desk::{Desk, nack};

/// A group that begins with a snapshot of `keys` keys, whose events lie apart by `seq`.
fn start(keys: u64) -> Desk {
    let cut = 2 * keys;
    let snapshot = Some(SnapshotState { cut, left: Some(keys), ..SnapshotState::default() });
    let mut desk = Desk::of(GroupState { floor: cut, snapshot, ..GroupState::default() });
    for n in 0..keys {
        desk.publish(Some("hot"));
        desk.publish(Some(&format!("key-{n:06}")));
    }
    open(&mut desk);
    desk
}

/// Opens the snapshot as an engine does that knows nothing of the place.
fn open(desk: &mut Desk) {
    desk.snapshot = desk.log.iter().filter(|event| event.key().as_deref() != Some("hot")).cloned().collect();
}

fn restart(desk: &Desk) -> Desk {
    let bytes = desk.dispatcher.state().encode();
    let mut again = Desk::of(GroupState::decode(&bytes).expect("a state"));
    again.log.clone_from(&desk.log);
    again.dispatcher.on_tail(desk.log.len() as Seq);
    open(&mut again);
    again
}

fn lag(desk: &Desk) -> u64 {
    let topic = promethean_event::Topic::parse("t").expect("a topic");
    let last_seq = desk.log.len() as u64;
    let info = TopicInfo { topic, events: last_seq, bytes: 0, first_seq: 1, last_seq, last: None };
    let saved = desk.dispatcher.state().lag(&info);
    let lag = desk.dispatcher.lag(Some(&info));
    assert_eq!(saved, lag, "a group that is not loaded says the same");
    lag
}

#[test]
fn the_state_does_not_grow_with_the_keys_that_are_done() {
    let mut desk = start(5_000);
    desk.join(1, Policy::default(), 20);
    let (mut done, mut largest) = (0, 0);
    while done < 4_999 {
        for seq in desk.run() {
            if seq == 2 {
                // One key waits all the time.
                desk.answer(1, seq, None, &nack(Some(Duration::from_secs(3_600))));
            } else {
                desk.ack(seq);
                done += 1;
            }
        }
        assert_eq!(lag(&desk), 5_000 - done);
        largest = largest.max(desk.dispatcher.state().encode().len());
    }
    assert!(largest < 1_000, "{largest} bytes");
    desk.pass(Duration::from_secs(3_600));
    assert_eq!(desk.run(), [2]);
    desk.ack(2);
    assert_eq!(desk.dispatcher.snapshot_cut(), None, "the start is over");
    assert_eq!((lag(&desk), desk.dispatcher.state().encode().len() < 50), (0, true));
}

#[test]
fn after_a_restart_the_snapshot_goes_on_where_it_was() {
    let mut desk = start(10);
    desk.join(1, Policy::default(), 4);
    assert_eq!(desk.run(), [2, 4, 6, 8]);
    desk.ack(2);
    desk.ack(6);
    let mut again = restart(&desk);
    assert_eq!(lag(&again), 8);
    again.join(1, Policy::default(), 100);
    assert_eq!(again.run(), [10, 12, 14, 16, 18, 20, 4, 8]);
    (1..=10).for_each(|n| again.ack(2 * n));
    assert_eq!((again.dispatcher.snapshot_cut(), lag(&again)), (None, 0));
}

#[test]
fn an_ack_from_before_a_crash_counts_also_ahead_of_the_reader() {
    let desk = start(3);
    let mut again = restart(&desk);
    assert!(again.dispatcher.needs_key(4));
    again.dispatcher.on_snapshot_ack(&desk.log[3]);
    again.join(1, Policy::default(), 1);
    assert_eq!(again.run(), [2]);
    again.ack(2);
    assert_eq!(again.run(), [6], "4 was acked before");
    // Behind the reader it changes nothing, whatever comes.
    let before = again.dispatcher.state();
    again.dispatcher.on_snapshot_ack(&desk.log[3]);
    assert_eq!(again.dispatcher.state(), before);
    again.ack(6);
    assert!(again.run().is_empty());
    assert_eq!(again.dispatcher.snapshot_cut(), None);
}

#[test]
fn a_state_of_an_older_hub_goes_on_without_the_keys_that_are_done() {
    let mut state = GroupState { floor: 20, ..GroupState::default() };
    let done = [(2, 2, None), (6, 6, None)].into_iter().collect();
    state.snapshot = Some(SnapshotState { cut: 20, done, ..SnapshotState::default() });
    let mut desk = start(10);
    desk.dispatcher = super::super::Dispatcher::new(state, false, 1);
    desk.dispatcher.on_tail(20);
    desk.join(1, Policy::default(), 100);
    assert_eq!(desk.run(), [4, 8, 10, 12, 14, 16, 18, 20]);
    let snapshot = desk.dispatcher.state().snapshot.expect("under way");
    assert!(snapshot.done.is_empty(), "the place says what is done");
}
