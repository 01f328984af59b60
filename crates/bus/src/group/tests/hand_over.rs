//! Leases that begin when the connection has the event, and bytes that a member may take.

use std::time::Duration;

use promethean_event::Millis;

use super::super::{Answer, Command, MemberOptions, Policy, Receipt};
use super::desk::{Desk, nack};

const LEASE: Duration = Duration::from_secs(30);

fn attempts(desk: &Desk) -> Vec<(u64, u32)> {
    desk.out.iter().map(|deliver| (deliver.seq, deliver.attempt)).collect()
}

#[test]
fn a_delivery_that_was_never_handed_over_does_not_expire_and_loses_no_attempt() {
    let policy = Policy { max_attempts: 1, ..Policy::default() };
    let mut desk = Desk::new(policy.clone(), 10);
    desk.dispatcher.on_stamps(1);
    desk.publish_many(2, None);
    desk.run();
    for _ in 0..10 {
        desk.pass(LEASE);
        assert!(desk.run().is_empty());
    }
    // One of the two is handed over, and only that one has failed when the member goes.
    desk.dispatcher.on_handed(1, desk.lease_of(1).expect("given"), desk.now);
    desk.join(2, policy, 10);
    desk.leave(1);
    assert_eq!((desk.run(), &desk.letters), (vec![2], &vec![1]));
    assert_eq!(attempts(&desk), [(1, 1), (2, 1), (2, 1)]);
}

#[test]
fn a_lease_runs_from_the_hand_over() {
    let mut desk = Desk::new(Policy::default(), 10);
    desk.dispatcher.on_stamps(1);
    desk.publish_many(2, None);
    desk.run();
    desk.pass(LEASE * 3);
    desk.dispatcher.on_handed(1, desk.lease_of(1).expect("given"), desk.now);
    desk.pass(Duration::from_secs(10));
    desk.dispatcher.on_handed(1, desk.lease_of(2).expect("given"), desk.now);
    desk.pass(Duration::from_secs(19));
    assert!(desk.run().is_empty());
    desk.pass(Duration::from_secs(1));
    assert_eq!(desk.run(), [1]);
    desk.pass(Duration::from_secs(10));
    assert_eq!(desk.run(), [2]);
    assert_eq!(attempts(&desk)[2..], [(1, 2), (2, 2)]);
}

#[test]
fn an_extension_begins_the_lease_that_it_sets() {
    let mut desk = Desk::new(Policy::default(), 10);
    desk.dispatcher.on_stamps(1);
    let seq = desk.publish(None);
    desk.run();
    assert_eq!(desk.answer(1, seq, None, &Answer::Extend { by: Some(Duration::from_secs(2)) }), Receipt::Done);
    desk.dispatcher.on_handed(1, desk.lease_of(seq).expect("given"), desk.now);
    desk.pass(Duration::from_secs(2));
    assert_eq!(desk.run(), [seq]);
}

#[test]
fn a_wake_up_comes_while_a_hand_over_may_have_passed_unseen() {
    let mut desk = Desk::new(Policy::default(), 10);
    desk.dispatcher.on_stamps(1);
    desk.publish(None);
    desk.run();
    let given = desk.now;
    assert_eq!(desk.dispatcher.poll(desk.now, &mut Vec::new()), Some(given + LEASE));
    desk.pass(LEASE);
    assert_eq!(desk.dispatcher.poll(desk.now, &mut Vec::new()), Some(given + LEASE * 2));
}

#[test]
fn a_member_without_bytes_gets_one_event_more_than_they_hold_and_then_none() {
    let mut desk = Desk::new(Policy::default(), 10);
    desk.publish_many(3, None);
    let size = desk.log[0].body.len();
    desk.dispatcher.on_byte_allowance(1, 2 * size - 1);
    let mut commands = Vec::new();
    desk.dispatcher.poll(desk.now, &mut commands);
    assert!(matches!(commands[..], [Command::Read { bytes, .. }] if bytes == 2 * size - 1), "{commands:?}");
    desk.dispatcher.on_read_failed();
    assert_eq!(desk.run(), [1, 2]);
    assert_eq!((desk.dispatcher.byte_allowance(1), desk.dispatcher.has_room()), (0, false));
    // A redelivery takes its bytes too.
    assert_eq!(desk.answer(1, 1, None, &nack(None)), Receipt::Done);
    desk.dispatcher.on_byte_allowance(1, 1);
    assert_eq!(desk.run(), [1]);
    desk.dispatcher.on_byte_allowance(1, usize::MAX);
    assert_eq!(desk.run(), [3]);
}

#[test]
fn members_of_a_connection_that_reports_nothing_have_leases_from_the_decision_on() {
    let mut desk = Desk::new(Policy::default(), 1);
    let seq = desk.publish(None);
    let options = MemberOptions { max_in_flight: 1, ack_timeout: LEASE, batch_size: 1 };
    desk.dispatcher.on_join(2, options, Policy::default()).expect("the same policy");
    desk.run();
    desk.pass(LEASE);
    assert_eq!(desk.run(), [seq]);
    assert!(desk.now > Millis(0));
}
