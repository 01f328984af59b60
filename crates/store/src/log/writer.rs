//! The writer: one thread that takes everything that waits and makes it one frame.
//!
//! It alone gives out seqs and versions, and it alone writes to the journal. What it has written becomes visible,
//! and is answered, only after the sync that the mode asks for. No async in here.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use foldhash::fast::RandomState;
use promethean_event::{EventId, Group, IdOrigin, NewEvent, Seq, Topic};
use tokio::sync::{OwnedSemaphorePermit, oneshot, watch};

use super::codec::{Held, put, put_event};
use super::entry;
use super::index::View;
use super::journal::{FIRST, FRAME_HEAD, Journal, Next};
use super::manifest::TopicEntry;
use super::options::Sync;
use super::queue::Request;
use super::shared::{Sealed, Shared, is_full};
use super::stats::Counters;
use super::topic::TopicState;
use crate::{Appended, Error, Outcome, Result, Saved, Tail, TopicSettings, Version};

/// Bytes of one frame at most, unless a single request is larger.
const MAX_FRAME: u64 = 8 << 20;
/// Events whose keys are taken in between two looks at the queue.
const KEYS: usize = 64;

/// A topic as the writer sees it: ahead of what is visible while a frame is being written.
#[derive(Debug)]
struct Writing {
    state: Arc<TopicState>,
    last_seq: Seq,
    /// The last commit that touched it, so that it is announced once.
    commit: u64,
    /// Changed since the journal file began.
    dirty: bool,
    /// It is among the topics whose keys are to be taken in.
    unkeyed: bool,
}

/// Events of one topic that follow each other in a frame.
#[derive(Debug)]
struct Run {
    topic: usize,
    /// The first one's seq.
    first: Seq,
    events: usize,
}

/// An answer that waits for the sync.
enum Answer {
    Append(oneshot::Sender<Result<Vec<Outcome>>>, Vec<Outcome>),
    Save(oneshot::Sender<Result<Saved>>, Saved),
    Forget(oneshot::Sender<Result<bool>>, bool),
    Done(oneshot::Sender<Result<()>>),
}

/// A change that becomes visible after the sync.
enum Change {
    Group(usize, Group, Option<(Version, Bytes)>),
    Settings(usize, TopicSettings),
    Trim(usize, Seq),
}

/// The writer's own state.
pub(super) struct Writer {
    shared: Arc<Shared>,
    journal: Journal,
    topics: Vec<Writing>,
    names: HashMap<Topic, usize, RandomState>,
    version: Version,
    groups: usize,
    commit: u64,
    /// The frame that is being built, kept for its memory.
    frame: Vec<u8>,
    events: Vec<Held>,
    /// The topics of `events`, run by run.
    runs: Vec<Run>,
    changes: Vec<Change>,
    answers: Vec<Answer>,
    /// Ids of clients in this frame.
    fresh: HashMap<EventId, (usize, Seq), RandomState>,
    /// Group changes in this frame.
    pending_groups: HashMap<(usize, Group), Option<Version>, RandomState>,
    touched: Vec<usize>,
    /// Topics with events whose keys are not taken in yet.
    unkeyed: Vec<usize>,
    sync_due: Option<Instant>,
}

impl Writer {
    pub(super) fn new(shared: Arc<Shared>, journal: Journal, version: Version) -> Self {
        let mut writer = Self {
            shared,
            journal,
            topics: Vec::new(),
            names: HashMap::default(),
            version,
            groups: 0,
            commit: 0,
            frame: Vec::new(),
            events: Vec::new(),
            runs: Vec::new(),
            changes: Vec::new(),
            answers: Vec::new(),
            fresh: HashMap::default(),
            pending_groups: HashMap::default(),
            touched: Vec::new(),
            unkeyed: Vec::new(),
            sync_due: None,
        };
        let states = writer.shared.topics.read().by_number.clone();
        for state in states {
            let (last_seq, groups) = {
                let inner = state.inner.lock();
                (inner.last_seq, inner.groups.len())
            };
            writer.groups += groups;
            writer.names.insert(state.name.clone(), writer.topics.len());
            // What recovery replayed from this journal file counts as changed in it.
            writer.topics.push(Writing { state, last_seq, commit: 0, dirty: true, unkeyed: false });
        }
        writer
    }

