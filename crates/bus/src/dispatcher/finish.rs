//! What happens when an event is done, and when it comes back.

use promethean_event::{Millis, Seq};
use promethean_store::Mark;

use super::entry::State;
use super::{Command, DeadLetter, Dispatcher, retry};

/// How an event came back unacked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Back {
    /// Its delivery failed: at once, after the backoff, or after a delay of the consumer's choice.
    Failed { wait: Wait, reason: String },
    /// It was given back; the attempt does not count.
    Released { wait: Wait },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wait {
    None,
    Backoff,
    Until(Millis),
}

impl Dispatcher {
    /// Marks a seq as done, in the snapshot or above the floor, and moves the floor as far as it goes.
    pub(super) fn mark_done(&mut self, seq: Seq, mark: Mark, snapshot: bool) {
        self.dirty = true;
        if snapshot {
            self.carried.remove(&seq);
            if let Some(snapshot) = &mut self.snapshot {
                snapshot.done.insert(seq, seq, mark);
            }
            self.end_snapshot();
            return;
        }
        self.mark_range(seq, seq, mark);
    }

    /// Marks `first..=last` as done; `mark` is the last one's, none for a hole.
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

    /// Forgets the snapshot once all of it is read and done.
    pub(super) fn end_snapshot(&mut self) {
        let Some(snapshot) = &self.snapshot else { return };
        if snapshot.exhausted && self.entries.range(..=snapshot.cut).next().is_none() {
            let cut = snapshot.cut;
            self.carried.retain(|seq, _| *seq > cut);
            self.snapshot = None;
            self.dirty = true;
        }
    }

    /// Takes an event out: it is done.
    pub(super) fn finish(&mut self, seq: Seq) {
        let Some(entry) = self.entries.remove(&seq) else { return };
        self.ids.remove(&entry.id);
        self.ready.remove(&seq);
        if let State::Held { member, .. } = entry.state {
            self.unhold(member);
        }
        if let Some(next) = entry.key.and_then(|key| self.keys.leave(key, seq))
            && let Some(unblocked) = self.entries.get_mut(&next)
            && unblocked.state == State::Blocked
        {
            unblocked.state = State::Ready;
            self.ready.insert(next);
        }
        self.mark_done(seq, Some((entry.id, entry.ts)), entry.snapshot);
        let Self { leases, waits, entries, held, .. } = self;
        leases.sweep(*held, |at, seq, lease| super::entry::holds(entries, seq, at, lease));
        waits.sweep(entries.len(), |due, seq, _| super::entry::waits(entries, seq, due));
    }

    fn unhold(&mut self, member: u64) {
        self.held -= 1;
        if let Some(member) = self.members.iter_mut().find(|this| this.id == member) {
            member.in_flight -= 1;
        }
    }

    /// Takes an unfinished event back from its holder, if it has one, and decides what becomes of it.
    pub(super) fn bring_back(&mut self, seq: Seq, back: Back, now: Millis, out: &mut Vec<Command>) {
        let Some(entry) = self.entries.get_mut(&seq) else { return };
        let held = match entry.state {
            State::Held { member, .. } => Some(member),
            State::Dying | State::Blocked => return,
            State::Ready | State::Waiting { .. } => None,
        };
        let wait = match &back {
            Back::Failed { wait, .. } => *wait,
            Back::Released { wait } => {
                // Only a delivery under way can be uncounted, and only once.
                entry.attempts -= u32::from(held.is_some() && entry.attempts > 0);
                *wait
            }
        };
        let attempts = entry.attempts;
        let most = self.policy.max_attempts;
        let given_up = matches!(back, Back::Failed { .. }) && most > 0 && attempts >= most;
        self.ready.remove(&seq);
        entry.state = if given_up && !self.is_dead_letter {
            let Back::Failed { reason, .. } = back else { return };
            out.push(Command::DeadLetter(DeadLetter { seq, attempts, reason }));
            State::Dying
        } else {
            let due = match wait {
                _ if given_up => now + retry::LONGEST,
                Wait::None => now,
                Wait::Backoff => now + retry::backoff(attempts),
                Wait::Until(due) => due,
            };
            if let Back::Failed { reason, .. } = back {
                entry.failed(reason);
            }
            if due > now {
                self.waits.push(due, seq, 0);
                State::Waiting { due }
            } else {
                self.ready.insert(seq);
                State::Ready
            }
        };
        if let Some(member) = held {
            self.unhold(member);
        }
        self.dirty = true;
    }
}
