//! Topic patterns: `*` is one segment, `**` any number of them, also none; anywhere, any number of times.
//!
//! Dead letters and snapshots are not ordinary topics: a `dlq.` topic is matched only by a pattern whose first
//! segment is literally `dlq`, a `.snapshot` topic only by one whose last segment is literally `snapshot`.

use std::fmt;

use crate::topic::{check_shape, is_segment_byte};
use crate::{Code, Invalid, Topic};

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Segment {
    Literal(Box<str>),
    One,
    Many,
}

/// A pattern over topic names. A plain topic name is a pattern that matches itself.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct TopicPattern {
    text: Box<str>,
    segments: Box<[Segment]>,
}

impl TopicPattern {
    /// Checks a pattern.
    ///
    /// # Errors
    /// `bad_topic`: a bad segment, or a `*` that does not stand alone in its segment.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        check_shape(text)?;
        let segments = text
            .split('.')
            .map(|segment| match segment {
                "*" => Ok(Segment::One),
                "**" => Ok(Segment::Many),
                _ if segment.bytes().all(is_segment_byte) => Ok(Segment::Literal(segment.into())),
                _ if segment.contains('*') => {
                    let message = format!("a * must be a segment of its own (a.*.c), not part of {segment:?}");
                    Err(Invalid::new(Code::BadTopic, "topic", message))
                }
                _ => {
                    let message = format!("segments may hold only A-Z a-z 0-9 _ -, or be * or **, not {segment:?}");
                    Err(Invalid::new(Code::BadTopic, "topic", message))
                }
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { text: text.into(), segments })
    }

    /// The pattern as it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// True if a subscription to this pattern takes in `topic`.
    pub fn matches(&self, topic: &Topic) -> bool {
        let special = if topic.is_dead_letter() {
            self.segments.first().is_some_and(|first| is_literal(first, "dlq"))
        } else if topic.is_snapshot() {
            self.segments.last().is_some_and(|last| is_literal(last, "snapshot"))
        } else {
            true
        };
        special && self.covers(topic)
    }

    /// True if the name alone matches, dead letters and snapshots like any other.
    pub fn covers(&self, topic: &Topic) -> bool {
        // Glob matching with one point to come back to: the last `**` and what it has swallowed so far.
        let topic: Vec<&str> = topic.as_str().split('.').collect();
        let (mut p, mut t, mut retry) = (0, 0, None);
        while t < topic.len() {
            match self.segments.get(p) {
                Some(Segment::Many) => {
                    retry = Some((p + 1, t));
                    p += 1;
                    continue;
                }
                Some(Segment::One) => {
                    (p, t) = (p + 1, t + 1);
                    continue;
                }
                Some(Segment::Literal(literal)) if **literal == *topic[t] => {
                    (p, t) = (p + 1, t + 1);
                    continue;
                }
                _ => {}
            }
            let Some((after_many, swallowed)) = retry else { return false };
            retry = Some((after_many, swallowed + 1));
            (p, t) = (after_many, swallowed + 1);
        }
        self.segments[p..].iter().all(|segment| *segment == Segment::Many)
    }
}

fn is_literal(segment: &Segment, text: &str) -> bool {
    matches!(segment, Segment::Literal(literal) if **literal == *text)
}

impl fmt::Display for TopicPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for TopicPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TopicPattern({})", self.text)
    }
}

/// What a subscription names: one topic, or a pattern.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Selector {
    /// Exactly this topic, whether it exists yet or not.
    Topic(Topic),
    /// Every topic that matches, also ones created later.
    Pattern(TopicPattern),
}

impl Selector {
    /// Checks a topic or pattern.
    ///
    /// # Errors
    /// `bad_topic`.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        if text.contains('*') {
            TopicPattern::parse(text).map(Selector::Pattern)
        } else {
            Topic::parse(text).map(Selector::Topic)
        }
    }

    /// The text it was parsed from.
    pub fn as_str(&self) -> &str {
        match self {
            Selector::Topic(topic) => topic.as_str(),
            Selector::Pattern(pattern) => pattern.as_str(),
        }
    }

    /// True if `topic` is selected.
    pub fn matches(&self, topic: &Topic) -> bool {
        match self {
            Selector::Topic(this) => this == topic,
            Selector::Pattern(pattern) => pattern.matches(topic),
        }
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn matches(pattern: &str, topic: &str) -> bool {
        TopicPattern::parse(pattern).expect("pattern").matches(&Topic::parse(topic).expect("topic"))
    }

    #[test]
    fn stars_match_one_and_any_number_of_segments() {
        for (pattern, topic, expected) in [
            ("a.b", "a.b", true),
            ("a.*", "a.b", true),
            ("a.*", "a", false),
            ("a.*", "a.b.c", false),
            ("a.**", "a", true),
            ("a.**", "a.b.c", true),
            ("**", "a", true),
            ("**.c", "a.b.c", true),
            ("**.c", "c", true),
            ("a.**.c", "a.c", true),
            ("a.**.b.**.c", "a.x.b.y.b.z.c", true),
            ("**.b.c", "b.b.c", true),
            ("*.**.*", "a", false),
            ("*.**.*", "a.b", true),
        ] {
            assert_eq!(matches(pattern, topic), expected, "{pattern} against {topic}");
        }
    }

    #[test]
    fn dead_letters_and_snapshots_are_matched_only_on_purpose() {
        assert!(!matches("**", "dlq.a") && !matches("*.a", "dlq.a") && !matches("**.snapshot", "dlq.a.snapshot"));
        assert!(matches("dlq.**", "dlq.a") && matches("dlq.*", "dlq.a") && matches("dlq.**", "dlq.a.snapshot"));
        assert!(!matches("**", "a.snapshot") && !matches("a.*", "a.snapshot"));
        assert!(matches("**.snapshot", "a.snapshot") && matches("*.snapshot", "a.snapshot"));
        assert!(TopicPattern::parse("**").expect("pattern").covers(&Topic::parse("dlq.a").expect("topic")));
    }

    #[test]
    fn a_star_inside_a_segment_is_refused() {
        for bad in ["a*", "*a", "a.***", "a.b*.c", "", "a..b", "a.*.", "a b.*"] {
            assert_eq!(TopicPattern::parse(bad).expect_err(bad).code, Code::BadTopic);
        }
    }

    /// The definition, by recursion.
    fn naive(pattern: &[&str], topic: &[&str]) -> bool {
        match (pattern, topic) {
            ([], rest) => rest.is_empty(),
            (["**", p @ ..], t) => naive(p, t) || (!t.is_empty() && naive(pattern, &t[1..])),
            ([p, ps @ ..], [t, ts @ ..]) => (*p == "*" || p == t) && naive(ps, ts),
            _ => false,
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_000))]
        #[test]
        fn matching_agrees_with_the_definition(
            pattern in proptest::collection::vec(prop_oneof!["a", "b", "c", Just("*".to_owned()), Just("**".to_owned())], 1..7),
            topic in proptest::collection::vec("[abc]", 1..8),
        ) {
            let expected = naive(
                &pattern.iter().map(String::as_str).collect::<Vec<_>>(),
                &topic.iter().map(String::as_str).collect::<Vec<_>>(),
            );
            prop_assert_eq!(matches(&pattern.join("."), &topic.join(".")), expected);
        }

        #[test]
        fn parsing_any_text_never_panics(text in any::<String>()) {
            let _ = (TopicPattern::parse(&text), Topic::parse(&text), Selector::parse(&text));
        }
    }
}
