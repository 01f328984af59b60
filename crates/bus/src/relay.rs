//! The contract of relays: how a hub has its subscribers served by the hub that owns their group.
//!
//! Whoever composes the hub brings [`Relays`]: the bus knows no addresses and no wire. Deliveries come up as data,
//! through a bounded channel; answers go down by calls.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use promethean_event::{Cursor, Event, EventId, From, Group, Seq, Topic};
use promethean_store::{Fence, Ownership, Peer};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::group::{Answer, MemberOptions, Policy, Receipt};
use crate::inbox::SubscriptionId;
use crate::{Error, GroupStatus};

/// What a hub of a cluster has more than a hub alone.
#[derive(Clone)]
pub struct Cluster {
    /// Says who owns a group.
    pub ownership: Arc<dyn Ownership>,
    /// The way to other owners.
    pub relays: Arc<dyn Relays>,
}

/// Set in the number of a member that is a subscriber of another hub.
pub const FOREIGN: SubscriptionId = 1 << 63;

/// Where a group's place goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeekTo {
    /// To such a place.
    Place(From),
    /// To after this seq.
    Seq(Seq),
}

impl SeekTo {
    /// The place at which the event with the seq `next`, or the first one after it, follows.
    pub fn next(next: Seq) -> Self {
        Self::Seq(next.saturating_sub(1))
    }
}

impl std::convert::From<From> for SeekTo {
    fn from(place: From) -> Self {
        Self::Place(place)
    }
}

/// A dead-lettered event that its group takes in again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Redrive {
    /// The event.
    pub id: EventId,
    /// Its place.
    pub seq: Seq,
    /// Place of its dead letter on the dead-letter topic.
    pub letter: Seq,
}

/// The subscriber behind a member that another hub has sent here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The other hub.
    pub hub: Box<str>,
    /// The subscription's number there.
    pub subscription: SubscriptionId,
}

/// What asking another hub returns: a boxed future that borrows nothing.
pub type Relaying<T> = Pin<Box<dyn Future<Output = Result<T, RelayError>> + Send>>;

/// Why another hub did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RelayError {
    /// It owns the group and refuses: the subscriber is told.
    Refused(Error),
    /// It cannot be reached, or does not own the group any more. Whether it did what it was asked is not known.
    Lost(String),
}

/// The way to the owners of groups on other hubs.
pub trait Relays: Send + Sync + 'static {
    /// Joins a group at its owner, for one subscriber of this hub. Deliveries come through `join.deliveries`.
    fn join(&self, owner: &Peer, join: RelayJoin) -> Relaying<(Cursor, Box<dyn Remote>)>;

    /// Moves a group's place.
    fn seek(&self, owner: &Peer, topic: &Topic, group: &Group, to: SeekTo) -> Relaying<Cursor>;

    /// Takes dead-lettered events into the group again; which of them are there.
    fn redrive(&self, owner: &Peer, topic: &Topic, group: &Group, letters: Vec<Redrive>) -> Relaying<Vec<bool>>;

    /// How a group stands, with or without what is unfinished.
    fn status(&self, owner: &Peer, topic: &Topic, group: &Group, unfinished: bool) -> Relaying<Option<GroupStatus>>;
}

/// A subscriber that joins a group on another hub.
pub struct RelayJoin {
    /// Its number on this hub.
    pub subscription: SubscriptionId,
    /// The topic.
    pub topic: Topic,
    /// The group.
    pub group: Group,
    /// What it may differ in from other members.
    pub options: MemberOptions,
    /// What it has to share with them.
    pub policy: Policy,
    /// Where to begin while the group has no place.
    pub from: From,
    /// It wants no deliveries yet.
    pub paused: bool,
    /// Where its deliveries go, and at the end why there are no more.
    pub deliveries: mpsc::Sender<(SubscriptionId, Relayed)>,
}

/// What comes from the owner of a group.
#[derive(Debug)]
pub enum Relayed {
    /// Deliveries.
    Given(Vec<RelayGiven>),
    /// There are no more: the owner is gone, or is the owner no longer.
    Lost(String),
}

/// An event that the owner of a group gives to a subscriber of this hub.
#[derive(Debug, Clone)]
pub struct RelayGiven {
    /// The event.
    pub event: Event,
    /// The how-manieth delivery.
    pub attempt: u32,
    /// Deliveries before it is dead-lettered; 0: no limit.
    pub max_attempts: u32,
    /// The number of this delivery.
    pub lease: u64,
    /// How long it may take to be answered.
    pub left: Duration,
    /// It belongs to a snapshot start.
    pub snapshot: bool,
    /// It was redriven from a dead letter.
    pub redriven: bool,
    /// Until when it may be passed on: the owner gives it to others soon after.
    pub fence: Fence,
}

/// A member on another hub. Dropping it leaves; what it holds goes back.
pub trait Remote: Send + Sync {
    /// Answers deliveries. What is called first reaches the owner first.
    fn answer(&self, ids: Vec<(EventId, Option<u64>)>, answer: Answer) -> Relaying<Vec<Receipt>>;

    /// Acks an event and all before it.
    fn ack_up_to(&self, id: EventId, lease: Option<u64>) -> Relaying<()>;

    /// Stops deliveries or goes on with them.
    fn pause(&self, paused: bool);
}
