//! A group on this hub: its subscribers here, and the role that serves them.
//!
//! A hub alone serves them itself, always. In a cluster the group is claimed first: granted, a [`Runner`] serves them;
//! else a [`Follower`] has them served by the owner. When the owner changes, the subscribers stay and the
//! next one serves them: they notice a pause.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use promethean_event::{Code, Cursor, EventId, From, Group, Topic};
use promethean_store::{Claim, Error as StoreError, Owned, Peer};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::follower::Follower;
use super::input::Reply;
use super::lease_history::LeaseHistory;
use super::queue::queue;
use super::{Fatal, Handle, Input, Inputs, Join, Runner, sleep_until};
use crate::Error;
use crate::bus::Core;
use crate::group::{Dispatcher, MemberId, MemberOptions, Policy};
use crate::inbox::Given;
use crate::lane::{Lane, Subscriber};
use crate::relay::{Cluster, Origin, RelayGiven};
use crate::shard::Saves;

/// The wait of a caller for an owner that can be reached: a little longer than a failover takes.
pub(super) const PATIENCE: Duration = Duration::from_secs(15);
/// The waits between claims that failed.
const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(1);

/// What stays when the owner changes.
pub(super) struct GroupHost {
    pub(super) core: Arc<Core>,
    pub(super) topic: Topic,
    pub(super) group: Group,
    pub(super) inputs: Inputs,
    pub(super) members: HashMap<MemberId, Box<Member>>,
    /// Wakes the host: there are inputs, or a member may take more.
    pub(super) wake: Arc<Notify>,
    pub(super) saves: Arc<Saves>,
}

/// A subscriber of this hub, or one that another hub has sent.
pub(super) struct Member {
    pub(super) lane: Arc<Lane>,
    pub(super) options: MemberOptions,
    pub(super) policy: Policy,
    pub(super) from: From,
    pub(super) relayed: Option<Origin>,
    /// Who waits to hear that it has joined.
    reply: Option<Reply<Cursor>>,
    /// When the member lost its owner. `None` while it has one, or while the owner is unknown.
    since: Option<Instant>,
    pub(super) outgoing: VecDeque<Given>,
    /// Bytes that were reserved in this turn and not used.
    pub(super) bytes: usize,
    /// An event did not fit: none that comes after it goes out before.
    pub(super) full: bool,
    /// It waits for bytes.
    pub(super) waits: bool,
    /// In a cluster, what it was given by which owner.
    pub(super) handed: LeaseHistory,
}

impl Member {
    pub(super) fn new(join: Join, wake: &Arc<Notify>) -> Self {
        let Join { subscriber, options, policy, from, relayed, reply } = join;
        Self {
            lane: Lane::new(subscriber, Arc::clone(wake)),
            options,
            policy,
            from,
            relayed,
            reply: Some(reply),
            since: Some(Instant::now()),
            outgoing: VecDeque::new(),
            bytes: 0,
            full: false,
            waits: false,
            handed: LeaseHistory::default(),
        }
    }

    pub(super) fn subscriber(&self) -> &Arc<Subscriber> {
        &self.lane.subscriber
    }

    /// Answers its join; `false`: the caller is gone.
    pub(super) fn welcome(&mut self, cursor: Cursor) -> bool {
        self.since = None;
        self.reply.take().is_none_or(|reply| reply.send(Ok(cursor)).is_ok())
    }

    /// Its owner is known and does not serve it.
    pub(super) fn is_left(&mut self, now: Instant) {
        self.since.get_or_insert(now);
    }

    /// Nobody knows who could serve it. Whoever has not joined yet goes on counting the time.
    pub(super) fn stays(&mut self) {
        if self.reply.is_none() {
            self.since = None;
        }
    }

    /// It cannot join, or not again.
    pub(super) fn refuse(self, error: Error) {
        match self.reply {
            Some(reply) => drop(reply.send(Err(error))),
            None => self.subscriber().end(error),
        }
    }

    /// Reports what was handed to the connection since the last time.
    pub(super) fn report_hand_overs(&self, dispatcher: &mut Dispatcher) {
        for (lease, at) in self.lane.take_stamps() {
            dispatcher.on_handed(self.subscriber().id, lease, at);
        }
    }

