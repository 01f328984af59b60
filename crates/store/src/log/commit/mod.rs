//! The commit path: the queue of appends, the writer that puts them into the journal, and the bytes of both.

pub(super) mod codec;
pub(super) mod entry;
pub(super) mod journal;
pub(super) mod queue;
pub(super) mod writer;
