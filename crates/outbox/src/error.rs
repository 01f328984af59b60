//! Why an outbox or a dedupe store could not do what it was asked.

/// The result of an operation on a table or collection.
pub type Result<T> = std::result::Result<T, Error>;

/// A failure of the database, or of what was asked of it. The message names the remedy where there is one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The event breaks a rule of the contract: nothing was written.
    #[error("{0}")]
    Invalid(#[from] promethean_event::Invalid),
    /// The table, collection or index is not as it must be.
    #[error("{0}")]
    Schema(String),
    /// The name of a table or collection cannot be used.
    #[error("{0:?} is no name for a table; use letters, digits and _, at most 63, the first one no digit")]
    Name(String),
    /// SQLite failed.
    #[cfg(feature = "sqlite")]
    #[error("SQLite: {0}")]
    Sqlite(#[from] rusqlite::Error),
    /// MongoDB failed.
    #[cfg(feature = "mongo")]
    #[error("MongoDB: {0}")]
    Mongo(#[from] mongodb::error::Error),
    /// The work was cut off: the runtime is going down.
    #[error("cut off: {0}")]
    Aborted(String),
}

impl Error {
    /// Nobody answers where the database should be.
    #[must_use]
    pub fn is_unreachable(&self) -> bool {
        #[cfg(feature = "mongo")]
        if let Self::Mongo(error) = self {
            use mongodb::error::ErrorKind;
            return matches!(
                &*error.kind,
                ErrorKind::ServerSelection { .. } | ErrorKind::Io(_) | ErrorKind::DnsResolve { .. }
            );
        }
        false
    }
}

/// Checks the name of a table or collection, which goes into statements as it is.
#[cfg(any(feature = "sqlite", feature = "mongo"))]
pub(crate) fn name(name: &str) -> Result<&str> {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let starts = name.bytes().next().is_some_and(|first| good(first) && !first.is_ascii_digit());
    if starts && name.len() <= 63 && name.bytes().all(good) { Ok(name) } else { Err(Error::Name(name.to_owned())) }
}
