//! How groups stand, for operators.

use std::time::Duration;

use promethean_event::{Cursor, EventId, Group, Millis, Seq, Topic};
use promethean_store::Mark;
use serde::{Deserialize, Serialize};

use crate::group::{Counts, Dispatcher, MemberId, Unanswered, Why};
use crate::relay::Origin;

pub(crate) fn cursor(topic: &Topic, seq: Seq, last: Mark) -> Cursor {
    Cursor { topic: topic.clone(), last_id: last.map(|(id, _)| id), last_ts: last.map(|(_, ts)| ts), seq }
}

pub(crate) fn cursor_of(topic: &Topic, dispatcher: &Dispatcher) -> Cursor {
    let (seq, last) = dispatcher.cursor();
    cursor(topic, seq, last)
}

/// How far a group is behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lag {
    /// Where the group stands; none when it has no cursor on the topic.
    pub cursor: Option<Cursor>,
    /// The last event's id.
    pub tail: Option<EventId>,
    /// Events not done.
    pub events: u64,
    /// The age of the oldest event that is not done, by the time of its append.
    pub age: Duration,
}

/// How a group stands on a topic. Hubs that share groups send it to each other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupStatus {
    /// The topic.
    pub topic: Topic,
    /// The group.
    pub group: Group,
    /// Where it stands.
    pub cursor: Cursor,
    /// Events not done, up to `tail`.
    pub lag: u64,
    /// Where the topic ended when that was counted.
    pub tail: Seq,
    /// The age of the oldest event that is not done.
    pub lag_age: Duration,
    /// Its members, wherever they are.
    pub members: Vec<MemberStatus>,
    /// Events held by members.
    pub in_flight: usize,
    /// Events that wait for their time to come back.
    pub waiting: usize,
    /// Deliveries before an event is dead-lettered; 0: no limit.
    pub max_attempts: u32,
    /// A filter passes events over.
    pub filtered: bool,
    /// What is read and not done, at most the first 1,000; none where they were not asked for.
    pub unfinished: Vec<Holding>,
    /// Counts since the group was loaded.
    pub counts: Counts,
    /// Which hub owns the group and did not tell, and why. This is then what was saved, with the members of the hub that was
    /// asked.
    #[serde(default)]
    pub owner_silent: Option<Box<str>>,
    /// Why dead letters cannot be written at the moment; they are tried again.
    #[serde(default)]
    pub letters_failing: Option<Box<str>>,
}

/// A member of a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberStatus {
    /// Its subscription's number.
    pub id: MemberId,
    /// Events it holds.
    pub in_flight: usize,
    /// Most events it holds.
    pub max_in_flight: usize,
    /// Deliveries to it are stopped.
    pub paused: bool,
    /// The subscriber of another hub that it stands for.
    pub origin: Option<Origin>,
}

/// Why an event is not done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HoldingState {
    /// A member has it.
    Held,
    /// It goes to the next member that has room.
    Ready,
    /// It waits for its time to come back.
    Backoff,
    /// It waits for an earlier one with its key.
    BehindKey,
    /// It is on its way to the dead letters.
    Dying,
}

/// An event that is not done, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holding {
    /// The place.
    pub seq: Seq,
    /// The id.
    pub id: EventId,
    /// Deliveries so far.
    pub attempts: u32,
    /// Why the last delivery failed.
    pub reason: Option<Box<str>>,
    /// Why it is not done.
    pub state: HoldingState,
    /// Who holds it.
    pub member: Option<MemberId>,
    /// The lease's number.
    pub lease: Option<u64>,
    /// Since when it is held.
    pub since: Option<Millis>,
    /// When the lease or the wait ends.
    pub until: Option<Millis>,
}

impl std::convert::From<Unanswered> for Holding {
    fn from(one: Unanswered) -> Self {
        let plain = |state| Self {
            seq: one.seq,
            id: one.id,
            attempts: one.attempts,
            reason: one.reason.clone(),
            state,
            member: None,
            lease: None,
            since: None,
            until: None,
        };
        match one.why {
            Why::Held { member, lease, deadline, since } => Self {
                member: Some(member),
                lease: Some(lease),
                since: Some(since),
                until: Some(deadline),
                ..plain(HoldingState::Held)
            },
            Why::Backoff { until } => Self { until: Some(until), ..plain(HoldingState::Backoff) },
            Why::Ready => plain(HoldingState::Ready),
            Why::BehindKey => plain(HoldingState::BehindKey),
            Why::Dying => plain(HoldingState::Dying),
        }
    }
}
