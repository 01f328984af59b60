//! What happens to a group: members come and go, events are read and answered, time passes.

use std::time::Duration;

use promethean_event::{Event, EventId, Millis, Seq, limits};
use promethean_store::Ranges;

use super::entry::{Entry, State};
use super::finish::{Back, Wait};
use super::members::Member;
use super::{Command, Dispatcher, MemberId, MemberOptions, Policy};

/// A consumer's answer to a delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// It is done.
    Ack,
    /// It failed: comes back after the backoff or `delay`; `release`: without counting the attempt.
    Nack {
        /// Why, for the dead letter.
        reason: Option<String>,
        /// When to come back, instead of the backoff.
        delay: Option<Duration>,
        /// Does not count as an attempt.
        release: bool,
    },
    /// The lease lasts until `by` from now.
    Extend {
        /// How long; `None`: as long as the holder's leases last.
        by: Option<Duration>,
    },
}

/// What became of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Receipt {
    /// It counts.
    Done,
    /// The event was given out again since: it does not count.
    LeaseLost,
    /// The event is not in flight.
    NotInFlight,
    /// The event's topic is out of the subscriber's reach since its token was renewed: it does not count.
    Forbidden,
}

/// `upTo` names an event of a snapshot start under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InSnapshot;

impl Dispatcher {
    /// A member joins.
    ///
    /// # Errors
    /// The option in which `policy` differs from the one in force, with the value in force.
    pub fn on_join(
        &mut self,
        id: MemberId,
        options: MemberOptions,
        policy: Policy,
    ) -> Result<(), (&'static str, String)> {
        let policy = policy.normalised();
        if self.members.list.is_empty() {
            self.set_policy(policy);
        } else if let Some(conflict) = self.members.policy.conflict(&policy) {
            return Err(conflict);
        }
        self.members.list.push(Member::new(id, options));
        Ok(())
    }

    /// Another policy than before may block or wake what is unfinished: it is read again under the new one.
    fn set_policy(&mut self, policy: Policy) {
        if self.members.policy == policy {
            return;
        }
        let (tail, counts, dirty) = (self.progress.tail, self.stats.counts, self.progress.dirty);
        // The entries go, and with them the knowledge of what was given out since a seek.
        let sought = self.progress.sought.map(|_| self.progress.next - 1);
        *self = Self::new(self.state(), self.is_dead_letter, self.pending.next_lease);
        (self.progress.tail, self.members.policy, self.stats.counts) = (tail, policy, counts);
        (self.progress.dirty, self.progress.sought) = (dirty, sought);
    }

    /// A member goes away: the others get its events at once. Those that its connection never had lose no attempt.
    pub fn on_leave(&mut self, id: MemberId, now: Millis, out: &mut Vec<Command>) {
        let reason = "the subscriber went away without an answer";
        self.give_back(id, now, out, |handed| match handed {
            true => Back::Failed { wait: Wait::None, reason: reason.to_owned() },
            false => Back::Released { wait: Wait::None },
        });
    }

    /// A delivery that its member never saw comes back: it does not count.
    pub fn on_unseen(&mut self, id: EventId, lease: u64, now: Millis, out: &mut Vec<Command>) {
        let Some((seq, entry)) = self.pending.by_id(id) else { return };
        if entry.lease == lease && matches!(entry.state, State::Held { .. }) {
            self.bring_back(seq, Back::Released { wait: Wait::None }, now, out);
        }
    }

    /// A member is taken away by the hub's shutdown: its deliveries do not count.
    pub fn on_dismiss(&mut self, id: MemberId, now: Millis, out: &mut Vec<Command>) {
        self.give_back(id, now, out, |_| Back::Released { wait: Wait::None });
    }

    fn give_back(&mut self, id: MemberId, now: Millis, out: &mut Vec<Command>, back: impl Fn(bool) -> Back) {
        let Some(holder) = self.members.get(id) else { return };
        let handed = |entry: &Entry| match entry.state {
            State::Held { member, handed, .. } if member == id => {
                Some(handed || holder.handed_at(entry.lease).is_some())
            }
            _ => None,
        };
        let held = self.pending.entries.iter().filter_map(|(&seq, entry)| Some((seq, handed(entry)?)));
        for (seq, handed) in held.collect::<Vec<_>>() {
            self.bring_back(seq, back(handed), now, out);
        }
        self.members.list.retain(|member| member.id != id);
    }

    /// Stops or goes on with deliveries to a member; whether there is one.
    pub fn on_pause(&mut self, id: MemberId, paused: bool) -> bool {
        self.members.get_mut(id).map(|member| member.paused = paused).is_some()
    }

