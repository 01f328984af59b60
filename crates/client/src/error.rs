//! Why the client could not do what it was asked.

use std::time::Duration;

use promethean_event::frame::Refusal;
use promethean_event::{Code, EventId, Invalid};

/// A failure. [`Error::is_retryable`] says whether the same call may work later.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The hub refused it.
    #[error("{code}: {message}")]
    Refused {
        /// The contract's code.
        code: String,
        /// For people.
        message: String,
        /// When to try again, where the hub says so.
        retry_after: Option<Duration>,
    },
    /// It was refused before it was sent.
    #[error("{0}")]
    Invalid(Invalid),
    /// Nobody answers at that address, or not a hub.
    #[error("cannot connect to {url}: {reason}")]
    Connect {
        /// Where.
        url: String,
        /// Why not.
        reason: String,
    },
    /// The connection was lost before the answer came, and the question makes no sense on a new one.
    #[error("the connection was lost before the hub answered")]
    Lost,
    /// The client was closed.
    #[error("the client is closed")]
    Closed,
    /// A publish failed after its events had their ids.
    #[error("{error}")]
    Publish {
        /// The reason.
        error: Box<Error>,
        /// The ids of its events, in their order: published again with them, each stays once.
        ids: Vec<EventId>,
    },
}

impl Error {
    /// The contract's code, where the hub (or the check before sending) gave one.
    pub fn code(&self) -> Option<Code> {
        match self.cause() {
            Error::Refused { code, .. } => Code::parse(code),
            Error::Invalid(invalid) => Some(invalid.code),
            _ => None,
        }
    }

    /// The reason of a failed publish, without the ids; else the error itself.
    pub fn cause(&self) -> &Error {
        match self {
            Error::Publish { error, .. } => error.cause(),
            other => other,
        }
    }

    /// The ids of the events that a failed publish or batch was to store. Empty for other failures, and for events that
    /// were refused before they had an id.
    pub fn ids(&self) -> &[EventId] {
        match self {
            Error::Publish { ids, .. } => ids,
            _ => &[],
        }
    }

    /// When to try again, where the hub says so.
    pub fn retry_after(&self) -> Option<Duration> {
        match self.cause() {
            Error::Refused { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// True if the same call may work later.
    pub fn is_retryable(&self) -> bool {
        match self.cause() {
            Error::Connect { .. } | Error::Lost => true,
            Error::Refused { .. } => matches!(
                self.code(),
                Some(Code::RateLimited | Code::ShuttingDown | Code::PublishFailed | Code::AckFailed)
            ),
            _ => false,
        }
    }

    /// True if the hub does not know the client, or does not let it do this.
    pub fn is_denied(&self) -> bool {
        self.code().is_some_and(Code::is_denial)
    }

    /// The failure of a publish of these events.
    pub(crate) fn of(self, ids: Vec<EventId>) -> Self {
        Error::Publish { error: Box::new(self), ids }
    }

    pub(crate) fn refused(refusal: &Refusal<'_>) -> Self {
        Error::Refused {
            code: refusal.code_text.clone().into_owned(),
            message: refusal.message.clone().into_owned(),
            retry_after: refusal.retry_after,
        }
    }
}

impl From<Invalid> for Error {
    fn from(invalid: Invalid) -> Self {
        Error::Invalid(invalid)
    }
}
