//! The events that a connection was given, where it has a quota: answers to them are never refused for it.

use std::collections::HashSet;

use foldhash::fast::RandomState;
use promethean_bus::Given;
use promethean_event::EventId;

/// Events of one half, over which the older half is forgotten: more than a connection may hold without acks.
const HALF: usize = 20_000;

/// Events that were given out lately. Without a quota there are none.
pub(super) struct Held {
    /// The later half, and the one before it.
    halves: Option<[HashSet<EventId, RandomState>; 2]>,
}

impl Held {
    pub(super) fn new(limited: bool) -> Self {
        Self { halves: limited.then(Default::default) }
    }

    /// Adds deliveries that can be answered.
    pub(super) fn add(&mut self, given: &[Given]) {
        let Some([later, earlier]) = &mut self.halves else { return };
        for one in given.iter().filter(|one| one.lease != 0) {
            if later.len() >= HALF {
                *earlier = std::mem::take(later);
            }
            later.insert(one.event.id);
        }
    }

    /// True if the connection holds one of the events, or has answered it lately.
    pub(super) fn any(&self, ids: &[EventId]) -> bool {
        let holds = |id: &EventId| self.halves.iter().flatten().any(|half| half.contains(id));
        ids.iter().any(holds)
    }
}