    /// Adds a delivery to those that go out at the end of the turn; one that there are no bytes for goes back unseen.
    pub(super) fn put(&mut self, given: Given) {
        let short = given.size().saturating_sub(self.bytes);
        self.full = self.full || short > 0 && !self.lane.stretch(short);
        if self.full {
            self.lane.was_unseen([given]);
        } else {
            self.bytes = self.bytes.saturating_sub(given.size());
            self.outgoing.push_back(given);
        }
    }

    /// Takes out of relayed deliveries those that there are no bytes for.
    pub(super) fn without_bytes(&self, given: &mut Vec<RelayGiven>) -> Vec<(EventId, Option<u64>)> {
        let mut fits = true;
        let over = given.extract_if(.., |one| {
            let size = one.event.body.len();
            fits = fits && {
                let taken = self.lane.try_reserve_bytes(size);
                let fits = taken == size || self.lane.stretch(size - taken);
                if !fits {
                    self.lane.return_bytes(taken, true);
                }
                fits
            };
            !fits
        });
        over.map(|one| (one.event.id, Some(one.lease))).collect()
    }

    /// Puts the lease to acks of what an owner before gave; whether there was one.
    pub(super) fn fence_acks(&self, ids: &mut [(EventId, Option<u64>)]) -> bool {
        let mut fenced = false;
        for (id, lease) in ids.iter_mut().filter(|(_, lease)| lease.is_none()) {
            *lease = self.handed.stale(*id);
            fenced |= lease.is_some();
        }
        let again: Vec<EventId> = ids.iter().map(|(id, _)| *id).filter(|id| self.handed.came_again(*id)).collect();
        if !again.is_empty() {
            self.lane.clear_events(&again);
        }
        fenced
    }

    /// When it has waited long enough.
    pub(super) fn tired_at(&self) -> Option<Instant> {
        self.since.map(|since| since + PATIENCE)
    }

    /// True if it has waited long enough, or its caller waits no more.
    pub(super) fn is_tired(&self, now: Instant) -> bool {
        let gone = self.reply.as_ref().is_some_and(|reply| reply.is_closed());
        gone || self.tired_at().is_some_and(|at| now >= at)
    }
}

/// The end of a role.
pub(super) enum End {
    /// No member is left, and the registry has forgotten the host.
    Retired,
    /// The hub shuts down.
    Closed,
    /// Somebody else may be the owner now.
    Moved,
}

/// Starts what serves a group on a topic.
pub(crate) fn spawn(core: &Arc<Core>, topic: &Topic, group: &Group) -> Handle {
    let wake = Arc::default();
    let (handle, inputs) = queue(Arc::clone(&wake));
    let (topic, group, members) = (topic.clone(), group.clone(), HashMap::new());
    let of = group.clone();
    let host = |saves| GroupHost { core: Arc::clone(core), topic, group, inputs, members, wake, saves };
    match &core.cluster {
        None => core.shards.drive(&core.store, &of, |saves| Runner::new(host(saves), None).run_alone()),
        Some(cluster) => core.shards.drive(&core.store, &of, |saves| host(saves).run(cluster.clone())),
    }
    handle
}

impl GroupHost {
    /// Claims, and serves as owner or follower, until no member is left.
    async fn run(mut self, cluster: Cluster) {
        let mut wait = SHORTEST;
        loop {
            let claimed = cluster.ownership.claim(&self.topic, &self.group).await;
            let (host, end) = match claimed {
                Ok(Claim::Owned(owned)) => {
                    wait = SHORTEST;
                    self.own(&cluster, *owned).await
                }
                Ok(Claim::Other(owner)) => {
                    wait = SHORTEST;
                    self.follow(&cluster, owner).await
                }
                Err(StoreError::Closed(_)) => (self, End::Closed),
                Err(error) => {
                    let (topic, group) = (&self.topic, &self.group);
                    if wait == SHORTEST {
                        tracing::warn!(%topic, %group, %error, "the group cannot be claimed");
                    } else {
                        tracing::debug!(%topic, %group, %error, "the group still cannot be claimed");
                    }
                    let end = self.wait(&Error::group(&error), wait).await;
                    wait = (wait * 2).min(LONGEST);
                    (self, end)
                }
            };
            self = host;
            match end {
                End::Moved => {}
                End::Retired => return,
                End::Closed => break,
            }
        }
        self.inputs.close();
        self.core.forget_runner(&self.topic, &self.group);
        for (_, member) in self.members.drain() {
            member.refuse(Error::shutting_down());
        }
    }

