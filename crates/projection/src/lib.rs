//! State from events: folds a topic into keyed state and publishes it, and keeps tables in step with a keyed topic.
//!
//! A [`Projection`] says how one event changes the state. A projector carries it out: `bus::Projector` in a program
//! that has the bus, `client::Projector` in a service that has only a connection to a hub. What it publishes is a
//! keyed topic like any other: `latest-by-key`, `from: "snapshot"` and compaction work on it.
//!
//! ```
//! use promethean_projection::{Input, Projection, Skip, States};
//!
//! /// How many orders each customer has made.
//! struct Orders;
//!
//! impl Projection for Orders {
//!     type State = u64;
//!     fn fold(&mut self, event: &Input<'_>, states: &mut States<u64>) -> Result<(), Skip> {
//!         let customer = event.key.as_deref().ok_or("an order without a customer")?;
//!         let orders = states.get(customer).copied().unwrap_or(0);
//!         states.set(customer, orders + 1);
//!         Ok(())
//!     }
//! }
//! ```
//!
//! # Exactly once, and how
//!
//! What a batch of events changed is published as one unit, all or none, and every event of it carries the position:
//! up to where the input was folded. State and position are saved by the same append, so a restart, which reads both
//! back from the output topic, neither loses an event nor counts one twice. Nothing else has to be kept anywhere.
//!
//! One instance of a projection runs at a time; a second one that takes over makes the first one stop.
//!
//! # Layout
//!
//! `states` and `folder` decide, without I/O or a clock; `bus` and `client` carry out; [`process`] is the seed's
//! projector of heartbeats; [`changelog`] is the way into SQLite and MongoDB.

#[cfg(feature = "bus")]
pub mod bus;
pub mod changelog;
#[cfg(feature = "client")]
pub mod client;
mod error;
mod folder;
mod input;
pub mod process;
mod settings;
mod states;

pub use error::Error;
pub use folder::{Folder, Output, Position, Projection, Skip};
pub use input::Input;
pub use settings::Settings;
pub use states::States;

/// The programs of the guide compile.
#[cfg(all(doctest, feature = "bus", feature = "sqlite"))]
#[doc = include_str!("../../../docs/guide/state.md")]
pub struct Guide;
