//! RFC 6455 for the hub's side of a connection, over plain buffers.
//!
//! A library would hand out one owned message a call and write one frame a call. Here every frame that one read brought
//! is unmasked in place and borrowed from the read buffer, and all answers and deliveries that are ready leave with one
//! write. An idle connection keeps 2 KiB. No extensions; `docs/internals/decisions/0001-websocket-codec.md` has the argument.

mod decoder;
mod mask;
mod outbox;

pub(crate) use decoder::{Allowance, Decoder, Message};
pub(crate) use outbox::Outbox;
