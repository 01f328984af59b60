//! The decisions of one group on one topic: who gets what, when it comes back, when it is given up.
//!
//! Synchronous, time is an argument, commands are the result. No clock, no runtime, no I/O.
//!
//! ```text
//!  log      1 2 3 4 5 6 7 8 9 10 11 12 …
//!           done     │● ○ done ●│ not read yet
//!                 floor         next          ● unfinished (held, waiting, …)   `done` above the floor: ranges
//! ```
//!
//! Invariants:
//! - every seq ≤ `floor` is done; every seq in (floor, next) is in `done` or in `entries`, never in both;
//! - an event has at most one holder; a member holds at most `max_in_flight`;
//! - first deliveries go out in seq order; with `ordered: key` (`topic`) at most one unfinished event of a key (of
//!   the topic) is out at a time, the earliest;
//! - `entries` is bounded by [`MAX_UNFINISHED`]: at the bound nothing new is read until something is done.

mod command;
mod entry;
mod finish;
mod handed;
mod input;
mod members;
mod order;
mod pending;
mod progress;
mod retry;
mod stats;
mod status;
mod timers;

#[cfg(test)]
mod tests;

use std::time::Duration;

use promethean_event::{Event, EventId, Millis, Ordered, Seq, limits};
use promethean_store::{GroupState, Mark, SnapshotState, Start, Unfinished};

pub use command::{Command, DeadLetter, Deliver};
pub use input::{Answer, InSnapshot, Receipt};
pub use members::{MemberId, MemberOptions, Policy};
pub use stats::Counts;
pub use status::{Unanswered, Why};

use entry::{Entry, State};
use members::Members;
use pending::Pending;
use progress::{Progress, Snapshot};
use stats::Stats;

/// Most unfinished events a group keeps track of on a topic, besides what is in flight.
pub const MAX_UNFINISHED: usize = 20_000;

/// The decisions of one group on one topic.
#[derive(Debug)]
pub struct Dispatcher {
    /// Events of a dead-letter topic are never dead-lettered again.
    is_dead_letter: bool,
    progress: Progress,
    pending: Pending,
    members: Members,
    stats: Stats,
}

impl Dispatcher {
    /// A dispatcher that goes on where `state` stands. Leases are numbered from `first_lease` on: give it something
    /// that grows over restarts, so that an old number never fits a new delivery.
    pub fn new(state: GroupState, is_dead_letter: bool, first_lease: u64) -> Self {
        // After a clock went back, new leases still have to lie above the fence.
        let first_lease = first_lease.max(state.fence);
        Self {
            is_dead_letter,
            progress: Progress::new(state),
            pending: Pending::new(first_lease),
            members: Members::default(),
            stats: Stats::default(),
        }
    }

    /// What has to survive a restart.
    pub fn state(&self) -> GroupState {
        let known = self.pending.entries.iter().filter_map(|(&seq, entry)| entry.unfinished(seq));
        let carried =
            self.progress.carried.values().copied().filter(|one| !self.pending.entries.contains_key(&one.seq));
        let mut unfinished: Vec<Unfinished> = known.chain(carried).collect();
        unfinished.sort_unstable_by_key(|one| one.seq);
        GroupState {
            floor: self.progress.floor,
            last: self.progress.last,
            done: self.progress.done.clone(),
            unfinished,
            snapshot: self.progress.snapshot.as_ref().map(Snapshot::state),
            generation: self.progress.generation,
            fence: self.progress.fence,
        }
    }

    /// True if the state changed since the last [`Dispatcher::take_dirty`], and forgets it.
    pub fn take_dirty(&mut self) -> bool {
        std::mem::take(&mut self.progress.dirty)
    }

    /// True if the state changed since it was last taken for a save.
    pub fn is_dirty(&self) -> bool {
        self.progress.dirty
    }

    /// True if anything was read since the state was loaded.
    pub fn has_read(&self) -> bool {
        self.stats.counts != Counts::default() || !self.pending.entries.is_empty()
    }

    /// Above every lease it has given out.
    pub fn next_lease(&self) -> u64 {
        self.pending.next_lease
    }

    /// True if the delivery `lease` lies before the last seek, or the event is unfinished and was given out again since.
    pub fn is_lost(&self, id: EventId, lease: u64) -> bool {
        lease < self.progress.fence || self.pending.by_id(id).is_some_and(|(_, entry)| entry.is_lost(lease))
    }

    /// Of each ack since the last call: the time since its append, and since its delivery.
    pub fn take_latencies(&mut self) -> Vec<(Duration, Duration)> {
        std::mem::take(&mut self.stats.latencies)
    }

    /// Says that the state still has to be saved: a save failed.
    pub fn set_dirty(&mut self) {
        self.progress.dirty = true;
    }

    /// Decides what is to be done at `now`: expired leases, waits that are over, deliveries, what to read.
    /// Returns when to be called again at the latest.
    pub fn poll(&mut self, now: Millis, out: &mut Vec<Command>) -> Option<Millis> {
        self.on_tick(now, out);
        self.hand_out_ready(now, out);
        self.ask_for_more(out);
        self.pending.wake_at()
    }

    /// Gives out what is ready: first the events that were out before, each sort by seq.
    fn hand_out_ready(&mut self, now: Millis, out: &mut Vec<Command>) {
        while let Some(&(_, seq)) = self.pending.ready.first() {
            let Some(member) = self.members.pick() else { return };
            self.deliver(seq, member, now, out);
        }
    }

