//! Reads: ranges of a topic by seq, and the latest event of each key.

pub(in crate::log) mod keys;
mod read;
