//! How a data directory is opened: recovery of the journal, rebuilding of the caches, restoring from a backup.

pub(super) mod rebuild;
pub(super) mod recovery;
pub(super) mod restore;