    fn ask_for_more(&mut self, out: &mut Vec<Command>) {
        if self.progress.reading {
            return;
        }
        let mut room = self.members.room();
        let in_flight_bound: usize = self.members.list.iter().map(|member| member.options.max_in_flight).sum();
        room = room.min((MAX_UNFINISHED + in_flight_bound).saturating_sub(self.pending.entries.len()));
        match self.members.policy.ordered {
            // Events behind a busy key take no room; the bound on unfinished ones is what stops looking past them.
            Ordered::None | Ordered::Key => {}
            Ordered::Topic => room = room.min(usize::from(self.pending.entries.is_empty())),
        }
        if room == 0 {
            return;
        }
        let batch = self.members.list.iter().map(|member| member.options.batch_size).max().unwrap_or(1);
        let max = room.min(batch);
        self.progress.pass_done();
        let command = match &self.progress.snapshot {
            Some(snapshot) if !snapshot.exhausted => Command::ReadSnapshot { max },
            _ if self.progress.next <= self.progress.tail => {
                let behind = self.progress.tail - self.progress.next >= max as u64;
                Command::Read { from: self.progress.next, max, bytes: self.members.bytes(), behind }
            }
            _ => return,
        };
        (self.progress.reading, self.progress.asked) = (true, self.progress.tail);
        out.push(command);
    }

    fn deliver(&mut self, seq: Seq, member: usize, now: Millis, out: &mut Vec<Command>) {
        let member = &mut self.members.list[member];
        let deadline = now + member.options.ack_timeout;
        let handed = member.handed.is_none();
        let Some(entry) = self.pending.hold(seq, State::Held { member: member.id, deadline, since: now, handed })
        else {
            return;
        };
        member.take(entry.size as usize);
        entry.attempts = entry.attempts.saturating_add(1);
        entry.deliveries += 1;
        self.stats.counts.delivered += 1;
        self.stats.counts.redelivered += u64::from(entry.deliveries > 1 || entry.attempts > 1);
        out.push(Command::Deliver(Deliver {
            seq,
            member: member.id,
            attempt: entry.attempts,
            lease: entry.lease,
            deadline,
            snapshot: entry.snapshot,
            redriven: entry.redriven != 0,
        }));
    }

    /// Moves to another place. Everything that is out is forgotten, and answers to it do nothing from now on.
    pub fn on_seek(&mut self, start: Start, snapshot: Option<SnapshotState>) {
        for member in &mut self.members.list {
            member.in_flight = 0;
        }
        self.pending.clear();
        self.progress.move_to(start, snapshot, self.pending.next_lease);
    }

    /// Takes in events that were given up, each with the seq of its dead letter: they are unfinished again, without an
    /// attempt. `before` is the mark of the event before the first of them. An event that is unfinished anyway stays so.
    pub fn on_redrive(&mut self, events: &[(Event, Seq)], before: Mark, now: Millis, out: &mut Vec<Command>) {
        for (event, letter) in events {
            if self.pending.entries.contains_key(&event.seq) || !self.progress.is_done(event.seq) {
                continue;
            }
            self.progress.undo(event.seq, before);
            let again = Unfinished { seq: event.seq, attempts: 0, not_before: Millis(0), redriven: *letter };
            self.progress.carried.insert(event.seq, again);
            // One that lies further on is taken in when it is read.
            if event.seq < self.progress.next {
                self.admit(event, false, now, out);
            }
        }
    }

    /// Takes in events as they were read; the rest of this is in `input.rs` and `finish.rs`.
    fn admit(&mut self, event: &Event, snapshot: bool, now: Millis, out: &mut Vec<Command>) {
        let carried = self.progress.carried.remove(&event.seq);
        if !self.members.policy.filter.matches(event) {
            self.stats.counts.skipped += 1;
            self.mark_done(event.seq, Some((event.id, event.ts)), snapshot);
            return;
        }
        let key = match self.members.policy.ordered {
            Ordered::None => None,
            Ordered::Key => order::hash(event),
            Ordered::Topic => Some(0),
        };
        let (attempts, redriven) = carried.map_or((0, 0), |one| (one.attempts, one.redriven));
        let mut entry = Entry::new(event, snapshot, key, carried);
        self.progress.dirty |= snapshot;
        let keys = &mut self.pending.keys;
        let first = key.is_none_or(|key| keys.join(key, event.seq) && (redriven == 0 || keys.is_alone(key)));
        let due = carried.map_or(Millis(0), |one| one.not_before.min(now + limits::MAX_LEASE));
        let most = self.members.policy.max_attempts;
        if !first {
            entry.state = State::Blocked;
        } else if most > 0 && attempts >= most && !self.is_dead_letter {
            // It was given up before a restart, and the dead letter may not have been written; or the group allowed more
            // before.
            let reason = format!("{attempts} deliveries without an ack; the group allows {most}");
            out.push(Command::DeadLetter(DeadLetter { seq: event.seq, attempts, reason, redriven }));
            entry.state = State::Dying;
        }
        let ready = entry.state == State::Ready;
        self.pending.insert(event.seq, entry);
        if !ready {
            return;
        }
        // Entries that are ready already go first.
        let now_free = due <= now && self.pending.ready.is_empty();
        match if now_free { self.members.pick() } else { None } {
            Some(member) => self.deliver(event.seq, member, now, out),
            None => self.pending.wait(event.seq, due, now),
        }
    }
}
