//! The handle: publish, subscribe, ack, cursors. Cheap to clone. How groups stand is in `standing`.

mod standing;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use promethean_event::{
    Code, Cursor, Draft, EventId, From, Group, IdMaker, Invalid, Limits, Millis, NewEvent, Selector, SubscribeOptions,
    Topic, payload_of,
};
use promethean_store::{Error as StoreError, Start, Store, TopicSettings};
use serde::Serialize;
use tokio::sync::oneshot;

use crate::bounds::{Bounded, Bounds};
use crate::clock::Clock;
use crate::inbox::{Inbox, SubscriptionId};
use crate::metrics::Metrics;
use crate::patterns::{Appending, Patterns};
use crate::pull::Pulls;
use crate::relay::{Cluster, Origin, Redrive, SeekTo};
use crate::remembered::Remembered;
use crate::runner::{self, Handle, Input, Inputs, Room, seek_of};
use crate::shard::Shards;
use crate::status;
use crate::subscription::Membership;
use crate::{Burst, Error, Placed, Published, Subscription, burst};

/// What an operator may set.
#[derive(Debug, Clone)]
pub struct BusOptions {
    /// Limits of events.
    pub limits: Limits,
    /// Most topics and groups that are counted by name.
    pub max_series: usize,
    /// Most topics, groups and patterns.
    pub bounds: Bounds,
    /// True if publishing and subscribing to a topic creates it.
    pub auto_create: bool,
}

impl Default for BusOptions {
    fn default() -> Self {
        Self { limits: Limits::default(), max_series: 10_000, bounds: Bounds::default(), auto_create: true }
    }
}

/// Says whether a subscriber may see a topic; asked again for each topic that turns up later.
pub type TopicGate = Arc<dyn Fn(&Topic) -> bool + Send + Sync>;

/// A subscription that is asked for.
#[derive(Clone)]
pub struct Request {
    /// The topic or pattern that names the subscription.
    pub topic: Selector,
    /// The group; none: an ephemeral tail.
    pub group: Option<Group>,
    /// Everything else.
    pub options: SubscribeOptions,
    /// Which topics it may see, where a pattern could match others; none: all.
    pub gate: Option<TopicGate>,
    /// Another hub asks, for a subscriber of its own: it is served only where this hub owns the group.
    pub relayed: Option<Origin>,
}

/// The handle of the bus. Clones share one bus.
#[derive(Clone)]
pub struct Bus {
    pub(crate) core: Arc<Core>,
}

/// What the parts of the bus share.
pub(crate) struct Core {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) ids: IdMaker,
    pub(crate) clock: Clock,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) cluster: Option<Cluster>,
    pub(crate) patterns: Patterns,
    pub(crate) bounded: Bounded,
    pub(crate) pulls: Pulls,
    pub(crate) appending: Appending,
    pub(crate) remembered: Remembered,
    /// Topics with damage that a group has reached.
    damaged: Mutex<BTreeSet<Topic>>,
    limits: Limits,
    auto_create: bool,
    runners: Mutex<Runners>,
    next_subscription: AtomicU64,
    /// Above every lease of a runner that has ended: the clock alone may stand still between two of them.
    pub(crate) leases: AtomicU64,
    /// The tasks that drive groups.
    pub(crate) shards: Shards,
    /// What groups with a backlog have read ahead.
    pub(crate) ahead: Arc<Room>,
    draining: AtomicBool,
    /// Topics whose dead letters are being redriven.
    pub(crate) redriving: Mutex<HashSet<Topic>>,
    /// When damage under a group's age was last told of.
    damage_told: Mutex<Option<Instant>>,
}

type Runners = HashMap<(Topic, Group), Handle, RandomState>;

/// Runners for which the registry always keeps its memory.
const LEAST_ROOM: usize = 1_024;

impl Bus {
    /// A bus over `store`, which no other hub uses. Needs a Tokio runtime from the first subscription on.
    pub fn new(store: Arc<dyn Store>, options: BusOptions) -> Self {
        Self::build(store, options, None)
    }

    /// A bus over a store that several hubs share.
    pub fn clustered(store: Arc<dyn Store>, options: BusOptions, cluster: Cluster) -> Self {
        Self::build(store, options, Some(cluster))
    }

