//! The vocabulary of Promethean: what an event is, how topics and groups are named, what the wire frames look like.
//!
//! No I/O, no async, no clock. A value of these types is valid: it exists only after `parse` or a builder said so.
//!
//! # Layout, in the order of an event's life
//!
//! [`Draft`] (what a publisher says) → [`NewEvent`] (stamped and serialised once) → [`Event`] (has its `seq`).
//! [`Topic`], [`Group`], [`EventId`], [`TopicPattern`] are the names; [`frame`] is the WebSocket protocol;
//! [`Code`] are the stable error codes, [`Invalid`] a refusal that names the field.

mod code;
mod cursor;
mod draft;
pub mod frame;
mod group;
mod id;
mod identified;
mod invalid;
pub mod json;
mod key_path;
pub mod limits;
mod nearest;
mod options;
mod panic;
mod partition;
mod pattern;
mod record;
pub mod rfc3339;
mod time;
mod topic;
mod wire;

pub use code::Code;
pub use cursor::{Cursor, From};
pub use draft::{Draft, Sealer, payload_of};
pub use group::Group;
pub use id::{EventId, IdMaker};
pub use identified::Identified;
pub use invalid::Invalid;
pub use key_path::KeyPath;
pub use limits::Limits;
pub use nearest::nearest;
pub use options::{Filter, Ordered, PublishOptions, SubscribeOptions};
pub use panic::panic_text;
pub use partition::{DEFAULT_PARTITIONS, partition_of};
pub use pattern::{Selector, TopicPattern};
pub use record::{Event, Fields, Headers, IdOrigin, NewEvent, Seq, Spans};
pub use time::Millis;
pub use topic::Topic;
