//! Dead letters: what one holds, writing them, and sending them back.

pub(crate) mod envelope;
mod redrive;
pub(crate) mod write;

pub use envelope::Envelope;
pub use redrive::{Letters, OWN_GROUPS, REDRIVE_GROUP, RedriveTo, Redriven};
