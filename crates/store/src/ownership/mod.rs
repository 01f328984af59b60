//! The contract of ownership: of several hubs over one store, which one runs a group.
//!
//! ```text
//!   hub a ── heartbeat ──►  a: alive until 12:00:06 (the store's clock)
//!   hub b ── claim ──────►  orders/billing: owner a, epoch 3          ─► relayed to a
//!                           … a is silent until 12:00:06 …
//!   hub b ── claim ──────►  orders/billing: owner b, epoch 4, version + 1
//!   hub a ── save at the version of epoch 3 ─► matches nothing        ─► a steps down
//! ```
//!
//! A hub owns while it is alive, and it is alive by the store's clock. A claim raises the version of the group's state:
//! what an owner before it saves matches nothing, so that [`GroupStore::compare_and_set`](crate::GroupStore) is the
//! fence of the store. [`Fence`] is the fence of everything else: until when, by its own clock, this hub may act.

mod fence;
mod terms;

use std::pin::Pin;
use std::sync::Arc;

use promethean_event::{Group, Topic};

use crate::{GroupState, Pending, Result, Version};

pub use fence::Fence;
pub use terms::{Beat, Duty, Heartbeat, Terms};

/// Another hub of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Peer {
    /// Its name for as long as it is alive; one that comes back has another.
    pub id: Arc<str>,
    /// Where other hubs reach it: `ws://10.0.0.5:8090`.
    pub address: Arc<str>,
}

/// The answer to a claim.
#[derive(Debug, Clone)]
pub enum Claim {
    /// This hub runs the group, and only it can save the group's state.
    Owned(Box<Owned>),
    /// Another hub does.
    Other(Peer),
}

/// A group that this hub has claimed.
#[derive(Debug, Clone)]
pub struct Owned {
    /// How often the group was claimed.
    pub epoch: u64,
    /// What deliveries are numbered from: higher than every number of an owner before.
    pub first_lease: u64,
    /// The state as it was at the claim; none where the group has none on the topic.
    pub state: Option<GroupState>,
    /// What the next save has to expect, also where there is no state yet.
    pub version: Version,
    /// Until when this hub may act as the owner.
    pub fence: Fence,
}

/// Says which hub runs a group.
pub trait Ownership: Send + Sync + 'static {
    /// Claims a group: granted where nobody has it, its owner is no longer alive, or this hub has it already.
    ///
    /// **Granted ⇒ durable**, and every save at a version from before the claim is a
    /// [`Conflict`](crate::Saved::Conflict) from then on.
    fn claim<'a>(&'a self, topic: &'a Topic, group: &'a Group) -> Pending<'a, Claim>;

    /// Gives up what was claimed with `epoch`; nothing where it was claimed again since.
    fn release<'a>(&'a self, topic: &'a Topic, group: &'a Group, epoch: u64) -> Pending<'a, ()>;

    /// The other hub that runs the group; none: nobody, or this one.
    fn owner<'a>(&'a self, topic: &'a Topic, group: &'a Group) -> Pending<'a, Option<Peer>>;

    /// Resolves when a hub is known to be no longer alive.
    fn gone<'a>(&'a self, peer: &'a Peer) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

    /// True if this hub is the one that does what only one has to do. At most now and then, none or two think so.
    fn leads(&self) -> bool;

    /// True if this hub is alive in the cluster, or why not.
    fn ready(&self) -> Result<()>;

    /// The hub goes: everything it owns is free at once.
    fn leave(&self) -> Pending<'_, ()>;
}
