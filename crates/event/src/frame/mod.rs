//! The WebSocket frames of the contract: pure text in, values out, and back.
//!
//! A hub reads frames with [`decode`] and writes answers and deliveries with the functions of [`mod@write`]; a client does
//! the reverse with [`ask`] and [`Answer`]. [`shape`] says for documents what is in each, and has it from the types that
//! are read and written. Nothing here knows sockets, tokens or groups' states.
//!
//! Invariants: a payload is never parsed into a tree and never re-written, its bytes stay the publisher's; whatever a
//! frame holds, decoding answers with an [`Invalid`](crate::Invalid) that names the field, and with the `corr` where
//! there is one; memory stays proportional to the frame.

mod answer;
pub mod ask;
mod corr;
mod decode;
pub(crate) mod field;
mod publish;
pub mod shape;
pub(crate) mod split;
mod strays;
mod subscribe;
pub mod write;

pub use answer::{Answer, Delivered, DeliveryContext, Done, Refusal};
pub use corr::Corr;
pub use decode::{Ack, Auth, Frame, Ids, Modack, Nack, Named, Op, Ping, Request, Settled, decode};
pub use publish::{Item, Publish};
pub use subscribe::{NamedOptions, Subscribe};