    /// Announces that hand-overs of this member are reported: its leases begin with [`Dispatcher::on_handed`].
    pub fn on_stamps(&mut self, id: MemberId) {
        if let Some(member) = self.members.get_mut(id) {
            member.handed.get_or_insert_default();
        }
    }

    /// Every delivery to a member up to the lease number `lease` was handed to its connection at `at`.
    pub fn on_handed(&mut self, id: MemberId, lease: u64, at: Millis) {
        if let Some(member) = self.members.get_mut(id) {
            let timeout = member.options.ack_timeout;
            member.handed.get_or_insert_default().add(lease, at, timeout);
        }
    }

    /// Says how many more bytes a member may take; the last event may exceed them.
    pub fn on_byte_allowance(&mut self, id: MemberId, bytes: usize) {
        if let Some(member) = self.members.get_mut(id) {
            member.bytes = bytes;
        }
    }

    /// The bytes that a member may still take.
    pub fn byte_allowance(&self, id: MemberId) -> usize {
        self.members.get(id).map_or(0, |member| member.bytes)
    }

    /// Says how many more events a member may take for reasons outside this topic.
    pub fn on_allowance(&mut self, id: MemberId, allowance: usize) {
        if let Some(member) = self.members.get_mut(id) {
            member.allowance = allowance;
        }
    }

    /// How many events there are that a member could take if nothing outside this topic stood against it.
    pub fn wanted(&self, id: MemberId) -> usize {
        let Some(member) = self.members.get(id).filter(|member| !member.paused) else { return 0 };
        let unread = usize::try_from((self.progress.tail + 1).saturating_sub(self.progress.next)).unwrap_or(usize::MAX);
        let in_snapshot = self.progress.snapshot.as_ref().is_some_and(|snapshot| !snapshot.exhausted);
        let there = if in_snapshot { usize::MAX } else { unread.saturating_add(self.pending.ready.len()) };
        there.min(member.options.max_in_flight.saturating_sub(member.in_flight))
    }

    /// The allowance that a member has left.
    pub fn allowance(&self, id: MemberId) -> usize {
        self.members.get(id).map_or(0, |member| member.allowance)
    }

    /// The topic has grown to `tail`.
    pub fn on_tail(&mut self, tail: Seq) {
        self.progress.tail = self.progress.tail.max(tail);
    }

    /// The events from `from` on, as many as were asked for or there are. Seqs left out are holes: done.
    pub fn on_read(&mut self, from: Seq, events: &[Event], now: Millis, out: &mut Vec<Command>) {
        self.progress.reading = false;
        if from != self.progress.next {
            // The place was moved meanwhile.
            return;
        }
        if events.is_empty() {
            // Everything up to the tail of that time is gone: trimmed or compacted away.
            let tail = self.progress.asked;
            if self.progress.next <= tail {
                self.progress.mark_range(self.progress.next, tail, None);
                self.progress.next = tail + 1;
            }
        }
        for event in events {
            if event.seq > self.progress.next {
                self.progress.mark_range(self.progress.next, event.seq - 1, None);
            }
            self.progress.next = event.seq + 1;
            if event.seq > self.progress.floor && !self.progress.done.contains(event.seq) {
                self.admit(event, false, now, out);
            }
        }
        self.progress.tail = self.progress.tail.max(self.progress.next - 1);
        self.hand_out_ready(now, out);
    }

    /// More events of the snapshot; none: that was all.
    pub fn on_snapshot(&mut self, events: &[Event], now: Millis, out: &mut Vec<Command>) {
        self.progress.reading = false;
        let Some(snapshot) = &mut self.progress.snapshot else { return };
        if events.is_empty() {
            (snapshot.exhausted, snapshot.left) = (true, Some(0));
            self.end_snapshot();
            return;
        }
        for event in events {
            let Some(snapshot) = &mut self.progress.snapshot else { return };
            if snapshot.pass(event) && !self.pending.entries.contains_key(&event.seq) {
                self.admit(event, true, now, out);
            }
        }
        let last = events.last().and_then(|event| event.key());
        if let (Some(snapshot), Some(last)) = (&mut self.progress.snapshot, last)
            && snapshot.after.as_deref() < Some(&*last)
        {
            snapshot.after = Some(last.into_owned());
            self.progress.dirty = true;
        }
    }

    /// What was read of the snapshot before the group was loaded and is not done, the first `max`. Asked for at the end of
    /// the snapshot: where it was opened anew, a key that was written since is not in it any more.
    pub fn left_of_snapshot(&self, max: usize) -> Vec<Seq> {
        let Some(snapshot) = &self.progress.snapshot else { return Vec::new() };
        self.progress.carried.range(..=snapshot.cut).take(max).map(|(&seq, _)| seq).collect()
    }

