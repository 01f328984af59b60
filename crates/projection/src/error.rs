//! Why a projection stopped.

/// Why a projection stopped. Opening it again goes on where it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The state has more keys than it may.
    #[error("the state has {most} keys already: raise max_keys, or remove keys that are done")]
    TooManyKeys {
        /// The bound.
        most: usize,
    },
    /// A state cannot be published.
    #[error("the state of {key:?} cannot be published: {reason}")]
    State {
        /// The key.
        key: String,
        /// Why not.
        reason: String,
    },
    /// What one event changed is published as one unit, and is more than a hub takes at once.
    #[cfg(feature = "client")]
    #[error(
        "the event {id} changes {keys} keys, {bytes} bytes with their states, and has to be published at once: over a \
         connection that may be {} keys and {} bytes; let the fold change less for one event, or refuse it, which leaves \
         it out",
        crate::folder::MOST_KEYS,
        crate::folder::MOST_BYTES
    )]
    TooMuch {
        /// The event of the input.
        id: promethean_event::EventId,
        /// How many keys it changes.
        keys: usize,
        /// Their bytes, with their states.
        bytes: usize,
    },
    /// Another instance goes on with it.
    #[error("another instance of the projection {name:?} has taken over")]
    Replaced {
        /// The projection.
        name: String,
    },
    /// The input is not the log that the state was folded from.
    #[error(
        "{topic} has other seqs than when this state was made of it (exported and imported?): events would be left out; \
         let the projection write to another output topic, or move the hub with `promethean backup`, which keeps the seqs"
    )]
    Renumbered {
        /// The input.
        topic: String,
    },
    /// The bus refused or failed.
    #[cfg(feature = "bus")]
    #[error(transparent)]
    Bus(#[from] promethean_bus::Error),
    /// The store failed.
    #[cfg(feature = "bus")]
    #[error(transparent)]
    Store(#[from] promethean_store::Error),
    /// The hub refused, or the connection is closed.
    #[cfg(feature = "client")]
    #[error(transparent)]
    Client(#[from] promethean_client::Error),
    /// The client or the bus was closed.
    #[error("the connection was closed")]
    Closed,
}
