//! The compactor: keeps the state of a topic by key on a topic of its own, `<topic>.snapshot`.
//!
//! Every run writes `{key, payload, ts}`, keyed, for the keys that changed since the last one, and a tombstone for
//! those that went away. It reads the log as anybody does: no publisher ever waits for it.
//!
//! - What it writes follows from the source's latest event and the snapshot's, both in the log: a run that was cut short
//!   or is run twice writes nothing twice.
//! - Its cursor is that of the group [`COMPACTOR_GROUP`] on the source, saved by compare-and-set after what it stands
//!   for is durable. The cursor saves work; where it cannot be trusted, a run compares all keys.
//! - The cursor's generation says for which snapshot topic and which keys it stands. A change of either, or a cursor
//!   that was moved by hand, makes the next run compare all keys, over any restart.
//! - A job runs only where its snapshot topic is its own and no circle leads back ([`SnapshotTargets`]).
//! - The snapshot topic is compacted like any other keyed topic; the first run turns that on.

mod decide;

use std::borrow::Cow;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use promethean_event::{Draft, Event, EventId, Group, Seq, Topic, json};
use promethean_store::{GroupState, ReadMax, Retention, Saved, SnapshotJob, SnapshotTargets, Store, TopicSettings};
use serde_json::value::RawValue;
use tokio::time::Instant;
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use self::decide::{Kept, LOOK_EVERY, Plan, Schedule, Side, Situation, Write, decide, side};
use crate::burst::UNLIMITED;
use crate::{Burst, Bus, Error};

/// The group whose cursor on a topic says what its snapshot has seen.
pub const COMPACTOR_GROUP: &str = "promethean:compactor";

/// Keys looked up and written at once: bounds the events in memory.
const AT_ONCE: usize = 64;
/// Events read at once to see which keys changed.
const READ: usize = 1_000;
/// Most keys that a run remembers it has looked at; beyond, some are looked at again.
const REMEMBERED: usize = 200_000;

/// What a run wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Compacted {
    /// Keys whose state was written.
    pub states: u64,
    /// Keys that are gone.
    pub tombstones: u64,
}

/// The compactor of one topic.
pub struct Compactor {
    bus: Bus,
    source: Topic,
    target: Topic,
    group: Group,
    /// Only these; empty: all.
    keys: Vec<String>,
    /// What a cursor of this compactor stands for.
    purpose: u64,
    /// The source's first seq at the last run.
    first_then: Option<Seq>,
    /// When the last run was.
    ran: Option<Instant>,
    /// Somebody else saved the cursor meanwhile: the next run compares everything.
    doubt: bool,
}

impl Compactor {
    /// The compactor of `source` as `job` says. Call [`Compactor::run_once`] every `job.interval`.
    ///
    /// # Errors
    /// `bad_topic`: there is no name for the snapshot topic.
    pub fn new(bus: &Bus, source: &Topic, job: &SnapshotJob) -> Result<Self, Error> {
        let target = job.target(source)?;
        Ok(Self {
            bus: bus.clone(),
            source: source.clone(),
            purpose: purpose(&target, &job.keys),
            target,
            group: Group::parse(COMPACTOR_GROUP)?,
            keys: job.keys.clone(),
            first_then: None,
            ran: None,
            doubt: false,
        })
    }

    /// Brings the snapshot topic up to date. **Returned ⇒ durable.**
    ///
    /// # Errors
    /// The store cannot be read or written; the next run does what is left.
    pub async fn run_once(&mut self) -> Result<Compacted, Error> {
        let store = Arc::clone(self.bus.store());
        let mut done = Compacted::default();
        let Some(info) = store.info(&self.source).await.map_err(|error| Error::group(&error))? else {
            return Ok(done);
        };
        let settings = store.settings(&self.source);
        self.make_target_compacted(&settings).await?;
        let loaded = store.load(&self.source, &self.group).await.map_err(|error| Error::group(&error))?;
        let (state, version) = loaded.unwrap_or_default();
        let situation = Situation {
            cursor: (version > 0 && state.generation == self.purpose && !self.doubt).then_some(state.floor),
            first: info.first_seq,
            last: info.last_seq,
            first_then: self.first_then,
            retention: settings.retention != Retention::default(),
            since: self.ran.map(|ran| ran.elapsed()),
            grace: settings.compaction.map(|compaction| compaction.tombstone_grace),
        };
        let started = Instant::now();
        let plan = situation.plan();
        // A few keys are looked at in every run.
        for keys in self.keys.chunks(AT_ONCE) {
            self.check(keys, &mut done).await?;
        }
        match plan {
            Plan::Everything if self.keys.is_empty() => self.check_everything(&mut done).await?,
            Plan::Everything => self.remove_others(&mut done).await?,
            Plan::Changes { after } if self.keys.is_empty() => {
                self.check_changes(after, info.last_seq, &mut done).await?
            }
            Plan::Changes { .. } | Plan::Nothing => {}
        }
        if plan != Plan::Nothing {
            let generation = self.purpose;
            let state = GroupState { floor: info.last_seq, last: info.last, generation, ..GroupState::default() };
            let saved = store.compare_and_set(&self.source, &self.group, version, state).await;
            self.doubt = saved.map_err(|error| Error::group(&error))? == Saved::Conflict;
            if self.doubt {
                tracing::warn!(topic = %self.source, "another compactor is at work on this topic");
            }
        }
        (self.first_then, self.ran) = (Some(info.first_seq), Some(started));
        Ok(done)
    }

