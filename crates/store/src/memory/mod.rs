//! The reference engine: everything in memory, gone with the process.
//!
//! It is what the other engines are compared with, and what tests and embedded uses without durability run on.
//! One lock, held for a batch at a time; nothing waits inside it. `OK` means: in memory.
//! It grows with what is kept in it: retention (see [`TopicSettings`]) is its only bound.

mod chunks;
mod ids;
mod topic;

use std::collections::{BTreeMap, HashMap};
use std::future::ready;
use std::sync::Arc;

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use promethean_event::{Event, EventId, Group, IdOrigin, Millis, NewEvent, Seq, Topic};
use tokio::sync::watch;

use crate::pins::{LONGEST, Pins};
use crate::{
    Appended, Counts, Error, EventLog, GroupState, GroupStore, KeySnapshot, Outcome, Page, Pending, Pin, Place, Ranges,
    ReadMax, Result, Save, Saved, Seek, Start, Store, Tail, TopicInfo, TopicSettings, Version,
};
use ids::Ids;
use topic::TopicLog;

/// Names that are watched before there is a topic; over it, those without a watcher are forgotten.
const MAX_AWAITED: usize = 10_000;

/// The reference engine. Cheap to clone: clones share one store.
#[derive(Clone)]
pub struct Memory {
    state: Arc<Mutex<State>>,
    created: watch::Sender<u64>,
    pins: Arc<Pins>,
}

#[derive(Default)]
struct State {
    /// Index into `logs`.
    names: HashMap<Topic, usize, RandomState>,
    logs: Vec<TopicLog>,
    ids: Ids,
    groups: BTreeMap<Topic, BTreeMap<Group, (GroupState, Version)>>,
    group_count: usize,
    /// Topics without a log that are watched.
    awaited: HashMap<Topic, watch::Sender<Tail>, RandomState>,
    settings: HashMap<Topic, TopicSettings, RandomState>,
    closed: bool,
}

impl Memory {
    /// An empty store.
    pub fn new() -> Self {
        Self { state: Arc::default(), created: watch::Sender::new(0), pins: Arc::default() }
    }

    /// Runs `work` on the open store.
    fn now<T>(&self, work: impl FnOnce(&mut State) -> T) -> Result<T> {
        let mut state = self.state.lock();
        if state.closed { Err(Error::Closed("the hub is shutting down".to_owned())) } else { Ok(work(&mut state)) }
    }

    fn with<'a, T: Send + 'a>(&self, work: impl FnOnce(&mut State) -> T) -> Pending<'a, T> {
        Box::pin(ready(self.now(work)))
    }

    /// Changes topics, making those that are not there, and tells the watchers.
    fn change_topics<'a>(&self, topics: &[Topic], change: impl Fn(&mut State, usize, &Topic)) -> Pending<'a, ()> {
        self.with(|state| {
            let mut changed = false;
            for topic in topics {
                let index = state.log_or_new(topic);
                change(state, index, topic);
                changed |= state.logs[index].announce();
            }
            if changed {
                self.created.send_modify(|version| *version += 1);
            }
        })
    }

    /// Applies a topic's settings in steps, between which publishers get in.
    async fn maintain_topic(&self, topic: usize, settings: &TopicSettings, now: Millis) -> Result<()> {
        let mut more = true;
        while more {
            more = self.now(|state| {
                let (gone, more) = state.logs[topic].retain(settings.retention, now);
                state.forget_ids(gone);
                more
            })?;
            tokio::task::yield_now().await;
        }
        let Some(compaction) = settings.compaction else { return Ok(()) };
        // A pin that has kept an earlier event of a key keeps its tombstone in all later steps.
        let (mut next, mut pinned) = (Some(0), Vec::new());
        while let Some(from) = next {
            next = self.now(|state| {
                let log = &mut state.logs[topic];
                pinned.extend(self.pins.of(&log.topic, 0));
                pinned.sort_unstable();
                pinned.dedup();
                let (gone, next) = log.compact(compaction, now, from, &pinned);
                state.forget_ids(gone);
                next
            })?;
            tokio::task::yield_now().await;
        }
        Ok(())
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self::new()
    }
}

impl State {
    fn save(&mut self, Save { topic, group, expected, state }: Save) -> Saved {
        let now = self.groups.get(&topic).and_then(|groups| groups.get(&group)).map_or(0, |(_, version)| *version);
        if now != expected {
            return Saved::Conflict;
        }
        let old = self.groups.entry(topic).or_default().insert(group, (state, expected + 1));
        self.group_count += usize::from(old.is_none());
        Saved::Yes(expected + 1)
    }

