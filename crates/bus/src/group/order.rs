//! `ordered: "key"`: which unfinished event of a key is the earliest.
//!
//! Keys are kept as hashes: two keys with one hash only wait for each other without need.

use std::collections::{BTreeSet, HashMap};

use foldhash::fast::RandomState;
use promethean_event::{Event, Seq};
use xxhash_rust::xxh3::xxh3_64;

/// The hash of an event's key; without a key there is no order to keep.
pub(super) fn hash(event: &Event) -> Option<u64> {
    event.key().map(|key| xxh3_64(key.as_bytes()))
}

/// The unfinished events of each key.
#[derive(Debug, Default)]
pub(super) struct KeyOrder {
    queues: HashMap<u64, BTreeSet<Seq>, RandomState>,
}

impl KeyOrder {
    /// Adds an event; whether it is the earliest of its key.
    pub(super) fn join(&mut self, key: u64, seq: Seq) -> bool {
        let queue = self.queues.entry(key).or_default();
        queue.insert(seq);
        queue.first() == Some(&seq)
    }

    /// True if an event is the only one of its key.
    pub(super) fn is_alone(&self, key: u64) -> bool {
        self.queues.get(&key).is_none_or(|queue| queue.len() == 1)
    }

    /// Removes an event that is done and returns the earliest one that is left. It may have been the earliest before: a
    /// redriven event joins before one that is out.
    pub(super) fn leave(&mut self, key: u64, seq: Seq) -> Option<Seq> {
        let queue = self.queues.get_mut(&key)?;
        queue.remove(&seq);
        let next = queue.first().copied();
        if next.is_none() {
            self.queues.remove(&key);
        }
        next
    }
}
