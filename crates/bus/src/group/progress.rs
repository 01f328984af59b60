//! The position of a group: the floor, the done ranges above it, the place of the reader, the changes that are not saved.
//!
//! Invariant: no seq ≤ `floor` is in `done`.

use std::collections::BTreeMap;

use promethean_event::{Event, Seq};
use promethean_store::{Done, GroupState, Mark, SnapshotState, Start, Unfinished};

/// A snapshot start under way.
#[derive(Debug)]
pub(super) struct Snapshot {
    pub(super) cut: Seq,
    /// Events that are done and come after `after`, or were done before an older hub knew `after`.
    pub(super) done: Done,
    /// All keys up to this one were read; those that are not done are unfinished.
    pub(super) after: Option<String>,
    /// Keys still to come, as far as they were counted.
    pub(super) left: Option<u64>,
    /// All of it has been read.
    pub(super) exhausted: bool,
}

impl Snapshot {
    fn new(state: SnapshotState) -> Self {
        let SnapshotState { cut, done, after, left } = state;
        Self { cut, done, after, left, exhausted: false }
    }

    pub(super) fn state(&self) -> SnapshotState {
        SnapshotState { cut: self.cut, done: self.done.clone(), after: self.after.clone(), left: self.left }
    }

    /// Takes an event of the snapshot as read; `true` if it has to be delivered.
    pub(super) fn pass(&mut self, event: &Event) -> bool {
        let key = event.key().unwrap_or_default();
        if self.after.as_deref().is_some_and(|after| *key <= *after) {
            return false;
        }
        // Written after the cut: it comes with the live events.
        if event.seq > self.cut {
            return false;
        }
        self.left = self.left.map(|left| left.saturating_sub(1));
        if self.done.contains(event.seq) {
            self.done.remove(event.seq, None);
            return false;
        }
        true
    }
}

/// The position of a group on a topic.
#[derive(Debug)]
pub(super) struct Progress {
    pub(super) floor: Seq,
    pub(super) last: Mark,
    pub(super) done: Done,
    pub(super) generation: u64,
    /// Leases below this number were given out before the last seek.
    pub(super) fence: u64,
    /// `None` without a seek since the state was loaded; else the seqs up to this one may have been given out since.
    pub(super) sought: Option<Seq>,
    pub(super) snapshot: Option<Snapshot>,
    /// Attempts of events that were not read since the state was loaded.
    pub(super) carried: BTreeMap<Seq, Unfinished>,
    /// The first seq that was never read.
    pub(super) next: Seq,
    /// The last seq of the topic, as far as it was reported.
    pub(super) tail: Seq,
    /// A read is under way.
    pub(super) reading: bool,
    /// The end of the topic when that read was asked for: events that were appended since are not in it.
    pub(super) asked: Seq,
    /// The state changed since it was last taken for a save.
    pub(super) dirty: bool,
}

impl Progress {
    pub(super) fn new(state: GroupState) -> Self {
        Self {
            floor: state.floor,
            last: state.last,
            done: state.done,
            generation: state.generation,
            fence: state.fence,
            sought: None,
            snapshot: state.snapshot.map(Snapshot::new),
            carried: state.unfinished.into_iter().map(|one| (one.seq, one)).collect(),
            next: state.floor + 1,
            tail: 0,
            reading: false,
            asked: 0,
            dirty: false,
        }
    }

    /// Moves to another place and forgets everything that was done above it. Leases below `fence` are lost.
    pub(super) fn move_to(&mut self, start: Start, snapshot: Option<SnapshotState>, fence: u64) {
        self.fence = fence;
        self.sought = Some(0);
        self.carried.clear();
        self.done = Done::default();
        self.snapshot = snapshot.map(Snapshot::new);
        (self.floor, self.last) = (start.done, start.last);
        self.next = self.floor + 1;
        self.reading = false;
        self.generation += 1;
        self.dirty = true;
    }

    /// Marks `first..=last` as done; `mark` is the last one's, `None` for a hole.
    pub(super) fn mark_range(&mut self, first: Seq, last: Seq, mark: Mark) {
        if last <= self.floor {
            return;
        }
        if !self.carried.is_empty() {
            self.carried.retain(|seq, _| !(first..=last).contains(seq));
        }
        self.dirty = true;
        if self.done.is_empty() && first <= self.floor + 1 {
            // Acks in order: nothing is ever kept above the floor.
            self.floor = last;
            self.last = mark.or(self.last);
            self.next = self.next.max(self.floor + 1);
            return;
        }
        let first = first.max(self.floor + 1);
        let mark = mark.or_else(|| self.done.value_ending_at(first - 1).flatten());
        self.done.insert(first, last, mark);
        if let Some((end, mark)) = self.done.take_at(self.floor + 1) {
            self.floor = end;
            self.last = mark.or(self.last);
            self.next = self.next.max(self.floor + 1);
        }
    }

    /// Makes a done event unfinished again; `before` is the mark of the event before it, where it is known.
    pub(super) fn undo(&mut self, seq: Seq, before: Mark) {
        self.dirty = true;
        if seq > self.floor {
            return self.done.remove(seq, None);
        }
        self.done.insert(seq + 1, self.floor, self.last);
        (self.floor, self.last) = (seq - 1, before);
    }

    /// Skips what is done where the next read begins.
    pub(super) fn pass_done(&mut self) {
        if let Some(end) = self.done.end_of(self.next) {
            self.next = end + 1;
        }
    }

    /// Whether the event is done, or not part of the snapshot start under way.
    pub(super) fn is_done(&self, seq: Seq) -> bool {
        match &self.snapshot {
            Some(snapshot) if seq <= snapshot.cut => snapshot.done.contains(seq),
            _ => seq <= self.floor || self.done.contains(seq),
        }
    }
}
