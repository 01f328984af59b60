//! A member of a group that another hub owns, as this hub knows it: its relay, and what it was given and has not answered.
//!
//! Invariants: what is held counts once, however often it is given, and until it is answered, done with another answer, or
//! its lease is over; a member that shares its room over topics has room for what it holds and no more
//! ([`RemoteMember::charge`]), so that unused room goes back by itself.

use std::collections::HashMap;
use std::time::Duration;

use foldhash::fast::RandomState;
use promethean_event::{EventId, Millis, Seq};
use tokio::time::Instant;

use super::host::Member;
use crate::relay::{RelayGiven, Remote};

/// How long leases that are over may be held at most: they are not looked for one by one.
const SLACK: Duration = Duration::from_millis(50);

/// A member at the owner.
pub(super) struct RemoteMember {
    pub(super) remote: Box<dyn Remote>,
    held: HashMap<EventId, Held, RandomState>,
    /// When the first lease of what is held is over, or earlier.
    over: Option<Millis>,
    /// It has no room; since then the owner gives it nothing.
    pub(super) stopped: Option<Instant>,
}

/// A delivery that is not answered.
struct Held {
    seq: Seq,
    lease: u64,
    until: Millis,
}

impl RemoteMember {
    pub(super) fn new(remote: Box<dyn Remote>) -> Self {
        Self { remote, held: HashMap::default(), over: None, stopped: None }
    }

    /// How many events it holds.
    pub(super) fn in_flight(&self) -> usize {
        self.held.len()
    }

    /// Takes out of `given` what there is no room for; what is held already needs none.
    pub(super) fn excess(&self, given: &mut Vec<RelayGiven>, mut room: usize) -> Vec<(EventId, Option<u64>)> {
        let over = given.extract_if(.., |one| {
            let fits = self.held.contains_key(&one.event.id) || room > 0;
            if fits && !self.held.contains_key(&one.event.id) {
                room -= 1;
            }
            !fits
        });
        over.map(|one| (one.event.id, Some(one.lease))).collect()
    }

    pub(super) fn hold(&mut self, one: &RelayGiven, until: Millis) {
        self.held.insert(one.event.id, Held { seq: one.event.seq, lease: one.lease, until });
        self.over = Some(self.over.map_or(until, |over| over.min(until)));
    }

    /// The lease of an event is until then.
    pub(super) fn extend(&mut self, id: EventId, until: Millis) {
        if let Some(held) = self.held.get_mut(&id) {
            held.until = until;
            self.over = Some(self.over.map_or(until, |over| over.min(until)));
        }
    }

    /// An event was answered.
    pub(super) fn answered(&mut self, id: EventId) {
        self.held.remove(&id);
    }

    /// The place of an event that is held.
    pub(super) fn seq_of(&self, id: EventId) -> Option<Seq> {
        self.held.get(&id).map(|held| held.seq)
    }

    /// An event and all before it were answered.
    pub(super) fn answered_up_to(&mut self, seq: Seq) {
        self.held.retain(|_, held| held.seq > seq);
    }

    /// Lets go of what is not its own any more.
    pub(super) fn expire(&mut self, now: Millis) {
        if self.over.is_some_and(|over| over <= now) {
            self.held.retain(|_, held| held.until > now);
            self.over = self.held.values().map(|held| held.until.max(now + SLACK)).min();
        }
    }

    /// When there may be something to let go of.
    pub(super) fn expires(&self) -> Option<Millis> {
        self.over
    }

    /// Everything that it holds goes.
    pub(super) fn take(&mut self) -> Vec<(EventId, Option<u64>)> {
        self.over = None;
        self.held.drain().map(|(id, held)| (id, Some(held.lease))).collect()
    }

    /// Gives back the room of a member beyond what it holds.
    pub(super) fn charge(&self, member: &Member) {
        member.lane.settle(self.held.len(), self.stopped.is_some());
    }

    /// How many of `given` it does not hold yet.
    pub(super) fn new_of(&self, given: &[RelayGiven]) -> usize {
        given.iter().filter(|one| !self.held.contains_key(&one.event.id)).count()
    }
}
