//! The subscribers of a group that another hub owns: each is a member there, over a relay.
//!
//! Invariants: a subscriber whose relay is lost gets another one, and is told when it gets none for as long as a failover
//! may take, while the owner lives: never does one stay without events and without a word. A delivery is passed on only
//! while its relay may (`Given::fence`); an ack whose answer was lost is sent again, which is harmless, and nothing else
//! is; room that a subscriber shares over its topics is never overdrawn: what does not fit goes back uncounted.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use promethean_event::{Code, Cursor, Seq, limits};
use promethean_store::Peer;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::deletion::{self, Deletion};
use super::host::{End, GroupHost, Member, PATIENCE, not_the_owner};
use super::remote_member::RemoteMember;
use super::{Input, sleep_until};
use crate::Error;
use crate::group::{Answer, MemberId, Receipt};
use crate::inbox::Given;
use crate::relay::{Cluster, RelayError, RelayGiven, RelayJoin, Relayed, Remote};
use crate::status::MemberStatus;

/// How long after a relay was lost the next one is tried.
const AGAIN: Duration = Duration::from_millis(300);
/// How long a subscriber without much room stays without deliveries.
const REST: Duration = Duration::from_millis(250);
/// Batches of deliveries that wait here, over all members; a relay waits at the bound.
const BATCHES: usize = 64;
/// How long deliveries may take to go back when the hub shuts down.
const GOODBYE: Duration = Duration::from_secs(1);

type Joined = (MemberId, Result<(Cursor, Box<dyn Remote>), RelayError>);

pub(super) struct Follower {
    host: GroupHost,
    cluster: Cluster,
    owner: Peer,
    remotes: HashMap<MemberId, RemoteMember>,
    joins: JoinSet<Joined>,
    joining: HashSet<MemberId>,
    /// What came through a relay before it was known to be there. Bounded by what each member may have in flight.
    early: Vec<(MemberId, Relayed)>,
    /// When members without a relay try again.
    again: Option<Instant>,
    /// Why the last one that was lost, or not to be had, was.
    why: String,
    deliveries: mpsc::Receiver<(MemberId, Relayed)>,
    sender: mpsc::Sender<(MemberId, Relayed)>,
    /// Answers under way.
    answers: JoinSet<Answered>,
    deletion: Deletion,
    /// What waits for a relay, and how long. Bounded by what each connection may have under way.
    waiting: VecDeque<(Instant, Input)>,
}

/// What became of an answer.
enum Answered {
    Done,
    /// It has to be sent again.
    Again(Input),
    /// An event and all before it are done.
    UpTo(MemberId, Seq),
}

impl Follower {
    pub(super) fn new(host: GroupHost, cluster: Cluster, owner: Peer) -> Self {
        let (sender, deliveries) = mpsc::channel(BATCHES);
        let deletion = Deletion::new(host.core.store.watch(&host.topic));
        Self {
            host,
            cluster,
            owner,
            remotes: HashMap::new(),
            joins: JoinSet::new(),
            joining: HashSet::new(),
            early: Vec::new(),
            again: None,
            why: String::new(),
            deliveries,
            sender,
            answers: JoinSet::new(),
            deletion,
            waiting: VecDeque::new(),
        }
    }

    /// Ends the relays. Whoever waits for an answer finds it dropped, and asks again.
    pub(super) fn into_host(mut self) -> GroupHost {
        let ids: Vec<MemberId> = self.remotes.keys().copied().collect();
        ids.into_iter().for_each(|id| self.detach(id));
        for member in self.host.members.values_mut() {
            member.stays();
        }
        self.host
    }

    pub(super) async fn serve(&mut self) -> End {
        loop {
            while let Some(input) = self.host.inputs.next() {
                match input {
                    Input::Drain(done) => {
                        self.dismiss().await;
                        let _ = done.send(());
                        return End::Closed;
                    }
                    input => self.on_input(input),
                }
            }
            let now = Instant::now();
            self.drop_tired(now);
            self.start_joins(now);
            self.find_room(now);
            let GroupHost { core, topic, group, inputs, members, .. } = &self.host;
            let idle = members.is_empty() && self.waiting.is_empty() && self.answers.is_empty();
            if idle && core.retire_runner(topic, group, inputs) {
                return End::Retired;
            }
            let alarm = self.alarm();
            tokio::select! {
                biased;
                () = self.cluster.ownership.gone(&self.owner) => return End::Moved,
                Some(joined) = self.joins.join_next() => {
                    if let Ok((id, result)) = joined
                        && self.on_joined(id, result).await
                    {
                        return End::Moved;
                    }
                }
                Some((id, relayed)) = self.deliveries.recv() => {
                    if self.on_relayed(id, relayed).await {
                        return End::Moved;
                    }
                }
                Some(answered) = self.answers.join_next() => {
                    match answered {
                        Ok(Answered::Again(again)) => self.waiting.push_back((now + PATIENCE, again)),
                        Ok(Answered::UpTo(by, seq)) => {
                            if let (Some(member), Some(attached)) = self.known(by) {
                                attached.answered_up_to(seq);
                                attached.charge(member);
                            }
                        }
                        Ok(Answered::Done) | Err(_) => {}
                    }
                }
                () = self.deletion.happens() => self.on_deleted(),
                () = self.host.wake.notified() => {}
                () = sleep_until(alarm) => {}
            }
        }
    }

