//! What was asked and what was answered, and the check of a recovered store against it.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use promethean_event::{Event, EventId, Group, NewEvent, Seq, Topic};

use super::workload::TOPICS;
use crate::log::memtable::TopicState;
use crate::log::shared::Shared;
use crate::suite::topic;
use crate::{Appended, GroupState, ReadMax, TopicSettings};

/// What was asked and what was answered, each answer with the number of calls the disk had seen by then.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// Bodies by id and topic: a duplicate may come with another body, the first one counts.
    issued: HashMap<(EventId, Topic), Vec<Bytes>>,
    answered: Vec<(u64, Topic, Appended)>,
    groups: BTreeMap<(Topic, Group), Intents>,
    pub(super) settings: Vec<(u64, TopicSettings)>,
    /// Events before these may be gone.
    pub(super) trimmed: HashMap<Topic, Seq>,
    /// The deletions of each topic, in order: the number of the last change of each group before it, and when it was
    /// answered.
    deletions: HashMap<Topic, Vec<Deletion>>,
    /// Events may be compacted away.
    pub(super) shrinks: bool,
}

/// The number of the last change of each group before a deletion, and when it was answered.
type Deletion = (BTreeMap<Group, u64>, u64);

/// What was to become of a group, in order.
#[derive(Debug, Default)]
struct Intents {
    /// True if it was to be forgotten.
    forget: Vec<bool>,
    /// Which of them were answered, and when.
    answered: Vec<(u64, u64)>,
}

impl Ledger {
    pub(super) fn issue(&mut self, event: &NewEvent) {
        self.issued.entry((event.id, event.topic.clone())).or_default().push(event.body.clone());
    }

    pub(super) fn answered(&mut self, at: u64, name: &Topic, one: Appended) {
        self.answered.push((at, name.clone(), one));
    }

    /// The last seq that was answered.
    pub(super) fn last_seq(&self, name: &Topic) -> Seq {
        self.answered.iter().filter(|(_, this, _)| this == name).map(|(_, _, one)| one.seq).max().unwrap_or(0)
    }

    /// A change of a group that is going to be asked for; its number.
    pub(super) fn intend(&mut self, name: &Topic, group: &Group, forget: bool) -> u64 {
        let intents = self.groups.entry((name.clone(), group.clone())).or_default();
        intents.forget.push(forget);
        intents.forget.len() as u64
    }

    /// A deletion that is going to be asked for.
    pub(super) fn intend_deletion(&mut self, name: &Topic) {
        let mut before = BTreeMap::new();
        for ((_, group), intents) in self.groups.iter_mut().filter(|((this, _), _)| this == name) {
            intents.forget.push(true);
            before.insert(group.clone(), intents.forget.len() as u64);
        }
        self.deletions.entry(name.clone()).or_default().push((before, u64::MAX));
        if name.as_str() == "a" {
            self.settings.push((u64::MAX, TopicSettings::default()));
        }
    }

    pub(super) fn deleted(&mut self, at: u64, name: &Topic) {
        if let Some((_, answered)) = self.deletions.get_mut(name).and_then(|all| all.last_mut()) {
            *answered = at;
        }
        if name.as_str() == "a"
            && let Some((answered, _)) = self.settings.last_mut()
        {
            *answered = at;
        }
    }

    pub(super) fn saved(&mut self, at: u64, name: &Topic, group: &Group, number: u64) {
        self.groups.entry((name.clone(), group.clone())).or_default().answered.push((at, number));
    }

    /// Holds a recovered store against what was answered before the disk had seen `at` calls. `durable`: answers
    /// were promises.
    pub(super) fn check(&self, shared: &Shared, at: u64, durable: bool) -> Result<(), String> {
        let mut seen = HashMap::new();
        for name in TOPICS.map(topic) {
            let events = match shared.topic(&name) {
                Some(state) => self.check_topic(shared, &state)?,
                None => Vec::new(),
            };
            seen.extend(events.into_iter().map(|event| ((name.clone(), event.seq), event.id)));
        }
        if durable {
            self.check_answers(shared, &seen, at)?;
        }
        self.check_deletions(shared, at, durable)?;
        self.check_groups(shared, at, durable)
    }