    /// Of what was left of the snapshot, what is still in the log; the rest is gone.
    pub fn on_left_of_snapshot(&mut self, left: &[Seq], events: &[Event], now: Millis, out: &mut Vec<Command>) {
        self.progress.reading = false;
        for event in events {
            // An ack may have come since they were asked for.
            let left = self.progress.carried.contains_key(&event.seq);
            if left && !self.pending.entries.contains_key(&event.seq) {
                self.admit(event, true, now, out);
            }
        }
        for seq in left {
            self.progress.carried.remove(seq);
        }
    }

    /// Reading failed: it may be asked for again.
    pub fn on_read_failed(&mut self) {
        self.progress.reading = false;
    }

    /// A member answers. With `lease`, the answer counts unless the event was given out again since; without it, an ack counts
    /// from any member, a nack and an extension only from the holder.
    pub fn on_answer(
        &mut self,
        by: MemberId,
        id: EventId,
        lease: Option<u64>,
        answer: &Answer,
        now: Millis,
        out: &mut Vec<Command>,
    ) -> Receipt {
        if lease.is_some_and(|lease| self.is_lost(id, lease)) {
            return Receipt::LeaseLost;
        }
        let Some((seq, entry)) = self.pending.by_id(id) else { return Receipt::NotInFlight };
        let counts = match answer {
            Answer::Ack => lease.is_some() || self.was_out(seq),
            _ => lease.is_some() || matches!(entry.state, State::Held { member, .. } if member == by),
        };
        if !counts {
            return Receipt::NotInFlight;
        }
        match answer {
            Answer::Ack => {
                self.stats.counts.acked += 1;
                if let State::Held { since, .. } = entry.state {
                    self.stats.latencies.push((now.since(entry.appended), now.since(since)));
                }
                self.finish(seq);
            }
            Answer::Extend { by } => {
                let State::Held { member, .. } = entry.state else { return Receipt::NotInFlight };
                let own =
                    || self.members.get(member).map_or(limits::MIN_EXTENSION, |holder| holder.options.ack_timeout);
                let until = now + by.unwrap_or_else(own).clamp(limits::MIN_EXTENSION, limits::MAX_LEASE);
                if !self.pending.extend(seq, until, true) {
                    return Receipt::NotInFlight;
                }
            }
            Answer::Nack { reason, delay, release } => {
                if !matches!(entry.state, State::Held { .. }) {
                    // It came back already; its wait stands.
                    return Receipt::NotInFlight;
                }
                self.stats.counts.nacked += 1;
                let until = delay.map(|delay| Wait::Until(now + delay.min(limits::MAX_LEASE)));
                let back = if *release {
                    Back::Released { wait: until.unwrap_or(Wait::None) }
                } else {
                    let reason = reason.clone().unwrap_or_else(|| "nacked without a reason".to_owned());
                    Back::Failed { wait: until.unwrap_or(Wait::Backoff), reason }
                };
                self.bring_back(seq, back, now, out);
            }
        }
        Receipt::Done
    }

    /// True if an ack without a lease can be of a delivery since the last seek.
    fn was_out(&self, seq: Seq) -> bool {
        let out = || self.pending.entries.get(&seq).is_some_and(|entry| entry.lease != 0);
        self.progress.sought.is_none_or(|known| seq <= known || self.progress.is_done(seq) || out())
    }

    /// An ack of an event that is not in flight here, by its place: it was given out before a restart, for example.
    /// Does nothing if the event was not given out since a seek.
    pub fn on_late_ack(&mut self, seq: Seq, id: EventId, ts: Millis) {
        if !self.was_out(seq) {
            return;
        }
        if self.pending.entries.contains_key(&seq) {
            self.stats.counts.acked += 1;
            self.finish(seq);
            return;
        }
        if self.snapshot_cut().is_some_and(|cut| seq <= cut) {
            // One that was read and is not unfinished is done; one ahead of the reader has to be noted.
            if self.progress.carried.remove(&seq).is_some() {
                self.progress.dirty = true;
            }
            return;
        }
        if seq > self.progress.floor && !self.progress.done.contains(seq) {
            self.progress.mark_range(seq, seq, Some((id, ts)));
        }
    }

    /// True if an ack of `seq` is one of a snapshot event that may lie ahead of the reader: `on_snapshot_ack` decides by its key.
    pub fn needs_key(&self, seq: Seq) -> bool {
        let known = self.pending.entries.contains_key(&seq) || self.progress.carried.contains_key(&seq);
        self.snapshot_cut().is_some_and(|cut| seq <= cut) && !known && self.was_out(seq)
    }

