//! Building: gives out seqs and versions, and puts what is asked for into the frame.
//!
//! The builder is ahead of what is visible by the frames that are on their way; what they change it finds in
//! [`Unseen`]. Nothing in here waits for the disk, but for a look at an id that a client brings.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use foldhash::fast::RandomState;
use parking_lot::Mutex;
use promethean_event::{EventId, Group, IdOrigin, NewEvent, Seq, Topic};

use super::frame::{Answer, Change, Frame, Run, Unseen};
use crate::log::commit::codec::{Held, put, put_event};
use crate::log::commit::entry;
use crate::log::commit::queue::{EncodedSave, Request};
use crate::log::flush::ids::At;
use crate::log::flush::index::View;
use crate::log::flush::manifest::TopicEntry;
use crate::log::memtable::TopicState;
use crate::log::shared::{Sealed, Shared};
use crate::{Appended, Error, Outcome, Result, Saved, Version};

/// A topic as the builder sees it: ahead of what is visible.
#[derive(Debug)]
struct Writing {
    state: Arc<TopicState>,
    /// As in `state`, here because all else that an event needs of its topic is.
    name: Topic,
    last_seq: Seq,
    /// Changed since the journal file began.
    dirty: bool,
}

/// The only one that numbers.
#[derive(Debug)]
pub(super) struct Builder {
    shared: Arc<Shared>,
    unseen: Arc<Mutex<Unseen>>,
    /// Number 1 first.
    topics: Vec<Writing>,
    names: HashMap<Topic, usize, RandomState>,
    version: Version,
}

impl Builder {
    pub(super) fn new(shared: Arc<Shared>, unseen: Arc<Mutex<Unseen>>, version: Version) -> Self {
        let states = shared.topics.read().by_number.clone();
        let mut builder = Self { shared, unseen, topics: Vec::new(), names: HashMap::default(), version };
        let mut all_groups = 0;
        for state in states {
            let (last_seq, groups) = {
                let inner = state.inner.lock();
                (inner.last_seq, inner.groups.len())
            };
            all_groups += groups as u64;
            // What recovery replayed from this journal file counts as changed in it.
            builder.add(state, last_seq);
        }
        builder.shared.counters.groups.store(all_groups, Relaxed);
        builder
    }

    fn add(&mut self, state: Arc<TopicState>, last_seq: Seq) {
        let name = state.name.clone();
        self.names.insert(name.clone(), self.topics.len());
        self.topics.push(Writing { state, name, last_seq, dirty: true });
    }

    /// The state of what the journal file touched, as of its end. Everything built has to be visible.
    pub(super) fn seal(&mut self, journal: u64) -> Sealed {
        let mut topics = Vec::new();
        for topic in self.topics.iter_mut().filter(|topic| topic.dirty) {
            topic.dirty = false;
            topics.push((topic.state.number, entry::snapshot(&topic.state)));
        }
        Sealed { journal, version: self.version, topics }
    }

    /// Puts a request into the frame; answers at once what cannot be.
    pub(super) fn build(&mut self, request: Request, frame: &mut Frame) {
        match request {
            Request::Append { events, reply } => match self.append(events, frame) {
                Ok(outcomes) => frame.answers.push(Answer::Append(reply, outcomes)),
                // Units before the one that could not be looked up are in the frame.
                Err(Error::Damaged(what)) => drop(reply.send(Err(Error::Unknown(what)))),
                Err(error) => drop(reply.send(Err(error))),
            },
            Request::Save { saves, reply } => {
                let saved = saves.into_iter().map(|save| self.save(save, frame)).collect();
                frame.answers.push(Answer::Save(reply, saved));
            }
            Request::Forget { topic, group, reply } => {
                let known = self.names.get(&topic).copied();
                let there = known.filter(|topic| self.group_version(*topic, &group).is_some());
                if let Some(topic) = there {
                    self.version += 1;
                    let number = self.topics[topic].state.number;
                    entry::put_forget(&mut frame.bytes, number, &group, self.version);
                    self.shared.counters.groups.fetch_sub(1, Relaxed);
                    self.change_group(topic, group, None, frame);
                }
                frame.answers.push(Answer::Forget(reply, there.is_some()));
            }
            Request::Settings { topic, settings, reply } => match self.topic(&topic, frame) {
                Ok(topic) => {
                    let state = self.touch(topic);
                    entry::put_settings(&mut frame.bytes, state.number, &settings);
                    frame.changes.push(Change::Settings(state, settings));
                    frame.answers.push(Answer::Done(reply));
                }
                Err(error) => drop(reply.send(Err(error))),
            },
            Request::Trim { topic, before, reply } => {
                if let Some(&topic) = self.names.get(&topic) {
                    let before = before.min(self.topics[topic].last_seq + 1);
                    let state = self.touch(topic);
                    entry::put_trim(&mut frame.bytes, state.number, before);
                    frame.changes.push(Change::Trim(state, before));
                }
                frame.answers.push(Answer::Done(reply));
            }
            Request::Create { topic, reply } => match self.topic(&topic, frame) {
                Ok(topic) => {
                    let state = self.touch(topic);
                    entry::put_create(&mut frame.bytes, state.number);
                    frame.changes.push(Change::Create(state));
                    frame.answers.push(Answer::Done(reply));
                }
                Err(error) => drop(reply.send(Err(error))),
            },
            Request::Delete { topics, reply } => {
                for topic in &topics {
                    if let Some(&topic) = self.names.get(topic) {
                        self.delete(topic, frame);
                    }
                }
                frame.answers.push(Answer::Done(reply));
            }
            // Happens between frames; the writer sees to it.
            Request::Rotate { reply } => frame.answers.push(Answer::Done(reply)),
        }
    }