    /// Ends the members: their topic was deleted. The relays end with them.
    fn on_deleted(&mut self) {
        if !self.deletion.has_happened() {
            return;
        }
        let ids: Vec<MemberId> = self.host.members.keys().copied().collect();
        ids.into_iter().for_each(|id| self.detach(id));
        deletion::dismiss(&mut self.host.members, &self.host.topic);
        self.waiting.drain(..).for_each(|(_, input)| input.refuse(Error::topic_deleted(&self.host.topic)));
    }

    /// When to look again at the latest.
    fn alarm(&self) -> Option<Instant> {
        let waiting = self.waiting.front().map(|(until, _)| *until);
        let stopped = self.remotes.values().filter_map(|one| one.stopped).map(|since| since + REST).min();
        let tired = self.host.members.values().filter_map(|member| member.tired_at()).min();
        // Room that is shared goes to other topics when a lease is over, though nothing else happens here.
        let over = self.remotes.iter().filter(|(id, _)| self.shares(id)).filter_map(|(_, one)| one.expires()).min();
        let over = over.map(|at| self.host.core.clock.instant(at));
        [self.again, waiting, stopped, tired, over].into_iter().flatten().min()
    }

    fn shares(&self, id: &MemberId) -> bool {
        self.host.members.get(id).is_some_and(|member| member.subscriber().shared)
    }

    fn known(&mut self, id: MemberId) -> (Option<&mut Member>, Option<&mut RemoteMember>) {
        (self.host.members.get_mut(&id).map(|member| &mut **member), self.remotes.get_mut(&id))
    }

    fn drop_tired(&mut self, now: Instant) {
        let (Peer { id, address }, why) = (self.owner.clone(), self.why.clone());
        let ownership = Arc::clone(&self.cluster.ownership);
        let unreachable = || {
            // Then it is not the way to the owner.
            if let Err(error) = ownership.ready() {
                return Error::group(&error);
            }
            let message = format!(
                "the hub {id} owns the group and cannot be reached from here at {address} ({why}): look at its \
                 `advertise` and the network between the hubs, or connect to another hub"
            );
            Error::new(Code::AckFailed, message)
        };
        let tired: Vec<MemberId> =
            self.host.members.iter().filter(|(_, member)| member.is_tired(now)).map(|(&id, _)| id).collect();
        for id in tired {
            if let Some(member) = self.remove(id) {
                member.refuse(unreachable());
            }
        }
        while let Some((until, _)) = self.waiting.front()
            && *until <= now
        {
            if let Some((_, input)) = self.waiting.pop_front() {
                input.refuse(unreachable());
            }
        }
    }

    /// Has members join that have no relay.
    fn start_joins(&mut self, now: Instant) {
        if self.again.is_some_and(|at| now < at) {
            return;
        }
        self.again = None;
        for (&id, member) in &self.host.members {
            if self.remotes.contains_key(&id) || !self.joining.insert(id) {
                continue;
            }
            let join = RelayJoin {
                subscription: id,
                topic: self.host.topic.clone(),
                group: self.host.group.clone(),
                options: member.options,
                policy: member.policy.clone(),
                from: member.from,
                paused: member.subscriber().is_paused(),
                deliveries: self.sender.clone(),
            };
            let joining = self.cluster.relays.join(&self.owner, join);
            self.joins.spawn(async move { (id, joining.await) });
        }
    }

    /// Takes in what comes through a relay; whether another hub is the owner.
    async fn on_relayed(&mut self, id: MemberId, relayed: Relayed) -> bool {
        match relayed {
            relayed if self.joining.contains(&id) => self.early.push((id, relayed)),
            Relayed::Given(given) => self.on_given(id, given),
            Relayed::Lost(reason) => return self.on_lost(id, &reason).await,
        }
        false
    }

