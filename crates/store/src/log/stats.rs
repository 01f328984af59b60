//! Counters of the engine, to be read at any time without waiting.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// What the engine has done since it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Frames written.
    pub commits: u64,
    /// Of these, how many were written in the thread of whoever asked.
    pub direct: u64,
    /// Events appended.
    pub events: u64,
    /// Bytes written to the journal.
    pub journal_bytes: u64,
    /// Times that something of the journal was made durable.
    pub syncs: u64,
    /// The time all of them took.
    pub sync_total: Duration,
    /// The time the last one took.
    pub sync_last: Duration,
    /// Journal files flushed.
    pub flushes: u64,
    /// Bytes that went into segments.
    pub flushed_bytes: u64,
    /// How often the writer waited for the flushing.
    pub waits: u64,
    /// Events that were refused because the disk had no room for them.
    pub refused: u64,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) commits: AtomicU64,
    pub(super) direct: AtomicU64,
    pub(super) events: AtomicU64,
    pub(super) journal_bytes: AtomicU64,
    pub(super) syncs: AtomicU64,
    pub(super) sync_total: AtomicU64,
    pub(super) sync_last: AtomicU64,
    pub(super) flushes: AtomicU64,
    pub(super) flushed_bytes: AtomicU64,
    pub(super) waits: AtomicU64,
    pub(super) refused: AtomicU64,
    /// Groups that there are.
    pub(super) groups: AtomicU64,
}

impl Counters {
    pub(super) fn add(counter: &AtomicU64, more: u64) {
        counter.fetch_add(more, Relaxed);
    }

    pub(super) fn synced(&self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.syncs.fetch_add(1, Relaxed);
        self.sync_total.fetch_add(nanos, Relaxed);
        self.sync_last.store(nanos, Relaxed);
    }

    pub(super) fn read(&self) -> Stats {
        Stats {
            commits: self.commits.load(Relaxed),
            direct: self.direct.load(Relaxed),
            events: self.events.load(Relaxed),
            journal_bytes: self.journal_bytes.load(Relaxed),
            syncs: self.syncs.load(Relaxed),
            sync_total: Duration::from_nanos(self.sync_total.load(Relaxed)),
            sync_last: Duration::from_nanos(self.sync_last.load(Relaxed)),
            flushes: self.flushes.load(Relaxed),
            flushed_bytes: self.flushed_bytes.load(Relaxed),
            waits: self.waits.load(Relaxed),
            refused: self.refused.load(Relaxed),
        }
    }
}