    fn log(&self, topic: &Topic) -> Option<&TopicLog> {
        self.names.get(topic).map(|&index| &self.logs[index])
    }

    /// The topic's log, made where there is none. Others see the topic once it was created or has had an event.
    fn log_or_new(&mut self, topic: &Topic) -> usize {
        if let Some(&index) = self.names.get(topic) {
            return index;
        }
        let tail = self.awaited.remove(topic).unwrap_or_default();
        self.logs.push(TopicLog::new(topic.clone(), tail));
        self.names.insert(topic.clone(), self.logs.len() - 1);
        self.logs.len() - 1
    }

    fn forget_ids(&mut self, ids: Vec<EventId>) {
        for id in ids {
            self.ids.remove(id);
        }
    }

    /// The event with this id, if it is still there.
    fn find(&self, id: EventId) -> Option<(&TopicLog, &Event)> {
        let (topic, seq) = self.ids.get(id)?;
        let log = &self.logs[topic as usize];
        log.at(seq).filter(|event| event.id == id).map(|event| (log, event))
    }

    /// The id that keeps a unit out: it is on another topic, before the unit or within it.
    fn taken_elsewhere(&self, unit: &[NewEvent]) -> Option<(EventId, Topic)> {
        unit.iter().enumerate().filter(|(_, event)| event.origin == IdOrigin::Client).find_map(|(index, event)| {
            let before = self.find(event.id).map(|(log, _)| &log.topic);
            let topic =
                before.or_else(|| unit[..index].iter().find(|other| other.id == event.id).map(|other| &other.topic))?;
            (*topic != event.topic).then(|| (event.id, topic.clone()))
        })
    }

    fn append(&mut self, event: NewEvent, touched: &mut Vec<usize>) -> Appended {
        let (id, origin) = (event.id, event.origin);
        // The hub's own ids are new by construction; only what a client brings can be there already.
        if origin == IdOrigin::Client
            && let Some((_, first)) = self.find(id)
        {
            return Appended { id, seq: first.seq, duplicate: true };
        }
        let topic = self.log_or_new(&event.topic);
        let seq = self.logs[topic].push(event);
        self.ids.insert(id, origin, (u32::try_from(topic).unwrap_or(u32::MAX), seq));
        if touched.last() != Some(&topic) {
            touched.push(topic);
        }
        Appended { id, seq, duplicate: false }
    }
}

