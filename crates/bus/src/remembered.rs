//! The patterns of a group, which outlive its subscribers.
//!
//! A topic that appears after a group's first subscription to a pattern is the group's from its first event, also if no
//! subscriber was there. For each pattern of a group the store keeps a state under a topic of the hub's own, which has no
//! events; its generation is the time of the first subscription. On a topic without a position the time of the first event
//! decides.

use std::sync::atomic::{AtomicUsize, Ordering};

use promethean_event::{From, Group, Millis, Selector, Topic};
use promethean_store::{GroupState, ReadMax, Saved};
use tokio::sync::OnceCell;

use crate::Error;
use crate::bus::Core;
use crate::subscription::Inner;

/// The topic of the states. Their groups begin with `GROUP`, as no group of a client does.
const TOPIC: &str = "promethean.patterns";
const GROUP: &str = "promethean:pattern:";

/// Most patterns of groups that are remembered.
const MOST: usize = 100_000;

/// True if the group only says that a pattern is remembered.
pub(crate) fn is_own(group: &Group) -> bool {
    group.as_str().starts_with(GROUP)
}

/// Patterns that are remembered in the store, counted with the first one.
#[derive(Default)]
pub(crate) struct Remembered {
    count: OnceCell<AtomicUsize>,
}

/// The patterns of a subscription, each with the time of the group's first subscription to it.
pub(crate) struct Known<'i> {
    inner: &'i Inner,
    patterns: Vec<(&'i Selector, Option<Millis>)>,
}

impl<'i> Known<'i> {
    /// Loads what is known of the patterns of a subscription.
    pub(crate) async fn load(inner: &'i Inner) -> Result<Self, Error> {
        let mut patterns = Vec::new();
        if let Some(group) = inner.group.as_ref().filter(|_| inner.relayed.is_none()) {
            for selector in inner.selectors.iter().filter(|one| matches!(one, Selector::Pattern(_))) {
                let (topic, name) = place(selector, group)?;
                let state = inner.core.store.load(&topic, &name).await.map_err(|error| Error::group(&error))?;
                patterns.push((selector, state.map(|(state, _)| Millis(state.generation))));
            }
        }
        Ok(Self { inner, patterns })
    }

    /// True if a topic appeared after the group's first subscription to a pattern that selects it.
    pub(crate) async fn appeared(&self, topic: &Topic) -> Result<bool, Error> {
        let since = self.patterns.iter().filter(|(selector, _)| selector.matches(topic)).filter_map(|one| one.1);
        let Some(since) = since.min() else { return Ok(false) };
        let read = self.inner.core.store.read(topic, 0, ReadMax::events(1)).await;
        let first = read.map_err(|error| Error::group(&error))?;
        Ok(first.first().is_some_and(|first| first.appended >= since))
    }

    /// The start of a new position on a topic.
    pub(crate) async fn start(&self, topic: &Topic, from: From) -> Result<From, Error> {
        Ok(if self.appeared(topic).await? { From::Earliest } else { from })
    }

    /// Remembers the patterns that are new, from `now` on. **Returned ⇒ durable.**
    pub(crate) async fn remember(&self, now: Millis) -> Result<(), Error> {
        let (core, Some(group)) = (&self.inner.core, &self.inner.group) else { return Ok(()) };
        for (selector, _) in self.patterns.iter().filter(|one| one.1.is_none()) {
            let (topic, name) = place(selector, group)?;
            let count = core.remembered.count(core, &topic).await?;
            if count.load(Ordering::Relaxed) >= MOST {
                tracing::warn!(pattern = selector.as_str(), %group, "too many patterns are remembered");
                return Ok(());
            }
            let saved = core.store.compare_and_set(&topic, &name, 0, GroupState::begun(now)).await;
            if let Saved::Yes(_) = saved.map_err(|error| Error::group(&error))? {
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(())
    }
}

impl Remembered {
    /// Returns their number; 0 before the first one is needed.
    pub(crate) fn known(&self) -> usize {
        self.count.get().map_or(0, |count| count.load(Ordering::Relaxed))
    }

    async fn count(&self, core: &Core, topic: &Topic) -> Result<&AtomicUsize, Error> {
        let count = async || {
            let groups = core.store.groups(topic).await.map_err(|error| Error::group(&error))?;
            Ok(AtomicUsize::new(groups.len()))
        };
        self.count.get_or_try_init(count).await
    }
}

/// The topic and group under which a pattern of a group is remembered.
fn place(selector: &Selector, group: &Group) -> Result<(Topic, Group), Error> {
    let hash = xxhash_rust::xxh3::xxh3_128(format!("{}\0{group}", selector.as_str()).as_bytes());
    Ok((Topic::parse(TOPIC)?, Group::parse(&format!("{GROUP}{hash:032x}"))?))
}
