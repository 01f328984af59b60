//! The WebSocket gateway: one JSON object a text frame, every client frame answered once.
//!
//! A connection's way: [`upgrade`](router) (handshake, origin, `Authorization`) → `session`, one task that reads every
//! frame that is ready, hands what they ask to the bus as batches and writes answers and deliveries with one system
//! call → `codec`, RFC 6455 over plain buffers. [`Connections`] is what operators see of it. `asyncapi` describes it all to
//! tools.

mod asyncapi;
pub(crate) mod codec;
mod connections;
pub(crate) mod origin;
mod session;
mod upgrade;

pub(crate) use asyncapi::document as asyncapi;
pub use connections::{Connection, Connections, Held};
pub(crate) use session::context;
pub use upgrade::{in_front_of, is_upgrade, router};