    async fn make_target_compacted(&self, source: &TopicSettings) -> Result<(), Error> {
        let store = self.bus.store();
        let settings = store.settings(&self.target);
        if settings.compaction.is_some() {
            return Ok(());
        }
        let compaction = Some(source.compaction.unwrap_or_default());
        let settings = TopicSettings { compaction, ..settings };
        store.set_settings(&self.target, settings).await.map_err(|error| Error::publish(&error))
    }

    /// Looks at the keys of the events after `after`, each once.
    async fn check_changes(&self, after: Seq, last: Seq, done: &mut Compacted) -> Result<(), Error> {
        let (mut next, mut seen) = (after + 1, HashSet::new());
        let mut keys = Vec::new();
        while next <= last {
            let read = self.bus.store().read(&self.source, next, ReadMax::events(READ)).await;
            let events = read.map_err(|error| Error::group(&error))?;
            let Some(end) = events.last() else { break };
            next = end.seq + 1;
            for event in &events {
                let Some(key) = event.key() else { continue };
                if seen.len() >= REMEMBERED {
                    seen.clear();
                }
                // Whatever was appended up to `last` was there before the first look at the key.
                if seen.insert(xxh3_128(key.as_bytes())) {
                    keys.push(key.into_owned());
                }
            }
            for keys in keys.chunks(AT_ONCE) {
                self.check(keys, done).await?;
            }
            keys.clear();
        }
        Ok(())
    }

    /// Compares what both topics have of `keys`, and writes what differs.
    async fn check(&self, keys: &[String], done: &mut Compacted) -> Result<(), Error> {
        let store = self.bus.store();
        let latest = store.latest_by_key(&self.source, keys).await.map_err(|error| Error::group(&error))?;
        let kept = store.latest_by_key(&self.target, keys).await.map_err(|error| Error::group(&error))?;
        let mut batch = Batch::new(self);
        for ((key, latest), kept) in keys.iter().zip(&latest).zip(&kept) {
            batch.put(key, latest.as_ref(), kept.as_ref().map(Kept::of))?;
        }
        batch.write(done).await
    }

    /// Walks the live keys of both topics in order and writes what differs.
    async fn check_everything(&self, done: &mut Compacted) -> Result<(), Error> {
        let store = self.bus.store();
        let mut source = Walk::new(store, &self.source);
        let mut target = Walk::new(store, &self.target);
        let mut found = Vec::new();
        loop {
            source.fill().await?;
            target.fill().await?;
            let Some(side) = side(source.key(), target.key()) else { break };
            let latest = (side != Side::Snapshot).then(|| source.take()).flatten();
            let kept = (side != Side::Source).then(|| target.take()).flatten();
            let kept_as = kept.as_ref().map(|(_, event)| Kept::of(event));
            let (key, latest) = latest.map_or((None, None), |(key, event)| (Some(key), Some(event)));
            let Some(key) = key.or(kept.map(|(key, _)| key)) else { continue };
            if decide(latest.as_ref(), kept_as) != Write::Nothing {
                found.push(Differs { key, latest, kept: kept_as });
            }
            if found.len() >= AT_ONCE {
                self.mend(std::mem::take(&mut found), done).await?;
            }
        }
        self.mend(found, done).await
    }

