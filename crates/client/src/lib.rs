//! The Rust client of a Promethean hub.
//!
//! ```no_run
//! # async fn example() -> Result<(), promethean_client::Error> {
//! use promethean_client::{Client, SubscribeOptions};
//!
//! let hub = Client::builder("ws://127.0.0.1:8090").token("…").connect().await?;
//! hub.publish("heartbeat.received", &serde_json::json!({"pid": 1234})).await?;
//!
//! let mut events = hub.subscribe("heartbeat.received", Some("ops"), SubscribeOptions::default()).await?;
//! while let Some(delivery) = events.next().await? {
//!     println!("{}", delivery.event().payload.get());
//!     delivery.ack().await?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # What it promises
//!
//! - A publish that returned `Ok` is as durable as the hub's store says. Every event gets its id here, before it is
//!   sent: what was not confirmed when the connection was lost is sent again with the same id, and stays once.
//! - A token that a source hands out ([`Builder::token_from`]) is renewed before it runs out; the connection stays.
//! - Subscriptions come back by themselves after a reconnect, and where the hub could not serve them for a while
//!   (`ack_failed`); so do acks that were under way.
//! - At most `window` publishes and 64 MiB of payloads are unconfirmed at a time; the next one waits.
//! - A refusal carries the contract's code, and whether trying again makes sense; a failed batch names all its ids.
//! - With several addresses ([`Builder::address`]) the next one is tried after each failure.
//! - A handler that fails and a subscription that ends for good are reported ([`Builder::on_error`]).
//!
//! The page `docs/guide/clients.md` has the states of a connection and what each call does in them.
//!
//! # Layout
//!
//! [`Client`] is a cloneable handle → commands → one `driver` task that owns the connection (`wire`) and everything
//! that waits for an answer (`pending`).

mod client;
mod delivery;
mod driver;
mod error;
mod handler;
mod link;
mod mailbox;
mod options;
mod pending;
mod publish;
mod queue;
mod report;
mod settings;
mod settlement;
mod subscription;
mod token;
mod window;
mod wire;

pub use client::Client;
pub use delivery::{Delivery, Received};
pub use error::Error;
pub use handler::Handling;
pub use link::{Link, LinkReader, LinkWriter};
pub use options::SubscribeOptions;
pub use publish::{Publish, Published};
pub use report::Report;
pub use settings::Builder;
pub use subscription::Subscription;

pub use promethean_event::frame::DeliveryContext;
pub use promethean_event::frame::ask::GiveBack;
pub use promethean_event::{Code, EventId, Filter, From, Group, Invalid, Millis, Ordered, PublishOptions, Topic};

/// The programs of the guides compile.
#[cfg(doctest)]
mod guides {
    #[doc = include_str!("../../../docs/guide/delivery.md")]
    struct Delivery;
    #[doc = include_str!("../../../docs/guide/security.md")]
    struct Security;
    #[doc = include_str!("../../../docs/guide/migrating-from-nats.md")]
    struct FromNats;
    #[doc = include_str!("../../../docs/guide/migrating-from-redis-streams.md")]
    struct FromRedisStreams;
}