    /// The topic, changed in this journal file.
    fn touch(&mut self, topic: usize) -> Arc<TopicState> {
        let writing = &mut self.topics[topic];
        writing.dirty = true;
        writing.state.clone()
    }

    /// The topic's place in `topics`; makes the topic where it does not exist.
    fn topic(&mut self, name: &Topic, frame: &mut Frame) -> Result<usize> {
        if let Some(&topic) = self.names.get(name) {
            return Ok(topic);
        }
        let state = self.shared.topics.write().add(&TopicEntry::new(name.clone()));
        entry::put_topic(&mut frame.bytes, state.number, name);
        self.add(state, 0);
        Ok(self.topics.len() - 1)
    }

    fn append(&mut self, events: Vec<NewEvent>, frame: &mut Frame) -> Result<Vec<Outcome>> {
        if events.iter().all(|event| event.origin == IdOrigin::Hub) {
            return events.into_iter().map(|event| self.number(event, frame)).collect();
        }
        let mut outcomes = Vec::with_capacity(events.len());
        let mut events = events.into_iter().peekable();
        let mut unit: Vec<NewEvent> = Vec::new();
        // The view of the index is opened for the first event that needs it, and anew after a flush.
        let mut view = None;
        while let Some(event) = events.next() {
            let ends = events.peek().is_none_or(|next| next.unit != event.unit);
            unit.push(event);
            if ends {
                self.unit(&mut unit, &mut view, &mut outcomes, frame)?;
            }
        }
        Ok(outcomes)
    }

    /// Numbers one unit: all of it, or nothing.
    fn unit(
        &mut self,
        unit: &mut Vec<NewEvent>,
        view: &mut Option<(u64, View)>,
        outcomes: &mut Vec<Outcome>,
        frame: &mut Frame,
    ) -> Result<()> {
        let mut known: Vec<Option<At>> = Vec::new();
        if unit.iter().any(|event| event.origin == IdOrigin::Client) {
            let mut within: HashMap<EventId, &Topic, RandomState> = HashMap::default();
            let mut taken = None;
            for event in unit.iter() {
                let there = if event.origin == IdOrigin::Client { self.place(event.id, view)? } else { None };
                let elsewhere = match there {
                    Some((number, _)) => self.numbered(number).map(|topic| &topic.state.name),
                    None => Some(*within.entry(event.id).or_insert(&event.topic)),
                };
                if let Some(topic) = elsewhere.filter(|topic| **topic != event.topic) {
                    taken = Some((event.id, topic.clone()));
                    break;
                }
                known.push(there);
            }
            if let Some((id, topic)) = taken {
                outcomes.extend(unit.drain(..).map(|_| Outcome::DuplicateId { id, topic: topic.clone() }));
                return Ok(());
            }
        }
        for (index, event) in unit.drain(..).enumerate() {
            let at = match known.get(index).copied().flatten() {
                // The same id may stand in the unit twice.
                None if event.origin == IdOrigin::Client => self.unseen.lock().ids.get(&event.id).copied(),
                at => at,
            };
            let outcome = match at {
                Some((_, seq)) => Outcome::Stored(Appended { id: event.id, seq, duplicate: true }),
                None => self.number(event, frame)?,
            };
            outcomes.push(outcome);
        }
        Ok(())
    }

    fn numbered(&self, number: u32) -> Option<&Writing> {
        self.topics.get(usize::try_from(number).ok()?.checked_sub(1)?)
    }