    /// Events are as published, without gaps, and the index agrees with them.
    fn check_topic(&self, shared: &Shared, state: &TopicState) -> Result<Vec<Event>, String> {
        let name = &state.name;
        let events = shared.read(state, 0, ReadMax::events(usize::MAX)).map_err(|error| error.to_string())?;
        let compacted = self.shrinks && name.as_str() == "compacted";
        if !compacted {
            let first = events.first().map_or(1, |event| event.seq);
            let deleted = state.inner.lock().life.deleted + 1;
            if first > self.trimmed.get(name).copied().unwrap_or(0).max(deleted) {
                return Err(format!("{name} begins at {first}"));
            }
            if events.iter().zip(first..).any(|(event, seq)| event.seq != seq) {
                return Err(format!("{name} has a gap"));
            }
        }
        let last = state.inner.lock().last_seq;
        if events.last().is_some_and(|event| event.seq > last) {
            return Err(format!("{name} goes on after its end"));
        }
        let mut latest = BTreeMap::new();
        for event in &events {
            let issued = self.issued.get(&(event.id, name.clone())).is_some_and(|bodies| bodies.contains(&event.body));
            if !issued {
                return Err(format!("{name} {} was never published: {}", event.seq, event.to_json()));
            }
            if let Some(key) = event.key() {
                latest.insert(key.into_owned(), event.seq);
            }
            let found = shared.find(event.id).map_err(|error| error.to_string())?;
            if found.map(|(topic, seq, _)| (topic.number, seq)) != Some((state.number, event.seq)) {
                return Err(format!("{name} {} is not found by its id", event.seq));
            }
        }
        let keys: Vec<String> = (0..4).map(|n| format!("k{n}")).collect();
        let found = shared.latest_by_key(state, &keys).map_err(|error| error.to_string())?;
        for (key, found) in keys.iter().zip(found) {
            if found.map(|event| event.seq) != latest.get(key).copied() {
                return Err(format!("{name}: the latest of {key} is not {:?}", latest.get(key)));
            }
        }
        Ok(events)
    }

    /// A deletion took all of the topic, or nothing.
    fn check_deletions(&self, shared: &Shared, at: u64, durable: bool) -> Result<(), String> {
        for (name, all) in &self.deletions {
            let answered = all.iter().rposition(|(_, when)| *when <= at).map_or(0, |last| last as u64 + 1);
            let Some(state) = shared.topic(name) else { continue };
            let inner = state.inner.lock();
            let life = inner.life;
            if durable && life.deletions < answered {
                return Err(format!("{name} was deleted {answered} times, {} are there", life.deletions));
            }
            if inner.first_seq <= life.deleted || inner.last_seq < life.deleted {
                return Err(format!("{name} has events up to {} that were deleted", life.deleted));
            }
            let last = usize::try_from(life.deletions).ok().and_then(|count| all.get(count.checked_sub(1)?));
            for (group, before) in last.map(|(before, _)| before).into_iter().flatten() {
                let saved = inner.groups.get(group).and_then(|(_, bytes)| GroupState::decode(bytes));
                if saved.is_some_and(|state| state.generation <= *before) {
                    return Err(format!("{group} of {name} has outlived the topic"));
                }
            }
        }
        Ok(())
    }

    fn check_answers(&self, shared: &Shared, seen: &HashMap<(Topic, Seq), EventId>, at: u64) -> Result<(), String> {
        for (when, name, one) in self.answered.iter().filter(|(when, ..)| *when <= at) {
            let deleted = shared.topic(name).map_or(0, |state| state.inner.lock().life.deleted);
            let trimmed = one.seq < self.trimmed.get(name).copied().unwrap_or(0).max(deleted + 1);
            let compacted = self.shrinks && name.as_str() == "compacted";
            let last = shared.topic(name).map_or(0, |state| state.inner.lock().last_seq);
            let there = seen.get(&(name.clone(), one.seq)) == Some(&one.id);
            if !(there || (trimmed || compacted) && last >= one.seq) {
                return Err(format!("{name} {} was answered at {when} and is not there", one.seq));
            }
        }
        let flushed = self.settings.iter().rposition(|(when, _)| *when <= at);
        let now = shared.topic(&topic("a")).map(|state| state.inner.lock().settings.clone()).unwrap_or_default();
        let later = &self.settings[flushed.unwrap_or(0)..];
        let fits = later.iter().any(|(_, settings)| *settings == now)
            || (flushed.is_none() && now == TopicSettings::default());
        if fits { Ok(()) } else { Err("settings that were answered are not there".to_owned()) }
    }

    /// A group is as the last answered change left it, or as a later one did; never ahead of its topic.
    fn check_groups(&self, shared: &Shared, at: u64, durable: bool) -> Result<(), String> {
        for ((name, group), intents) in &self.groups {
            let answered = intents.answered.iter().filter(|(when, _)| *when <= at).map(|(_, number)| *number).max();
            let answered = answered.filter(|_| durable).unwrap_or(0);
            let (saved, last) = shared.topic(name).map_or((None, 0), |state| {
                let inner = state.inner.lock();
                (inner.groups.get(group).cloned(), inner.last_seq)
            });
            let fits = match saved {
                None => {
                    let later = usize::try_from(answered).unwrap_or(0).saturating_sub(1);
                    answered == 0 || intents.forget[later..].contains(&true)
                }
                Some((_, bytes)) => {
                    let state = GroupState::decode(&bytes).ok_or("a group's state cannot be read")?;
                    if state.floor > last {
                        return Err(format!("{group} is at {} of {name}, which ends at {last}", state.floor));
                    }
                    state.generation >= answered
                }
            };
            if !fits {
                return Err(format!("{group} of {name} has forgotten change {answered}"));
            }
        }
        Ok(())
    }
}
