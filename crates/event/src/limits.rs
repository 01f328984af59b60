//! The limits of the contract, in one place.

/// Longest topic name in bytes; the hub's own `dlq.` prefix is not counted.
pub const MAX_TOPIC_BYTES: usize = 255;
/// Longest group name in bytes.
pub const MAX_GROUP_BYTES: usize = 128;
/// Longest key in bytes.
pub const MAX_KEY_BYTES: usize = 1024;
/// Most headers of an event.
pub const MAX_HEADERS: usize = 64;
/// Most bytes of all header names and values together.
pub const MAX_HEADER_BYTES: usize = 16 * 1024;
/// Most tags, and most `caused_by` ids, of an event.
pub const MAX_LIST: usize = 256;
/// Longest tag, and longest `sid`, in bytes.
pub const MAX_TAG_BYTES: usize = 1024;
/// Header names that begin so are the hub's own.
pub const RESERVED_HEADER: &str = "promethean-";
/// Deepest nesting of JSON.
pub const MAX_DEPTH: usize = 128;
/// Most events of one batch.
pub const MAX_BATCH: usize = 10_000;
/// Most events that a subscriber may hold without an ack, or have read for it at a time.
pub const MAX_IN_FLIGHT: usize = 10_000;
/// Default of `max_event_bytes`.
pub const DEFAULT_EVENT_BYTES: usize = 1024 * 1024;
/// Default of `max_frame_bytes`.
pub const DEFAULT_FRAME_BYTES: usize = 16 * 1024 * 1024;
/// Most topics or patterns of one subscription.
pub const MAX_SELECTORS: usize = 1_000;
/// Longest `resume` of a subscription without a group.
pub const MAX_RESUME: usize = 1_024;
/// Most values of one kind in a filter.
pub const MAX_FILTER_VALUES: usize = 1_000;
/// Largest integer that every JSON reader keeps exactly (2^53 − 1); times and the like stay below it.
pub const MAX_SAFE_INTEGER: u64 = (1 << 53) - 1;

/// By how much an event may be over the limits because the hub has put something around another: a dead letter has the
/// original in it, an entry of a snapshot the payload. What the hub itself has written can be brought to another hub.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Around {
    /// Bytes of the event.
    pub bytes: usize,
    /// Levels of its payload's JSON.
    pub levels: usize,
}

impl Around {
    /// More than what a dead letter or an entry of a snapshot adds: a key (twice, and six bytes for each of its own where
    /// it has to be escaped), names, the reason, numbers.
    const BYTES: usize = 16 * 1024;
    /// The most levels that any topic adds.
    pub const MOST_LEVELS: usize = 8;

    /// What may be added on the topic of this name.
    pub fn of(topic: &str) -> Self {
        let mut around = Self::default();
        let mut rest = topic;
        if let Some(original) = rest.strip_prefix(crate::topic::DEAD_LETTER) {
            // The letter, and the event in it.
            around = Self { bytes: Self::BYTES, levels: 2 };
            rest = original;
        }
        while let Some(state) = rest.strip_suffix(crate::topic::SNAPSHOT)
            && around.levels < Self::MOST_LEVELS
        {
            around = Self { bytes: around.bytes + Self::BYTES, levels: around.levels + 1 };
            rest = state;
        }
        around
    }
}

/// What sending a dead letter back adds to an event at most: the cause, and more digits in `ts` and `partition`. An event
/// that the topic took must not be too large for it because of that.
pub const SENT_BACK_BYTES: usize = r#","caused_by":["00000000-0000-0000-0000-000000000000"]"#.len() + 12 + 9;

/// The limits an operator may set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Most bytes of one event in its wire form.
    pub max_event_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_event_bytes: DEFAULT_EVENT_BYTES }
    }
}

/// Most bytes of a nack's reason that are kept.
pub const MAX_REASON: usize = 4 * 1024;

/// Shortest lease that a subscriber may ask for.
pub const MIN_LEASE: std::time::Duration = std::time::Duration::from_millis(100);
/// Longest lease, extension and nack delay: 12 hours.
pub const MAX_LEASE: std::time::Duration = std::time::Duration::from_secs(12 * 3600);
/// Shortest extension of a lease.
pub const MIN_EXTENSION: std::time::Duration = std::time::Duration::from_secs(1);