    /// Where an id is that a client brings.
    fn place(&self, id: EventId, view: &mut Option<(u64, View)>) -> Result<Option<At>> {
        // In this order: what becomes visible is in the second before it leaves the first.
        if let Some(at) = self.unseen.lock().ids.get(&id) {
            return Ok(Some(*at));
        }
        let (recent, flushes) = {
            let recent = self.shared.recent.lock();
            (recent.get(id), recent.flushes)
        };
        let at = match recent {
            Some(at) => Some(at),
            None => {
                let view = match view {
                    Some((opened, view)) if *opened == flushes => view,
                    old => &mut old.insert((flushes, self.shared.view()?)).1,
                };
                self.shared.flushed_id(id, view)?
            }
        };
        let Some((number, seq)) = at else { return Ok(None) };
        let there = match self.numbered(number) {
            Some(topic) => self.shared.event_at(&topic.state, seq)?.is_some_and(|held| held.id == id),
            None => false,
        };
        Ok(there.then_some((number, seq)))
    }

    /// Gives an event its seq and puts it into the frame.
    fn number(&mut self, event: NewEvent, frame: &mut Frame) -> Result<Outcome> {
        let last = frame.runs.last().and_then(|run| Some((run.topic, self.numbered(run.topic)?)));
        let number = match last {
            Some((number, writing)) if same(&writing.name, &event.topic) => number,
            _ => u32::try_from(self.topic(&event.topic, frame)? + 1).unwrap_or(u32::MAX),
        };
        let writing = &mut self.topics[number as usize - 1];
        writing.last_seq += 1;
        writing.dirty = true;
        let (id, seq) = (event.id, writing.last_seq);
        let client = event.origin == IdOrigin::Client;
        let NewEvent { ts, appended, spans, body, .. } = event;
        let held = Held { id, ts, appended, spans, client, body };
        frame.bytes.push(entry::EVENT);
        put(&mut frame.bytes, u64::from(number));
        put_event(&mut frame.bytes, &held, seq, 0, 0);
        if client {
            self.unseen.lock().ids.insert(id, (number, seq));
        }
        match frame.runs.last_mut() {
            Some(run) if run.topic == number => run.events += 1,
            _ => frame.runs.push(Run { topic: number, first: seq, events: 1 }),
        }
        frame.events.push(held);
        Ok(Outcome::Stored(Appended { id, seq, duplicate: false }))
    }

    fn group_version(&self, topic: usize, group: &Group) -> Option<Version> {
        let state = &self.topics[topic].state;
        {
            let unseen = self.unseen.lock();
            if !unseen.groups.is_empty()
                && let Some((version, there)) = unseen.groups.get(&(state.number, group.clone()))
            {
                return there.then_some(*version);
            }
        }
        state.inner.lock().groups.get(group).map(|(version, _)| *version)
    }

    fn save(&mut self, save: EncodedSave, frame: &mut Frame) -> Result<Saved> {
        let EncodedSave { topic, group, expected, state } = save;
        let known = self.names.get(&topic).copied();
        let now = known.and_then(|topic| self.group_version(topic, &group));
        if now.unwrap_or(0) != expected {
            return Ok(Saved::Conflict);
        }
        let topic = self.topic(&topic, frame)?;
        self.version += 1;
        entry::put_save(&mut frame.bytes, self.topics[topic].state.number, &group, self.version, &state);
        self.shared.counters.groups.fetch_add(u64::from(now.is_none()), Relaxed);
        self.change_group(topic, group, Some(Bytes::from(state)), frame);
        Ok(Saved::Yes(self.version))
    }

    fn delete(&mut self, topic: usize, frame: &mut Frame) {
        self.version += 1;
        let (state, last_seq) = (self.touch(topic), self.topics[topic].last_seq);
        entry::put_delete(&mut frame.bytes, state.number, last_seq, self.version);
        let mut groups: Vec<Group> = state.inner.lock().groups.keys().cloned().collect();
        let unseen = |unseen: &Unseen| {
            let here = unseen.groups.keys().filter(|(number, _)| *number == state.number);
            here.map(|(_, group)| group.clone()).collect::<Vec<_>>()
        };
        groups.extend(unseen(&self.unseen.lock()));
        groups.sort_unstable();
        groups.dedup();
        groups.retain(|group| self.group_version(topic, group).is_some());
        self.shared.counters.groups.fetch_sub(groups.len() as u64, Relaxed);
        for group in groups {
            self.change_group(topic, group, None, frame);
        }
        frame.changes.push(Change::Delete(state, last_seq));
    }

    fn change_group(&mut self, topic: usize, group: Group, state: Option<Bytes>, frame: &mut Frame) {
        let (topic, version) = (self.touch(topic), self.version);
        self.unseen.lock().groups.insert((topic.number, group.clone()), (version, state.is_some()));
        frame.changes.push(Change::Group { topic, group, version, state });
    }
}

/// True if two names are the same; usually one is a clone of the other.
fn same(one: &Topic, two: &Topic) -> bool {
    std::ptr::eq(one.as_str(), two.as_str()) || one == two
}
