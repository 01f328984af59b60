//! Making a frame visible, and answering.

use std::sync::Arc;

use parking_lot::Mutex;
use promethean_event::EventId;

use super::frame::{Answer, Change, Frame, Unseen};
use crate::log::memtable::TopicState;
use crate::log::shared::Shared;

/// Events whose keys are taken in between two looks at the queue.
const KEYS: usize = 64;

/// What is needed to make frames visible, one after another.
#[derive(Debug, Default)]
pub(super) struct Publisher {
    /// Counts the frames, so that a topic is announced once for each.
    frame: u64,
    /// The frame's ids that clients made.
    clients: Vec<EventId>,
    /// The topics seen so far, number 1 first.
    topics: Vec<Arc<TopicState>>,
    /// Topics of the frame whose tail somebody may wait for.
    watched: Vec<u32>,
    /// Topics with many events whose keys are not taken in yet.
    unkeyed: Vec<u32>,
    /// Events that came since all keys were taken in.
    waiting_keys: usize,
}

impl Publisher {
    /// Makes a frame of the journal file visible and answers.
    pub(super) fn publish(&mut self, shared: &Shared, unseen: &Mutex<Unseen>, journal: u64, frame: &mut Frame) {
        self.frame += 1;
        self.waiting_keys += frame.events.len();
        if !frame.events.is_empty() {
            let mut recent = shared.recent.lock();
            let mut events = frame.events.iter();
            for run in &frame.runs {
                for (seq, held) in (run.first..).zip(events.by_ref().take(run.events)) {
                    recent.insert(journal, held.id, (run.topic, seq), held.client);
                }
            }
        }
        self.clients.extend(frame.events.iter().filter(|event| event.client).map(|event| event.id));
        let (mut events, mut created) = (frame.events.drain(..), false);
        for run in frame.runs.drain(..) {
            if self.topics.len() < run.topic as usize {
                self.topics.extend_from_slice(&shared.topics.read().by_number[self.topics.len()..]);
            }
            let mut inner = self.topics[run.topic as usize - 1].inner.lock();
            created |= !inner.exists();
            inner.extend(journal, events.by_ref().take(run.events));
            let first = std::mem::replace(&mut inner.frame, self.frame) != self.frame;
            let unlisted = !inner.unkeyed && inner.has_many_unkeyed();
            inner.unkeyed |= unlisted;
            let watched = first && inner.watched;
            drop(inner);
            self.watched.extend(watched.then_some(run.topic));
            self.unkeyed.extend(unlisted.then_some(run.topic));
        }
        drop(events);
        // Not before they are found otherwise.
        if !self.clients.is_empty() {
            let ids = &mut unseen.lock().ids;
            for id in self.clients.drain(..) {
                ids.remove(&id);
            }
        }
        for change in frame.changes.drain(..) {
            match change {
                Change::Group { topic, group, version, state } => {
                    let groups = &mut topic.inner.lock().groups;
                    match state {
                        Some(state) => groups.insert(group.clone(), (version, state)),
                        None => groups.remove(&group),
                    };
                    let mut unseen = unseen.lock();
                    let key = (topic.number, group);
                    // A later frame may have changed it again.
                    if unseen.groups.get(&key).is_some_and(|(last, _)| *last == version) {
                        unseen.groups.remove(&key);
                    }
                }
                Change::Settings(topic, settings) => topic.set(settings),
                Change::Trim(topic, before) => {
                    topic.inner.lock().hide(before);
                }
                Change::Create(topic) => {
                    topic.inner.lock().life.created = true;
                    created = true;
                }
                Change::Delete(topic, last_seq) => {
                    topic.delete(last_seq);
                    topic.announce();
                    created = true;
                }
            }
        }
        self.watched.drain(..).for_each(|topic| self.topics[topic as usize - 1].announce());
        if created {
            shared.created.send_modify(|version| *version += 1);
        }
        frame.answers.drain(..).for_each(Answer::send);
    }

    /// How many events' keys may have to be taken in, at most; none while no topic has many of them.
    pub(super) fn waiting_keys(&self) -> usize {
        if self.unkeyed.is_empty() { 0 } else { self.waiting_keys }
    }

    /// Takes some more keys in; whether there are any left.
    pub(super) fn take_keys(&mut self) -> bool {
        let Some(&topic) = self.unkeyed.last() else {
            self.waiting_keys = 0;
            return false;
        };
        let mut inner = self.topics[topic as usize - 1].inner.lock();
        if inner.take_keys(KEYS) {
            inner.unkeyed = false;
            drop(inner);
            self.unkeyed.pop();
        }
        true
    }
}
