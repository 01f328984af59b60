//! What reaches a runner, and how each is taken in.

use std::sync::Arc;

use promethean_event::{Cursor, EventId, From, Seq};
use promethean_store::{Ranges, ReadMax, Start, TopicInfo};
use tokio::sync::oneshot;

use super::{Fatal, Member, Opened, Runner};
use crate::group::{Answer, MemberId, MemberOptions, Policy, Receipt};
use crate::lane::Subscriber;
use crate::relay::{Origin, Redrive, SeekTo};
use crate::status::GroupStatus;
use crate::{Code, Error};

/// The way back to whoever asked.
pub(crate) type Reply<T> = oneshot::Sender<Result<T, Error>>;

/// Something for the owner of a group.
pub(crate) enum Input {
    /// A subscriber comes.
    Join(Box<Join>),
    /// A subscriber goes.
    Leave(MemberId),
    /// Deliveries to a subscriber stop or go on.
    Pause(MemberId, bool),
    /// Answers of a subscriber to deliveries; a receipt for each.
    Answer { by: MemberId, ids: Vec<(EventId, Option<u64>)>, answer: Answer, reply: Reply<Vec<Receipt>> },
    /// An ack of an event and all before it.
    AckUpTo { by: MemberId, id: EventId, lease: Option<u64>, reply: Reply<u64> },
    /// Moves the group's place. `relayed`: another hub asks, and only the owner answers it.
    Seek { to: SeekTo, relayed: bool, reply: Reply<Cursor> },
    /// Takes dead-lettered events in again; which of them are there.
    Redrive { letters: Vec<Redrive>, relayed: bool, reply: Reply<Vec<bool>> },
    /// These events were removed from the log.
    Removed(Ranges<()>),
    /// Forgets the group, where it has no members.
    Forget { reply: Reply<bool> },
    /// How things stand in a topic of which this is known, with or without what is unfinished.
    Status { unfinished: bool, relayed: bool, info: Option<TopicInfo>, reply: Reply<Option<GroupStatus>> },
    /// The hub shuts down: gives leases back, saves, ends.
    Drain(oneshot::Sender<()>),
}

impl Input {
    /// Refuses whatever waits for an answer.
    pub(crate) fn refuse(self, error: Error) {
        match self {
            Input::Join(join) => drop(join.reply.send(Err(error))),
            Input::Answer { reply, .. } => drop(reply.send(Err(error))),
            Input::AckUpTo { reply, .. } => drop(reply.send(Err(error))),
            Input::Seek { reply, .. } => drop(reply.send(Err(error))),
            Input::Redrive { reply, .. } => drop(reply.send(Err(error))),
            Input::Forget { reply } => drop(reply.send(Err(error))),
            Input::Status { reply, .. } => drop(reply.send(Err(error))),
            Input::Drain(done) => drop(done.send(())),
            Input::Leave(_) | Input::Pause(..) | Input::Removed(_) => {}
        }
    }
}

/// A subscriber comes.
pub(crate) struct Join {
    pub(crate) subscriber: Arc<Subscriber>,
    pub(crate) options: MemberOptions,
    pub(crate) policy: Policy,
    pub(crate) from: From,
    pub(crate) relayed: Option<Origin>,
    pub(crate) reply: Reply<Cursor>,
}