    /// Takes a relay up; whether another hub is the owner.
    async fn on_joined(&mut self, id: MemberId, result: Result<(Cursor, Box<dyn Remote>), RelayError>) -> bool {
        self.joining.remove(&id);
        let of_this = |(of, _): &(MemberId, Relayed)| *of == id;
        let (early, others): (Vec<_>, Vec<_>) = std::mem::take(&mut self.early).into_iter().partition(of_this);
        self.early = others;
        // Gone meanwhile: dropping the relay leaves.
        let Some(member) = self.host.members.get_mut(&id) else { return false };
        match result {
            Ok((cursor, remote)) => {
                if !member.welcome(cursor) {
                    self.remove(id);
                    return false;
                }
                if member.subscriber().is_paused() {
                    remote.pause(true);
                }
                self.remotes.insert(id, RemoteMember::new(remote));
                self.send_waiting();
                for (id, relayed) in early {
                    // Not joining any more: taken in, or the end of it.
                    match relayed {
                        Relayed::Given(given) => self.on_given(id, given),
                        Relayed::Lost(reason) => return self.on_lost(id, &reason).await,
                    }
                }
                false
            }
            Err(RelayError::Refused(error)) => {
                if let Some(member) = self.remove(id) {
                    member.refuse(error);
                }
                false
            }
            Err(RelayError::Lost(reason)) => self.on_lost(id, &reason).await,
        }
    }

    /// A member has lost its relay, or got none; whether another hub is the owner.
    async fn on_lost(&mut self, id: MemberId, reason: &str) -> bool {
        let GroupHost { topic, group, .. } = &self.host;
        tracing::debug!(%topic, %group, owner = %self.owner.id, reason, "a relay was lost");
        let owner = self.cluster.ownership.owner(topic, group).await;
        self.detach(id);
        let now = Instant::now();
        self.again = Some(now + AGAIN);
        reason.clone_into(&mut self.why);
        if let Some(member) = self.host.members.get_mut(&id) {
            match &owner {
                Ok(_) => member.is_left(now),
                Err(_) => member.stays(),
            }
        }
        // Without an answer: the same one is tried again, until it is known to be gone.
        owner.is_ok_and(|owner| owner.as_ref() != Some(&self.owner))
    }

    /// Ends a member's relay; what it was given through it and has not taken is dropped.
    fn detach(&mut self, id: MemberId) {
        self.remotes.remove(&id);
        if let Some(member) = self.host.members.get_mut(&id) {
            member.handed.next_owner();
            member.lane.clear();
            member.lane.release();
        }
    }

    fn remove(&mut self, id: MemberId) -> Option<Box<Member>> {
        self.detach(id);
        self.host.members.remove(&id)
    }

    /// A member goes away: what it never saw goes back uncounted, and then its relay ends.
    fn on_leave(&mut self, id: MemberId) {
        let unseen = self.host.members.get(&id).map(|member| member.lane.unseen());
        let unseen: Vec<_> = unseen.into_iter().flatten().map(|(id, lease)| (id, Some(lease))).collect();
        if let Some(attached) = self.remotes.remove(&id).filter(|_| !unseen.is_empty()) {
            tokio::spawn(async move {
                let _ = attached.remote.answer(unseen, release()).await;
                drop(attached);
            });
        }
        self.remove(id);
    }

    fn on_given(&mut self, id: MemberId, mut given: Vec<RelayGiven>) {
        let now = self.host.core.clock.now();
        let (Some(member), Some(attached)) = self.known(id) else { return };
        let many = member.lane.queued() > 2 * member.options.max_in_flight;
        if many {
            member.lane.drop_expired(now);
        }
        if many || member.subscriber().shared {
            attached.expire(now);
            attached.charge(member);
        }
        let shared = member.subscriber().shared;
        let room = if shared { member.lane.try_reserve(attached.new_of(&given)) } else { usize::MAX };
        let mut excess = attached.excess(&mut given, room);
        excess.extend(member.without_bytes(&mut given));
        if !excess.is_empty() {
            // First nothing more, then what is too much: it must not come straight back.
            attached.stopped = Some(Instant::now());
            attached.remote.pause(true);
            tokio::spawn(attached.remote.answer(excess, release()));
        }
        let batch: VecDeque<Given> = given
            .into_iter()
            .map(|one| {
                let deadline = now + one.left;
                attached.hold(&one, deadline);
                let RelayGiven { event, attempt, max_attempts, lease, snapshot, redriven, fence, .. } = one;
                member.handed.note(event.id, lease, member.options.max_in_flight);
                let (cut, fence, lease_for) = (None, Some(fence), Duration::ZERO);
                let subscription = id;
                Given {
                    subscription,
                    event,
                    attempt,
                    max_attempts,
                    lease,
                    deadline,
                    lease_for,
                    snapshot,
                    redriven,
                    cut,
                    resume: None,
                    fence,
                }
            })
            .collect();
        attached.charge(member);
        if !batch.is_empty() {
            member.lane.give(batch);
            self.return_unseen(id);
        }
    }

