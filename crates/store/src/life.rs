//! The history of a topic's name: it outlives the topic, so that a seq is never used twice.

use promethean_event::Seq;
use serde::{Deserialize, Serialize};

use crate::TopicSettings;

/// The history of a topic's name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Life {
    /// True if the topic was created, with or without events.
    pub(crate) created: bool,
    /// The last seq that was given out before the last deletion; events up to here are gone.
    pub(crate) deleted: Seq,
    /// Number of deletions.
    pub(crate) deletions: u64,
}

impl Life {
    /// True if the topic exists: it was created, or has had an event since its last deletion.
    pub(crate) fn exists(self, last_seq: Seq) -> bool {
        self.created || last_seq > self.deleted
    }

    /// The history after a deletion.
    pub(crate) fn ended(self, last_seq: Seq) -> Self {
        Self { created: false, deleted: last_seq, deletions: self.deletions + 1 }
    }
}

/// Settings and history as JSON, for engines that keep both in one place.
pub(crate) fn to_json(settings: &TopicSettings, life: Life) -> Vec<u8> {
    let mut json = serde_json::to_value(settings).unwrap_or_default();
    if life == Life::default() {
        return serde_json::to_vec(settings).unwrap_or_default();
    }
    if let (Some(fields), Ok(life)) = (json.as_object_mut(), serde_json::to_value(life)) {
        fields.insert("life".to_owned(), life);
    }
    serde_json::to_vec(&json).unwrap_or_default()
}

/// Settings and history from JSON; of a store before there was a history, the settings alone.
pub(crate) fn from_json(json: &[u8]) -> Option<(TopicSettings, Life)> {
    if let Ok(settings) = serde_json::from_slice(json) {
        return Some((settings, Life::default()));
    }
    let mut json: serde_json::Value = serde_json::from_slice(json).ok()?;
    let life = json.as_object_mut()?.remove("life")?;
    Some((serde_json::from_value(json).ok()?, serde_json::from_value(life).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_and_history_read_back_and_old_settings_have_none() {
        let settings = TopicSettings { partitions: 3, ..TopicSettings::default() };
        let life = Life { created: true, deleted: 7, deletions: 2 };
        assert_eq!(from_json(&to_json(&settings, life)), Some((settings.clone(), life)));
        let old = serde_json::to_vec(&settings).expect("JSON");
        assert_eq!(to_json(&settings, Life::default()), old);
        assert_eq!(from_json(&old), Some((settings, Life::default())));
        assert_eq!(from_json(b"{\"partitions\": 3, \"unknown\": 1}"), None);
    }
}