    /// Serves as the owner.
    async fn own(self, cluster: &Cluster, owned: Owned) -> (Self, End) {
        let epoch = owned.epoch;
        tracing::debug!(topic = %self.topic, group = %self.group, epoch, "this hub owns the group");
        let mut runner = Runner::new(self, Some(owned));
        let end = runner.serve_as_owner().await;
        let host = runner.into_host();
        match end {
            Err(Fatal(error)) => {
                tracing::warn!(topic = %host.topic, group = %host.group, epoch, %error, "stepping down");
                (host, End::Moved)
            }
            Ok(()) => {
                // Nobody needs to wait for the lease to run out. A claim that came since has another epoch.
                let released = cluster.ownership.release(&host.topic, &host.group, epoch).await;
                if let Err(error) = released {
                    tracing::debug!(topic = %host.topic, group = %host.group, %error, "the group stays claimed");
                }
                (host, End::Retired)
            }
        }
    }

    /// Has the subscribers served by another hub.
    async fn follow(mut self, cluster: &Cluster, owner: Peer) -> (Self, End) {
        // What another hub has sent here is sent back: it asks who the owner is.
        let strangers: Vec<MemberId> =
            self.members.iter().filter(|(_, member)| member.relayed.is_some()).map(|(&id, _)| id).collect();
        for id in strangers {
            if let Some(member) = self.members.remove(&id) {
                member.refuse(not_the_owner());
            }
        }
        tracing::debug!(topic = %self.topic, group = %self.group, owner = %owner.id, "another hub owns the group");
        let mut follower = Follower::new(self, cluster.clone(), owner);
        let end = follower.serve().await;
        (follower.into_host(), end)
    }

    /// Waits before the next claim. Whoever asks meanwhile is told why it does not work.
    async fn wait(&mut self, error: &Error, wait: Duration) -> End {
        let until = Instant::now() + wait;
        let tired: Vec<MemberId> =
            self.members.iter().filter(|(_, member)| member.is_tired(until)).map(|(&id, _)| id).collect();
        for id in tired {
            if let Some(member) = self.members.remove(&id) {
                member.refuse(error.clone());
            }
        }
        loop {
            while let Some(input) = self.inputs.next() {
                match input {
                    Input::Drain(done) => {
                        let _ = done.send(());
                        return End::Closed;
                    }
                    Input::Join(join) => {
                        let member = Box::new(Member::new(*join, &self.wake));
                        self.members.insert(member.subscriber().id, member);
                    }
                    Input::Leave(id) => drop(self.members.remove(&id)),
                    Input::Pause(..) | Input::Removed(_) => {}
                    // It may have been asked before, of the owner that this hub was: then it may have been done.
                    answer @ (Input::Answer { .. } | Input::AckUpTo { .. }) => {
                        let message = format!("the outcome is unknown: {}", error.message);
                        answer.refuse(Error::new(error.code, message));
                    }
                    other => other.refuse(error.clone()),
                }
            }
            if self.members.is_empty() && self.core.retire_runner(&self.topic, &self.group, &self.inputs) {
                return End::Retired;
            }
            tokio::select! {
                () = sleep_until(Some(until)) => return End::Moved,
                () = self.wake.notified() => {}
            }
        }
    }
}

impl Runner {
    /// Takes in the members that were here before, and serves.
    async fn serve_as_owner(&mut self) -> Result<(), Fatal> {
        for (_, member) in std::mem::take(&mut self.members) {
            self.admit(member).await;
        }
        self.serve().await
    }
}

/// What another hub is told that has sent a subscriber here.
pub(crate) fn not_the_owner() -> Error {
    Error::new(Code::ShuttingDown, "this hub does not own the group any more; ask which one does")
}
