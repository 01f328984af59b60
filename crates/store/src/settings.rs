//! What may be set for a topic.

use std::time::Duration;

use promethean_event::{DEFAULT_PARTITIONS, Invalid, KeyPath, Topic};
use serde::{Deserialize, Serialize};

use crate::snapshots::check_pair;

/// What may be set for a topic. Everything has a default that keeps everything.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TopicSettings {
    /// How many partitions `partition` counts over.
    pub partitions: u32,
    /// What is removed with time.
    #[serde(flatten)]
    pub retention: Retention,
    /// True if only the latest event of each key stays.
    pub compaction: Option<Compaction>,
    /// True if the state by key is written to a topic of its own, every so often.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<SnapshotJob>,
    /// The largest event, where it is less than the hub's limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_event_bytes: Option<u64>,
    /// The place in the payload where events that bring no key have one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_path: Option<KeyPath>,
}

impl Default for TopicSettings {
    fn default() -> Self {
        Self {
            partitions: DEFAULT_PARTITIONS,
            retention: Retention::default(),
            compaction: None,
            snapshot: None,
            max_event_bytes: None,
            key_path: None,
        }
    }
}

/// What of a topic's settings counts for every event that is published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventSettings {
    /// As [`TopicSettings::partitions`].
    pub partitions: u32,
    /// As [`TopicSettings::max_event_bytes`].
    pub max_event_bytes: Option<u64>,
    /// As [`TopicSettings::key_path`].
    pub key_path: Option<KeyPath>,
}

impl TopicSettings {
    /// What of them counts for every event.
    pub fn of_events(&self) -> EventSettings {
        EventSettings {
            partitions: self.partitions,
            max_event_bytes: self.max_event_bytes,
            key_path: self.key_path.clone(),
        }
    }

    /// True if they make sense for `topic` by themselves; among others, see [`SnapshotTargets`](crate::SnapshotTargets).
    ///
    /// # Errors
    /// What does not, by the name it has in a configuration file.
    pub fn check(&self, topic: &Topic) -> Result<(), String> {
        if self.partitions == 0 {
            return Err("partitions must be at least 1".to_owned());
        }
        let Retention { max_age, max_bytes, max_events } = self.retention;
        for (name, bound, of) in [
            (
                "max_age (retentionDays)",
                max_age.map(|age| u64::from(!age.is_zero())),
                "the topic would lose everything",
            ),
            ("max_bytes", max_bytes, "the topic would lose everything"),
            ("max_events", max_events, "the topic would lose everything"),
            ("max_event_bytes", self.max_event_bytes, "the topic would take no event"),
        ] {
            if bound == Some(0) {
                return Err(format!("{name} must be more than 0, or {of}; to take the bound away, {TAKE_AWAY}"));
            }
        }
        for (name, time) in [
            ("max_age (retentionDays)", max_age),
            ("tombstone_grace", self.compaction.map(|compaction| compaction.tombstone_grace)),
            ("snapshot_interval", self.snapshot.as_ref().map(|job| job.interval)),
        ] {
            if time.is_some_and(|time| time > LONGEST) {
                let days = LONGEST.as_secs() / 86_400;
                return Err(format!("{name} must be at most {days} days; to take it away, {TAKE_AWAY}"));
            }
        }
        self.snapshot.as_ref().map_or(Ok(()), |job| job.check(topic))
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

/// The state of a topic by key, kept on a topic of its own: what changed is written every `interval`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SnapshotJob {
    /// Where to; `<topic>.snapshot` where it is left out.
    pub topic: Option<Topic>,
    /// How often.
    pub interval: Duration,
    /// Only these keys; empty: all.
    pub keys: Vec<String>,
}

impl Default for SnapshotJob {
    fn default() -> Self {
        Self { topic: None, interval: Duration::from_secs(30), keys: Vec::new() }
    }
}

/// A time beyond this is a mistake. A hundred thousand years: still exact as milliseconds in JSON.
const LONGEST: Duration = Duration::from_secs(36_500_000 * 86_400);
/// How, wherever the settings come from.
const TAKE_AWAY: &str = "use none (null in JSON), or leave it out of the configuration";
/// A run costs a look at the topic: more often than this makes no sense.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);
/// Most keys that a job may list.
const MOST_KEYS: usize = 1_000;

impl SnapshotJob {
    fn check(&self, source: &Topic) -> Result<(), String> {
        if self.interval < SHORTEST_INTERVAL {
            return Err(format!("snapshot_interval must be at least {SHORTEST_INTERVAL:?}"));
        }
        if self.keys.len() > MOST_KEYS {
            let have = self.keys.len();
            return Err(format!("snapshot_keys has {have} entries; list at most {MOST_KEYS}, or none for all"));
        }
        match self.target(source) {
            Ok(target) => check_pair(source, &target),
            Err(_) => Err(format!("{source}.snapshot would be too long a name: set snapshot_topic")),
        }
    }

    /// The topic that the state of `source` goes to.
    ///
    /// # Errors
    /// `bad_topic`: the name of `source` leaves no room for the suffix.
    pub fn target(&self, source: &Topic) -> Result<Topic, Invalid> {
        self.topic.clone().map_or_else(|| source.snapshot(), Ok)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_an_earlier_version_saved_are_read_and_new_ones_come_back() {
        let old = r#"{"partitions":4,"max_age":{"secs":3,"nanos":0},"max_bytes":null,"max_events":7,"compaction":{"tombstone_grace":{"secs":5,"nanos":0}}}"#;
        let read: TopicSettings = serde_json::from_str(old).expect("readable");
        assert_eq!((read.partitions, read.retention.max_events, read.snapshot.as_ref()), (4, Some(7), None));
        assert_eq!(serde_json::to_string(&read).expect("JSON"), old, "what is not used is not written");
        let topic = Topic::parse("state.of.it").expect("a topic");
        let snapshot = SnapshotJob { topic: Some(topic), keys: vec!["a".into()], ..SnapshotJob::default() };
        let new = TopicSettings {
            snapshot: Some(snapshot),
            max_event_bytes: Some(9),
            key_path: KeyPath::parse("/id").ok(),
            ..read
        };
        let text = serde_json::to_string(&new).expect("JSON");
        assert_eq!(serde_json::from_str::<TopicSettings>(&text).expect("readable"), new);
        let bad = text.replace("state.of.it", "state of it");
        assert!(serde_json::from_str::<TopicSettings>(&bad).is_err(), "a topic is a topic also here");
    }
}
