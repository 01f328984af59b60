//! The owner of one group on one topic: feeds the dispatcher, carries its commands out, saves what it decided.
//!
//! One task, no locks: everything reaches it as an [`Input`], every caller gets its answer by a oneshot.
//! Invariants: at most one save is under way; an ack is answered only after a save that covers it returned.

mod ahead;
mod alarm;
mod answer;
mod deletion;
mod deliver;
mod follower;
mod host;
mod input;
mod lease_history;
mod queue;
mod read;
mod remote_member;
mod save;
mod status;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use promethean_event::{Code, Cursor, Event, From, Group, Millis, Topic};
use promethean_store::{Fence, GroupState, KeySnapshot, Owned, Saved, Seek, SnapshotState, Start, Tail, Version};
use tokio::sync::{Notify, watch};

use crate::Error;
use crate::bus::Core;
use crate::dead_letters::write::Writer;
use crate::group::{Command, Dispatcher, MemberId};
use crate::metrics::GroupObserver;
use crate::shard::Saves;

use ahead::Ahead;
pub(crate) use ahead::Room;
use alarm::Alarm;
use deletion::Deletion;
use host::{GroupHost, Member};
pub(crate) use host::{not_the_owner, spawn};
pub(crate) use input::{Input, Join};
pub(crate) use queue::{Handle, Inputs};
use read::Reads;
use save::Saving;
pub(crate) use status::saved_status;

/// About how many events are read in a turn, and how often the dispatcher is asked: then answers and leases have their
/// turn.
const TURN_EVENTS: usize = 2_048;
const STEPS: usize = 64;
/// What a member takes at a time of the bytes that its connection may have waiting.
const TURN_BYTES: usize = 1024 * 1024;
/// How long after a refused save, or a read that failed, the next one is tried.
const TRY_AGAIN: Duration = Duration::from_secs(1);

pub(crate) struct Runner {
    core: Arc<Core>,
    topic: Topic,
    group: Group,
    inputs: Inputs,
    /// None until the first input that needs it.
    dispatcher: Option<Box<Dispatcher>>,
    version: Version,
    tail: watch::Receiver<Tail>,
    deletion: Deletion,
    members: HashMap<MemberId, Box<Member>>,
    wake: Arc<Notify>,
    snapshot: Option<Box<dyn KeySnapshot>>,
    ahead: Ahead,
    reads: Reads,
    saves: Arc<Saves>,
    saving: Saving,
    letters: Writer,
    /// A read failed: the dispatcher is told, and asks again, at this time.
    read_again: Option<tokio::time::Instant>,
    commands: Vec<Command>,
    alarm: Alarm,
    metrics: GroupObserver,
    /// What was claimed; none: no other hub could.
    held: Option<Held>,
}

/// A group that this hub has claimed, as its runner knows it.
struct Held {
    first_lease: u64,
    fence: Fence,
    /// The state at the claim, until it is taken up.
    state: Option<GroupState>,
    /// Somebody else has claimed it since.
    lost: bool,
}

/// What a turn has left.
#[derive(Default)]
struct Turn {
    /// When to be called again at the latest.
    wake_at: Option<Millis>,
    /// There is more to do at once.
    more: bool,
}

/// A snapshot that was opened, and the state of a group that begins with it.
type Opened = (Box<dyn KeySnapshot>, SnapshotState);

/// Why a runner ends before its members do.
struct Fatal(Error);

impl Runner {
    fn new(host: GroupHost, owned: Option<Owned>) -> Box<Self> {
        let GroupHost { core, topic, group, inputs, members, wake, saves } = host;
        let version = owned.as_ref().map_or(0, |owned| owned.version);
        let held = owned.map(|Owned { first_lease, state, fence, .. }| Held { first_lease, fence, state, lost: false });
        Box::new(Self {
            tail: core.store.watch(&topic),
            deletion: Deletion::new(core.store.watch(&topic)),
            metrics: GroupObserver::new(&core.metrics, &topic, &group),
            ahead: Ahead::new(Arc::clone(&core.ahead)),
            reads: Reads::default(),
            core,
            topic,
            group,
            inputs,
            dispatcher: None,
            version,
            members,
            wake,
            snapshot: None,
            saves,
            saving: Saving::default(),
            letters: Writer::default(),
            read_again: None,
            commands: Vec::new(),
            alarm: Alarm::default(),
            held,
        })
    }

