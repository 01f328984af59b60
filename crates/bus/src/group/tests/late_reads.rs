//! Reads that return late: what happened meanwhile counts.

use super::super::{Command, Policy};
use super::desk::Desk;

/// Returns the dispatcher's commands, and answers none.
fn asked(desk: &mut Desk) -> Vec<Command> {
    let mut commands = Vec::new();
    desk.dispatcher.poll(desk.now, &mut commands);
    commands
}

#[test]
fn an_event_appended_after_an_empty_read_was_asked_for_is_not_passed_over() {
    let mut desk = Desk::new(Policy::default(), 10);
    desk.publish_many(3, None);
    assert!(matches!(asked(&mut desk)[..], [Command::Read { from: 1, .. }]));
    desk.publish(None);
    // The first three were trimmed away.
    desk.dispatcher.on_read(1, &[], desk.now, &mut Vec::new());
    assert_eq!(desk.dispatcher.cursor().0, 3);
    desk.log.drain(..3);
    assert_eq!(desk.run(), [4]);
}

#[test]
fn a_delivery_that_was_answered_or_given_out_again_is_not_held_under_its_lease() {
    let mut desk = Desk::new(Policy::default(), 10);
    desk.publish_many(2, None);
    desk.run();
    let (one, two) = (desk.out[0], desk.out[1]);
    assert!(desk.dispatcher.is_held(one.seq, one.lease) && desk.dispatcher.is_held(two.seq, two.lease));
    assert!(!desk.dispatcher.is_held(one.seq, two.lease));
    desk.ack(one.seq);
    assert!(!desk.dispatcher.is_held(one.seq, one.lease));
}