    /// Works until the queue is closed and empty.
    pub(super) fn run(mut self) {
        while let Some(mut requests) = self.shared.queue.take(self.sync_due) {
            let mut rest = requests.drain(..).peekable();
            while rest.peek().is_some() {
                if let Some((Request::Rotate { reply }, _)) =
                    rest.next_if(|(next, _)| matches!(next, Request::Rotate { .. }))
                {
                    drop(reply.send(self.rotate_now()));
                    continue;
                }
                let (mut batch, mut bytes) = (Vec::new(), 0);
                while let Some((next, _)) = rest.peek() {
                    if matches!(next, Request::Rotate { .. }) {
                        break;
                    }
                    let bound = next.bound();
                    if !batch.is_empty() && bytes + bound > MAX_FRAME {
                        break;
                    }
                    bytes += bound;
                    batch.extend(rest.next());
                }
                self.commit(batch);
            }
            if self.sync_due.is_some_and(|due| due <= Instant::now()) {
                self.sync_late();
            }
            self.take_keys();
        }
        self.sync_late();
    }

    /// Takes keys in while nobody waits. What is left then is up to the next pause, or to whoever asks for a key.
    fn take_keys(&mut self) {
        while let Some(&topic) = self.unkeyed.last()
            && self.shared.queue.is_empty()
        {
            let writing = &mut self.topics[topic];
            if writing.state.inner.lock().take_keys(KEYS) {
                writing.unkeyed = false;
                self.unkeyed.pop();
            }
        }
    }

    fn sync_late(&mut self) {
        self.sync_due = None;
        if self.shared.failed().is_none() && self.journal.is_dirty() {
            let _ = self.sync();
        }
    }

    /// Makes the journal durable, or the engine fail.
    fn sync(&mut self) -> Result<()> {
        let start = Instant::now();
        let synced = self.journal.sync();
        self.shared.counters.synced(start.elapsed());
        synced.map_err(|error| self.fail("sync", &error))
    }

    fn fail(&self, doing: &str, error: &io::Error) -> Error {
        let reason = format!("{doing} of the journal failed: {error}; check the disk, then start again");
        self.shared.fail(reason.clone());
        Error::Unknown(reason)
    }

    /// One frame: builds it, writes it, syncs it, makes it visible, answers.
    fn commit(&mut self, batch: Vec<(Request, OwnedSemaphorePermit)>) {
        let (batch, permits): (Vec<Request>, Vec<_>) = batch.into_iter().unzip();
        let Some(batch) = self.make_room(batch) else { return };
        self.commit += 1;
        self.frame.clear();
        self.frame.resize(FRAME_HEAD, 0);
        for request in batch {
            self.build(request);
        }
        let written = self.write();
        if let Err(error) = written {
            for answer in self.answers.drain(..) {
                answer.fail(&error);
            }
            self.events.clear();
            self.runs.clear();
            self.changes.clear();
        }
        self.publish();
        drop(permits);
    }

    fn write(&mut self) -> Result<()> {
        if self.frame.len() == FRAME_HEAD {
            return Ok(());
        }
        let counters = &self.shared.counters;
        Counters::add(&counters.commits, 1);
        Counters::add(&counters.events, self.events.len() as u64);
        Counters::add(&counters.journal_bytes, self.frame.len() as u64);
        self.journal.write(&mut self.frame).map_err(|error| self.fail("write", &error))?;
        match self.shared.options.sync {
            Sync::Always => self.sync()?,
            Sync::Interval(interval) => {
                self.sync_due.get_or_insert_with(|| Instant::now() + interval);
            }
            Sync::Never => {}
        }
        Ok(())
    }

