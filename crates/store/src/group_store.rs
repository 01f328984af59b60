//! The contract of group state: one value per (topic, group) with a version, saved by compare-and-set.

use promethean_event::{Group, Topic};

use crate::{Error, GroupState, Pending, Result};

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

/// A state to save, if the version is still `expected` (0: if there is none).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Save {
    /// The topic.
    pub topic: Topic,
    /// The group.
    pub group: Group,
    /// The version that it replaces.
    pub expected: Version,
    /// The new state.
    pub state: GroupState,
}

/// Keeps what groups have done.
pub trait GroupStore: Send + Sync + 'static {
    /// The state and its version; `None` when the group has none on the topic.
    fn load<'a>(&'a self, topic: &'a Topic, group: &'a Group) -> Pending<'a, Option<(GroupState, Version)>>;

    /// Saves many states at once, each with an outcome of its own; a group stands in a call once. An error in place of
    /// outcomes: none was saved.
    ///
    /// **Returned ⇒ durable**, as an append is. The embedded engine writes one journal frame for all, unless they are large.
    fn save_many(&self, saves: Vec<Save>) -> Pending<'_, Vec<Result<Saved>>>;

    /// Saves `state` if the version is still `expected` (0: if there is none). **Returned ⇒ durable.**
    fn compare_and_set<'a>(
        &'a self,
        topic: &'a Topic,
        group: &'a Group,
        expected: Version,
        state: GroupState,
    ) -> Pending<'a, Saved> {
        let save = Save { topic: topic.clone(), group: group.clone(), expected, state };
        let saved = self.save_many(vec![save]);
        Box::pin(async move { saved.await?.pop().unwrap_or_else(|| Err(Error::Unknown("no outcome".to_owned()))) })
    }

    /// The groups of a topic with their state, sorted by name.
    fn groups<'a>(&'a self, topic: &'a Topic) -> Pending<'a, Vec<(Group, GroupState)>>;

    /// The topics that groups have a place on, with or without events, sorted.
    fn topics_of_groups(&self) -> Pending<'_, Vec<Topic>>;

    /// Forgets a group on a topic. **Returned ⇒ durable.** `false`: there was none.
    fn forget<'a>(&'a self, topic: &'a Topic, group: &'a Group) -> Pending<'a, bool>;
}
