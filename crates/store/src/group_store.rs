//! The contract of group state: one value per (topic, group) with a version, saved by compare-and-set.

use promethean_event::{Group, Topic};

use crate::{GroupState, Pending};

/// The version of a saved state; 0: there is none yet.
pub type Version = u64;

/// The answer to a save.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Saved {
    /// Saved; this is its version now.
    Yes(Version),
    /// Somebody else saved since: nothing was changed. The fence in a cluster.
    Conflict,
}

/// Keeps what groups have done.
pub trait GroupStore: Send + Sync + 'static {
    /// The state and its version; `None` when the group has none on the topic.
    fn load<'a>(&'a self, topic: &'a Topic, group: &'a Group) -> Pending<'a, Option<(GroupState, Version)>>;

    /// Saves `state` if the version is still `expected` (0: if there is none).
    ///
    /// **Returned ⇒ durable**, as an append is.
    fn compare_and_set<'a>(
        &'a self,
        topic: &'a Topic,
        group: &'a Group,
        expected: Version,
        state: GroupState,
    ) -> Pending<'a, Saved>;

    /// The groups of a topic with their state, sorted by name.
    fn groups<'a>(&'a self, topic: &'a Topic) -> Pending<'a, Vec<(Group, GroupState)>>;

    /// The topics that groups have a place on, with or without events, sorted.
    fn topics_of_groups(&self) -> Pending<'_, Vec<Topic>>;

    /// Forgets a group on a topic. **Returned ⇒ durable.** `false`: there was none.
    fn forget<'a>(&'a self, topic: &'a Topic, group: &'a Group) -> Pending<'a, bool>;
}
