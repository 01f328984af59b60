//! Making a frame visible, and answering.

use std::sync::Arc;

use parking_lot::Mutex;
use promethean_event::EventId;
use tokio::sync::watch;

use super::super::shared::Shared;
use super::super::topic::TopicState;
use super::frame::{Answer, Change, Frame, Unseen};
use crate::Tail;

/// Events whose keys are taken in between two looks at the queue.
const KEYS: usize = 64;

/// What is needed to make frames visible, one after another.
#[derive(Debug, Default)]
pub(super) struct Publisher {
    /// Counts the frames, so that a topic is announced once for each.
    frame: u64,
    /// The frame's ids that clients made.
    clients: Vec<EventId>,
    /// Topics of the frame.
    touched: Vec<Arc<TopicState>>,
    /// Topics with events whose keys are not taken in yet.
    unkeyed: Vec<Arc<TopicState>>,
}

impl Publisher {
    /// Makes a frame of the journal file visible and answers.
    pub(super) fn publish(&mut self, shared: &Shared, unseen: &Mutex<Unseen>, journal: u64, frame: &mut Frame) {
        self.frame += 1;
        if !frame.events.is_empty() {
            let mut recent = shared.recent.lock();
            let mut events = frame.events.iter();
            for run in &frame.runs {
                for (seq, held) in (run.first..).zip(events.by_ref().take(run.events)) {
                    recent.insert(journal, held.id, (run.topic.number, seq), held.client);
                }
            }
        }
        self.clients.extend(frame.events.iter().filter(|event| event.client).map(|event| event.id));
        let mut events = frame.events.drain(..);
        for run in frame.runs.drain(..) {
            let mut inner = run.topic.inner.lock();
            inner.extend(journal, events.by_ref().take(run.events));
            if std::mem::replace(&mut inner.frame, self.frame) != self.frame {
                let unlisted = !std::mem::replace(&mut inner.unkeyed, true);
                drop(inner);
                self.unkeyed.extend(unlisted.then(|| run.topic.clone()));
                self.touched.push(run.topic);
            }
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
                Change::Settings(topic, settings) => topic.inner.lock().settings = settings,
                Change::Trim(topic, before) => {
                    let mut inner = topic.inner.lock();
                    inner.first_seq = inner.first_seq.max(before);
                }
            }
        }
        let mut created = false;
        for topic in self.touched.drain(..) {
            let seq = topic.inner.lock().last_seq;
            created |= announce(&topic.watch, Tail { seq }).seq == 0;
        }
        if created {
            shared.created.send_modify(|version| *version += 1);
        }
        frame.answers.drain(..).for_each(Answer::send);
    }

    /// Takes some more keys in; whether there are any left.
    pub(super) fn take_keys(&mut self) -> bool {
        let Some(topic) = self.unkeyed.last() else { return false };
        let mut inner = topic.inner.lock();
        if inner.take_keys(KEYS) {
            inner.unkeyed = false;
            drop(inner);
            self.unkeyed.pop();
        }
        true
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
