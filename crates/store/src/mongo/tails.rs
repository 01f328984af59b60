//! What this hub knows of topics without asking: where they end, and their settings.
//!
//! Grows with the number of topics there are or are watched. Ends only ever grow; what is behind the truth is told by
//! the change stream or the next poll.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use promethean_event::{Seq, Topic};
use tokio::sync::watch;

use crate::{Tail, TopicSettings};

#[derive(Default)]
struct Known {
    tail: watch::Sender<Tail>,
    settings: Option<TopicSettings>,
}

pub(super) struct Tails {
    topics: Mutex<HashMap<Topic, Known, RandomState>>,
    created: watch::Sender<u64>,
}

impl Tails {
    pub(super) fn new() -> Self {
        Self { topics: Mutex::default(), created: watch::Sender::new(0) }
    }

    pub(super) fn end(&self, topic: &Topic) -> Seq {
        self.topics.lock().get(topic).map_or(0, |known| known.tail.borrow().seq)
    }

    /// Tells the watchers that the topic ends at `seq`, if that is news.
    pub(super) fn announce(&self, topic: &Topic, seq: Seq) {
        let mut topics = self.topics.lock();
        let known = entry(&mut topics, topic);
        let before = known.tail.borrow().seq;
        if seq > before {
            known.tail.send_replace(Tail { seq });
            if before == 0 {
                self.created.send_modify(|version| *version += 1);
            }
        }
    }

    pub(super) fn watch(&self, topic: &Topic) -> watch::Receiver<Tail> {
        entry(&mut self.topics.lock(), topic).tail.subscribe()
    }

    pub(super) fn created(&self) -> watch::Receiver<u64> {
        self.created.subscribe()
    }

    pub(super) fn settings(&self, topic: &Topic) -> TopicSettings {
        self.topics.lock().get(topic).and_then(|known| known.settings.clone()).unwrap_or_default()
    }

    pub(super) fn set_settings(&self, topic: &Topic, settings: TopicSettings) {
        entry(&mut self.topics.lock(), topic).settings = Some(settings);
    }

    /// The topics whose settings ask for something to be done with time.
    pub(super) fn maintained(&self) -> Vec<(Topic, TopicSettings)> {
        let plain = TopicSettings::default();
        let asks =
            |settings: &TopicSettings| settings.retention != plain.retention || settings.compaction != plain.compaction;
        let topics = self.topics.lock();
        let all = topics.iter().filter_map(|(topic, known)| Some((topic.clone(), known.settings.clone()?)));
        all.filter(|(_, settings)| asks(settings)).collect()
    }
}

fn entry<'a>(topics: &'a mut HashMap<Topic, Known, RandomState>, topic: &Topic) -> &'a mut Known {
    topics.entry(topic.clone()).or_default()
}
