//! Commands of the dispatcher. The runner carries them out and reports back with an `on_…`.

use promethean_event::{Millis, Seq};

use super::MemberId;

/// Something to carry out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Read up to `max` events from `from` on and report them with `on_read`.
    Read {
        /// First seq wanted.
        from: Seq,
        /// Most events.
        max: usize,
        /// Most bytes; the last event may exceed them.
        bytes: usize,
        /// More events follow than these: reading ahead pays.
        behind: bool,
    },
    /// Read up to `max` more events of the snapshot and report them with `on_snapshot`.
    ReadSnapshot {
        /// Most events.
        max: usize,
    },
    /// Hand an event to a member.
    Deliver(Deliver),
    /// Write the event to the dead-letter topic and report with `on_dead_lettered` or `on_dead_letter_failed`.
    DeadLetter(DeadLetter),
}

/// One event for one member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deliver {
    /// The event's place.
    pub seq: Seq,
    /// The member that gets it.
    pub member: MemberId,
    /// The delivery attempt, from 1.
    pub attempt: u32,
    /// The number of this delivery, the fence of late answers.
    pub lease: u64,
    /// Until when it has to be answered.
    pub deadline: Millis,
    /// The event belongs to a snapshot start.
    pub snapshot: bool,
    /// The event was redriven from a dead letter.
    pub redriven: bool,
}

/// An event that failed too often.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    /// The event's place.
    pub seq: Seq,
    /// The deliveries so far.
    pub attempts: u32,
    /// Why the last delivery failed.
    pub reason: String,
    /// Seq of the dead letter that it was redriven from; 0: none.
    pub redriven: Seq,
}
