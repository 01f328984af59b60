//! The leases of events that wait for their reader: extended until it takes them, or given back without an attempt.

use promethean_event::frame::ask::GiveBack;
use promethean_event::limits::MAX_BATCH;
use tokio::time::Instant;

use super::Driver;
use crate::settlement::{How, Settlement};

impl Driver {
    /// Extends the leases that have used up a third of their time, many in a frame.
    pub(super) fn keep(&mut self) {
        let now = Instant::now();
        self.keep_at = self.refused.due();
        if self.keep_at.is_some() {
            return;
        }
        let mut settlements = Vec::new();
        for (&number, subscribed) in &self.subscriptions {
            let upkeep = subscribed.deliveries.upkeep(now, subscribed.topics.options.max_extend);
            self.keep_at = self.keep_at.into_iter().chain(upkeep.next).min();
            // On its way out: what waits goes back.
            if !subscribed.live || subscribed.leaving.is_some() {
                continue;
            }
            for (lease, ids) in upkeep.extend {
                let some = ids.chunks(MAX_BATCH).map(|ids| ids.iter().copied());
                settlements.extend(some.map(|ids| Settlement::unasked(number, How::Keep(lease, now), ids)));
            }
            let released = GiveBack { release: true, ..GiveBack::default() };
            for ids in upkeep.release.chunks(MAX_BATCH) {
                let how = How::Nack(released.clone(), None);
                settlements.push(Settlement::unasked(number, how, ids.iter().copied()));
            }
        }
        settlements.into_iter().for_each(|settlement| self.settle(settlement));
    }
}