impl Runner {
    pub(super) async fn on_input(&mut self, input: Input) -> Result<(), Fatal> {
        match input {
            Input::Join(join) => self.admit(Box::new(Member::new(*join, &self.wake))).await,
            Input::Leave(id) => self.on_leave(id),
            Input::Pause(id, paused) => {
                if let (Some(member), Some(dispatcher)) = (self.members.get(&id), &mut self.dispatcher) {
                    dispatcher.on_pause(id, paused);
                    let now = self.core.clock.now();
                    for (id, lease) in member.lane.take_unseen() {
                        dispatcher.on_unseen(id, lease, now, &mut self.commands);
                    }
                }
            }
            Input::Answer { by, ids, answer, reply } => self.on_answer(by, ids, answer, reply).await,
            Input::AckUpTo { by: _, id, lease, reply } => Box::pin(self.on_ack_up_to(id, lease, reply)).await,
            Input::Seek { to, reply, .. } => Box::pin(self.seek(to, reply)).await,
            Input::Redrive { letters, reply, .. } => Box::pin(self.on_redrive(letters, reply)).await,
            Input::Removed(seqs) => {
                if let Some(dispatcher) = &mut self.dispatcher {
                    dispatcher.on_removed(&seqs);
                    self.ahead.clear();
                }
            }
            Input::Forget { reply } => Box::pin(self.on_forget(reply)).await,
            Input::Status { unfinished, info, reply, .. } => {
                let status = match self.load(None).await {
                    Ok(_) => Ok(self.status(unfinished, info.as_ref())),
                    Err(error) => Err(error),
                };
                let _ = reply.send(status);
            }
            Input::Drain(done) => {
                self.on_drain();
                self.saving.when_idle(done);
            }
        }
        Ok(())
    }

    /// Takes a member in, a new one or one that was here before this hub owned the group.
    pub(super) async fn admit(&mut self, mut member: Box<Member>) {
        if let Err(error) = self.load(Some(member.from)).await {
            return member.refuse(error);
        }
        let Some(dispatcher) = &mut self.dispatcher else { return };
        if self.members.is_empty() {
            // Under another policy, the dispatcher reads from its floor.
            self.reads.clear();
            dispatcher.on_read_failed();
            if dispatcher.snapshot_cut().is_some() && dispatcher.has_read() {
                self.snapshot = None;
            }
        }
        let id = member.subscriber().id;
        if let Err((option, in_force)) = dispatcher.on_join(id, member.options, member.policy.clone()) {
            let message = format!(
                "opts.{option}: the group has members with {option} = {in_force}; use the same, or another group"
            );
            return member.refuse(Error::new(Code::BadRequest, message));
        }
        dispatcher.on_stamps(id);
        if member.subscriber().is_paused() {
            dispatcher.on_pause(id, true);
        }
        let cursor = crate::status::cursor_of(&self.topic, dispatcher);
        let known = member.welcome(cursor);
        self.members.insert(id, member);
        if !known {
            // Whoever asked is gone already, its Leave may never come.
            self.drop_newest_if_orphan();
        }
    }

    fn drop_newest_if_orphan(&mut self) {
        let orphans: Vec<MemberId> = self
            .members
            .iter()
            .filter(|(_, member)| Arc::strong_count(member.subscriber()) == 1)
            .map(|(&id, _)| id)
            .collect();
        for id in orphans {
            self.on_leave(id);
        }
    }

    pub(super) fn on_leave(&mut self, id: MemberId) {
        let Some(member) = self.members.remove(&id) else { return };
        let unseen = member.lane.unseen();
        member.lane.release();
        let now = self.core.clock.now();
        if let Some(dispatcher) = &mut self.dispatcher {
            member.report_hand_overs(dispatcher);
            for (id, lease) in unseen {
                dispatcher.on_unseen(id, lease, now, &mut self.commands);
            }
            dispatcher.on_leave(id, now, &mut self.commands);
        }
        if self.members.is_empty() {
            self.ahead.clear();
        }
    }

    /// Gives all leases back without counting the deliveries.
    fn on_drain(&mut self) {
        let now = self.core.clock.now();
        for (id, member) in self.members.drain() {
            member.lane.clear();
            member.subscriber().end(Error::shutting_down());
            if let Some(dispatcher) = &mut self.dispatcher {
                dispatcher.on_dismiss(id, now, &mut self.commands);
            }
        }
    }

    /// Moves the group's place, making the group where there is none.
    async fn seek(&mut self, to: SeekTo, reply: Reply<Cursor>) {
        let found = match (self.load(Some(From::Latest)).await, to) {
            (Err(error), _) => Err(error),
            (Ok(_), SeekTo::Place(from)) => self.find(from).await,
            (Ok(_), SeekTo::Seq(done)) => self.start_after(done).await.map(|start| (start, None)),
        };
        self.on_seek(found, reply);
    }

