//! The name of a topic.

use std::fmt;
use std::sync::Arc;

use crate::{Code, Invalid, limits};

pub(crate) const DEAD_LETTER: &str = "dlq.";
pub(crate) const SNAPSHOT: &str = ".snapshot";

/// A topic's name: dot-separated segments of `A-Z a-z 0-9 _ -`, at most 255 bytes.
///
/// The hub's own `dlq.` prefix is not counted, so that every topic can have dead letters.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Topic(Arc<str>);

/// True if `byte` may stand in a topic's segment.
pub(crate) fn is_segment_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-')
}

/// Checks what topics and patterns share: length and that no segment is empty.
pub(crate) fn check_shape(text: &str) -> Result<(), Invalid> {
    let counted = text.strip_prefix(DEAD_LETTER).unwrap_or(text);
    if counted.is_empty() || counted.len() > limits::MAX_TOPIC_BYTES {
        let message = format!("must have 1 to {} bytes, has {}", limits::MAX_TOPIC_BYTES, counted.len());
        return Err(Invalid::new(Code::BadTopic, "topic", message));
    }
    if text.split('.').any(str::is_empty) {
        return Err(Invalid::new(
            Code::BadTopic,
            "topic",
            "has an empty segment; write segments separated by single dots, e.g. orders.created",
        ));
    }
    Ok(())
}

impl Topic {
    /// Checks a name.
    ///
    /// # Errors
    /// `bad_topic` that says what is wrong.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        check_shape(text)?;
        if let Some(odd) = text.chars().find(|c| *c != '.' && !(c.is_ascii() && is_segment_byte(*c as u8))) {
            let message = format!("segments may hold only A-Z a-z 0-9 _ -, has {odd:?}");
            return Err(Invalid::new(Code::BadTopic, "topic", message));
        }
        Ok(Self(text.into()))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// True if this is a topic of dead letters, `dlq.…`.
    pub fn is_dead_letter(&self) -> bool {
        self.0.starts_with(DEAD_LETTER)
    }

    /// True if this is a snapshot topic, `….snapshot`.
    pub fn is_snapshot(&self) -> bool {
        self.0.ends_with(SNAPSHOT)
    }

    /// The topic that holds its state by key, `….snapshot`.
    ///
    /// # Errors
    /// `bad_topic`: the name is so long that there is no room for the suffix.
    pub fn snapshot(&self) -> Result<Topic, Invalid> {
        Topic::parse(&format!("{}{SNAPSHOT}", self.0))
    }

    /// The topic its dead letters go to.
    #[must_use]
    pub fn dead_letter(&self) -> Topic {
        Topic(format!("{DEAD_LETTER}{}", self.0).into())
    }
}

impl fmt::Display for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Topic({})", self.0)
    }
}

impl std::borrow::Borrow<str> for Topic {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl serde::Serialize for Topic {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> serde::Deserialize<'de> for Topic {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::Topic;
    use crate::Code;

    #[test]
    fn a_topic_is_dot_separated_plain_segments() {
        for good in ["a", "heartbeat.received", "A-9_z.b", &"x".repeat(255), &format!("dlq.{}", "x".repeat(255))] {
            assert_eq!(Topic::parse(good).map(|t| t.to_string()), Ok(good.to_owned()));
        }
        for bad in ["", ".", "a.", ".a", "a..b", "a b", "a/b", "../etc", "é", "a*", "*", "**", "a\0", &"x".repeat(256)]
        {
            let refused = Topic::parse(bad).expect_err(bad);
            assert_eq!((refused.code, refused.field.as_str()), (Code::BadTopic, "topic"));
        }
    }

    #[test]
    fn a_topic_has_a_snapshot_topic_where_there_is_room_for_its_name() {
        let state = Topic::parse("process.state").expect("valid");
        let snapshot = state.snapshot().expect("short enough");
        assert_eq!(snapshot.as_str(), "process.state.snapshot");
        assert!(snapshot.is_snapshot() && !state.is_snapshot());
        let refused = Topic::parse(&"x".repeat(250)).expect("valid").snapshot().expect_err("too long");
        assert_eq!(refused.code, Code::BadTopic);
    }

    #[test]
    fn every_topic_has_a_dead_letter_topic() {
        let longest = Topic::parse(&"x".repeat(255)).expect("valid");
        assert_eq!(Topic::parse(longest.dead_letter().as_str()), Ok(longest.dead_letter()));
        assert!(longest.dead_letter().is_dead_letter() && !longest.is_dead_letter());
    }
}
