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
mod input;
mod member;
mod order;
mod retry;
mod timers;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use foldhash::fast::RandomState;
use promethean_event::{Event, EventId, Millis, Ordered, Seq};
use promethean_store::{Done, GroupState, Mark, SnapshotState, Start, TopicInfo, Unfinished};

pub use command::{Command, DeadLetter, Deliver};
pub use input::{Answer, Receipt};
pub use member::{MemberId, MemberOptions, Policy};

use entry::{Entry, State};
use member::Member;
use order::KeyOrder;
use timers::Timers;

/// Most unfinished events a group keeps track of on a topic, besides what is in flight.
pub const MAX_UNFINISHED: usize = 20_000;

/// Counts since the group was loaded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Counts {
    /// Deliveries, redeliveries included.
    pub delivered: u64,
    /// Deliveries after the first of an event.
    pub redelivered: u64,
    /// Events acked.
    pub acked: u64,
    /// Events nacked.
    pub nacked: u64,
    /// Events dead-lettered.
    pub dead_lettered: u64,
    /// Events passed over by the filter.
    pub skipped: u64,
}

/// A snapshot start under way.
#[derive(Debug)]
struct Snapshot {
    cut: Seq,
    done: Done,
    /// All of it has been read.
    exhausted: bool,
}

/// The decisions of one group on one topic.
#[derive(Debug)]
pub struct Dispatcher {
    /// Events of a dead-letter topic are never dead-lettered again.
    is_dead_letter: bool,
    floor: Seq,
    last: Mark,
    done: Done,
    generation: u64,
    snapshot: Option<Snapshot>,
    /// Attempts of events that were not read since the state was loaded.
    carried: BTreeMap<Seq, Unfinished>,

    next: Seq,
    tail: Seq,
    reading: bool,
    entries: BTreeMap<Seq, Entry>,
    ids: HashMap<EventId, Seq, RandomState>,
    /// What may go out again at once.
    ready: BTreeSet<Seq>,
    keys: KeyOrder,
    leases: Timers,
    waits: Timers,
    /// How many entries are held.
    held: usize,

    members: Vec<Member>,
    policy: Policy,
    turn: usize,
    next_lease: u64,
    dirty: bool,
    counts: Counts,
    /// Of each ack since it was last asked for: time since the append, time since the delivery.
    latencies: Vec<(Duration, Duration)>,
}

impl Dispatcher {
    /// A dispatcher that goes on where `state` stands. Leases are numbered from `first_lease` on: give it something
    /// that grows over restarts, so that an old number never fits a new delivery.
    pub fn new(state: GroupState, is_dead_letter: bool, first_lease: u64) -> Self {
        let snapshot = state.snapshot.map(|s| Snapshot { cut: s.cut, done: s.done, exhausted: false });
        Self {
            is_dead_letter,
            floor: state.floor,
            last: state.last,
            done: state.done,
            generation: state.generation,
            snapshot,
            carried: state.unfinished.into_iter().map(|one| (one.seq, one)).collect(),
            next: state.floor + 1,
            tail: 0,
            reading: false,
            entries: BTreeMap::new(),
            ids: HashMap::default(),
            ready: BTreeSet::new(),
            keys: KeyOrder::default(),
            leases: Timers::default(),
            waits: Timers::default(),
            held: 0,
            members: Vec::new(),
            policy: Policy::default(),
            turn: 0,
            next_lease: first_lease,
            dirty: false,
            counts: Counts::default(),
            latencies: Vec::new(),
        }
    }

    /// What has to survive a restart.
    pub fn state(&self) -> GroupState {
        let known = self.entries.iter().filter_map(|(&seq, entry)| entry.unfinished(seq));
        let carried = self.carried.values().copied().filter(|one| !self.entries.contains_key(&one.seq));
        let mut unfinished: Vec<Unfinished> = known.chain(carried).collect();
        unfinished.sort_unstable_by_key(|one| one.seq);
        GroupState {
            floor: self.floor,
            last: self.last,
            done: self.done.clone(),
            unfinished,
            snapshot: self.snapshot.as_ref().map(|s| SnapshotState { cut: s.cut, done: s.done.clone() }),
            generation: self.generation,
        }
    }

    /// Whether the state changed since the last [`Dispatcher::take_dirty`], and forgets it.
    pub fn take_dirty(&mut self) -> bool {
        std::mem::take(&mut self.dirty)
    }

    /// Whether the state changed since it was last taken for a save.
    pub fn is_dirty(&self) -> bool {
        self.dirty
    }

    /// Whether anything was read since the state was loaded.
    pub fn has_read(&self) -> bool {
        self.counts != Counts::default() || !self.entries.is_empty()
    }

