//! Why a store could not do what it was asked.

/// The result of a store's operation.
pub type Result<T> = std::result::Result<T, Error>;

/// A failure of the store. The message names the remedy where there is one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Nothing was stored, and the store works on: no room, over a bound. May be tried again later.
    #[error("{0}")]
    Refused(String),
    /// True if it was stored is not known: the answer was lost, a sync failed.
    #[error("the outcome is unknown: {0}")]
    Unknown(String),
    /// The store is damaged or broken at the place that the message names.
    #[error("{0}")]
    Damaged(String),
    /// The store has been closed or has failed for good.
    #[error("the store is closed: {0}")]
    Closed(String),
}
