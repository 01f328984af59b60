//! The unfinished events of a group that were read: held, waiting, ready, blocked, or on their way to the dead letters.
//!
//! Invariants: `ids` names exactly the entries; `held` counts those that a member holds; each deadline that is in force is
//! in `leases` or `waits`, and stale ones never outnumber them by much.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use foldhash::fast::RandomState;
use promethean_event::{EventId, Millis, Seq};

use super::MemberId;
use super::entry::{self, Entry, State};
use super::order::KeyOrder;
use super::timers::Timers;

/// The unfinished events that were read.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) entries: BTreeMap<Seq, Entry>,
    pub(super) ids: HashMap<EventId, Seq, RandomState>,
    /// Entries that may go out at once; those that were never out come last.
    pub(super) ready: BTreeSet<(bool, Seq)>,
    pub(super) keys: KeyOrder,
    leases: Timers,
    waits: Timers,
    /// Entries that a member holds.
    pub(super) held: usize,
    pub(super) next_lease: u64,
}

impl Pending {
    pub(super) fn new(first_lease: u64) -> Self {
        Self {
            entries: BTreeMap::new(),
            ids: HashMap::default(),
            ready: BTreeSet::new(),
            keys: KeyOrder::default(),
            leases: Timers::default(),
            waits: Timers::default(),
            held: 0,
            next_lease: first_lease,
        }
    }

    /// Forgets all entries; leases are numbered on.
    pub(super) fn clear(&mut self) {
        *self = Self::new(self.next_lease);
    }

    pub(super) fn by_id(&self, id: EventId) -> Option<(Seq, &Entry)> {
        let &seq = self.ids.get(&id)?;
        self.entries.get(&seq).map(|entry| (seq, entry))
    }

    /// Adds an entry. One that is ready has to be delivered or given to `wait`.
    pub(super) fn insert(&mut self, seq: Seq, entry: Entry) {
        self.ids.insert(entry.id, seq);
        self.entries.insert(seq, entry);
    }

    /// Gives an entry to the member of `held`, under a lease of its own.
    pub(super) fn hold(&mut self, seq: Seq, held: State) -> Option<&mut Entry> {
        let State::Held { deadline, .. } = held else { return None };
        let lease = self.next_lease;
        let entry = self.entries.get_mut(&seq)?;
        self.ready.remove(&(entry.is_fresh(), seq));
        self.next_lease += 1;
        self.held += 1;
        entry.lease = lease;
        entry.state = held;
        self.leases.push(deadline, seq, lease);
        self.sweep();
        self.entries.get_mut(&seq)
    }

    /// Sets the deadline of a held entry; `false` if no member holds it. `seen`: its connection has it.
    pub(super) fn extend(&mut self, seq: Seq, until: Millis, seen: bool) -> bool {
        let Some(Entry { lease, state: State::Held { deadline, handed, .. }, .. }) = self.entries.get_mut(&seq) else {
            return false;
        };
        (*deadline, *handed) = (until, seen);
        self.leases.push(until, seq, *lease);
        self.sweep();
        true
    }

    /// Takes an entry from its holder, if it has one, and returns the holder.
    pub(super) fn take_back(&mut self, seq: Seq) -> Option<MemberId> {
        let entry = self.entries.get_mut(&seq)?;
        let State::Held { member, .. } = entry.state else { return None };
        entry.state = State::Ready;
        self.held -= 1;
        Some(member)
    }

    /// Marks an entry as being written to the dead letters.
    pub(super) fn write_letter(&mut self, seq: Seq) {
        if let Some(entry) = self.entries.get_mut(&seq) {
            self.ready.remove(&(entry.is_fresh(), seq));
            entry.state = State::Dying;
        }
    }

    /// Makes an entry ready at `due`, or at once.
    pub(super) fn wait(&mut self, seq: Seq, due: Millis, now: Millis) {
        let Some(entry) = self.entries.get_mut(&seq) else { return };
        if due > now {
            self.ready.remove(&(entry.is_fresh(), seq));
            entry.state = State::Waiting { due };
            self.waits.push(due, seq, 0);
            self.sweep();
        } else {
            entry.state = State::Ready;
            self.ready.insert((entry.is_fresh(), seq));
        }
    }

    /// Removes an entry that is done and unblocks the next one of its key.
    pub(super) fn remove(&mut self, seq: Seq) -> Option<Entry> {
        let entry = self.entries.remove(&seq)?;
        self.ids.remove(&entry.id);
        self.ready.remove(&(entry.is_fresh(), seq));
        self.held -= usize::from(matches!(entry.state, State::Held { .. }));
        if let Some(next) = entry.key.and_then(|key| self.keys.leave(key, seq))
            && let Some(unblocked) = self.entries.get_mut(&next)
            && unblocked.state == State::Blocked
        {
            unblocked.state = State::Ready;
            self.ready.insert((unblocked.is_fresh(), next));
        }
        self.sweep();
        Some(entry)
    }

    /// The held entry whose lease ends first.
    pub(super) fn next_lease_end(&mut self) -> Option<(Millis, Seq)> {
        let entries = &self.entries;
        self.leases.next(|at, seq, lease| entry::holds(entries, seq, at, lease))
    }

    /// The waiting entry whose wait ends first.
    pub(super) fn next_wait_end(&mut self) -> Option<(Millis, Seq)> {
        let entries = &self.entries;
        self.waits.next(|due, seq, _| entry::waits(entries, seq, due))
    }

    /// The next time at which an entry changes by itself.
    pub(super) fn wake_at(&mut self) -> Option<Millis> {
        let (lease, wait) = (self.next_lease_end(), self.next_wait_end());
        lease.into_iter().chain(wait).map(|(at, _)| at).min()
    }

    #[cfg(test)]
    pub(super) fn timers(&self) -> usize {
        self.leases.len() + self.waits.len()
    }

    fn sweep(&mut self) {
        let Self { leases, waits, entries, held, .. } = self;
        leases.sweep(*held, |at, seq, lease| entry::holds(entries, seq, at, lease));
        waits.sweep(entries.len(), |due, seq, _| entry::waits(entries, seq, due));
    }
}