    /// Above every lease it has given out.
    pub fn next_lease(&self) -> u64 {
        self.next_lease
    }

    /// Whether the event is not done and was given out again since the delivery `lease`, held just now or not.
    pub fn is_lost(&self, id: EventId, lease: u64) -> bool {
        let entry = self.ids.get(&id).and_then(|seq| self.entries.get(seq));
        entry.is_some_and(|entry| entry.is_lost(lease))
    }

    /// Of each ack since the last call: the time since its append, and since its delivery.
    pub fn take_latencies(&mut self) -> Vec<(Duration, Duration)> {
        std::mem::take(&mut self.latencies)
    }

    /// Says that the state still has to be saved: a save failed.
    pub fn set_dirty(&mut self) {
        self.dirty = true;
    }

    /// Decides what is to be done at `now`: expired leases, waits that are over, deliveries, what to read.
    /// Returns when to be called again at the latest.
    pub fn poll(&mut self, now: Millis, out: &mut Vec<Command>) -> Option<Millis> {
        self.on_tick(now, out);
        self.hand_out_ready(now, out);
        self.ask_for_more(out);
        self.wake_at()
    }

    fn wake_at(&mut self) -> Option<Millis> {
        let Self { leases, waits, entries, .. } = self;
        let lease = leases.next(|at, seq, lease| entry::holds(entries, seq, at, lease));
        let wait = waits.next(|due, seq, _| entry::waits(entries, seq, due));
        lease.into_iter().chain(wait).map(|(at, _)| at).min()
    }

    /// Gives out events that came back, earliest first.
    fn hand_out_ready(&mut self, now: Millis, out: &mut Vec<Command>) {
        while let Some(&seq) = self.ready.first() {
            let Some(member) = self.pick_member() else { return };
            self.ready.remove(&seq);
            self.deliver(seq, member, now, out);
        }
    }

    fn ask_for_more(&mut self, out: &mut Vec<Command>) {
        if self.reading {
            return;
        }
        let mut room: usize = self.members.iter().map(Member::room).sum();
        let in_flight_bound: usize = self.members.iter().map(|member| member.options.max_in_flight).sum();
        room = room.min((MAX_UNFINISHED + in_flight_bound).saturating_sub(self.entries.len()));
        match self.policy.ordered {
            // Events behind a busy key take no room; the bound on unfinished ones is what stops looking past them.
            Ordered::None | Ordered::Key => {}
            Ordered::Topic => room = room.min(usize::from(self.entries.is_empty())),
        }
        if room == 0 {
            return;
        }
        let batch = self.members.iter().map(|member| member.options.batch_size).max().unwrap_or(1);
        let max = room.min(batch);
        let command = match &self.snapshot {
            Some(snapshot) if !snapshot.exhausted => Command::ReadSnapshot { max },
            _ if self.next <= self.tail => {
                let behind = self.tail - self.next >= max as u64;
                Command::Read { from: self.next, max, behind }
            }
            _ => return,
        };
        self.reading = true;
        out.push(command);
    }

    /// The next member, in turn, that can take an event.
    fn pick_member(&mut self) -> Option<usize> {
        let count = self.members.len();
        let index = (0..count).map(|step| (self.turn + step) % count).find(|&at| self.members[at].room() > 0)?;
        self.turn = index + 1;
        Some(index)
    }

    fn deliver(&mut self, seq: Seq, member: usize, now: Millis, out: &mut Vec<Command>) {
        let Some(entry) = self.entries.get_mut(&seq) else { return };
        let member = &mut self.members[member];
        member.in_flight += 1;
        member.allowance = member.allowance.saturating_sub(1);
        self.held += 1;
        entry.attempts = entry.attempts.saturating_add(1);
        entry.deliveries += 1;
        self.counts.delivered += 1;
        self.counts.redelivered += u64::from(entry.deliveries > 1 || entry.attempts > 1);
        let lease = self.next_lease;
        self.next_lease += 1;
        let deadline = now + member.options.ack_timeout;
        entry.lease = lease;
        entry.state = State::Held { member: member.id, deadline, since: now };
        self.leases.push(deadline, seq, lease);
        out.push(Command::Deliver(Deliver {
            seq,
            member: member.id,
            attempt: entry.attempts,
            lease,
            deadline,
            snapshot: entry.snapshot,
        }));
    }

    /// Moves to another place; whatever is out is forgotten, late answers to it count for nothing held now.
    pub fn on_seek(&mut self, start: Start, snapshot_cut: Option<Seq>) {
        for member in &mut self.members {
            member.in_flight = 0;
        }
        self.entries.clear();
        self.ids.clear();
        self.ready.clear();
        self.keys.clear();
        self.leases.clear();
        self.waits.clear();
        self.carried.clear();
        self.held = 0;
        self.done = Done::default();
        self.snapshot = snapshot_cut.map(|cut| Snapshot { cut, done: Done::default(), exhausted: false });
        (self.floor, self.last) = (start.done, start.last);
        self.next = self.floor + 1;
        self.reading = false;
        self.generation += 1;
        self.dirty = true;
    }

