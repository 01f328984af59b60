//! Bounds on the topics, groups and patterns of the hub. Over one, a new one is refused with `limit_reached`, and everything
//! that exists is served as before. Topics and groups of the hub's own (dead letters, snapshots) are not refused.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use promethean_event::{Code, Group, NewEvent, Selector, Topic};
use promethean_store::TopicSettings;

use crate::bus::Core;
use crate::{Bus, Error, OWN_GROUPS};

/// The most topics, groups and patterns of a hub.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Topics.
    pub topics: usize,
    /// Groups over all topics.
    pub groups: usize,
    /// Patterns of all subscriptions.
    pub patterns: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { topics: 1_000_000, groups: 1_000_000, patterns: 100_000 }
    }
}

/// A bounded kind of thing with its number and bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// `topics`, `groups` or `patterns`.
    pub kind: &'static str,
    /// Their number.
    pub used: usize,
    /// Their bound.
    pub max: usize,
}

/// A kind, its bound, and whether the operator was warned.
#[derive(Debug)]
struct Bound {
    kind: &'static str,
    max: usize,
    warned: AtomicBool,
}

impl Bound {
    fn new(kind: &'static str, max: usize) -> Self {
        Self { kind, max, warned: AtomicBool::new(false) }
    }

    /// Checks that there may be `used` of them; warns once at 80 %.
    fn admit(&self, used: usize) -> Result<(), Error> {
        let Self { kind, max, .. } = self;
        if used.saturating_mul(5) >= max.saturating_mul(4) && !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(used, max, "the hub has 80 % of its {kind}; raise max_{kind} before it is full");
        }
        if used <= *max {
            return Ok(());
        }
        Err(self.refusal())
    }

    fn refusal(&self) -> Error {
        let Self { kind, max, .. } = self;
        let message = format!("the hub has {max} {kind} (max_{kind}); remove some, or raise the limit");
        Error::new(Code::LimitReached, message)
    }
}

/// The bounds of a hub, and the number of its patterns.
#[derive(Debug)]
pub(crate) struct Bounded {
    topics: Bound,
    groups: Bound,
    patterns: Bound,
    pattern_count: AtomicUsize,
}

impl Bounded {
    pub(crate) fn new(bounds: Bounds) -> Self {
        Self {
            topics: Bound::new("topics", bounds.topics),
            groups: Bound::new("groups", bounds.groups),
            patterns: Bound::new("patterns", bounds.patterns),
            pattern_count: AtomicUsize::new(0),
        }
    }
}

/// The patterns of a subscription, counted until this is dropped.
pub(crate) struct CountedPatterns {
    core: Arc<Core>,
    count: usize,
}

impl CountedPatterns {
    /// Counts the patterns among the selectors.
    pub(crate) fn admit(core: &Arc<Core>, selectors: &[Selector]) -> Result<Self, Error> {
        let count = selectors.iter().filter(|selector| matches!(selector, Selector::Pattern(_))).count();
        let before = core.bounded.pattern_count.fetch_add(count, Ordering::Relaxed);
        let counted = Self { core: Arc::clone(core), count };
        if count > 0 {
            core.bounded.patterns.admit(before + count)?;
        }
        Ok(counted)
    }
}

impl Drop for CountedPatterns {
    fn drop(&mut self) {
        self.core.bounded.pattern_count.fetch_sub(self.count, Ordering::Relaxed);
    }
}

impl Core {
    /// The topics of these events that would be new and over the bound. Publishes at the same moment may pass it together.
    pub(crate) fn refused_topics(&self, events: &[NewEvent]) -> HashSet<Topic> {
        let runs = events.chunk_by(|one, next| one.topic == next.topic).map(|run| &run[0].topic);
        let mut fresh: Vec<&Topic> = runs.filter(|topic| !self.store.exists(topic)).collect();
        if fresh.is_empty() {
            return HashSet::new();
        }
        fresh.sort_unstable();
        fresh.dedup();
        let mut used = self.store.counts().topics;
        let mut refused = HashSet::new();
        for topic in fresh {
            // It may have settings already: then it is counted.
            let more = usize::from(self.store.settings(topic) == TopicSettings::default());
            match self.bounded.topics.admit(used + more) {
                Ok(()) => used += more,
                Err(_) => _ = refused.insert(topic.clone()),
            }
        }
        refused
    }

    /// The refusal of a topic over the bound.
    pub(crate) fn too_many_topics(&self) -> Error {
        self.bounded.topics.refusal()
    }

    /// Checks that the hub may have a group more.
    pub(crate) fn admit_group(&self, group: &Group) -> Result<(), Error> {
        if group.as_str().starts_with(OWN_GROUPS) {
            return Ok(());
        }
        self.bounded.groups.admit(self.group_count() + 1)
    }

    /// Returns the number of groups, without the states that only remember a pattern.
    fn group_count(&self) -> usize {
        self.store.counts().groups.saturating_sub(self.remembered.known())
    }

    /// Returns the part of `wanted` new groups that the hub has room for.
    pub(crate) fn room_for_groups(&self, wanted: usize) -> usize {
        let used = self.group_count();
        let room = self.bounded.groups.max.saturating_sub(used).min(wanted);
        let _ = self.bounded.groups.admit(used + room);
        room
    }
}

impl Bus {
    /// The bounded kinds: topics, groups, patterns.
    pub fn usage(&self) -> [Usage; 3] {
        let Bounded { topics, groups, patterns, pattern_count } = &self.core.bounded;
        let counts = self.core.store.counts();
        let usage = |bound: &Bound, used| Usage { kind: bound.kind, used, max: bound.max };
        [
            usage(topics, counts.topics),
            usage(groups, self.core.group_count()),
            usage(patterns, pattern_count.load(Ordering::Relaxed)),
        ]
    }

    /// Checks that there is room for this topic; there is for one that exists or has settings.
    ///
    /// # Errors
    /// `limit_reached`.
    pub fn admit_topic(&self, topic: &Topic) -> Result<(), Error> {
        let Core { store, bounded, .. } = &*self.core;
        if store.exists(topic) || store.settings(topic) != TopicSettings::default() {
            return Ok(());
        }
        bounded.topics.admit(store.counts().topics + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_warns_once_at_four_fifths_and_refuses_beyond() {
        let bound = Bound::new("topics", 10);
        for used in 0..=10 {
            bound.admit(used).expect("within the bound");
            assert_eq!(bound.warned.load(Ordering::Relaxed), used >= 8, "{used}");
        }
        let refused = bound.admit(11).expect_err("over it");
        assert_eq!(refused.code, Code::LimitReached);
        assert!(refused.message.contains("max_topics"), "{refused}");
    }
}