    /// The place after `done`, within what the topic has.
    async fn start_after(&mut self, done: Seq) -> Result<Start, Error> {
        let store = &self.core.store;
        let unreadable = |error| Error::group(&error);
        let Some(info) = store.info(&self.topic).await.map_err(unreadable)? else { return Ok(Start::default()) };
        let done = done.max(info.first_seq.saturating_sub(1)).min(info.last_seq);
        let at = store.read(&self.topic, done, ReadMax::events(1)).await.map_err(unreadable)?;
        let last = at.first().filter(|event| event.seq == done).map(|event| (event.id, event.ts));
        Ok(Start { done, last })
    }

    fn on_seek(&mut self, found: Result<(Start, Option<Opened>), Error>, reply: Reply<Cursor>) {
        match found {
            Err(error) => {
                let _ = reply.send(Err(error));
            }
            Ok((start, snapshot)) => {
                let Some(dispatcher) = &mut self.dispatcher else { return };
                let (snapshot, begun) =
                    snapshot.map_or((None, None), |(snapshot, begun)| (Some(snapshot), Some(begun)));
                dispatcher.on_seek(start, begun);
                self.ahead.clear();
                self.reads.clear();
                self.letters.clear();
                self.snapshot = snapshot;
                for member in self.members.values() {
                    member.lane.clear();
                }
                if let Some(dispatcher) = &self.dispatcher {
                    let cursor = self.cursor(dispatcher);
                    self.saving.after(dispatcher.is_dirty(), move |saved| {
                        let _ = reply.send(saved.map(|()| cursor));
                    });
                }
            }
        }
    }

    async fn on_redrive(&mut self, letters: Vec<Redrive>, reply: Reply<Vec<bool>>) {
        let there = match self.redrive(&letters).await {
            Ok(there) => there,
            Err(error) => return drop(reply.send(Err(error))),
        };
        let dirty = self.dispatcher.as_ref().is_some_and(|dispatcher| dispatcher.is_dirty());
        self.saving.after(dirty, move |saved| drop(reply.send(saved.map(|()| there))));
    }

    /// Takes dead-lettered events in again; which of them are there.
    async fn redrive(&mut self, letters: &[Redrive]) -> Result<Vec<bool>, Error> {
        if !self.load(None).await? {
            let message = format!("the group {} has no position on {}; redrive to the topic", self.group, self.topic);
            return Err(Error::new(Code::NotFound, message));
        }
        let mut events = Vec::new();
        let mut there = Vec::with_capacity(letters.len());
        for letter in letters {
            let event = self.core.original(&self.topic, letter).await?;
            there.push(event.is_some());
            events.extend(event.map(|event| (event, letter.letter)));
        }
        events.sort_unstable_by_key(|(event, _)| event.seq);
        let Some((first, _)) = events.first() else { return Ok(there) };
        let before = self.start_after(first.seq - 1).await?.last;
        let Some(dispatcher) = &mut self.dispatcher else { return Err(Error::shutting_down()) };
        if dispatcher.snapshot_cut().is_some() {
            let message = format!("a snapshot start of the group {} is under way; redrive when it is done", self.group);
            return Err(Error::new(Code::Conflict, message));
        }
        dispatcher.on_redrive(&events, before, self.core.clock.now(), &mut self.commands);
        Ok(there)
    }

    /// Only a group that nobody is a member of, and of which nothing is being saved, can be forgotten.
    async fn on_forget(&mut self, reply: Reply<bool>) {
        let message = match self.members.len() {
            0 if self.saving.is_idle() => {
                let forgotten = self.core.store.forget(&self.topic, &self.group).await;
                (self.dispatcher, self.version, self.snapshot) = (None, 0, None);
                self.reads.clear();
                let _ = reply.send(forgotten.map_err(|error| Error::group(&error)));
                return;
            }
            0 => "the group's last answers are being saved: ask again in a moment".to_owned(),
            1 => "the group has a member: stop it first".to_owned(),
            members => format!("the group has {members} members: stop them first"),
        };
        let _ = reply.send(Err(Error::new(Code::BadRequest, message)));
    }
}