    /// Whether a member could take an event that is not read yet.
    pub fn has_room(&self) -> bool {
        self.members.iter().any(|member| member.room() > 0)
    }

    /// The point of a snapshot start under way.
    pub fn snapshot_cut(&self) -> Option<Seq> {
        self.snapshot.as_ref().map(|snapshot| snapshot.cut)
    }

    /// How many events a member holds.
    pub fn held_by(&self, id: MemberId) -> usize {
        self.members.iter().find(|member| member.id == id).map_or(0, |member| member.in_flight)
    }

    /// The last event below which all are done.
    pub fn cursor(&self) -> (Seq, Mark) {
        (self.floor, self.last)
    }

    /// Where the topic ends, as far as it was told.
    pub fn tail(&self) -> Seq {
        self.tail
    }

    /// How many events are not done in a topic of which this is known: those that were read, and those still there to be.
    pub fn lag(&self, info: Option<&TopicInfo>) -> u64 {
        let unread = info.map_or(0, |info| info.left(self.next - 1, &self.done));
        self.entries.len() as u64 + unread
    }

    /// The first unfinished event that was read: its seq and when it was appended.
    pub fn oldest_read(&self) -> Option<(Seq, Millis)> {
        self.entries.iter().next().map(|(&seq, entry)| (seq, entry.appended))
    }

    /// Counts since the group was loaded.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// How many events are held by members.
    pub fn in_flight(&self) -> usize {
        self.held
    }

    /// Everything unfinished that was read, for people.
    pub fn inspect(&self) -> impl Iterator<Item = Unanswered> + '_ {
        self.entries.iter().map(|(&seq, entry)| entry.shown(seq))
    }

    /// The members: number, in flight, most in flight, paused.
    pub fn members(&self) -> impl Iterator<Item = (MemberId, usize, usize, bool)> + '_ {
        self.members.iter().map(|member| (member.id, member.in_flight, member.options.max_in_flight, member.paused))
    }

    /// How many events wait for their time to come back.
    pub fn waiting(&self) -> usize {
        self.entries.values().filter(|entry| matches!(entry.state, State::Waiting { .. })).count()
    }

    /// Whether a filter passes events over.
    pub fn is_filtered(&self) -> bool {
        !self.policy.filter.is_empty()
    }

    /// How often the cursor was moved by hand.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Deliveries before an event is dead-lettered, as its holder is told; 0: no limit.
    pub fn max_attempts(&self) -> u32 {
        self.policy.max_attempts
    }

    /// Takes in events as they were read; the rest of this is in `input.rs` and `finish.rs`.
    fn admit(&mut self, event: &Event, snapshot: bool, now: Millis, out: &mut Vec<Command>) {
        let carried = self.carried.remove(&event.seq);
        if !self.policy.filter.matches(event) {
            self.counts.skipped += 1;
            self.mark_done(event.seq, Some((event.id, event.ts)), snapshot);
            return;
        }
        let key = (self.policy.ordered == Ordered::Key).then(|| order::hash(event)).flatten();
        let attempts = carried.map_or(0, |one| one.attempts);
        let mut entry = Entry::new(event, snapshot, key, attempts);
        self.dirty |= snapshot;
        self.ids.insert(event.id, event.seq);
        let first = key.is_none_or(|key| self.keys.join(key, event.seq));
        let due = carried.map_or(Millis(0), |one| one.not_before);
        let most = self.policy.max_attempts;
        if !first {
            entry.state = State::Blocked;
        } else if most > 0 && attempts >= most && !self.is_dead_letter {
            // It was given up before a restart, and the dead letter may not have been written; or the group allowed more
            // before.
            let reason = format!("{attempts} deliveries without an ack; the group allows {most}");
            out.push(Command::DeadLetter(DeadLetter { seq: event.seq, attempts, reason }));
            entry.state = State::Dying;
        } else if due > now {
            entry.state = State::Waiting { due };
            self.waits.push(due, event.seq, 0);
        }
        let free = entry.state == State::Ready;
        self.entries.insert(event.seq, entry);
        if !free {
            return;
        }
        // What is ready already goes first.
        let member = if self.ready.is_empty() { self.pick_member() } else { None };
        match member {
            Some(member) => self.deliver(event.seq, member, now, out),
            None => {
                self.ready.insert(event.seq);
            }
        }
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
