//! The store contracts of Promethean, and the engines behind them.
//!
//! [`EventLog`] keeps events, [`GroupStore`] keeps what groups have done with them; an engine is both ([`Store`]).
//! The contract stands on the traits, with what durability a returned value means. `suite!` (feature `suite`) is the
//! law every engine must pass: one macro, one named test per case.

pub mod backup;
mod error;
mod event_log;
mod group_state;
mod group_store;
mod life;
pub mod log;
pub mod memory;
#[cfg(feature = "mongo")]
pub mod mongo;
mod ownership;
mod pins;
mod ranges;
mod settings;
mod snapshots;
#[cfg(feature = "suite")]
pub mod suite;

use std::future::Future;

use promethean_event::Topic;

pub use error::{Error, Result};
pub use event_log::{
    Appended, EventLog, KeySnapshot, Outcome, Page, Pin, Place, ReadMax, Seek, Start, Tail, TopicInfo,
};
pub use group_state::{Done, GroupState, Mark, SnapshotState, Unfinished};
pub use group_store::{GroupStore, Save, Saved, Version};
pub use ownership::{Beat, Claim, Duty, Fence, Heartbeat, Owned, Ownership, Peer, Terms};
pub use ranges::Ranges;
pub use settings::{Compaction, EventSettings, Retention, SnapshotJob, TopicSettings};
pub use snapshots::SnapshotTargets;

/// What an engine's operations return: a boxed future, so that engines can be named at run time only.
pub type Pending<'a, T> = std::pin::Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// The number of topics and groups of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Topics, also those without events.
    pub topics: usize,
    /// Groups over all topics.
    pub groups: usize,
}

/// An engine: both contracts over one place.
pub trait Store: EventLog + GroupStore {
    /// The engine's name, as the start-up line has it.
    fn name(&self) -> &'static str;

    /// Every topic that it knows something of, sorted: also those that have only settings, or places of groups.
    fn known_topics(&self) -> Pending<'_, Vec<Topic>> {
        Box::pin(async {
            let mut names = self.topics().await?;
            names.extend(self.all_settings().into_iter().map(|(topic, _)| topic));
            names.extend(self.topics_of_groups().await?);
            names.sort();
            names.dedup();
            Ok(names)
        })
    }

    /// Returns the number of topics and groups, from memory. An engine that does not count says 0.
    fn counts(&self) -> Counts {
        Counts::default()
    }

    /// Events that were refused since the start because the disk had no room for them.
    fn refused(&self) -> u64 {
        0
    }

    /// Finishes what was accepted, syncs it and stops. Later calls fail with [`Error::Closed`].
    fn close(&self) -> Pending<'_, ()>;

    /// Resolves when the engine can no longer keep its promises (a failed sync, a lost disk), with the reason.
    /// The process is expected to end then; nothing is retried.
    fn failed(&self) -> std::pin::Pin<Box<dyn Future<Output = String> + Send + '_>>;
}