    /// Makes sure that the batch can be written without needing space on the way; refuses what cannot.
    fn make_room(&mut self, batch: Vec<Request>) -> Option<Vec<Request>> {
        if let Some(error) = self.shared.failed() {
            batch.into_iter().for_each(|request| request.refuse(error.clone()));
            return None;
        }
        let bytes = |batch: &[Request]| batch.iter().map(Request::bound).sum::<u64>() + FRAME_HEAD as u64 + 8;
        // A reserve that events never use lets acks go on when the disk is full.
        let reserve = self.shared.options.journal_bytes / 16;
        let need = bytes(&batch);
        let full = self.journal.offset + need + reserve > FIRST + self.shared.options.journal_bytes;
        let room = if full && !self.journal.is_empty() { self.rotate() } else { Ok(()) };
        let room = room.and_then(|()| self.journal.reserve(need, reserve).map_err(|error| self.no_space(&error)));
        let Err(error) = room else { return Some(batch) };
        let (refused, rest): (Vec<_>, Vec<_>) =
            batch.into_iter().partition(|request| matches!(request, Request::Append { .. } | Request::Rotate { .. }));
        refused.into_iter().for_each(|request| request.refuse(error.clone()));
        if !matches!(error, Error::Refused(_)) || !self.journal.fits(bytes(&rest)) {
            rest.into_iter().for_each(|request| request.refuse(error.clone()));
            return None;
        }
        (!rest.is_empty()).then_some(rest)
    }

    /// What a failure to get space means: no space is to be waited out, everything else is the end.
    fn no_space(&self, error: &io::Error) -> Error {
        if is_full(error) {
            let dir = self.shared.options.dir.display();
            return Error::Refused(format!("no space left in {dir} ({error}); free some, the hub goes on by itself"));
        }
        self.fail("write", error)
    }

    /// Ends the journal file and starts the next one. Waits while settling is behind.
    fn rotate(&mut self) -> Result<()> {
        self.wait_for_settling()?;
        let (number, previous_end) = (self.journal.number + 1, self.journal.offset);
        // Settled events must not be able to get lost in the journal afterwards.
        if self.journal.is_dirty() {
            self.sync()?;
        }
        self.sync_due = None;
        let options = &self.shared.options;
        let next = Next {
            disk: &*options.disk,
            dir: &options.dir.join("journal"),
            number,
            previous_end,
            step: step(options.journal_bytes),
        };
        let journal = Journal::create(&next).map_err(|error| self.no_space(&error))?;
        let sealed = self.seal();
        self.journal = journal;
        self.shared.settling.lock().sealed.push_back(sealed);
        self.shared.settling_changed.notify_all();
        Ok(())
    }

    fn wait_for_settling(&self) -> Result<()> {
        let mut settling = self.shared.settling.lock();
        if !settling.sealed.is_empty() {
            Counters::add(&self.shared.counters.waits, 1);
        }
        while !settling.sealed.is_empty() {
            if let Some(error) = self.shared.failed() {
                return Err(error);
            }
            if let Some(reason) = &settling.no_room {
                return Err(Error::Refused(reason.clone()));
            }
            self.shared.settling_changed.wait_for(&mut settling, Duration::from_millis(500));
        }
        Ok(())
    }

    /// The state of what the journal file touched, as of its end.
    fn seal(&mut self) -> Sealed {
        let mut topics = Vec::new();
        for topic in self.topics.iter_mut().filter(|topic| topic.dirty) {
            topic.dirty = false;
            topics.push((topic.state.number, entry::snapshot(&topic.state)));
        }
        Sealed { journal: self.journal.number, version: self.version, topics }
    }

