//! Answers that come from another member, from before a seek, or too late.

use std::time::Duration;

use promethean_event::{Millis, limits};
use promethean_store::{GroupState, SnapshotState, Start, Unfinished};

use super::super::{Answer, InSnapshot, Policy, Receipt};
use super::desk::{Desk, id, nack};

#[test]
fn without_a_lease_only_the_holder_can_nack_or_extend() {
    let policy = Policy { max_attempts: 1, ..Policy::default() };
    let mut desk = Desk::new(policy.clone(), 1);
    desk.join(2, policy, 1);
    let seq = desk.publish(None);
    desk.run();
    let holder = desk.out[0].member;
    let other = 3 - holder;
    let extend = Answer::Extend { by: Some(Duration::from_secs(5)) };
    let before: Vec<_> = desk.dispatcher.inspect().collect();
    for by in [other, 99] {
        assert_eq!(desk.answer(by, seq, None, &nack(None)), Receipt::NotInFlight);
        assert_eq!(desk.answer(by, seq, None, &extend), Receipt::NotInFlight);
    }
    assert_eq!(desk.dispatcher.inspect().collect::<Vec<_>>(), before);
    assert!(desk.letters.is_empty());
    assert_eq!(desk.answer(holder, seq, None, &extend), Receipt::Done);
    assert_eq!(desk.answer(other, seq, desk.lease_of(seq), &extend), Receipt::Done, "the lease is proof enough");
    assert_eq!(desk.answer(other, seq, None, &Answer::Ack), Receipt::Done, "a late ack counts");
}

#[test]
fn a_replay_has_every_event_whatever_was_acked_of_before_the_seek() {
    let mut desk = Desk::new(Policy::default(), 100);
    desk.publish_many(20, None);
    desk.run();
    (1..=10).for_each(|seq| desk.ack(seq));
    let old = desk.lease_of(11);
    desk.dispatcher.on_seek(Start::default(), None);
    for seq in 11..=15 {
        desk.ack(seq);
    }
    assert_eq!(desk.dispatcher.on_ack_up_to(20, id(20), Millis(0)), Ok(()));
    assert!(desk.dispatcher.is_lost(id(11), old.expect("delivered")));
    assert_eq!(desk.answer(1, 11, old, &Answer::Ack), Receipt::LeaseLost);
    assert_eq!(
        desk.answer(1, 3, desk.lease_of(3), &Answer::Ack),
        Receipt::LeaseLost,
        "done before, and to be replayed"
    );
    assert_eq!(desk.run(), (1..=20).collect::<Vec<_>>());
    desk.ack(11);
    assert_eq!(desk.dispatcher.on_ack_up_to(11, id(11), Millis(0)), Ok(()));
    assert_eq!(desk.dispatcher.cursor().0, 11, "deliveries since the seek are answered as ever");
}

#[test]
fn a_lease_from_before_a_seek_stays_lost_after_a_restart() {
    let mut desk = Desk::new(Policy::default(), 100);
    desk.publish_many(3, None);
    desk.run();
    let old = desk.lease_of(2);
    desk.dispatcher.on_seek(Start::default(), None);
    let state = GroupState::decode(&desk.dispatcher.state().encode()).expect("a state");
    let mut again = Desk::of(state);
    assert_eq!(again.answer(1, 2, old, &Answer::Ack), Receipt::LeaseLost);
}

#[test]
fn a_wait_from_a_clock_that_ran_ahead_ends_with_the_longest_delay() {
    let month = Duration::from_secs(30 * 24 * 3600);
    let not_before = Millis(1_000_000) + month;
    let state = GroupState {
        unfinished: vec![Unfinished { seq: 1, attempts: 1, not_before, redriven: 0 }],
        ..GroupState::default()
    };
    let mut desk = Desk::of(state);
    desk.join(1, Policy::default(), 10);
    desk.publish(None);
    assert!(desk.run().is_empty());
    desk.pass(limits::MAX_LEASE);
    assert_eq!(desk.run(), [1]);
}

#[test]
fn releases_in_a_loop_leave_no_timers_behind() {
    let mut desk = Desk::new(Policy::default(), 10);
    desk.publish_many(2, None);
    desk.run();
    // The lease that ends first stays in force: nothing behind it is ever taken from the top of the heap.
    desk.answer(1, 1, None, &Answer::Extend { by: Some(Duration::from_secs(1)) });
    let release = Answer::Nack { reason: None, delay: None, release: true };
    for _ in 0..10_000 {
        assert_eq!(desk.answer(1, 2, None, &release), Receipt::Done);
        desk.run();
    }
    assert!(desk.dispatcher.timers() < 200, "{} timers for two events", desk.dispatcher.timers());
}

#[test]
fn what_was_given_back_goes_out_before_what_was_never_out() {
    let policy = Policy { ordered: promethean_event::Ordered::Key, ..Policy::default() };
    let mut desk = Desk::new(policy, 2);
    desk.publish(Some("a"));
    desk.publish(Some("a"));
    desk.publish(None);
    assert_eq!(desk.run(), [1, 3], "2 waits for its key");
    desk.dispatcher.on_pause(1, true);
    desk.ack(1);
    let release = Answer::Nack { reason: None, delay: None, release: true };
    desk.answer(1, 3, None, &release);
    desk.dispatcher.on_pause(1, false);
    assert_eq!(desk.run(), [3, 2]);
}

#[test]
fn up_to_within_a_snapshot_start_is_refused_and_changes_nothing() {
    let snapshot = Some(SnapshotState { cut: 3, ..SnapshotState::default() });
    let mut desk = Desk::of(GroupState { floor: 3, snapshot, ..GroupState::default() });
    let before = desk.dispatcher.state();
    assert_eq!(desk.dispatcher.on_ack_up_to(2, id(2), Millis(0)), Err(InSnapshot));
    assert_eq!(desk.dispatcher.state(), before);
}