    /// Steps down: nothing more goes out, and whoever waits for a save finds its answer dropped, and asks again.
    fn into_host(self: Box<Self>) -> GroupHost {
        let Self { core, topic, group, inputs, mut members, wake, saves, .. } = *self;
        for member in members.values_mut() {
            member.outgoing.clear();
            member.handed.next_owner();
            member.lane.clear();
            member.lane.release();
        }
        GroupHost { core, topic, group, inputs, members, wake, saves }
    }

    /// Runs a group that no other hub could, to the end.
    async fn run_alone(mut self: Box<Self>) {
        let end = self.serve().await;
        self.inputs.close();
        self.core.forget_runner(&self.topic, &self.group);
        if let Err(Fatal(error)) = end {
            tracing::error!(topic = %self.topic, group = %self.group, %error, "the group stops");
            for member in self.members.values() {
                member.subscriber().end(error.clone());
            }
            self.saving.fail(&error);
        }
        // Whoever sent something after the registry forgot this runner finds its answer dropped, and asks again.
    }

    async fn serve(&mut self) -> Result<(), Fatal> {
        loop {
            self.on_deleted();
            // After a freeze of the whole process this is the first thing to be found out.
            self.must_hold()?;
            // Answers that are here by `now` are taken in before time passes to it.
            let now = self.core.clock.now();
            for _ in 0..self.inputs.len() {
                if let Some(input) = self.inputs.next() {
                    self.on_input(input).await?;
                }
            }
            let turn = self.turn(now);
            self.save();
            if turn.more {
                tokio::task::yield_now().await;
                continue;
            }
            if self.is_idle() {
                let above = self.dispatcher.as_ref().map_or(0, |dispatcher| dispatcher.next_lease());
                self.core.leases.fetch_max(above, Ordering::SeqCst);
                if self.core.retire_runner(&self.topic, &self.group, &self.inputs) {
                    return Ok(());
                }
            }
            let room = self.dispatcher.as_ref().is_some_and(|dispatcher| dispatcher.has_room());
            let alarm = turn.wake_at.into_iter().chain(self.ahead.expires()).min();
            let due = alarm.map(|at| self.core.clock.instant(at));
            tokio::select! {
                biased;
                () = lost(self.held.as_ref()) => {}
                saved = self.saving.done() => self.on_saved(saved)?,
                written = self.letters.done() => {
                    if let Some(dispatcher) = &mut self.dispatcher {
                        written.into_iter().for_each(|seq| dispatcher.on_dead_lettered(seq));
                    }
                }
                () = self.reads.arrive() => {}
                () = sleep_until(self.read_again) => {
                    self.read_again = None;
                    if let Some(dispatcher) = &mut self.dispatcher {
                        dispatcher.on_read_failed();
                    }
                }
                () = self.deletion.happens() => {}
                // Inputs, or credit for a member.
                () = self.wake.notified() => {}
                // Without room there is nothing to do about news.
                changed = self.tail.changed(), if room => {
                    if changed.is_err() {
                        return Err(Fatal(Error::shutting_down()));
                    }
                }
                () = self.alarm.rings(due) => self.ahead.expire(self.core.clock.now()),
            }
        }
    }

    /// True if this hub may still act as the owner.
    fn must_hold(&self) -> Result<(), Fatal> {
        match &self.held {
            Some(held) if held.lost || !held.fence.holds() => Err(Fatal(taken_over())),
            _ => Ok(()),
        }
    }

    fn is_idle(&self) -> bool {
        self.members.is_empty() && self.saving.is_idle() && self.letters.is_idle()
    }

    /// Lets time pass to `now` and carries out the dispatcher's commands, a bounded number of events. Awaits nothing: reads
    /// that the store cannot answer at once are taken up in a later turn.
    fn turn(&mut self, now: Millis) -> Turn {
        let Some(mut dispatcher) = self.dispatcher.take() else { return Turn::default() };
        let sharing = self.sharing(&mut dispatcher);
        let mut commands = std::mem::take(&mut self.commands);
        self.members.values().for_each(|member| member.report_hand_overs(&mut dispatcher));
        // What comes back by itself wants room too, and nothing else may ever ask for it.
        dispatcher.on_tick(now, &mut commands);
        let mut turn = Turn::default();
        let mut read = 0;
        for _ in 0..STEPS {
            dispatcher.on_tail(self.tail.borrow_and_update().seq);
            self.reserve(&mut dispatcher, &sharing);
            read += self.take_reads(&mut dispatcher);
            turn.wake_at = dispatcher.poll(now, &mut commands);
            turn.more = !commands.is_empty();
            self.carry_out(&mut dispatcher, &mut commands);
            read += self.take_reads(&mut dispatcher);
            // What follows from it is for the next step.
            std::mem::swap(&mut commands, &mut self.commands);
            if !turn.more || read >= TURN_EVENTS {
                break;
            }
        }
        self.commands.append(&mut commands);
        turn.more |= self.flush(&mut dispatcher, now) || !self.commands.is_empty();
        self.unreserve(&mut dispatcher, &sharing);
        self.letters.start(&self.core, &self.topic, &self.group, dispatcher.generation());
        self.metrics.observe(&mut dispatcher);
        self.dispatcher = Some(dispatcher);
        turn
    }