    /// Gives deliveries back that the subscriber did not see.
    fn return_unseen(&mut self, id: MemberId) {
        let (Some(member), Some(attached)) = self.known(id) else { return };
        let unseen: Vec<_> = member.lane.take_unseen().into_iter().map(|(id, lease)| (id, Some(lease))).collect();
        if !unseen.is_empty() {
            unseen.iter().for_each(|(id, _)| attached.answered(*id));
            attached.charge(member);
            tokio::spawn(attached.remote.answer(unseen, release()));
        }
    }

    /// Takes back what leases held that are over, and lets deliveries go on to members that have room again.
    fn find_room(&mut self, now: Instant) {
        let clock = self.host.core.clock.now();
        for (id, attached) in &mut self.remotes {
            let Some(member) = self.host.members.get_mut(id) else { continue };
            if member.subscriber().shared {
                attached.expire(clock);
                attached.charge(member);
            }
            let Some(since) = attached.stopped else { continue };
            let room = if member.subscriber().shared { member.lane.room() } else { usize::MAX };
            let fits = room > 0 && member.lane.has_bytes();
            if fits && (room >= member.options.max_in_flight / 2 || now >= since + REST) {
                attached.stopped = None;
                attached.charge(member);
                member.lane.return_bytes(0, false);
                attached.remote.pause(member.subscriber().is_paused());
            } else if now >= since + REST {
                attached.stopped = Some(now);
                member.lane.return_bytes(0, true);
            }
        }
    }

    fn on_input(&mut self, input: Input) {
        match input {
            Input::Join(join) if join.relayed.is_some() => drop(join.reply.send(Err(not_the_owner()))),
            Input::Join(join) => {
                let member = Box::new(Member::new(*join, &self.host.wake));
                self.host.members.insert(member.subscriber().id, member);
            }
            Input::Leave(id) => self.on_leave(id),
            Input::Pause(id, paused) => {
                if let Some(attached) = self.remotes.get(&id) {
                    attached.remote.pause(paused || attached.stopped.is_some());
                }
                self.return_unseen(id);
            }
            Input::Answer { .. } | Input::AckUpTo { .. } => self.forward(input),
            Input::Seek { relayed: true, reply, .. } => drop(reply.send(Err(not_the_owner()))),
            Input::Status { relayed: true, reply, .. } => drop(reply.send(Err(not_the_owner()))),
            Input::Seek { to, reply, .. } => {
                let GroupHost { topic, group, .. } = &self.host;
                let asked = self.cluster.relays.seek(&self.owner, topic, group, to);
                tokio::spawn(async move { drop(reply.send(asked.await.map_err(told))) });
            }
            Input::Redrive { relayed: true, reply, .. } => drop(reply.send(Err(not_the_owner()))),
            Input::Redrive { letters, reply, .. } => {
                let GroupHost { topic, group, .. } = &self.host;
                let asked = self.cluster.relays.redrive(&self.owner, topic, group, letters);
                tokio::spawn(async move { drop(reply.send(asked.await.map_err(told))) });
            }
            // A group that another hub runs has members there.
            Input::Forget { reply } => {
                let owner = &self.owner.address;
                let message = format!("the group has members at the hub {owner}; end them first");
                let _ = reply.send(Err(Error::new(Code::BadRequest, message)));
            }
            Input::Status { unfinished, reply, .. } => {
                let GroupHost { core, topic, group, .. } = &self.host;
                let asked = self.cluster.relays.status(&self.owner, topic, group, unfinished);
                let (core, owner) = (Arc::clone(core), self.owner.clone());
                let (topic, group, here) = (topic.clone(), group.clone(), self.members_here());
                tokio::spawn(async move {
                    let mut told = core.status_at(asked, &owner, &topic, &group).await;
                    if let Ok(Some(status)) = &mut told
                        && status.owner_silent.is_some()
                    {
                        status.members = here;
                    }
                    drop(reply.send(told));
                });
            }
            // The owner passes the holes by itself.
            Input::Removed(_) => {}
            Input::Drain(done) => drop(done.send(())),
        }
    }

