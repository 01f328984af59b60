//! Reads: ranges of a topic by seq, and the latest event of each key.

mod keys;
mod read;