impl EventLog for Memory {
    fn append(&self, events: Vec<NewEvent>) -> Pending<'_, Vec<Outcome>> {
        let created = self.created.clone();
        self.with(move |state| {
            let (mut outcomes, mut touched) = (Vec::with_capacity(events.len()), Vec::new());
            let mut events = events.into_iter();
            while let Some(first) = events.as_slice().first() {
                let number = first.unit;
                let count = events.as_slice().iter().take_while(|event| event.unit == number).count();
                if let Some((id, topic)) = state.taken_elsewhere(&events.as_slice()[..count]) {
                    outcomes
                        .extend(events.by_ref().take(count).map(|_| Outcome::DuplicateId { id, topic: topic.clone() }));
                } else {
                    outcomes.extend(
                        events.by_ref().take(count).map(|event| Outcome::Stored(state.append(event, &mut touched))),
                    );
                }
            }
            let mut first = false;
            for topic in touched {
                first |= state.logs[topic].announce();
            }
            if first {
                created.send_modify(|version| *version += 1);
            }
            outcomes
        })
    }

    fn read<'a>(&'a self, topic: &'a Topic, from: Seq, max: ReadMax) -> Pending<'a, Vec<Event>> {
        self.with(|state| state.log(topic).map(|log| log.read(from, max)).unwrap_or_default())
    }

    fn seek<'a>(&'a self, topic: &'a Topic, to: Seek) -> Pending<'a, Option<Start>> {
        self.with(|state| {
            let Some(log) = state.log(topic) else {
                return (!matches!(to, Seek::AfterId(_))).then(Start::default);
            };
            let done = match to {
                Seek::Earliest => log.first_seq() - 1,
                Seek::Latest => log.last_seq(),
                Seek::Ts(ts) => log.before_ts(ts),
                Seek::AfterId(id) => {
                    let (log, event) = state.find(id)?;
                    if log.topic != *topic {
                        return None;
                    }
                    event.seq
                }
            };
            Some(Start { done, last: log.at(done).map(|event| (event.id, event.ts)) })
        })
    }

    fn locate<'a>(&'a self, ids: &'a [EventId]) -> Pending<'a, Vec<Option<Place>>> {
        self.with(|state| {
            let place = |id: &EventId| {
                let (log, event) = state.find(*id)?;
                Some(Place { topic: log.topic.clone(), seq: event.seq, ts: event.ts })
            };
            ids.iter().map(place).collect()
        })
    }

    fn latest_by_key<'a>(&'a self, topic: &'a Topic, keys: &'a [String]) -> Pending<'a, Vec<Option<Event>>> {
        self.with(|state| {
            let log = state.log(topic);
            keys.iter().map(|key| log.and_then(|log| log.latest(key)).cloned()).collect()
        })
    }

    fn keys<'a>(&'a self, topic: &'a Topic, after: Option<&'a str>, limit: usize) -> Pending<'a, Page<Event>> {
        self.with(|state| {
            let Some(log) = state.log(topic) else { return Page { items: Vec::new(), more: false } };
            let mut items: Vec<Event> = log.live(after).take(limit.saturating_add(1)).cloned().collect();
            let more = items.len() > limit;
            items.truncate(limit);
            Page { items, more }
        })
    }

    fn key_snapshot<'a>(&'a self, topic: &'a Topic) -> Pending<'a, Box<dyn KeySnapshot>> {
        self.with(|state| {
            let log = state.log(topic);
            let mut seqs: Vec<Seq> = log.map(|log| log.live(None).map(|event| event.seq).collect()).unwrap_or_default();
            seqs.reverse();
            let cut = log.map_or(0, TopicLog::last_seq);
            Box::new(Snapshot { store: self.clone(), topic: topic.clone(), cut, seqs }) as Box<dyn KeySnapshot>
        })
    }

    fn watch(&self, topic: &Topic) -> watch::Receiver<Tail> {
        let mut state = self.state.lock();
        if let Some(log) = state.log(topic) {
            return log.watch();
        }
        if state.awaited.len() >= MAX_AWAITED && !state.awaited.contains_key(topic) {
            state.awaited.retain(|_, sender| sender.receiver_count() > 0);
        }
        state.awaited.entry(topic.clone()).or_default().subscribe()
    }

    fn watch_topics(&self) -> watch::Receiver<u64> {
        self.created.subscribe()
    }

    fn topics(&self) -> Pending<'_, Vec<Topic>> {
        self.with(|state| {
            let mut names: Vec<Topic> =
                state.logs.iter().filter(|log| log.exists()).map(|log| log.topic.clone()).collect();
            names.sort();
            names
        })
    }

    fn exists(&self, topic: &Topic) -> bool {
        self.state.lock().log(topic).is_some_and(TopicLog::exists)
    }

    fn create<'a>(&'a self, topic: &'a Topic) -> Pending<'a, ()> {
        self.change_topics(std::slice::from_ref(topic), |state, index, _| state.logs[index].create())
    }

    fn delete<'a>(&'a self, topics: &'a [Topic]) -> Pending<'a, ()> {
        self.change_topics(topics, |state, index, topic| {
            let gone = state.logs[index].delete();
            state.forget_ids(gone);
            state.settings.remove(topic);
            let groups = state.groups.remove(topic);
            state.group_count -= groups.map_or(0, |groups| groups.len());
        })
    }

    fn remove<'a>(&'a self, topic: &'a Topic, seqs: &'a Ranges<()>) -> Pending<'a, ()> {
        self.with(|state| {
            if let Some(&index) = state.names.get(topic) {
                let gone = state.logs[index].remove(seqs);
                state.forget_ids(gone);
            }
        })
    }

    fn info<'a>(&'a self, topic: &'a Topic) -> Pending<'a, Option<TopicInfo>> {
        self.with(|state| state.log(topic).filter(|log| log.exists()).map(TopicLog::info))
    }

    fn trim<'a>(&'a self, topic: &'a Topic, before: Seq) -> Pending<'a, ()> {
        self.with(|state| {
            if let Some(&index) = state.names.get(topic) {
                let gone = state.logs[index].trim(before);
                state.forget_ids(gone);
            }
        })
    }

    fn settings(&self, topic: &Topic) -> TopicSettings {
        self.state.lock().settings.get(topic).cloned().unwrap_or_default()
    }

    fn all_settings(&self) -> Vec<(Topic, TopicSettings)> {
        self.state.lock().settings.iter().map(|(topic, settings)| (topic.clone(), settings.clone())).collect()
    }

    fn set_settings<'a>(&'a self, topic: &'a Topic, settings: TopicSettings) -> Pending<'a, ()> {
        self.with(|state| {
            state.settings.insert(topic.clone(), settings);
        })
    }

    fn maintain(&self, now: Millis) -> Pending<'_, ()> {
        Box::pin(async move {
            let topics: Vec<(usize, TopicSettings)> = self.now(|state| {
                let known = state
                    .settings
                    .iter()
                    .filter_map(|(topic, settings)| Some((*state.names.get(topic)?, settings.clone())));
                known.collect()
            })?;
            for (topic, settings) in topics {
                self.maintain_topic(topic, &settings, now).await?;
            }
            Ok(())
        })
    }

    fn pin<'a>(&'a self, topics: &'a [Topic]) -> Pending<'a, Box<dyn Pin>> {
        self.with(|state| {
            let end = |topic: &Topic| state.log(topic).map_or(0, TopicLog::last_seq);
            self.pins.hold(topics, LONGEST, end)
        })
    }

    fn ready(&self) -> Result<()> {
        if self.state.lock().closed { Err(Error::Closed("the hub is shutting down".to_owned())) } else { Ok(()) }
    }
}

