//! Failures that no call waits for.

use std::fmt;
use std::sync::Arc;

use promethean_event::EventId;

use crate::Error;

/// A failure that no call of the program waits for. Its text is a line for people.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Report<'a> {
    /// A handler failed, and its event is redelivered or becomes a dead letter.
    Handler {
        /// The event's topic.
        topic: &'a str,
        /// The event.
        id: EventId,
        /// The delivery that failed, from 1.
        attempt: u32,
        /// The handler's error or the text of its panic.
        reason: &'a str,
    },
    /// A subscription with handlers has ended for good.
    Ended {
        /// Its topic or pattern.
        topic: &'a str,
        /// Its group.
        group: &'a str,
        /// The reason.
        error: &'a Error,
    },
    /// A connection was lost or not made. The client connects again by itself.
    Connection {
        /// The hub's address.
        url: &'a str,
        /// The reason.
        error: &'a Error,
    },
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Report::Handler { topic, id, attempt, reason } => {
                write!(f, "the handler of event {id} on {topic} failed (attempt {attempt}): {reason}")
            }
            Report::Ended { topic, group, error } => {
                write!(f, "the subscription of {group} to {topic} has ended: {error}")
            }
            Report::Connection { url, error } => write!(f, "the connection to {url} was lost: {error}"),
        }
    }
}

type Callback = dyn Fn(Report<'_>) + Send + Sync;

/// The callback that takes reports. Without one, they go to standard error, those of connections to the log.
#[derive(Clone, Default)]
pub(crate) struct Reporter(Option<Arc<Callback>>);

impl Reporter {
    pub(crate) fn new(report: impl Fn(Report<'_>) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(report)))
    }

    pub(crate) fn report(&self, report: Report<'_>) {
        match (&self.0, report) {
            (Some(callback), report) => callback(report),
            (None, Report::Connection { url, error }) => tracing::debug!(url, %error, "the connection was lost"),
            (None, report) => eprintln!("promethean: {report}"),
        }
    }
}