    /// The members that share their room with other topics: nothing is reserved for them yet.
    fn sharing(&self, dispatcher: &mut Dispatcher) -> Vec<MemberId> {
        let mut sharing = Vec::new();
        for (&id, member) in &self.members {
            if member.subscriber().shared {
                dispatcher.on_allowance(id, 0);
                sharing.push(id);
            }
        }
        sharing
    }

    /// Takes of the room that members share with their other topics, and of the bytes that connections share, what this
    /// group could use for as long as the dispatcher decides.
    fn reserve(&mut self, dispatcher: &mut Dispatcher, sharing: &[MemberId]) {
        for &id in sharing {
            let Some(member) = self.members.get(&id) else { continue };
            let (want, has) = (dispatcher.wanted(id), dispatcher.allowance(id));
            if want > has {
                dispatcher.on_allowance(id, has + member.lane.reserve(want - has));
            }
        }
        for (&id, member) in &mut self.members {
            let wanted = dispatcher.wanted(id) > 0 && dispatcher.allowance(id) > 0;
            if member.bytes == 0 && (wanted || self.reads.is_for(id)) {
                member.bytes = member.lane.reserve_bytes(TURN_BYTES);
                (member.full, member.waits) = (member.bytes == 0, member.bytes == 0);
            }
            dispatcher.on_byte_allowance(id, if member.full { 0 } else { member.bytes });
        }
    }

    /// Gives back what was not used, and what was answered since the last time.
    fn unreserve(&mut self, dispatcher: &mut Dispatcher, sharing: &[MemberId]) {
        for &id in sharing {
            let Some(member) = self.members.get(&id) else { continue };
            // With an allowance left, it waits for a read.
            let starved = !member.full && dispatcher.wanted(id) > 0 && dispatcher.allowance(id) == 0;
            member.lane.settle(dispatcher.held_by(id), starved);
            // A member that waits for room is woken by it, not by news; any other is woken by news.
            dispatcher.on_allowance(id, if starved { 0 } else { usize::MAX });
        }
        for (&id, member) in &mut self.members {
            let full = std::mem::take(&mut member.full) && dispatcher.wanted(id) > 0;
            if member.bytes > 0 || member.waits || full {
                member.lane.return_bytes(std::mem::take(&mut member.bytes), full);
                member.waits = full;
            }
            // A member that waits for bytes is woken by them, not by news.
            dispatcher.on_byte_allowance(id, if full { 0 } else { usize::MAX });
        }
    }

    /// Hands what was decided to the members; whether some of it came back.
    fn flush(&mut self, dispatcher: &mut Dispatcher, now: Millis) -> bool {
        let mut back = false;
        for member in self.members.values_mut() {
            if !member.outgoing.is_empty() {
                let mut batch = std::mem::take(&mut member.outgoing);
                // A stamp of a hand-over is for all leases up to its own.
                if !batch.iter().is_sorted_by_key(|given| given.lease) {
                    batch.make_contiguous().sort_unstable_by_key(|given| given.lease);
                }
                member.lane.give(batch);
            }
            for (id, lease) in member.lane.take_unseen() {
                dispatcher.on_unseen(id, lease, now, &mut self.commands);
                back = true;
            }
        }
        back
    }

    /// Loads the group's state; where there is none and `from` says where to begin, makes it. **Returned ⇒ durable.**
    async fn load(&mut self, from: Option<From>) -> Result<bool, Error> {
        // In a box: a group is loaded once, and waits all its life.
        if self.dispatcher.is_some() { Ok(true) } else { Box::pin(self.load_or_make(from)).await }
    }

