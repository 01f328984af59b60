//! What this hub knows of topics without asking: where they end, and their settings.
//!
//! Bounded by twice the topics that there are or that somebody watches: what was watched and never came to be is swept
//! out. Ends only ever grow; what is behind the truth is told by the change stream or the next poll.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use promethean_event::{Seq, Topic};
use tokio::sync::watch;

use super::lives::History;
use crate::{Tail, TopicSettings};

/// So many are never swept.
const FEW: usize = 1_024;

#[derive(Default)]
struct Known {
    tail: watch::Sender<Tail>,
    settings: Option<TopicSettings>,
    history: History,
}

impl Known {
    fn exists(&self) -> bool {
        self.history.exists(self.tail.borrow().seq)
    }

    fn is_needed(&self) -> bool {
        self.tail.borrow().seq > 0
            || self.history != History::default()
            || self.settings.is_some()
            || self.tail.receiver_count() > 0
    }
}

pub(super) struct Tails {
    topics: Mutex<HashMap<Topic, Known, RandomState>>,
    /// How many there may be before the next sweep.
    sweep: AtomicUsize,
    created: watch::Sender<u64>,
}

impl Tails {
    pub(super) fn new() -> Self {
        Self { topics: Mutex::default(), sweep: AtomicUsize::new(FEW), created: watch::Sender::new(0) }
    }

    pub(super) fn end(&self, topic: &Topic) -> Seq {
        self.topics.lock().get(topic).map_or(0, |known| known.tail.borrow().seq)
    }

    /// Tells the watchers that the topic ends at `seq`, if that is news.
    pub(super) fn announce(&self, topic: &Topic, seq: Seq) {
        self.learn(topic, seq, History::default());
    }

    /// Takes in news of a topic, which may be late, and tells the watchers.
    pub(super) fn learn(&self, topic: &Topic, seq: Seq, history: History) {
        let mut topics = self.topics.lock();
        let known = entry(&mut topics, topic);
        let (existed, before) = (known.exists(), *known.tail.borrow());
        known.history.learn(history);
        let tail = Tail { seq: seq.max(before.seq), deletions: known.history.deletions };
        known.tail.send_if_modified(|now| std::mem::replace(now, tail) != tail);
        if known.exists() != existed || tail.deletions != before.deletions {
            self.created.send_modify(|version| *version += 1);
        }
    }

    /// True if the topic exists.
    pub(super) fn exists(&self, topic: &Topic) -> bool {
        self.topics.lock().get(topic).is_some_and(Known::exists)
    }

    /// The last seq that no read sees: up to it the topic was deleted.
    pub(super) fn deleted(&self, topic: &Topic) -> Seq {
        self.topics.lock().get(topic).map_or(0, |known| known.history.deleted)
    }

    pub(super) fn watch(&self, topic: &Topic) -> watch::Receiver<Tail> {
        let mut topics = self.topics.lock();
        if topics.len() >= self.sweep.load(Ordering::Relaxed) {
            topics.retain(|_, known| known.is_needed());
            self.sweep.store(2 * topics.len().max(FEW), Ordering::Relaxed);
        }
        entry(&mut topics, topic).tail.subscribe()
    }

    pub(super) fn created(&self) -> watch::Receiver<u64> {
        self.created.subscribe()
    }

    pub(super) fn settings(&self, topic: &Topic) -> TopicSettings {
        self.topics.lock().get(topic).and_then(|known| known.settings.clone()).unwrap_or_default()
    }

    pub(super) fn set_settings(&self, topic: &Topic, settings: TopicSettings) {
        let plain = settings == TopicSettings::default();
        entry(&mut self.topics.lock(), topic).settings = (!plain).then_some(settings);
    }

    /// The topics whose settings ask for something to be done with time.
    pub(super) fn maintained(&self) -> Vec<(Topic, TopicSettings)> {
        let plain = TopicSettings::default();
        let asks =
            |settings: &TopicSettings| settings.retention != plain.retention || settings.compaction != plain.compaction;
        let mut all = self.all_settings();
        all.retain(|(_, settings)| asks(settings));
        all
    }

    pub(super) fn all_settings(&self) -> Vec<(Topic, TopicSettings)> {
        let topics = self.topics.lock();
        topics.iter().filter_map(|(topic, known)| Some((topic.clone(), known.settings.clone()?))).collect()
    }
}

fn entry<'a>(topics: &'a mut HashMap<Topic, Known, RandomState>, topic: &Topic) -> &'a mut Known {
    topics.entry(topic.clone()).or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_that_were_watched_and_never_came_to_be_are_forgotten_and_others_are_not() {
        let (tails, topic) = (Tails::new(), |n: usize| Topic::parse(&format!("t.{n}")).expect("a topic"));
        let settings = TopicSettings { partitions: 3, ..TopicSettings::default() };
        tails.announce(&topic(1), 7);
        tails.set_settings(&topic(2), settings.clone());
        let mut watched = tails.watch(&topic(3));
        (10..10 * FEW).for_each(|n| drop(tails.watch(&topic(n))));
        assert!(tails.topics.lock().len() <= 2 * FEW);
        assert_eq!((tails.end(&topic(1)), tails.settings(&topic(2))), (7, settings));
        tails.announce(&topic(3), 1);
        assert!(watched.has_changed().is_ok_and(|changed| changed) && watched.borrow_and_update().seq == 1);
    }
}
