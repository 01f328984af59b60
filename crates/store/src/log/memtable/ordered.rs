//! Keys of unflushed events in order, for pages of keys.
//!
//! Readers make sorted runs of a generation's keys, outside of the topic's lock, and leave them there for the next reader.
//! So a page costs a page and the events since the last one, and the writer waits for [`STEP`] events at most.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::MutexGuard;
use promethean_event::Seq;

use super::{Generation, Inner, STEP, TopicState};
use crate::log::flush::index::Latest;
use crate::log::tiers::first_alike;

/// Keys, ascending, each with its latest event.
type Run = Arc<Vec<(Bytes, Latest)>>;

/// The ordered keys of a generation.
#[derive(Debug, Default)]
pub(super) struct Ordered {
    /// The first so many events are in the runs.
    events: usize,
    /// Oldest first.
    runs: Vec<Run>,
}

/// The keys of all unflushed events of one moment, in order.
#[derive(Debug, Clone)]
pub(in crate::log) struct Recent {
    /// Each with the place of its next key.
    runs: Vec<(Run, usize)>,
    /// Events before this one are gone.
    first_seq: Seq,
}

impl TopicState {
    /// Returns the keys of all unflushed events, and what `with` returns of the same moment.
    pub(in crate::log) fn ordered<T>(&self, with: impl FnOnce(&Inner) -> T) -> (Recent, T) {
        loop {
            let inner = self.inner.lock();
            let waits = inner.generations().find(|generation| generation.unordered() > STEP);
            let Some(generation) = waits else {
                let rest: Vec<_> = inner.generations().flat_map(Generation::keys_to_order).collect();
                let runs: Vec<Run> =
                    inner.generations().flat_map(|generation| generation.ordered.runs.iter().cloned()).collect();
                let (first_seq, got) = (inner.first_seq, with(&inner));
                drop(inner);
                let runs = runs.into_iter().chain([Arc::new(sorted(rest))]).map(|run| (run, 0)).collect();
                return (Recent { runs, first_seq }, got);
            };
            let (journal, from, keys) = (generation.journal, generation.ordered.events, generation.keys_to_order());
            let keys: Vec<_> = keys.collect();
            MutexGuard::unlock_fair(inner);
            self.add_run(journal, from, Arc::new(sorted(keys)));
        }
    }

    /// Adds the run of [`STEP`] events from `from` on, where another reader has not, and merges runs of about one size.
    fn add_run(&self, journal: u64, from: usize, run: Run) {
        let alike = {
            let mut inner = self.inner.lock();
            let Some(ordered) = inner.ordered_of(journal) else { return };
            if ordered.events != from {
                return;
            }
            ordered.events = from + STEP;
            ordered.runs.push(run);
            let sizes: Vec<_> = ordered.runs.iter().map(|run| run.len() as u64).collect();
            first_alike(&sizes).map(|first| ordered.runs[first..].to_vec())
        };
        let Some(alike) = alike else { return };
        let merged = Arc::new(sorted(alike.iter().flat_map(|run| run.iter().cloned()).collect()));
        let mut inner = self.inner.lock();
        let Some(ordered) = inner.ordered_of(journal) else { return };
        let same = |at: usize| alike.iter().zip(&ordered.runs[at..]).all(|(one, other)| Arc::ptr_eq(one, other));
        if let Some(at) = ordered.runs.len().checked_sub(alike.len()).filter(|at| same(*at)) {
            ordered.runs.splice(at.., [merged]);
        }
    }
}

impl Inner {
    fn ordered_of(&mut self, journal: u64) -> Option<&mut Ordered> {
        let generation = self.generations_mut().find(|generation| generation.journal == journal)?;
        Some(&mut generation.ordered)
    }
}

impl Generation {
    /// Events that are in no run.
    fn unordered(&self) -> usize {
        self.events.len() - self.ordered.events
    }

    /// The keys of at most [`STEP`] events that are in no run.
    fn keys_to_order(&self) -> impl Iterator<Item = (Bytes, Latest)> {
        let from = self.ordered.events;
        let events = (self.first + from as u64..).zip(self.events.iter().skip(from).take(STEP));
        events.filter_map(|(seq, held)| Some((held.key()?, Latest { seq, tombstone: held.is_tombstone() })))
    }
}

/// Orders keys and keeps the latest event of each.
fn sorted(mut keys: Vec<(Bytes, Latest)>) -> Vec<(Bytes, Latest)> {
    keys.sort_by(|(one, a), (two, b)| one.cmp(two).then(b.seq.cmp(&a.seq)));
    keys.dedup_by(|(next, _), (first, _)| next == first);
    keys
}

impl Recent {
    /// Leaves out the keys up to `key`.
    pub(in crate::log) fn skip(&mut self, key: &[u8]) {
        for (run, at) in &mut self.runs {
            *at = run.partition_point(|(this, _)| &this[..] <= key).max(*at);
        }
    }

    /// Returns the next key with its latest event. An event that is gone counts as a tombstone.
    pub(in crate::log) fn peek(&self) -> Option<(&Bytes, Latest)> {
        let heads = self.runs.iter().filter_map(|(run, at)| run.get(*at));
        let (key, latest) = heads.min_by(|(one, a), (two, b)| one.cmp(two).then(b.seq.cmp(&a.seq)))?;
        Some((key, Latest { tombstone: latest.tombstone || latest.seq < self.first_seq, ..*latest }))
    }

    /// Takes the next key.
    pub(in crate::log) fn pop(&mut self) -> Option<(Bytes, Latest)> {
        let (key, latest) = self.peek()?;
        let key = key.clone();
        for (run, at) in &mut self.runs {
            *at += usize::from(run.get(*at).is_some_and(|(this, _)| *this == key));
        }
        Some((key, latest))
    }
}

#[cfg(all(test, feature = "suite"))]
mod tests {
    use std::collections::BTreeMap;

    use crate::EventLog as _;
    use crate::log::{Log, Options};
    use crate::suite::{append, event, topic};

    #[tokio::test]
    async fn readers_leave_few_sorted_runs_for_each_other_and_see_every_key_once() {
        let dir = tempfile::tempdir().expect("a directory");
        let log = Log::open(Options { maintenance: None, ..Options::new(dir.path().join("data")) }).expect("opens");
        let mut expected = BTreeMap::new();
        for round in 0..10_u64 {
            let keys: Vec<_> = (0..6_000).map(|n| format!("key-{}", (n * 7 + round * 1_300) % 20_000)).collect();
            append(&log, &keys.iter().map(|key| event("t").key(key.clone())).collect::<Vec<_>>()).await;
            expected.extend(keys.into_iter().zip(round * 6_000 + 1..));
            let state = log.shared.topic(&topic("t")).expect("there");
            let (mut recent, last) = state.ordered(|inner| inner.last_seq);
            assert_eq!(last, (round + 1) * 6_000);
            let mut found = BTreeMap::new();
            while let Some((key, latest)) = recent.pop() {
                found.insert(String::from_utf8(key.to_vec()).expect("text"), latest.seq);
            }
            assert_eq!(found, expected);
            let inner = state.inner.lock();
            for generation in inner.generations() {
                assert!(generation.unordered() <= super::STEP, "the next reader need not order them");
                assert!(generation.ordered.runs.len() <= 8, "{} runs", generation.ordered.runs.len());
            }
        }
        let (page, _) = (log.keys(&topic("t"), Some("key-1"), 3).await.expect("paged"), ());
        let keys: Vec<_> = page.items.iter().map(|event| event.key().expect("a key").into_owned()).collect();
        assert_eq!(keys, ["key-10", "key-100", "key-1000"]);
    }
}
