//! The real binary from outside: starts it, speaks the contract's frames to it, kills it.
//!
//! Nothing here uses the crates of the hub: what these tests read is what any client would.

mod http;
mod hub;
mod ledger;
pub mod transcript;
mod wire;

pub use http::{Response, get, request};
pub use hub::{Hub, Setup, binary, promethean, run};
pub use ledger::{Ledger, replay};
pub use wire::Wire;
