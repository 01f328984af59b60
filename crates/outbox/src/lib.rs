//! The transactional outbox: the business write and the event commit together, and a consumer's effect happens once.
//!
//! # Layout, in the order of a row's life
//!
//! [`NewRow`] is what a service adds, in its own transaction ([`SqliteOutbox`], [`MongoOutbox`]). [`OutboxStore`] is the
//! contract that the drainer works against; [`plan`] are its decisions, pure; [`Drainer`] carries them out and hands
//! rows to a [`Publisher`]: a hub over WebSocket (feature `client`), or a bus in the same process (feature `bus`).
//! On the other side, [`exactly_once`] and the `transactional` forms keep a consumer from doing a thing twice.
//!
//! ```text
//!   service                    drainer                         hub
//!   BEGIN                      claim_batch ──► claimed
//!     business write           publish, id = the row's ─────►  appended, or known already
//!     add ──► pending          mark_sent ──► sent
//!   COMMIT                     error ──► pending again, later; or parked as `error`
//! ```
//!
//! # What it promises
//!
//! - An event is published if and only if the transaction that added its row committed, and then once: the row's id is
//!   the event's id, so that a drainer that dies between publish and mark leaves one event in the log.
//! - Rows of one key are published in the order they were added: a later one waits while an earlier one is unfinished.
//!   A row that was parked counts as finished.
//! - Nothing of this needs the hub to be up when the service writes.

mod drainer;
mod error;
mod failure;
#[cfg(feature = "mongo")]
mod mongo;
mod once;
pub mod plan;
mod publisher;
mod row;
#[cfg(any(feature = "sqlite", feature = "mongo"))]
mod seal;
#[cfg(feature = "sqlite")]
mod sqlite;
mod store;

pub use drainer::{Drainer, Settings, Snapshot, drain};
pub use error::{Error, Result};
pub use failure::Answer;
#[cfg(feature = "mongo")]
pub use mongo::{MongoDedupe, MongoOutbox};
pub use once::{DEFAULT_TTL, DedupeStore, Handled, MemoryDedupe, Once, exactly_once};
#[cfg(feature = "bus")]
pub use publisher::bus::BusPublisher;
#[cfg(feature = "client")]
pub use publisher::client::ClientPublisher;
pub use publisher::{Answers, Publisher};
pub use row::{NewRow, Row, Status};
#[cfg(feature = "sqlite")]
pub use sqlite::{SqliteDedupe, SqliteOutbox};
pub use store::{Claim, Failed, List, Next, OutboxStore, Pending, Schema, Stats, Which};

pub use promethean_event::{Code, Draft, EventId, Identified, Invalid, Millis, PublishOptions, Topic};

/// The code of the guide is compiled and run with the tests.
#[cfg(all(doctest, feature = "sqlite", feature = "mongo", feature = "client"))]
#[doc = include_str!("../../../docs/guide/outbox.md")]
struct Guide;
