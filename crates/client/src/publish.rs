//! What is published, and what comes back.

use promethean_event::{EventId, IdMaker, Invalid, Millis, PublishOptions, Topic, payload_of};
use serde::Serialize;
use serde_json::value::RawValue;

/// Where a published event is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Published {
    /// Its id.
    pub id: EventId,
    /// Its place in the topic.
    pub seq: u64,
    /// The id was on the topic before this call. Never set for what had to be sent again after a lost connection,
    /// where it would mean no more than that the first try had arrived.
    pub duplicate: bool,
}

/// An event to be published.
#[derive(Debug, Clone)]
pub struct Publish {
    pub(crate) payload: Box<RawValue>,
    pub(crate) options: PublishOptions<'static>,
}

impl Publish {
    /// An event with `value` as its payload.
    ///
    /// # Errors
    /// `bad_json`: the value does not serialise.
    pub fn new<T: Serialize + ?Sized>(value: &T) -> Result<Self, Invalid> {
        Ok(Self::raw(payload_of(value)?))
    }

    /// An event with these bytes as its payload, kept as they are.
    pub fn raw(payload: Box<RawValue>) -> Self {
        Self { payload, options: PublishOptions::default() }
    }

    /// The same with a key.
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.options.key = Some(key.into().into());
        self
    }

    /// The same with an id of its own: published again, it stays once.
    #[must_use]
    pub fn id(mut self, id: EventId) -> Self {
        self.options.id = Some(id);
        self
    }

    /// The same with these options.
    #[must_use]
    pub fn options(mut self, options: PublishOptions<'static>) -> Self {
        self.options = options;
        self
    }

    /// Checks it and gives it what it lacks: an id, the publisher's name.
    pub(crate) fn seal(&mut self, ids: &IdMaker, name: Option<&str>) -> Result<(), Invalid> {
        self.options.check()?;
        self.options.id.get_or_insert_with(|| ids.next(Millis::now()));
        if let (None, Some(name)) = (&self.options.sid, name) {
            self.options.sid = Some(name.to_owned().into());
        }
        Ok(())
    }
}

/// Checks a topic's name before anything is sent.
pub(crate) fn topic(name: &str) -> Result<Topic, Invalid> {
    Topic::parse(name)
}
