//! Why the bus could not do what it was asked.

use promethean_event::{Code, Invalid, Topic};
use promethean_store::Error as StoreError;

/// A refusal or failure: a stable code and words for people that name the remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// The stable code.
    pub code: Code,
    /// What happened and what to do.
    pub message: String,
}

impl Error {
    /// An error with `code`.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// The hub is draining.
    pub fn shutting_down() -> Self {
        Self::new(Code::ShuttingDown, "the hub is shutting down; connect again in a moment")
    }

    /// The topic does not exist.
    pub(crate) fn unknown_topic(topic: &Topic) -> Self {
        let message = format!("there is no topic {topic}; create it with PUT /topics, or look for a typing error");
        Self::new(Code::UnknownTopic, message)
    }

    /// The topic of a subscription was deleted.
    pub(crate) fn topic_deleted(topic: &Topic) -> Self {
        Self::new(Code::TopicDeleted, format!("the topic {topic} was deleted; subscribe again if it is to exist"))
    }

    pub(crate) fn publish(error: &StoreError) -> Self {
        Self::new(Code::PublishFailed, error.to_string())
    }

    pub(crate) fn group(error: &StoreError) -> Self {
        Self::new(Code::AckFailed, error.to_string())
    }

    pub(crate) fn unknown_id(field: &str, id: promethean_event::EventId) -> Self {
        Self::new(Code::UnknownId, format!("{field}: no event of this topic has the id {id}"))
    }
}

impl From<Invalid> for Error {
    fn from(invalid: Invalid) -> Self {
        Self { code: invalid.code, message: invalid.to_string() }
    }
}