    fn build(&mut self, request: Request) {
        match request {
            Request::Append { events, reply } => match self.append(events) {
                Ok(outcomes) => self.answers.push(Answer::Append(reply, outcomes)),
                // Units before the one that could not be looked up are in the frame.
                Err(Error::Damaged(what)) => drop(reply.send(Err(Error::Unknown(what)))),
                Err(error) => drop(reply.send(Err(error))),
            },
            Request::Save { topic, group, expected, state, reply } => {
                match self.save(&topic, &group, expected, state) {
                    Ok(saved) => self.answers.push(Answer::Save(reply, saved)),
                    Err(error) => drop(reply.send(Err(error))),
                }
            }
            Request::Forget { topic, group, reply } => {
                let known = self.names.get(&topic).copied();
                let there = known.filter(|topic| self.group_version(*topic, &group).is_some());
                if let Some(topic) = there {
                    self.version += 1;
                    entry::put_forget(&mut self.frame, self.topics[topic].state.number, &group, self.version);
                    self.change_group(topic, group, None);
                }
                self.answers.push(Answer::Forget(reply, there.is_some()));
            }
            Request::Settings { topic, settings, reply } => match self.topic(&topic) {
                Ok(topic) => {
                    entry::put_settings(&mut self.frame, self.topics[topic].state.number, &settings);
                    self.topics[topic].dirty = true;
                    self.changes.push(Change::Settings(topic, settings));
                    self.answers.push(Answer::Done(reply));
                }
                Err(error) => drop(reply.send(Err(error))),
            },
            Request::Trim { topic, before, reply } => {
                if let Some(&topic) = self.names.get(&topic) {
                    let before = before.min(self.topics[topic].last_seq + 1);
                    entry::put_trim(&mut self.frame, self.topics[topic].state.number, before);
                    self.topics[topic].dirty = true;
                    self.changes.push(Change::Trim(topic, before));
                }
                self.answers.push(Answer::Done(reply));
            }
            Request::Rotate { reply } => drop(reply.send(self.rotate_now())),
        }
    }

    fn rotate_now(&mut self) -> Result<()> {
        if let Some(error) = self.shared.failed() {
            return Err(error);
        }
        if self.journal.is_empty() { Ok(()) } else { self.rotate() }
    }

    /// The topic's place in `topics`; makes the topic where it does not exist.
    fn topic(&mut self, name: &Topic) -> Result<usize> {
        if let Some(&topic) = self.names.get(name) {
            return Ok(topic);
        }
        let limit = self.shared.options.max_topics;
        if self.topics.len() >= limit {
            return Err(Error::Refused(format!("there are {limit} topics already; raise max_topics for more")));
        }
        let state = self.shared.topics.write().add(&TopicEntry::new(name.clone()));
        entry::put_topic(&mut self.frame, state.number, name);
        self.names.insert(name.clone(), self.topics.len());
        self.topics.push(Writing { state, last_seq: 0, commit: 0, dirty: true, unkeyed: false });
        Ok(self.topics.len() - 1)
    }

    fn append(&mut self, events: Vec<NewEvent>) -> Result<Vec<Outcome>> {
        if self.topics.len() + events.len() > self.shared.options.max_topics {
            // All or none: find out before anything is numbered.
            let mut fresh: Vec<_> = events.iter().map(|e| &e.topic).filter(|t| !self.names.contains_key(*t)).collect();
            fresh.sort_unstable();
            fresh.dedup();
            if self.topics.len() + fresh.len() > self.shared.options.max_topics {
                let limit = self.shared.options.max_topics;
                return Err(Error::Refused(format!("there are {limit} topics already; raise max_topics for more")));
            }
        }
        if events.iter().all(|event| event.origin == IdOrigin::Hub) {
            return events.into_iter().map(|event| self.number(event)).collect();
        }
        let mut outcomes = Vec::with_capacity(events.len());
        let mut events = events.into_iter().peekable();
        let mut unit: Vec<NewEvent> = Vec::new();
        // The view of the index is opened for the first event that needs it.
        let mut view = None;
        while let Some(event) = events.next() {
            let ends = events.peek().is_none_or(|next| next.unit != event.unit);
            unit.push(event);
            if ends {
                self.unit(&mut unit, &mut view, &mut outcomes)?;
            }
        }
        Ok(outcomes)
    }

