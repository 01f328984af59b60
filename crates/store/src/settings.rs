//! What may be set for a topic.

use std::time::Duration;

use promethean_event::DEFAULT_PARTITIONS;
use serde::{Deserialize, Serialize};

/// What may be set for a topic. Everything has a default that keeps everything.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TopicSettings {
    /// How many partitions `partition` counts over.
    pub partitions: u32,
    /// What is removed with time.
    #[serde(flatten)]
    pub retention: Retention,
    /// Whether only the latest event of each key stays.
    pub compaction: Option<Compaction>,
}

impl Default for TopicSettings {
    fn default() -> Self {
        Self { partitions: DEFAULT_PARTITIONS, retention: Retention::default(), compaction: None }
    }
}

/// When events are removed; the strictest bound counts. Whole segments go, so a little more may stay for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Retention {
    /// Events appended longer ago than this may go.
    pub max_age: Option<Duration>,
    /// Oldest events go while the topic has more bytes than this.
    pub max_bytes: Option<u64>,
    /// Oldest events go while the topic has more events than this.
    pub max_events: Option<u64>,
}

/// Key compaction: the latest event of each key stays; so do events without a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Compaction {
    /// How long a tombstone stays after it was appended, so that readers see it.
    pub tombstone_grace: Duration,
}

impl Default for Compaction {
    fn default() -> Self {
        Self { tombstone_grace: Duration::from_secs(24 * 3600) }
    }
}
