//! The network edge of Promethean: WebSocket, HTTP, ops, auth.
//!
//! A connection's way in: [`listener`] (accept, TLS, slots) → a router (`ws`, `http`, `ops`) → [`auth`] (who is it,
//! what may it do) → [`limits`] → the bus. What goes wrong comes back through [`rejection`]. [`Hub`] is what all share.

pub mod audit;
pub mod auth;
mod buffers;
mod caps;
pub mod cluster;
mod dashboard;
pub mod drain;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod head;
pub mod http;
mod hub;
mod leftover;
pub mod limits;
pub mod listener;
pub mod metrics;
pub mod ops;
pub mod rejection;
mod schema;
mod seldom;
pub mod tls;
pub mod trace;
pub mod ws;

pub use buffers::Buffers;
pub use caps::Caps;
pub use hub::{EdgeConfig, Hub};
