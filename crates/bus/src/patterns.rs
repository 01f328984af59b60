//! The live subscriptions of groups to patterns, as those see them who create topics.
//!
//! A group that is subscribed to `a.**` gets every event of a topic `a.new` that turns up: also if its subscriber, or the
//! hub, is gone before it could join there. So the group's place on the new topic is saved together with the topic's first
//! event, and nothing is answered before both are durable. Where several hubs share the store, the place is made when the
//! subscriber's own hub hears of the topic.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::{join, join_all};
use parking_lot::Mutex;
use promethean_event::{Group, Millis, NewEvent, Topic};
use promethean_store::{GroupState, Outcome, Result as StoreResult, Saved};

use crate::bus::Core;
use crate::inbox::SubscriptionId;
use crate::subscription::Inner;

/// A group on a topic.
type Place = (Topic, Group);

/// Bounded by the subscriptions there are; each leaves when it ends.
#[derive(Default)]
pub(crate) struct Patterns {
    all: Mutex<Vec<(SubscriptionId, Weak<Inner>)>>,
    /// How many there are: whoever publishes looks here first.
    count: AtomicUsize,
}

impl Patterns {
    pub(crate) fn add(&self, inner: &Arc<Inner>) {
        let mut all = self.all.lock();
        all.push((inner.subscriber.id, Arc::downgrade(inner)));
        self.count.store(all.len(), Ordering::SeqCst);
    }

    pub(crate) fn remove(&self, id: SubscriptionId) {
        if self.is_empty() {
            return;
        }
        let mut all = self.all.lock();
        all.retain(|(this, _)| *this != id);
        self.count.store(all.len(), Ordering::SeqCst);
    }

    fn is_empty(&self) -> bool {
        self.count.load(Ordering::SeqCst) == 0
    }

    /// The groups that want these topics and may see them, each once.
    fn wanting<'t>(&self, topics: impl Iterator<Item = &'t Topic>) -> BTreeSet<Place> {
        let topics: BTreeSet<&Topic> = topics.collect();
        if topics.is_empty() {
            return BTreeSet::new();
        }
        let all: Vec<Arc<Inner>> = self.all.lock().iter().filter_map(|(_, inner)| inner.upgrade()).collect();
        let mut places = BTreeSet::new();
        for inner in all {
            let wanted = topics.iter().filter(|topic| inner.selects(topic) && inner.may_see(topic));
            places.extend(wanted.filter_map(|topic| Some(((*topic).clone(), inner.group.clone()?))));
        }
        places
    }
}

/// Events that are on their way into the log, by the time at which they were stamped.
#[derive(Default)]
pub(crate) struct Appending {
    stamps: Mutex<BTreeMap<Millis, usize>>,
}

/// One append; ends when dropped.
struct Stamped<'a>(&'a Appending, Millis);

impl Appending {
    fn begin(&self, stamp: Millis) -> Stamped<'_> {
        *self.stamps.lock().entry(stamp).or_default() += 1;
        Stamped(self, stamp)
    }
}

impl Drop for Stamped<'_> {
    fn drop(&mut self) {
        let mut stamps = self.0.stamps.lock();
        if let Some(count) = stamps.get_mut(&self.1) {
            *count -= 1;
            if *count == 0 {
                stamps.remove(&self.1);
            }
        }
    }
}

/// Longest time between the stamp of an event and its append, with room for clocks that are set.
const STAMPED: Duration = Duration::from_secs(2);
/// The same of events that other hubs append.
const STAMPED_ELSEWHERE: Duration = Duration::from_secs(60);

impl Core {
    /// A time before that of each event that can be read later and cannot yet.
    pub(crate) fn appended_before(&self) -> Millis {
        let first = self.appending.stamps.lock().keys().next().copied();
        let now = self.wall();
        let margin = if self.cluster.is_some() { STAMPED_ELSEWHERE } else { STAMPED };
        Millis(first.unwrap_or(now).min(now).0.saturating_sub(margin.as_millis() as u64))
    }

    /// Appends events, and gives the groups of live patterns their places on topics that begin with them.
    /// **Returned ⇒ durable**, both.
    pub(crate) async fn append(&self, events: Vec<NewEvent>) -> StoreResult<Vec<Outcome>> {
        let _stamped = events.first().map(|first| self.appending.begin(first.appended));
        if self.patterns.is_empty() || self.cluster.is_some() {
            return self.store.append(events).await;
        }
        let runs = events.chunk_by(|one, next| one.topic == next.topic);
        let runs: Vec<(Topic, usize)> = runs.map(|run| (run[0].topic.clone(), run.len())).collect();
        let new: BTreeSet<&Topic> =
            runs.iter().map(|(topic, _)| topic).filter(|topic| !self.store.exists(topic)).collect();
        let places = self.patterns.wanting(new.iter().copied());
        // Both are asked for before anything is waited for, the places first: the store keeps that order, and so do the
        // bursts of a connection among each other.
        let (_, outcomes) = join(self.begin_on(&places), self.store.append(events)).await;
        let outcomes = outcomes?;
        // Whoever subscribed since the look at the patterns.
        let mut all = outcomes.iter();
        let created = runs.iter().filter(|(topic, length)| {
            all.by_ref().take(*length).filter(|one| is_stored(one)).count() > 0 && new.contains(topic)
        });
        let late = self.patterns.wanting(created.map(|(topic, _)| topic));
        self.begin_on(&late.difference(&places).cloned().collect()).await;
        Ok(outcomes)
    }

    /// Lets groups begin at the first event, where they have no place yet. One that cannot be saved is not the
    /// publisher's fault: the subscription joins by itself, and is told.
    async fn begin_on(&self, places: &BTreeSet<Place>) {
        if places.is_empty() {
            return;
        }
        let (begun, room) = (GroupState::begun(self.wall()), self.room_for_groups(places.len()));
        let begin = |(topic, group)| self.store.compare_and_set(topic, group, 0, begun.clone());
        let places = || places.iter().take(room);
        let saves = join_all(places().map(|(topic, group)| begin((topic, group)))).await;
        for ((topic, group), saved) in places().zip(saves) {
            match saved {
                Ok(Saved::Yes(_) | Saved::Conflict) => {}
                Err(error) => tracing::debug!(%topic, %group, %error, "no place yet on a new topic"),
            }
        }
    }
}

fn is_stored(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Stored(appended) if !appended.duplicate)
}