    /// Walks the live keys of the snapshot topic: those outside the key set are gone.
    async fn remove_others(&self, done: &mut Compacted) -> Result<(), Error> {
        let wanted: HashSet<&str> = self.keys.iter().map(String::as_str).collect();
        let mut target = Walk::new(self.bus.store(), &self.target);
        let mut found = Vec::new();
        loop {
            target.fill().await?;
            let Some((key, kept)) = target.take() else { break };
            if !wanted.contains(key.as_str()) {
                found.push(Differs { key, latest: None, kept: Some(Kept::of(&kept)) });
            }
            if found.len() >= AT_ONCE {
                self.mend(std::mem::take(&mut found), done).await?;
            }
        }
        self.mend(found, done).await
    }

    /// Writes what a walk found to differ.
    async fn mend(&self, mut found: Vec<Differs>, done: &mut Compacted) -> Result<(), Error> {
        // A walk sees live keys. One that it did not see may have a tombstone, and what follows on that is another step
        // than the first one of the key, though it be of the same event.
        let unseen: Vec<String> = found.iter().filter(|one| one.kept.is_none()).map(|one| one.key.clone()).collect();
        let kept = self.bus.store().latest_by_key(&self.target, &unseen).await;
        let mut kept = kept.map_err(|error| Error::group(&error))?.into_iter();
        let mut batch = Batch::new(self);
        for one in &mut found {
            if one.kept.is_none() {
                one.kept = kept.next().flatten().as_ref().map(Kept::of);
            }
            batch.put(&one.key, one.latest.as_ref(), one.kept)?;
        }
        batch.write(done).await
    }
}

/// A number for a snapshot topic and a key set, in any order. It is kept: the same for ever. Odd, so that a move of the
/// cursor by hand, which counts it up, makes it nobody's.
fn purpose(target: &Topic, keys: &[String]) -> u64 {
    let mut keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    keys.sort_unstable();
    keys.dedup();
    let mut text = Vec::new();
    for part in std::iter::once(target.as_str()).chain(keys) {
        text.extend_from_slice(&(part.len() as u64).to_le_bytes());
        text.extend_from_slice(part.as_bytes());
    }
    (xxh3_64(&text) >> 1) | 1
}

/// A key of which the snapshot topic does not have what it should.
struct Differs {
    key: String,
    latest: Option<Event>,
    kept: Option<Kept>,
}

/// Snapshot events to be appended together.
struct Batch<'a> {
    compactor: &'a Compactor,
    burst: Burst<'a>,
    done: Compacted,
}

impl<'a> Batch<'a> {
    fn new(compactor: &'a Compactor) -> Self {
        let core = &compactor.bus.core;
        // A state that is as large as an event may be is a little larger in its envelope.
        let burst = Burst::new(&core.ids, &core.store, UNLIMITED, core.wall());
        Self { compactor, burst, done: Compacted::default() }
    }

    /// Adds what has to be written for a key.
    fn put(&mut self, key: &str, latest: Option<&Event>, kept: Option<Kept>) -> Result<(), Error> {
        let payload = match (decide(latest, kept), latest) {
            (Write::State, Some(event)) => {
                self.done.states += 1;
                state_of(key, event)?
            }
            (Write::Tombstone, _) => {
                self.done.tombstones += 1;
                RawValue::NULL.to_owned()
            }
            _ => return Ok(()),
        };
        let mut draft = Draft::new(self.compactor.target.clone(), Cow::Owned(payload));
        draft.options.key = Some(Cow::Borrowed(key));
        draft.options.caused_by = latest.map(|event| event.id).into_iter().collect();
        // The same step of a key, written twice, is one event.
        let (from, to) = (kept.map(|kept| kept.id), latest.map(|event| event.id));
        let none = EventId::from_bytes([0; 16]);
        let parts = [
            b"snapshot".as_slice(),
            self.compactor.target.as_str().as_bytes(),
            key.as_bytes(),
            from.as_ref().unwrap_or(&none).as_bytes(),
            to.as_ref().unwrap_or(&none).as_bytes(),
        ];
        draft.options.id = Some(EventId::derived(&parts));
        Ok(self.burst.add(&draft)?)
    }

    async fn write(self, done: &mut Compacted) -> Result<(), Error> {
        for answer in self.compactor.bus.commit(self.burst).await {
            answer?;
        }
        done.states += self.done.states;
        done.tombstones += self.done.tombstones;
        Ok(())
    }
}