    async fn load_or_make(&mut self, from: Option<From>) -> Result<bool, Error> {
        while self.dispatcher.is_none() {
            let store = Arc::clone(&self.core.store);
            let loaded = match &mut self.held {
                Some(held) => held.state.take().map(|state| (state, self.version)),
                None => store.load(&self.topic, &self.group).await.map_err(|error| Error::group(&error))?,
            };
            if let Some((state, version)) = loaded {
                self.begin(state, version);
                break;
            }
            let Some(from) = from else { return Ok(false) };
            self.core.admit_group(&self.group)?;
            let (state, snapshot) = self.first_state(from).await?;
            let saved = store.compare_and_set(&self.topic, &self.group, self.version, state.clone()).await;
            match saved.map_err(|error| Error::group(&error))? {
                Saved::Yes(version) => {
                    self.snapshot = snapshot;
                    self.begin(state, version);
                }
                // Somebody made it meanwhile; who has claimed it knows that it was not this hub.
                Saved::Conflict if self.held.is_none() => {}
                Saved::Conflict => {
                    self.held.iter_mut().for_each(|held| held.lost = true);
                    return Err(taken_over());
                }
            }
        }
        Ok(true)
    }

    fn begin(&mut self, state: GroupState, version: Version) {
        // Leases are numbered by the microsecond: an old number never fits a delivery after a restart.
        let ended = self.core.leases.load(Ordering::SeqCst);
        let by_clock = || Millis::now().0.saturating_mul(1_000).max(ended);
        let first_lease = self.held.as_ref().map_or_else(by_clock, |held| held.first_lease);
        let mut dispatcher = Box::new(Dispatcher::new(state, self.topic.is_dead_letter(), first_lease));
        dispatcher.on_tail(self.tail.borrow().seq);
        self.dispatcher = Some(dispatcher);
        self.version = version;
    }

    async fn first_state(&mut self, from: From) -> Result<(GroupState, Option<Box<dyn KeySnapshot>>), Error> {
        let (start, snapshot) = self.find(from).await?;
        let (snapshot, begun) = snapshot.map_or((None, None), |(snapshot, begun)| (Some(snapshot), Some(begun)));
        let state =
            GroupState { floor: start.done, last: start.last, snapshot: begun, ..GroupState::begun(self.core.wall()) };
        Ok((state, snapshot))
    }

    /// The place that `from` means on this topic.
    async fn find(&mut self, from: From) -> Result<(Start, Option<Opened>), Error> {
        if from == From::Snapshot {
            let mut snapshot = self.core.store.key_snapshot(&self.topic).await.map_err(|error| Error::group(&error))?;
            let (cut, left) = (snapshot.cut(), snapshot.left().await.map_err(|error| Error::group(&error))?);
            let read = self.core.store.read(&self.topic, cut, promethean_store::ReadMax::events(1)).await;
            let at_cut = read.map_err(|error| Error::group(&error))?.into_iter().find(|event| event.seq == cut);
            let last = at_cut.map(|event: Event| (event.id, event.ts));
            let begun = SnapshotState { cut, left: Some(left), ..SnapshotState::default() };
            return Ok((Start { done: cut, last }, Some((snapshot, begun))));
        }
        self.core.seek(&self.topic, from).await.map(|start| (start, None))
    }

    fn cursor(&self, dispatcher: &Dispatcher) -> Cursor {
        crate::status::cursor_of(&self.topic, dispatcher)
    }
}

async fn lost(held: Option<&Held>) {
    match held {
        Some(held) => held.fence.lost().await,
        None => std::future::pending().await,
    }
}

/// What is said of an ack whose event an owner before gave out, and the current one again.
fn given_again() -> Error {
    let message = "the group has another owner, which has given the event out again; its new holder answers for it";
    Error::new(Code::AckFailed, message)
}

/// What whoever still waits is told.
fn taken_over() -> Error {
    Error::new(Code::AckFailed, "another hub has taken this group over; subscribe again")
}

/// The seek that `from` means; a snapshot start has none.
pub(crate) fn seek_of(from: From) -> Seek {
    match from {
        From::Latest | From::Snapshot => Seek::Latest,
        From::Earliest => Seek::Earliest,
        From::Ts(ts) => Seek::Ts(ts),
        From::AfterId(id) => Seek::AfterId(id),
    }
}

async fn sleep_until(alarm: Option<tokio::time::Instant>) {
    match alarm {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