impl GroupStore for Memory {
    fn load<'a>(&'a self, topic: &'a Topic, group: &'a Group) -> Pending<'a, Option<(GroupState, Version)>> {
        self.with(|state| state.groups.get(topic)?.get(group).cloned())
    }

    fn save_many(&self, saves: Vec<Save>) -> Pending<'_, Vec<Result<Saved>>> {
        self.with(|state| saves.into_iter().map(|save| Ok(state.save(save))).collect())
    }

    fn groups<'a>(&'a self, topic: &'a Topic) -> Pending<'a, Vec<(Group, GroupState)>> {
        self.with(|state| {
            let of_topic = state.groups.get(topic).into_iter().flatten();
            of_topic.map(|(group, (state, _))| (group.clone(), state.clone())).collect()
        })
    }

    fn topics_of_groups(&self) -> Pending<'_, Vec<Topic>> {
        self.with(|state| state.groups.keys().cloned().collect())
    }

    fn forget<'a>(&'a self, topic: &'a Topic, group: &'a Group) -> Pending<'a, bool> {
        self.with(|state| {
            let Some(of_topic) = state.groups.get_mut(topic) else { return false };
            let there = of_topic.remove(group).is_some();
            state.group_count -= usize::from(there);
            if of_topic.is_empty() {
                state.groups.remove(topic);
            }
            there
        })
    }
}

impl Store for Memory {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn counts(&self) -> Counts {
        let state = self.state.lock();
        Counts { topics: state.logs.len(), groups: state.group_count }
    }

    fn close(&self) -> Pending<'_, ()> {
        self.state.lock().closed = true;
        Box::pin(ready(Ok(())))
    }

    fn failed(&self) -> std::pin::Pin<Box<dyn Future<Output = String> + Send + '_>> {
        Box::pin(std::future::pending())
    }
}

struct Snapshot {
    store: Memory,
    topic: Topic,
    cut: Seq,
    /// What is still to come, last first.
    seqs: Vec<Seq>,
}

impl KeySnapshot for Snapshot {
    fn cut(&self) -> Seq {
        self.cut
    }

    fn begin_after(&mut self, key: &str) {
        let state = self.store.state.lock();
        let Some(log) = state.log(&self.topic) else { return };
        let is_later = |seq: &Seq| log.at(*seq).is_some_and(|event| event.key().as_deref() > Some(key));
        self.seqs.retain(is_later);
    }

    fn left(&mut self) -> Pending<'_, u64> {
        let left = self.seqs.len() as u64;
        Box::pin(std::future::ready(Ok(left)))
    }

    fn next(&mut self, max: usize) -> Pending<'_, Vec<Event>> {
        let (seqs, topic) = (&mut self.seqs, &self.topic);
        self.store.with(|state| {
            let Some(log) = state.log(topic) else { return Vec::new() };
            let mut events = Vec::new();
            while events.len() < max
                && let Some(seq) = seqs.pop()
            {
                events.extend(log.at(seq).cloned());
            }
            events
        })
    }
}