    /// An ack of a snapshot event that was given out before a restart and may not be read again yet.
    pub fn on_snapshot_ack(&mut self, event: &Event) {
        let Some(snapshot) = &mut self.progress.snapshot else { return };
        let ahead = snapshot.after.as_deref() < event.key().as_deref();
        if ahead && event.seq <= snapshot.cut && !snapshot.done.contains(event.seq) {
            snapshot.done.insert(event.seq, event.seq, None);
            self.progress.dirty = true;
        }
    }

    /// An ack of an event and all before it. Does nothing if the event was not given out since a seek.
    ///
    /// # Errors
    /// [`InSnapshot`] for an event of a snapshot start under way: its events come in key order, and `seq` says nothing there.
    pub fn on_ack_up_to(&mut self, seq: Seq, id: EventId, ts: Millis) -> Result<(), InSnapshot> {
        if self.snapshot_cut().is_some_and(|cut| seq <= cut) {
            return Err(InSnapshot);
        }
        if !self.was_out(seq) {
            return Ok(());
        }
        let seqs: Vec<Seq> = self.pending.entries.range(..=seq).map(|(&seq, _)| seq).collect();
        for seq in seqs {
            self.stats.counts.acked += 1;
            self.finish(seq);
        }
        if let Some(snapshot) = &mut self.progress.snapshot {
            snapshot.exhausted = true;
            self.progress.dirty = true;
            self.end_snapshot();
        }
        if seq > self.progress.floor {
            self.progress.mark_range(self.progress.floor + 1, seq, Some((id, ts)));
        }
        Ok(())
    }

    /// An event that was to be delivered is no longer in the log: done.
    pub fn on_gone(&mut self, seq: Seq) {
        self.finish(seq);
    }

    /// These events were removed from the log: they are done, delivered or not. A snapshot start passes them by itself.
    pub fn on_removed(&mut self, seqs: &Ranges<()>) {
        let cut = self.snapshot_cut().unwrap_or(0);
        for (first, last, ()) in seqs.iter() {
            let known: Vec<Seq> = self.pending.entries.range(first..=last).map(|(&seq, _)| seq).collect();
            known.into_iter().for_each(|seq| self.finish(seq));
            self.progress.mark_range(first.max(cut + 1), last, None);
        }
    }

    /// An event that was to be delivered could not be read: it comes back later, and this did not count.
    pub fn on_unreadable(&mut self, seq: Seq, now: Millis, out: &mut Vec<Command>) {
        let wait = Wait::Until(now + super::retry::LONGEST);
        self.bring_back(seq, Back::Released { wait }, now, out);
    }

    /// The dead letter is written: the group moves on.
    pub fn on_dead_lettered(&mut self, seq: Seq) {
        if self.pending.entries.get(&seq).is_some_and(|entry| entry.state == State::Dying) {
            self.stats.counts.dead_lettered += 1;
            self.finish(seq);
        }
    }

    /// The dead letter could not be written: it is tried again after the longest backoff.
    pub fn on_dead_letter_failed(&mut self, seq: Seq, now: Millis) {
        if let Some(entry) = self.pending.entries.get_mut(&seq)
            && entry.state == State::Dying
        {
            // One attempt fewer, so that the next failure brings it here again.
            entry.attempts = entry.attempts.saturating_sub(1);
            self.pending.wait(seq, now + super::retry::LONGEST, now);
        }
    }

    /// True if there is a lease that has run out.
    pub fn is_overdue(&mut self, now: Millis) -> bool {
        self.pending.next_lease_end().is_some_and(|(at, _)| at <= now)
    }

    /// The end of a lease whose time has come to be looked at, and whether it has begun.
    fn lease_end(&self, seq: Seq, now: Millis) -> Option<(Millis, bool)> {
        let entry = self.pending.entries.get(&seq)?;
        let State::Held { member, handed: false, .. } = entry.state else { return None };
        let member = self.members.get(member)?;
        let begun = member.handed_at(entry.lease);
        Some((begun.unwrap_or(now) + member.options.ack_timeout, begun.is_some()))
    }

    /// Time passes: leases run out, waits end.
    pub fn on_tick(&mut self, now: Millis, out: &mut Vec<Command>) {
        while let Some((at, seq)) = self.pending.next_lease_end()
            && at <= now
        {
            if let Some((until, handed)) = self.lease_end(seq, now).filter(|(until, _)| *until > now) {
                self.pending.extend(seq, until, handed);
                continue;
            }
            let reason = "no answer before the lease ran out".to_owned();
            self.bring_back(seq, Back::Failed { wait: Wait::None, reason }, now, out);
        }
        while let Some((due, seq)) = self.pending.next_wait_end()
            && due <= now
        {
            self.pending.wait(seq, now, now);
        }
    }
}