    fn build(store: Arc<dyn Store>, options: BusOptions, cluster: Option<Cluster>) -> Self {
        let core = Core {
            store,
            cluster,
            patterns: Patterns::default(),
            bounded: Bounded::new(options.bounds),
            pulls: Pulls::default(),
            appending: Appending::default(),
            remembered: Remembered::default(),
            damaged: Mutex::default(),
            ids: IdMaker::new(),
            clock: Clock::new(),
            metrics: Metrics::new(options.max_series),
            limits: options.limits,
            auto_create: options.auto_create,
            runners: Mutex::default(),
            next_subscription: AtomicU64::new(1),
            leases: AtomicU64::new(0),
            shards: Shards::new(),
            ahead: Arc::default(),
            draining: AtomicBool::new(false),
            redriving: Mutex::default(),
            damage_told: Mutex::default(),
        };
        Self { core: Arc::new(core) }
    }

    /// The store behind it.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.core.store
    }

    /// What is counted.
    pub fn metrics(&self) -> &Metrics {
        &self.core.metrics
    }

    /// The time by which leases run.
    pub fn now(&self) -> Millis {
        self.core.clock.now()
    }

    /// True if the hub is shutting down: nothing is taken any more.
    pub fn is_draining(&self) -> bool {
        self.core.is_draining()
    }

    /// Begins a burst of publishes; [`Bus::commit`] appends it.
    pub fn burst(&self) -> Burst<'_> {
        let gate = (!self.core.auto_create).then_some(&*self.core);
        Burst::new(&self.core.ids, &self.core.store, self.core.limits, self.core.wall()).within(gate)
    }

    /// Appends a burst: one answer for each unit that was added, in order, which says what became of that unit.
    /// **Returned ⇒ durable.**
    pub async fn commit(&self, burst: Burst<'_>) -> Vec<Result<Placed, Error>> {
        let (mut events, units) = burst.finish();
        if self.core.draining.load(Ordering::Acquire) {
            return vec![Err(Error::shutting_down()); units];
        }
        if events.is_empty() {
            return Vec::new();
        }
        let refused = self.core.refused_topics(&events);
        let on_refused = events.iter().filter(|event| refused.contains(&event.topic));
        let refused: HashSet<u32> = on_refused.map(|event| event.unit).collect();
        if !refused.is_empty() {
            events.retain(|event| !refused.contains(&event.unit));
        }
        let mut answers = self.append(events, units).await;
        for (unit, answer) in (0..).zip(&mut answers).filter(|(unit, _)| refused.contains(unit)) {
            let _: u32 = unit;
            *answer = Err(self.core.too_many_topics());
        }
        answers
    }

    async fn append(&self, events: Vec<NewEvent>, units: usize) -> Vec<Result<Placed, Error>> {
        let of: Vec<u32> = events.iter().map(|event| event.unit).collect();
        let runs = events.chunk_by(|one, next| one.topic == next.topic);
        let runs: Vec<(Topic, usize)> = runs.map(|run| (run[0].topic.clone(), run.len())).collect();
        let started = Instant::now();
        let appended = self.core.append(events).await;
        self.core.metrics.append_duration.observe(started.elapsed());
        let failed = |error: &StoreError| match error {
            StoreError::Closed(_) if self.is_draining() => Error::shutting_down(),
            _ => Error::publish(error),
        };
        match appended {
            Ok(outcomes) => {
                self.core.count_published(&runs, &outcomes);
                burst::answers(units, &of, outcomes, failed)
            }
            Err(error) => vec![Err(failed(&error)); units],
        }
    }

    /// Publishes one event. **Returned ⇒ durable.**
    ///
    /// # Errors
    /// What the contract refuses (nothing stored), or `publish_failed`.
    pub async fn publish(&self, draft: &Draft<'_>) -> Result<Published, Error> {
        let mut burst = self.burst();
        burst.add(draft)?;
        let published = self.commit(burst).await.pop().unwrap_or_else(|| Err(Error::shutting_down()))?;
        published.first().copied().ok_or_else(Error::shutting_down)
    }

    /// Publishes a value with nothing but a payload.
    ///
    /// # Errors
    /// As [`Bus::publish`].
    pub async fn publish_value<T: Serialize + ?Sized>(&self, topic: &Topic, value: &T) -> Result<Published, Error> {
        self.publish(&Draft::new(topic.clone(), std::borrow::Cow::Owned(payload_of(value)?))).await
    }

    /// Publishes several events: all or none.
    ///
    /// # Errors
    /// As [`Bus::publish`]; nothing of the batch is stored.
    pub async fn publish_batch<'d>(
        &self,
        drafts: impl IntoIterator<Item = Draft<'d>>,
    ) -> Result<Vec<Published>, Error> {
        let mut burst = self.burst();
        burst.add_batch(drafts)?;
        let placed = self.commit(burst).await.pop().transpose()?;
        Ok(placed.map(|placed| placed.to_vec()).unwrap_or_default())
    }

    /// Subscribes to a topic or pattern. Without a group: an ephemeral tail, nothing to ack.
    ///
    /// # Errors
    /// `bad_topic`, `bad_request` that names the option, `unknown_id`.
    pub async fn subscribe(
        &self,
        topic: &str,
        group: Option<Group>,
        options: SubscribeOptions,
    ) -> Result<Subscription, Error> {
        let request = Request { topic: Selector::parse(topic)?, group, options, gate: None, relayed: None };
        let inbox = Inbox::new();
        let (membership, _) = self.attach(request, &inbox).await?;
        Ok(Subscription::new(membership, inbox))
    }

    /// Subscribes with deliveries going into `inbox`, which may serve many subscriptions. Returns where the group
    /// stands on each topic.
    ///
    /// # Errors
    /// As [`Bus::subscribe`].
    pub async fn attach(&self, request: Request, inbox: &Inbox) -> Result<(Membership, Vec<Cursor>), Error> {
        request.options.check().map_err(|invalid| invalid.within("opts."))?;
        if request.group.is_some() && request.options.resume.is_some() {
            let message = "is for a subscription without a group; a group resumes by itself";
            return Err(Invalid::request("opts.resume", message).into());
        }
        if self.core.draining.load(Ordering::Acquire) {
            return Err(Error::shutting_down());
        }
        let id = self.core.next_subscription();
        Membership::attach(&self.core, id, request, inbox).await
    }

    /// Where a group stands on a topic; `None`: it has no cursor there.
    ///
    /// # Errors
    /// `ack_failed`: the store cannot be read.
    pub async fn cursor(&self, topic: &Topic, group: &Group) -> Result<Option<Cursor>, Error> {
        Ok(self.lag(topic, group).await?.cursor)
    }

    /// Moves a group's cursor; makes the group where there is none. **Returned ⇒ durable.**
    ///
    /// # Errors
    /// `unknown_id`, or `ack_failed`.
    pub async fn set_cursor(&self, topic: &Topic, group: &Group, to: impl Into<SeekTo>) -> Result<Cursor, Error> {
        let to = to.into();
        self.core.ask(topic, group, |reply| Input::Seek { to, relayed: false, reply }).await
    }

    /// As [`Bus::set_cursor`], asked by another hub: only where this one owns the group.
    ///
    /// # Errors
    /// As [`Bus::set_cursor`]; `shutting_down`: another hub owns it.
    pub async fn set_cursor_here(&self, topic: &Topic, group: &Group, to: SeekTo) -> Result<Cursor, Error> {
        self.core.ask(topic, group, |reply| Input::Seek { to, relayed: true, reply }).await
    }

    /// Takes dead-lettered events into a group again, asked by another hub: only where this one owns the group. Returns
    /// which of them are there. **Returned ⇒ durable.**
    ///
    /// # Errors
    /// `not_found`: the group has no position. `conflict`, `ack_failed`; `shutting_down`: another hub owns it.
    pub async fn redrive_here(&self, topic: &Topic, group: &Group, letters: &[Redrive]) -> Result<Vec<bool>, Error> {
        let ask = |reply| Input::Redrive { letters: letters.to_vec(), relayed: true, reply };
        self.core.ask(topic, group, ask).await
    }

    /// Forgets a group on a topic: its next subscriber begins anew. **Returned ⇒ durable.** `false`: there was none.
    ///
    /// # Errors
    /// `bad_request`: it has members. `ack_failed`.
    pub async fn forget_group(&self, topic: &Topic, group: &Group) -> Result<bool, Error> {
        self.core.ask(topic, group, |reply| Input::Forget { reply }).await
    }

    /// Where all groups of a topic stand, by name.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn cursors(&self, topic: &Topic) -> Result<Vec<(Group, Cursor)>, Error> {
        let groups = self.core.store.groups(topic).await.map_err(|error| Error::group(&error))?;
        let cursor = |(group, state): (Group, promethean_store::GroupState)| {
            let cursor = status::cursor(topic, state.floor, state.last);
            (group, cursor)
        };
        Ok(groups.into_iter().map(cursor).collect())
    }

    /// True if a group is under way on a topic: it has members here, or something of it is being saved.
    pub fn is_live(&self, topic: &Topic, group: &Group) -> bool {
        self.core.runner_of(topic, group).is_some()
    }

    /// True if this hub does what only one of all has to do.
    pub fn leads(&self) -> bool {
        self.core.cluster.as_ref().is_none_or(|cluster| cluster.ownership.leads())
    }

    /// Leaves the cluster, after a drain: other hubs need not wait to take over.
    ///
    /// # Errors
    /// The store did not take it; the others notice by themselves after a while.
    pub async fn leave(&self) -> Result<(), StoreError> {
        match &self.core.cluster {
            Some(cluster) => cluster.ownership.leave().await,
            None => Ok(()),
        }
    }

    /// True if other hubs share the store.
    pub fn is_clustered(&self) -> bool {
        self.core.cluster.is_some()
    }

    /// True if this hub is alive among the others, where there may be others.
    ///
    /// # Errors
    /// Why not.
    pub fn in_cluster(&self) -> Result<(), StoreError> {
        self.core.cluster.as_ref().map_or(Ok(()), |cluster| cluster.ownership.ready())
    }

    /// A topic with damage that a group has reached since the start.
    pub fn damaged(&self) -> Option<Topic> {
        self.core.damaged.lock().first().cloned()
    }

    /// Stops taking publishes and subscriptions, gives all leases back and saves. Deliveries under way do not count.
    pub async fn drain(&self) {
        self.core.draining.store(true, Ordering::Release);
        let runners: Vec<Handle> = self.core.runners.lock().values().cloned().collect();
        let mut draining = Vec::with_capacity(runners.len());
        for runner in runners {
            let (done, drained) = oneshot::channel();
            if runner.send(Input::Drain(done)).is_ok() {
                draining.push(drained);
            }
        }
        for drained in draining {
            let _ = drained.await;
        }
    }
}

