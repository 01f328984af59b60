//! The payload of a dead letter: one declaration, for writing it and for all that read it.

use std::borrow::Cow;

use promethean_event::Millis;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// The payload of a dead letter. What a foreign event on the topic may lack is optional.
#[derive(Debug, Serialize, Deserialize)]
pub struct Envelope<'a> {
    /// Deliveries without an ack.
    #[serde(default)]
    pub attempts: u64,
    /// Why the last delivery failed.
    #[serde(borrow, default)]
    pub err: Option<Cow<'a, str>>,
    /// The group that gave the event up.
    #[serde(borrow, default)]
    pub group: Option<Cow<'a, str>>,
    /// The event as it is in the log, byte for byte.
    #[serde(borrow)]
    pub original: &'a RawValue,
    /// The topic of the event.
    #[serde(borrow, default)]
    pub topic: Option<Cow<'a, str>>,
    /// When the letter was written.
    #[serde(default)]
    pub ts: Option<Millis>,
}

impl<'a> Envelope<'a> {
    /// The event inside, read as a `T`; `None` if it is no event.
    pub fn original<T: Deserialize<'a>>(&self) -> Option<T> {
        serde_json::from_str(self.original.get()).ok()
    }

    /// True if there is an event inside, and so this is a dead letter.
    pub fn has_event(&self) -> bool {
        #[derive(Deserialize)]
        struct Original {
            #[serde(rename = "payload")]
            _payload: serde::de::IgnoredAny,
        }
        self.original::<Original>().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_original_goes_in_byte_for_byte() {
        let original = r#"{"payload": [1,  "\"original\":null"]}"#;
        let raw = RawValue::from_string(original.to_owned()).expect("JSON");
        let letter = Envelope {
            attempts: 3,
            err: Some("why \"original\":null".into()),
            group: Some("g".into()),
            original: &raw,
            topic: Some("t".into()),
            ts: Some(Millis(7)),
        };
        let text = serde_json::to_string(&letter).expect("JSON");
        let expected = format!(
            r#"{{"attempts":3,"err":"why \"original\":null","group":"g","original":{original},"topic":"t","ts":7}}"#
        );
        assert_eq!(text, expected);
        let read: Envelope<'_> = serde_json::from_str(&text).expect("a letter");
        assert_eq!((read.original.get(), read.has_event()), (original, true));
    }
}
