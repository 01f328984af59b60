//! What a subscriber was given, and by which owner of its group.
//!
//! After the owner has changed, an event that the old one gave out may be somebody else's already. An ack of the old
//! delivery then counts only if the event was not given out again: else somebody would see an event after its `OK`.
//!
//! Bounded: two generations of at most twice what may be in flight; what is forgotten is taken for current.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use promethean_event::EventId;

#[derive(Debug, Default)]
pub(super) struct LeaseHistory {
    /// Raised whenever the owner changes.
    turn: u64,
    recent: HashMap<EventId, One, RandomState>,
    older: HashMap<EventId, One, RandomState>,
}

#[derive(Debug, Clone, Copy)]
struct One {
    lease: u64,
    turn: u64,
    /// An owner before gave it to the same subscriber.
    again: bool,
}

impl LeaseHistory {
    /// The owner changes: what was given so far is of the old one.
    pub(super) fn next_owner(&mut self) {
        self.turn += 1;
    }

    /// An event is given under `lease`.
    pub(super) fn note(&mut self, id: EventId, lease: u64, max_in_flight: usize) {
        if self.recent.len() >= 2 * max_in_flight {
            self.older = std::mem::take(&mut self.recent);
        }
        let again = self.find(id).is_some_and(|before| before.turn != self.turn || before.again);
        self.recent.insert(id, One { lease, turn: self.turn, again });
    }

    /// The lease under which an owner before gave the event; none: it is of the current one.
    pub(super) fn stale(&self, id: EventId) -> Option<u64> {
        self.find(id).filter(|one| one.turn != self.turn).map(|one| one.lease)
    }

    /// True if the subscriber has it both from an owner before and from the current one.
    pub(super) fn came_again(&self, id: EventId) -> bool {
        self.find(id).is_some_and(|one| one.again)
    }

    fn find(&self, id: EventId) -> Option<One> {
        self.recent.get(&id).or_else(|| self.older.get(&id)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u8) -> EventId {
        EventId::from_bytes([n; 16])
    }

    #[test]
    fn what_an_owner_before_gave_is_told_apart_until_it_is_given_again() {
        let mut handed = LeaseHistory::default();
        handed.note(id(1), 10, 4);
        assert_eq!((handed.stale(id(1)), handed.came_again(id(1))), (None, false));
        handed.next_owner();
        assert_eq!(handed.stale(id(1)), Some(10));
        handed.note(id(1), 20, 4);
        assert_eq!((handed.stale(id(1)), handed.came_again(id(1))), (None, true));
    }

    #[test]
    fn it_remembers_at_least_what_may_be_in_flight_and_stays_small() {
        let mut handed = LeaseHistory::default();
        for n in 0..100 {
            handed.note(id(n), u64::from(n), 4);
        }
        handed.next_owner();
        assert!((92..100).all(|n| handed.stale(id(n)) == Some(u64::from(n))));
        assert!(handed.recent.len() + handed.older.len() <= 16);
    }
}