    /// The members that this hub knows of by itself.
    fn members_here(&self) -> Vec<MemberStatus> {
        let status = |member: &Member| MemberStatus {
            id: member.subscriber().id,
            in_flight: self.remotes.get(&member.subscriber().id).map_or(0, RemoteMember::in_flight),
            max_in_flight: member.options.max_in_flight,
            paused: member.subscriber().is_paused(),
            origin: None,
        };
        self.host.members.values().map(|member| status(member)).collect()
    }

    fn send_waiting(&mut self) {
        for (_, input) in std::mem::take(&mut self.waiting) {
            self.forward(input);
        }
    }

    /// Sends an answer to the owner, or has it wait for a relay.
    fn forward(&mut self, input: Input) {
        let by = match &input {
            Input::Answer { by, .. } | Input::AckUpTo { by, .. } => *by,
            _ => return,
        };
        let Some(attached) = self.remotes.get_mut(&by) else {
            return self.waiting.push_back((Instant::now() + PATIENCE, input));
        };
        match input {
            Input::Answer { by, ids, answer, reply } => {
                let now = self.host.core.clock.now();
                let own = self.host.members.get(&by).map(|member| member.options.ack_timeout);
                for &(id, _) in &ids {
                    match &answer {
                        Answer::Extend { by } => {
                            let by = by.or(own).unwrap_or(limits::MIN_EXTENSION);
                            attached.extend(id, now + by.clamp(limits::MIN_EXTENSION, limits::MAX_LEASE))
                        }
                        Answer::Ack | Answer::Nack { .. } => attached.answered(id),
                    }
                }
                let mut sending = ids.clone();
                let member = self.host.members.get_mut(&by);
                let fenced =
                    answer == Answer::Ack && member.as_ref().is_some_and(|member| member.fence_acks(&mut sending));
                let sent = attached.remote.answer(sending, answer.clone());
                if let Some(member) = member {
                    attached.charge(member);
                }
                self.answers.spawn(async move {
                    let receipts = match sent.await {
                        Ok(receipts) if fenced && receipts.contains(&Receipt::LeaseLost) => Err(super::given_again()),
                        Ok(receipts) => Ok(receipts),
                        Err(RelayError::Refused(error)) => Err(error),
                        // An ack counts also when it comes late, and once.
                        Err(RelayError::Lost(_)) if answer == Answer::Ack => {
                            return Answered::Again(Input::Answer { by, ids, answer, reply });
                        }
                        // With the relay everything that it held went back.
                        Err(RelayError::Lost(_)) => Ok(vec![Receipt::NotInFlight; ids.len()]),
                    };
                    let _ = reply.send(receipts);
                    Answered::Done
                });
            }
            Input::AckUpTo { by, id, lease, reply } => {
                let (sent, seq) = (attached.remote.ack_up_to(id, lease), attached.seq_of(id));
                self.answers.spawn(async move {
                    match sent.await {
                        Err(RelayError::Lost(_)) => return Answered::Again(Input::AckUpTo { by, id, lease, reply }),
                        Err(RelayError::Refused(error)) => drop(reply.send(Err(error))),
                        Ok(()) => {
                            // The owner's answer has no count.
                            let _ = reply.send(Ok(0));
                            return seq.map_or(Answered::Done, |seq| Answered::UpTo(by, seq));
                        }
                    }
                    Answered::Done
                });
            }
            _ => {}
        }
    }

    /// The hub shuts down: what the members hold goes back without counting.
    async fn dismiss(&mut self) {
        let mut back = JoinSet::new();
        for attached in self.remotes.values_mut() {
            let held = attached.take();
            attached.remote.pause(true);
            back.spawn(attached.remote.answer(held, release()));
        }
        let _ = tokio::time::timeout(GOODBYE, async { while back.join_next().await.is_some() {} }).await;
        let ids: Vec<MemberId> = self.host.members.keys().copied().collect();
        for id in ids {
            if let Some(member) = self.remove(id) {
                member.refuse(Error::shutting_down());
            }
        }
    }
}

/// Gives deliveries back without counting the attempt.
fn release() -> Answer {
    Answer::Nack { reason: None, delay: None, release: true }
}

/// Maps a relay failure to the error for seeks and status queries.
fn told(error: RelayError) -> Error {
    match error {
        RelayError::Refused(error) => error,
        RelayError::Lost(reason) => {
            Error::new(Code::AckFailed, format!("the hub that owns the group did not answer: {reason}; ask again"))
        }
    }
}
