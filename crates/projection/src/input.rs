//! An event as a fold sees it, wherever it came from.

use std::borrow::Cow;

use promethean_event::{EventId, Millis, Seq};
use serde::Deserialize;

/// An event as a fold sees it.
#[derive(Debug, Clone)]
pub struct Input<'a> {
    /// The id.
    pub id: EventId,
    /// The place in its topic.
    pub seq: Seq,
    /// Its time.
    pub ts: Millis,
    /// The key.
    pub key: Option<Cow<'a, str>>,
    /// The payload's bytes, as they were sent.
    pub payload: &'a str,
}

impl<'a> Input<'a> {
    /// The payload as a `T`.
    ///
    /// # Errors
    /// It is not one.
    pub fn payload_as<T: Deserialize<'a>>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_str(self.payload)
    }
}

impl<'a> From<&'a promethean_event::Event> for Input<'a> {
    fn from(event: &'a promethean_event::Event) -> Self {
        Self { id: event.id, seq: event.seq, ts: event.ts, key: event.key(), payload: event.payload() }
    }
}

#[cfg(feature = "client")]
impl<'a> From<&'a promethean_client::Received> for Input<'a> {
    fn from(event: &'a promethean_client::Received) -> Self {
        let key = event.key.as_deref().map(Cow::Borrowed);
        Self { id: event.id, seq: event.seq, ts: event.ts, key, payload: event.payload.get() }
    }
}
