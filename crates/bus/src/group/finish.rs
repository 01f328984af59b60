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
        self.progress.dirty = true;
        if snapshot {
            self.progress.carried.remove(&seq);
            // Up to the place of the reader, everything that is not unfinished is done.
            self.end_snapshot();
            return;
        }
        self.progress.mark_range(seq, seq, mark);
    }

    /// Forgets the snapshot once all of it is read and done.
    pub(super) fn end_snapshot(&mut self) {
        let Some(snapshot) = &self.progress.snapshot else { return };
        if snapshot.exhausted && self.pending.entries.range(..=snapshot.cut).next().is_none() {
            let cut = snapshot.cut;
            self.progress.carried.retain(|seq, _| *seq > cut);
            self.progress.snapshot = None;
            self.progress.dirty = true;
        }
    }

    /// Takes an event out: it is done.
    pub(super) fn finish(&mut self, seq: Seq) {
        let Some(entry) = self.pending.remove(seq) else { return };
        if let State::Held { member, .. } = entry.state {
            self.members.unhold(member);
        }
        self.mark_done(seq, Some((entry.id, entry.ts)), entry.snapshot);
    }

    /// Takes an unfinished event back from its holder, if it has one, and decides what becomes of it.
    pub(super) fn bring_back(&mut self, seq: Seq, back: Back, now: Millis, out: &mut Vec<Command>) {
        if self.pending.entries.get(&seq).is_none_or(|entry| matches!(entry.state, State::Dying | State::Blocked)) {
            return;
        }
        let held = self.pending.take_back(seq);
        let Some(entry) = self.pending.entries.get_mut(&seq) else { return };
        let wait = match &back {
            Back::Failed { wait, .. } => *wait,
            Back::Released { wait } => {
                // Only a delivery under way can be uncounted, and only once.
                entry.attempts -= u32::from(held.is_some() && entry.attempts > 0);
                *wait
            }
        };
        let attempts = entry.attempts;
        let most = self.members.policy.max_attempts;
        let given_up = matches!(back, Back::Failed { .. }) && most > 0 && attempts >= most;
        if given_up && !self.is_dead_letter {
            let Back::Failed { reason, .. } = back else { return };
            let redriven = entry.redriven;
            out.push(Command::DeadLetter(DeadLetter { seq, attempts, reason, redriven }));
            self.pending.write_letter(seq);
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
            self.pending.wait(seq, due, now);
        }
        if let Some(member) = held {
            self.members.unhold(member);
        }
        self.progress.dirty = true;
    }
}