    /// Numbers one unit: all of it, or nothing.
    fn unit(&mut self, unit: &mut Vec<NewEvent>, view: &mut Option<View>, outcomes: &mut Vec<Outcome>) -> Result<()> {
        let mut known: Vec<Option<(u32, Seq)>> = Vec::new();
        if unit.iter().any(|event| event.origin == IdOrigin::Client) {
            let mut within: HashMap<EventId, &Topic, RandomState> = HashMap::default();
            let mut taken = None;
            for event in unit.iter() {
                let there = if event.origin == IdOrigin::Client { self.place(event.id, view)? } else { None };
                let elsewhere = match there {
                    Some((number, _)) => self.topics.get(number as usize - 1).map(|topic| &topic.state.name),
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
            let within = || self.fresh.get(&event.id).map(|(_, seq)| *seq);
            let seq = match known.get(index).copied().flatten() {
                Some((_, seq)) => Some(seq),
                None if event.origin == IdOrigin::Client => within(),
                None => None,
            };
            let outcome = match seq {
                Some(seq) => Outcome::Stored(Appended { id: event.id, seq, duplicate: true }),
                None => self.number(event)?,
            };
            outcomes.push(outcome);
        }
        Ok(())
    }

    /// Where an id is that a client brings.
    fn place(&self, id: EventId, view: &mut Option<View>) -> Result<Option<(u32, Seq)>> {
        if let Some((topic, seq)) = self.fresh.get(&id) {
            return Ok(Some((self.topics[*topic].state.number, *seq)));
        }
        let recent = self.shared.recent.lock().get(id);
        let at = match recent {
            Some(at) => Some(at),
            None => {
                let view = match view {
                    Some(view) => view,
                    None => view.insert(self.shared.view()?),
                };
                self.shared.settled_id(id, view)?
            }
        };
        let Some((number, seq)) = at else { return Ok(None) };
        let there = match self.topics.get(number as usize - 1) {
            Some(topic) => self.shared.event_at(&topic.state, seq)?.is_some_and(|held| held.id == id),
            None => false,
        };
        Ok(there.then_some((number, seq)))
    }

    /// Gives an event its seq and puts it into the frame.
    fn number(&mut self, event: NewEvent) -> Result<Outcome> {
        let topic = match self.runs.last() {
            Some(run) if same(&self.topics[run.topic].state.name, &event.topic) => run.topic,
            _ => self.topic(&event.topic)?,
        };
        let writing = &mut self.topics[topic];
        writing.last_seq += 1;
        writing.dirty = true;
        let (id, seq) = (event.id, writing.last_seq);
        let client = event.origin == IdOrigin::Client;
        let NewEvent { ts, appended, spans, body, .. } = event;
        let held = Held { id, ts, appended, spans, client, body };
        self.frame.push(entry::EVENT);
        put(&mut self.frame, u64::from(writing.state.number));
        put_event(&mut self.frame, &held, seq, 0, 0);
        if client {
            self.fresh.insert(id, (topic, seq));
        }
        match self.runs.last_mut() {
            Some(run) if run.topic == topic => run.events += 1,
            _ => self.runs.push(Run { topic, first: seq, events: 1 }),
        }
        self.events.push(held);
        Ok(Outcome::Stored(Appended { id, seq, duplicate: false }))
    }

    fn group_version(&self, topic: usize, group: &Group) -> Option<Version> {
        if !self.pending_groups.is_empty()
            && let Some(version) = self.pending_groups.get(&(topic, group.clone()))
        {
            return *version;
        }
        self.topics[topic].state.inner.lock().groups.get(group).map(|(version, _)| *version)
    }

    fn save(&mut self, topic: &Topic, group: &Group, expected: Version, state: Vec<u8>) -> Result<Saved> {
        let known = self.names.get(topic).copied();
        let now = known.and_then(|topic| self.group_version(topic, group));
        if now.unwrap_or(0) != expected {
            return Ok(Saved::Conflict);
        }
        let limit = self.shared.options.max_groups;
        if now.is_none() && self.groups >= limit {
            return Err(Error::Refused(format!("there are {limit} groups already; raise max_groups for more")));
        }
        let topic = self.topic(topic)?;
        self.version += 1;
        let number = self.topics[topic].state.number;
        entry::put_save(&mut self.frame, number, group, self.version, &state);
        self.change_group(topic, group.clone(), Some((self.version, Bytes::from(state))));
        Ok(Saved::Yes(self.version))
    }

    fn change_group(&mut self, topic: usize, group: Group, state: Option<(Version, Bytes)>) {
        let before = self.group_version(topic, &group).is_some();
        self.groups = self.groups + usize::from(state.is_some()) - usize::from(before);
        self.topics[topic].dirty = true;
        self.pending_groups.insert((topic, group.clone()), state.as_ref().map(|(version, _)| *version));
        self.changes.push(Change::Group(topic, group, state));
    }

    /// Makes the frame visible and answers.
    fn publish(&mut self) {
        let journal = self.journal.number;
        if !self.events.is_empty() {
            let mut recent = self.shared.recent.lock();
            let mut events = self.events.iter();
            for run in &self.runs {
                let number = self.topics[run.topic].state.number;
                for (seq, held) in (run.first..).zip(events.by_ref().take(run.events)) {
                    recent.insert(journal, held.id, (number, seq), held.client);
                }
            }
        }
        let mut events = self.events.drain(..);
        for run in self.runs.drain(..) {
            let writing = &mut self.topics[run.topic];
            writing.state.inner.lock().extend(journal, events.by_ref().take(run.events));
            if writing.commit != self.commit {
                writing.commit = self.commit;
                self.touched.push(run.topic);
            }
        }
        drop(events);
        for change in self.changes.drain(..) {
            match change {
                Change::Group(topic, group, state) => {
                    let groups = &mut self.topics[topic].state.inner.lock().groups;
                    match state {
                        Some(state) => groups.insert(group, state),
                        None => groups.remove(&group),
                    };
                }
                Change::Settings(topic, settings) => self.topics[topic].state.inner.lock().settings = settings,
                Change::Trim(topic, before) => {
                    let mut inner = self.topics[topic].state.inner.lock();
                    inner.first_seq = inner.first_seq.max(before);
                }
            }
        }
        let mut created = false;
        for topic in self.touched.drain(..) {
            let writing = &self.topics[topic];
            created |= announce(&writing.state.watch, Tail { seq: writing.last_seq }).seq == 0;
            if !std::mem::replace(&mut self.topics[topic].unkeyed, true) {
                self.unkeyed.push(topic);
            }
        }
        if created {
            self.shared.created.send_modify(|version| *version += 1);
        }
        self.fresh.clear();
        self.pending_groups.clear();
        for answer in self.answers.drain(..) {
            answer.send();
        }
    }
}

/// Sets the tail and wakes who waits for it; returns the one before. Where nobody does, nobody is woken: whoever
/// comes is counted before he looks, so he either sees the new tail or is seen after it was set.
fn announce(watch: &watch::Sender<Tail>, tail: Tail) -> Tail {
    if watch.receiver_count() > 0 {
        return watch.send_replace(tail);
    }
    let mut before = tail;
    watch.send_if_modified(|now| {
        before = std::mem::replace(now, tail);
        false
    });
    if watch.receiver_count() > 0 {
        watch.send_replace(tail);
    }
    before
}

/// Whether two names are the same; usually one is a clone of the other.
fn same(one: &Topic, two: &Topic) -> bool {
    std::ptr::eq(one.as_str(), two.as_str()) || one == two
}

/// How much a journal file grows at once: little while it is young, so that an idle hub stays small.
pub(super) fn step(journal_bytes: u64) -> u64 {
    (journal_bytes / 16).clamp(4096, 4 << 20)
}

impl Answer {
    fn send(self) {
        match self {
            Self::Append(reply, outcomes) => drop(reply.send(Ok(outcomes))),
            Self::Save(reply, saved) => drop(reply.send(Ok(saved))),
            Self::Forget(reply, there) => drop(reply.send(Ok(there))),
            Self::Done(reply) => drop(reply.send(Ok(()))),
        }
    }

    fn fail(self, error: &Error) {
        match self {
            Self::Append(reply, _) => drop(reply.send(Err(error.clone()))),
            Self::Save(reply, _) => drop(reply.send(Err(error.clone()))),
            Self::Forget(reply, _) => drop(reply.send(Err(error.clone()))),
            Self::Done(reply) => drop(reply.send(Err(error.clone()))),
        }
    }
}
