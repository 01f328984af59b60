//! Reading how a group stands: for the runner, metrics and operators. Changes nothing.

use promethean_event::{EventId, Millis, Seq};
use promethean_store::{Mark, TopicInfo};

use super::entry::State;
use super::{Counts, Dispatcher, MemberId};

impl Dispatcher {
    /// True if a member holds an event under this lease.
    pub fn is_held(&self, seq: Seq, lease: u64) -> bool {
        let entry = self.pending.entries.get(&seq);
        entry.is_some_and(|entry| entry.lease == lease && matches!(entry.state, State::Held { .. }))
    }

    /// True if a member could take an event that is not read yet.
    pub fn has_room(&self) -> bool {
        self.members.list.iter().any(|member| member.room() > 0)
    }

    /// The last key of a snapshot start that was read.
    pub fn snapshot_after(&self) -> Option<&str> {
        self.progress.snapshot.as_ref().and_then(|snapshot| snapshot.after.as_deref())
    }

    /// The point of a snapshot start under way.
    pub fn snapshot_cut(&self) -> Option<Seq> {
        self.progress.snapshot.as_ref().map(|snapshot| snapshot.cut)
    }

    /// Returns the number of events that a member holds.
    pub fn held_by(&self, id: MemberId) -> usize {
        self.members.get(id).map_or(0, |member| member.in_flight)
    }

    /// The last event below which all are done.
    pub fn cursor(&self) -> (Seq, Mark) {
        (self.progress.floor, self.progress.last)
    }

    /// Where the topic ends, as far as it was told.
    pub fn tail(&self) -> Seq {
        self.progress.tail
    }

    /// How many events are not done in a topic of which this is known: those that were read, those still there to be, and the keys of
    /// a snapshot start that are still to come.
    pub fn lag(&self, info: Option<&TopicInfo>) -> u64 {
        let unread = info.map_or(0, |info| info.left(self.progress.next - 1, &self.progress.done));
        let snapshot = self.progress.snapshot.as_ref();
        let keys = snapshot.and_then(|snapshot| snapshot.left).unwrap_or_default();
        let carried = snapshot.map_or(0, |snapshot| self.progress.carried.range(..=snapshot.cut).count() as u64);
        self.pending.entries.len() as u64 + unread + keys + carried
    }

    /// The first unfinished event that was read: its seq and when it was appended.
    pub fn oldest_read(&self) -> Option<(Seq, Millis)> {
        self.pending.entries.iter().next().map(|(&seq, entry)| (seq, entry.appended))
    }

    /// How many deadlines are kept, stale ones included.
    #[cfg(test)]
    pub(super) fn timers(&self) -> usize {
        self.pending.timers()
    }

    /// Counts since the group was loaded.
    pub fn counts(&self) -> Counts {
        self.stats.counts
    }

    /// Returns the number of events that members hold.
    pub fn in_flight(&self) -> usize {
        self.pending.held
    }

    /// Everything unfinished that was read, for people.
    pub fn inspect(&self) -> impl Iterator<Item = Unanswered> + '_ {
        self.pending.entries.iter().map(|(&seq, entry)| entry.shown(seq))
    }

    /// The members: number, in flight, most in flight, paused.
    pub fn members(&self) -> impl Iterator<Item = (MemberId, usize, usize, bool)> + '_ {
        self.members
            .list
            .iter()
            .map(|member| (member.id, member.in_flight, member.options.max_in_flight, member.paused))
    }

    /// How many events wait for their time to come back.
    pub fn waiting(&self) -> usize {
        self.pending.entries.values().filter(|entry| matches!(entry.state, State::Waiting { .. })).count()
    }

    /// True if a filter passes events over.
    pub fn is_filtered(&self) -> bool {
        !self.members.policy.filter.is_empty()
    }

    /// Returns the number of seeks.
    pub fn generation(&self) -> u64 {
        self.progress.generation
    }

    /// Deliveries before an event is dead-lettered, as its holder is told; 0: no limit.
    pub fn max_attempts(&self) -> u32 {
        self.members.policy.max_attempts
    }
}

/// Why an event is not done, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unanswered {
    /// The place.
    pub seq: Seq,
    /// The id.
    pub id: EventId,
    /// Deliveries so far.
    pub attempts: u32,
    /// What it waits for.
    pub why: Why,
    /// Why the last delivery failed.
    pub reason: Option<Box<str>>,
}

/// What an unfinished event waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Why {
    /// A member holds it.
    Held {
        /// Who.
        member: MemberId,
        /// Its lease's number.
        lease: u64,
        /// Until when.
        deadline: Millis,
        /// Since when.
        since: Millis,
    },
    /// It may go out: no member has room.
    Ready,
    /// It was nacked and waits.
    Backoff {
        /// Until when.
        until: Millis,
    },
    /// An earlier event of its key is not done.
    BehindKey,
    /// It is being written to the dead letters.
    Dying,
}