/// `{key, payload, ts}`, the payload byte for byte.
fn state_of(key: &str, event: &Event) -> Result<Box<RawValue>, Error> {
    let mut text = br#"{"key":"#.to_vec();
    json::write_string(&mut text, key);
    text.extend_from_slice(br#","payload":"#);
    text.extend_from_slice(event.payload().as_bytes());
    text.extend_from_slice(br#","ts":"#);
    json::write_number(&mut text, event.ts.0);
    text.push(b'}');
    let text = String::from_utf8_lossy(&text).into_owned();
    RawValue::from_string(text).map_err(|error| {
        Error::new(promethean_event::Code::PublishFailed, format!("the state of {key:?} is no JSON: {error}"))
    })
}

/// The live keys of a topic, page by page, in order.
struct Walk<'a> {
    store: &'a Arc<dyn Store>,
    topic: &'a Topic,
    page: VecDeque<(String, Event)>,
    after: Option<String>,
    more: bool,
}

impl<'a> Walk<'a> {
    fn new(store: &'a Arc<dyn Store>, topic: &'a Topic) -> Self {
        Self { store, topic, page: VecDeque::new(), after: None, more: true }
    }

    async fn fill(&mut self) -> Result<(), Error> {
        while self.page.is_empty() && self.more {
            let page = self.store.keys(self.topic, self.after.as_deref(), AT_ONCE).await;
            let page = page.map_err(|error| Error::group(&error))?;
            self.more = page.more;
            self.page = page.items.into_iter().filter_map(|event| Some((event.key()?.into_owned(), event))).collect();
            self.after = self.page.back().map(|(key, _)| key.clone()).or(self.after.take());
        }
        Ok(())
    }

    fn key(&self) -> Option<&str> {
        self.page.front().map(|(key, _)| key.as_str())
    }

    fn take(&mut self) -> Option<(String, Event)> {
        self.page.pop_front()
    }
}

/// Runs the compactors of all topics whose settings ask for one, now and when settings change; ends with the bus.
///
/// In a cluster one hub should run the compactor of a topic: `owns` is asked before each run. Two at once do no harm
/// but work: what they write has the same ids, and who finds the other's cursor compares everything the next time.
pub async fn run_compactors<F>(bus: Bus, owns: impl Fn(Topic) -> F + Send + Sync)
where
    F: Future<Output = bool> + Send,
{
    let mut schedule = Schedule::default();
    let mut compactors: HashMap<Topic, (SnapshotJob, Compactor)> = HashMap::new();
    let mut refused: HashMap<Topic, String> = HashMap::new();
    while !bus.is_draining() {
        let Ok(topics) = bus.store().topics().await else {
            tokio::time::sleep(LOOK_EVERY).await;
            continue;
        };
        let settings = bus.store().all_settings();
        let targets = SnapshotTargets::new(settings.iter().map(|(topic, settings)| (topic, settings)));
        let job_of = |(topic, settings): (Topic, TopicSettings)| settings.snapshot.map(|job| (topic, job));
        let mut jobs: HashMap<Topic, SnapshotJob> = settings.into_iter().filter_map(job_of).collect();
        jobs.retain(|topic, _| topics.binary_search(topic).is_ok());
        let before = std::mem::take(&mut refused);
        jobs.retain(|topic, _| match targets.may_run(topic) {
            Ok(()) => true,
            Err(reason) => {
                if before.get(topic) != Some(&reason) {
                    tracing::warn!(%topic, reason, "the snapshots of this topic are not written");
                }
                refused.insert(topic.clone(), reason);
                false
            }
        });
        compactors.retain(|topic, (job, _)| jobs.get(topic) == Some(job));
        let configured: Vec<(Topic, Duration)> =
            jobs.iter().map(|(topic, job)| (topic.clone(), job.interval)).collect();
        let (turn, wait) = schedule.turn(bus.now(), &configured);
        for topic in turn {
            let Some(job) = jobs.get(&topic) else { continue };
            if !owns(topic.clone()).await {
                // Whoever takes over later knows nothing of what another hub did meanwhile.
                compactors.remove(&topic);
                continue;
            }
            let compactor = match compactors.entry(topic.clone()) {
                std::collections::hash_map::Entry::Occupied(known) => &mut known.into_mut().1,
                std::collections::hash_map::Entry::Vacant(new) => match Compactor::new(&bus, &topic, job) {
                    Ok(compactor) => &mut new.insert((job.clone(), compactor)).1,
                    Err(error) => {
                        tracing::error!(%topic, %error, "no snapshots of this topic: set snapshot_topic");
                        continue;
                    }
                },
            };
            match compactor.run_once().await {
                Ok(done) => tracing::debug!(%topic, ?done, "snapshot written"),
                Err(error) if error.code == promethean_event::Code::ShuttingDown => return,
                Err(error) => {
                    tracing::error!(%topic, %error, "the snapshot could not be written; the next run goes on")
                }
            }
        }
        tokio::time::sleep(wait.max(Duration::from_millis(10))).await;
    }
}
