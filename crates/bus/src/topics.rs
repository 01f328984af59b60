//! Topics that operators create, delete and purge.
//!
//! The store makes a deletion durable as a whole and tells the watchers of the topic; runners, followers and tails end their
//! members by that news. A purge removes events that it has found by reading; the groups hear of them afterwards.

use std::collections::HashSet;

use promethean_event::{Event, Millis, Seq, Topic};
use promethean_store::{Ranges, ReadMax, Saved, TopicInfo, TopicSettings};

use crate::Error;
use crate::bus::{Bus, Core};
use crate::dead_letters::REDRIVE_GROUP;
use crate::group::Dispatcher;
use crate::runner::Input;

/// Events that a purge reads at once.
const PIECE: usize = 1_000;
/// Attempts at a group whose state changes meanwhile.
const ATTEMPTS: usize = 8;

/// The events that a purge removes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Purge {
    /// All with a smaller seq.
    BeforeSeq(Seq),
    /// All with an earlier `ts`.
    BeforeTs(Millis),
    /// All with one of these keys.
    Keys(HashSet<String>),
}

impl Purge {
    fn takes(&self, event: &Event) -> bool {
        match self {
            Self::BeforeSeq(before) => event.seq < *before,
            Self::BeforeTs(before) => event.ts < *before,
            Self::Keys(keys) => event.key().is_some_and(|key| keys.contains(key.as_ref())),
        }
    }
}

/// The size of a topic, or of the part of it that a purge removes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TopicSize {
    /// Events in the log.
    pub events: u64,
    /// Bytes of the events in the wire form.
    pub bytes: u64,
    /// Groups that have a position on the topic.
    pub groups: usize,
}

impl Bus {
    /// Creates a topic without events; `false` if it exists. **Returned ⇒ durable.**
    ///
    /// # Errors
    /// `publish_failed`.
    pub async fn create_topic(&self, topic: &Topic) -> Result<bool, Error> {
        let existed = self.core.store.exists(topic);
        self.core.store.create(topic).await.map_err(|error| Error::publish(&error))?;
        Ok(!existed)
    }

    /// Returns the size of a topic that a deletion would remove.
    ///
    /// # Errors
    /// `unknown_topic`: it does not exist, has no settings, and no group has a position on it. `ack_failed`.
    pub async fn topic_size(&self, topic: &Topic) -> Result<TopicSize, Error> {
        let store = &self.core.store;
        let info = store.info(topic).await.map_err(|error| Error::group(&error))?;
        let groups = store.groups(topic).await.map_err(|error| Error::group(&error))?;
        if info.is_none() && groups.is_empty() && store.settings(topic) == TopicSettings::default() {
            return Err(Error::unknown_topic(topic));
        }
        let (events, bytes) = info.map_or((0, 0), |info| (info.events, info.bytes));
        let groups = groups.iter().filter(|(group, _)| group.as_str() != REDRIVE_GROUP).count();
        Ok(TopicSize { events, bytes, groups })
    }

    /// Deletes topics with their events, settings and positions of groups, all or nothing. **Returned ⇒ durable.**
    ///
    /// Subscriptions to one of them end with `topic_deleted`; those to patterns stay.
    ///
    /// # Errors
    /// `publish_failed`.
    pub async fn delete_topics(&self, topics: &[Topic]) -> Result<(), Error> {
        self.core.store.delete(topics).await.map_err(|error| Error::publish(&error))
    }

    /// Removes events and keeps the topic; returns how much. What groups have not done of them counts as done.
    /// `dry_run`: removes nothing. **Returned ⇒ durable.**
    ///
    /// # Errors
    /// `unknown_topic`, `publish_failed`, `ack_failed`.
    pub async fn purge_topic(&self, topic: &Topic, what: &Purge, dry_run: bool) -> Result<TopicSize, Error> {
        let failed = |error| Error::publish(&error);
        let info = self.core.store.info(topic).await.map_err(failed)?.ok_or_else(|| Error::unknown_topic(topic))?;
        let (seqs, size) = self.core.taken_by(&info, what).await?;
        if !dry_run && !seqs.is_empty() {
            self.core.store.remove(topic, &seqs).await.map_err(failed)?;
            self.core.tell_groups(topic, &seqs).await?;
        }
        Ok(size)
    }
}

impl Core {
    /// The events that a purge removes, as ranges that include holes of the log, and their size.
    async fn taken_by(&self, info: &TopicInfo, what: &Purge) -> Result<(Ranges<()>, TopicSize), Error> {
        let (mut seqs, mut size, mut next) = (Ranges::default(), TopicSize::default(), info.first_seq);
        // Where the range that grows began.
        let mut begun = None;
        let end = match what {
            Purge::BeforeSeq(before) => info.last_seq.min(before.saturating_sub(1)),
            Purge::BeforeTs(_) | Purge::Keys(_) => info.last_seq,
        };
        while next <= end {
            let read = self.store.read(&info.topic, next, ReadMax::events(PIECE)).await;
            let events = read.map_err(|error| Error::publish(&error))?;
            let Some(last) = events.last() else { break };
            next = last.seq + 1;
            for event in events.iter().filter(|event| event.seq <= end) {
                if !what.takes(event) {
                    begun = None;
                    continue;
                }
                seqs.insert(*begun.get_or_insert(event.seq), event.seq, ());
                (size.events, size.bytes) = (size.events + 1, size.bytes + event.wire_len() as u64);
            }
            // Reading from memory never waits: others have their turn here.
            tokio::task::yield_now().await;
        }
        Ok((seqs, size))
    }

    /// Marks removed events as done in all groups of the topic. A group that another hub runs passes them as holes.
    async fn tell_groups(&self, topic: &Topic, seqs: &Ranges<()>) -> Result<(), Error> {
        let failed = |error| Error::group(&error);
        for (group, _) in self.store.groups(topic).await.map_err(failed)? {
            if let Some(runner) = self.runner_of(topic, &group) {
                let _ = runner.send(Input::Removed(seqs.clone()));
                continue;
            }
            if let Some(cluster) = &self.cluster
                && cluster.ownership.owner(topic, &group).await.map_err(failed)?.is_some()
            {
                continue;
            }
            for _ in 0..ATTEMPTS {
                let Some((state, version)) = self.store.load(topic, &group).await.map_err(failed)? else { break };
                let mut dispatcher = Dispatcher::new(state, topic.is_dead_letter(), 0);
                dispatcher.on_removed(seqs);
                if !dispatcher.take_dirty() {
                    break;
                }
                let saved = self.store.compare_and_set(topic, &group, version, dispatcher.state()).await;
                if saved.map_err(failed)? != Saved::Conflict {
                    break;
                }
            }
        }
        Ok(())
    }
}