impl Core {
    /// The wall clock, for times that people see.
    pub(crate) fn wall(&self) -> Millis {
        Millis::now()
    }

    /// Notes that a group has reached damage on a topic; the error for its subscribers.
    pub(crate) fn on_damage(&self, topic: &Topic) -> Error {
        self.damaged.lock().insert(topic.clone());
        let message = format!("the store is damaged at an event of {topic}; repair it with promethean doctor");
        Error::new(Code::StoreDamaged, message)
    }

    /// Refuses a topic that was not created, where topics are not created by themselves.
    pub(crate) fn must_know(&self, topic: &Topic) -> Result<(), Error> {
        let own = || topic.is_dead_letter() || topic.is_snapshot() || self.is_snapshot_target(topic);
        let has_settings = || self.store.settings(topic) != TopicSettings::default();
        if self.auto_create || self.store.exists(topic) || has_settings() || own() {
            return Ok(());
        }
        Err(Error::unknown_topic(topic))
    }

    fn is_snapshot_target(&self, topic: &Topic) -> bool {
        let named = |settings: TopicSettings| settings.snapshot.and_then(|job| job.topic);
        self.store.all_settings().into_iter().any(|(_, settings)| named(settings).as_ref() == Some(topic))
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// A number for a subscription, or for a caller that answers without one.
    pub(crate) fn next_subscription(&self) -> SubscriptionId {
        self.next_subscription.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn runner_of(&self, topic: &Topic, group: &Group) -> Option<Handle> {
        self.runners.lock().get(&(topic.clone(), group.clone())).cloned()
    }

    /// Asks the owner of a group, starting it where there is none.
    pub(crate) async fn ask<T>(
        self: &Arc<Self>,
        topic: &Topic,
        group: &Group,
        input: impl Fn(oneshot::Sender<Result<T, Error>>) -> Input,
    ) -> Result<T, Error> {
        // A runner that retires just now drops the question: the next one answers it.
        for _ in 0..16 {
            let handle = Arc::clone(self).runner(topic, group);
            let (reply, answer) = oneshot::channel();
            if handle.send(input(reply)).is_ok()
                && let Ok(answer) = answer.await
            {
                return answer;
            }
            tokio::task::yield_now().await;
        }
        Err(Error::shutting_down())
    }

    fn runner(self: Arc<Self>, topic: &Topic, group: &Group) -> Handle {
        let mut runners = self.runners.lock();
        match runners.get(&(topic.clone(), group.clone())) {
            Some(handle) if !handle.is_closed() => handle.clone(),
            _ => {
                let handle = runner::spawn(&self, topic, group);
                runners.insert((topic.clone(), group.clone()), handle.clone());
                handle
            }
        }
    }

    /// Lets an idle runner go unless something has reached it meanwhile.
    pub(crate) fn retire_runner(&self, topic: &Topic, group: &Group, inputs: &Inputs) -> bool {
        let mut runners = self.runners.lock();
        let idle = inputs.is_empty();
        if idle {
            remove_runner(&mut runners, &(topic.clone(), group.clone()));
        }
        idle
    }

    /// Forgets a runner that has ended.
    pub(crate) fn forget_runner(&self, topic: &Topic, group: &Group) {
        let mut runners = self.runners.lock();
        let key = (topic.clone(), group.clone());
        if runners.get(&key).is_some_and(Handle::is_closed) {
            remove_runner(&mut runners, &key);
        }
    }

    /// Returns how many runners there are, and how many the registry has room for.
    #[cfg(test)]
    pub(crate) fn runner_room(&self) -> (usize, usize) {
        let runners = self.runners.lock();
        (runners.len(), runners.capacity())
    }

    pub(crate) async fn seek(&self, topic: &Topic, from: From) -> Result<Start, Error> {
        let found = self.store.seek(topic, seek_of(from)).await.map_err(|error| Error::group(&error))?;
        match (found, from) {
            (Some(start), _) => Ok(start),
            (None, From::AfterId(id)) => Err(Error::unknown_id("afterId", id)),
            (None, _) => Ok(Start::default()),
        }
    }

    /// Counts what was appended to the topics of `runs`, each with how many outcomes are its.
    fn count_published(&self, runs: &[(Topic, usize)], outcomes: &[promethean_store::Outcome]) {
        let stored = |outcome: &promethean_store::Outcome| matches!(outcome, promethean_store::Outcome::Stored(appended) if !appended.duplicate);
        let mut outcomes = outcomes.iter();
        self.metrics.published(runs.iter().map(|(topic, length)| {
            let count = outcomes.by_ref().take(*length).filter(|outcome| stored(outcome)).count();
            (topic, count as u64)
        }));
    }

    /// Answers of a subscription that spans topics go to the topic that has the id.
    pub(crate) async fn topics_of(&self, ids: &[EventId]) -> Result<Vec<Option<Topic>>, Error> {
        let places = self.store.locate(ids).await.map_err(|error| Error::group(&error))?;
        Ok(places.into_iter().map(|place| place.map(|place| place.topic)).collect())
    }
}

/// Removes a runner, and returns the memory of many that have ended.
fn remove_runner(runners: &mut Runners, key: &(Topic, Group)) {
    runners.remove(key);
    if runners.capacity() > LEAST_ROOM && runners.len() < runners.capacity() / 8 {
        runners.shrink_to(2 * runners.len());
    }
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Core({})", self.store.name())
    }
}

impl std::fmt::Debug for Bus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Bus({})", self.core.store.name())
    }
}
