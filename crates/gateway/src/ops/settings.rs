//! `GET /settings` and `PUT /settings`: what is kept of a topic, and how it is spread.
//!
//! A change names only what changes; `null` takes a bound away, or brings anything else back to its default. It is durable
//! when it is answered. The seeds' names `retentionDays`, `intervalMs`, `snapshotTopic` and `batchKeys` work.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use promethean_event::{Code, DEFAULT_PARTITIONS, KeyPath, Topic};
use promethean_store::{Compaction, SnapshotJob, SnapshotTargets, Store, TopicSettings};
use serde::{Deserialize, Deserializer, Serialize};

use super::groups::millis;
use crate::Hub;
use crate::auth::Action;
use crate::http::{Caller, Changer, Query, SMALL, json_body, parse_json, read_body};
use crate::rejection::Rejection;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Shown {
    topic: Topic,
    partitions: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_age_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_events: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_event_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key_path: Option<KeyPath>,
    compaction: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    tombstone_grace_ms: Option<u64>,
    snapshot: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    snapshot_topic: Option<Topic>,
    #[serde(skip_serializing_if = "Option::is_none")]
    snapshot_interval_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    snapshot_keys: Option<Vec<String>>,
}

impl Shown {
    fn of(topic: Topic, settings: TopicSettings) -> Self {
        let TopicSettings { partitions, retention, compaction, snapshot, max_event_bytes, key_path } = settings;
        Self {
            snapshot_topic: snapshot.as_ref().and_then(|job| job.target(&topic).ok()),
            topic,
            partitions,
            max_age_ms: retention.max_age.map(millis),
            max_bytes: retention.max_bytes,
            max_events: retention.max_events,
            max_event_bytes,
            key_path,
            compaction: compaction.is_some(),
            tombstone_grace_ms: compaction.map(|compaction| millis(compaction.tombstone_grace)),
            snapshot: snapshot.is_some(),
            snapshot_interval_ms: snapshot.as_ref().map(|job| millis(job.interval)),
            snapshot_keys: snapshot.map(|job| job.keys).filter(|keys| !keys.is_empty()),
        }
    }
}

/// What is to be changed; the inner `None`: taken away.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Change {
    #[serde(deserialize_with = "given")]
    partitions: Option<Option<u32>>,
    #[serde(deserialize_with = "given")]
    max_age_ms: Option<Option<u64>>,
    #[serde(deserialize_with = "given")]
    retention_days: Option<Option<u64>>,
    #[serde(deserialize_with = "given")]
    max_bytes: Option<Option<u64>>,
    #[serde(deserialize_with = "given")]
    max_events: Option<Option<u64>>,
    #[serde(deserialize_with = "given")]
    max_event_bytes: Option<Option<u64>>,
    #[serde(deserialize_with = "given")]
    key_path: Option<Option<String>>,
    #[serde(deserialize_with = "given")]
    compaction: Option<Option<bool>>,
    #[serde(deserialize_with = "given")]
    tombstone_grace_ms: Option<Option<u64>>,
    #[serde(deserialize_with = "given")]
    snapshot: Option<Option<bool>>,
    #[serde(deserialize_with = "given")]
    snapshot_topic: Option<Option<Topic>>,
    #[serde(alias = "intervalMs", deserialize_with = "given")]
    snapshot_interval_ms: Option<Option<u64>>,
    #[serde(alias = "batchKeys", deserialize_with = "given")]
    snapshot_keys: Option<Option<Vec<String>>>,
}

/// A field that is there, be it `null`.
fn given<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Option<T>>, D::Error> {
    Option::<T>::deserialize(deserializer).map(Some)
}

impl Change {
    /// `settings` with what was asked for, or why that makes no sense.
    fn apply(self, topic: &Topic, mut settings: TopicSettings) -> Result<TopicSettings, String> {
        let partitions = self.partitions.map(|given| given.unwrap_or(DEFAULT_PARTITIONS));
        settings.partitions = partitions.unwrap_or(settings.partitions);
        let retention = &mut settings.retention;
        match (self.max_age_ms, self.retention_days) {
            (Some(_), Some(_)) => return Err("maxAgeMs and retentionDays say the same: send one".to_owned()),
            (Some(age), None) => retention.max_age = age.map(Duration::from_millis),
            (None, Some(days)) => {
                let seconds = days.map(|days| days.checked_mul(86_400).ok_or("retentionDays is too large"));
                retention.max_age = seconds.transpose()?.map(Duration::from_secs);
            }
            (None, None) => {}
        }
        retention.max_bytes = self.max_bytes.unwrap_or(retention.max_bytes);
        retention.max_events = self.max_events.unwrap_or(retention.max_events);
        settings.max_event_bytes = self.max_event_bytes.unwrap_or(settings.max_event_bytes);
        if let Some(path) = self.key_path {
            let path = path.as_deref().map(KeyPath::parse).transpose();
            settings.key_path = path.map_err(|reason| format!("keyPath: {reason}"))?;
        }
        let compacted = self.compaction.map_or(settings.compaction.is_some(), Option::unwrap_or_default);
        settings.compaction = compacted.then(|| settings.compaction.unwrap_or_default());
        match (self.tombstone_grace_ms, settings.compaction.as_mut()) {
            (Some(Some(_)), None) => return Err("tombstoneGraceMs needs compaction".to_owned()),
            (Some(Some(grace)), Some(compaction)) => compaction.tombstone_grace = Duration::from_millis(grace),
            (Some(None), Some(compaction)) => *compaction = Compaction::default(),
            (Some(None) | None, _) => {}
        }
        // To clear a detail is not to ask for snapshots.
        let details = matches!(self.snapshot_topic, Some(Some(_)))
            || matches!(self.snapshot_interval_ms, Some(Some(_)))
            || matches!(&self.snapshot_keys, Some(Some(keys)) if !keys.is_empty());
        let snapshot = self.snapshot.map(Option::unwrap_or_default);
        if snapshot == Some(false) && details {
            return Err("snapshot is false, but its details are given".to_owned());
        }
        let wanted = snapshot.unwrap_or(settings.snapshot.is_some() || details);
        let job = settings.snapshot.take().unwrap_or_default();
        settings.snapshot = wanted.then(|| SnapshotJob {
            topic: self.snapshot_topic.unwrap_or(job.topic),
            interval: match self.snapshot_interval_ms {
                Some(interval) => interval.map_or(SnapshotJob::default().interval, Duration::from_millis),
                None => job.interval,
            },
            keys: self.snapshot_keys.map_or(job.keys, Option::unwrap_or_default),
        });
        settings.check(topic)?;
        Ok(settings)
    }
}

pub(super) async fn show(State(hub): State<Arc<Hub>>, caller: Caller, query: Query) -> Result<Response, Rejection> {
    let topic = query.topic()?;
    caller.must_see(&topic)?;
    let settings = hub.bus.store().settings(&topic);
    Ok(json_body(&Shown::of(topic, settings)))
}

pub(super) async fn change(
    State(hub): State<Arc<Hub>>,
    Changer { topic, caller }: Changer,
    body: Body,
) -> Result<Response, Rejection> {
    let change: Change = parse_json(&read_body(body, SMALL).await?)?;
    Ok(json_body(&apply(&hub, topic, &caller, change).await?))
}

/// `PUT /topics`: creates a topic, and changes its settings where the body names some.
pub(super) async fn create(
    State(hub): State<Arc<Hub>>,
    Changer { topic, caller }: Changer,
    body: Body,
) -> Result<Response, Rejection> {
    let body = read_body(body, SMALL).await?;
    let change = if body.trim_ascii().is_empty() { Change::default() } else { parse_json(&body)? };
    hub.bus.admit_topic(&topic)?;
    // Settings that are refused create nothing.
    let shown = apply(&hub, topic.clone(), &caller, change).await?;
    if hub.bus.create_topic(&topic).await? {
        tracing::info!(%topic, sub = caller.identity.sub, "the topic was created");
    }
    Ok(json_body(&shown))
}

/// Changes the settings and returns them.
async fn apply(hub: &Hub, topic: Topic, caller: &Caller, change: Change) -> Result<Shown, Rejection> {
    let store = hub.bus.store();
    let before = store.settings(&topic);
    let refused = |reason| Rejection::new(Code::BadRequest, reason);
    let after = change.apply(&topic, before.clone()).map_err(refused)?;
    if after.snapshot != before.snapshot {
        let named = after.snapshot.as_ref().and_then(|job| job.topic.as_ref());
        // Its events go there: whoever may not change a topic does not write to it this way, and learns nothing of it.
        named.map_or(Ok(()), |target| caller.may(Action::Admin, target))?;
        check_among_others(&**store, &topic, &after).map_err(refused)?;
    }
    if after != before {
        let failed = |error| Rejection::new(Code::PublishFailed, format!("the settings were not saved: {error}"));
        store.set_settings(&topic, after.clone()).await.map_err(failed)?;
        tracing::info!(%topic, sub = caller.identity.sub, "the topic's settings were changed");
    }
    caller.audit.changed(Shown::of(topic.clone(), before), Shown::of(topic.clone(), after.clone()));
    Ok(Shown::of(topic, after))
}

/// True if the snapshots of `topic` meet those of another. Two changes at once may miss each other: the compactor looks
/// again before it writes.
fn check_among_others(store: &dyn Store, topic: &Topic, after: &TopicSettings) -> Result<(), String> {
    let others = store.all_settings();
    let others = others.iter().map(|(other, settings)| (other, settings));
    SnapshotTargets::new(others.chain([(topic, after)])).check(topic)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(before: &TopicSettings, body: &str) -> Result<TopicSettings, String> {
        let change: Change = serde_json::from_str(body).map_err(|error| error.to_string())?;
        change.apply(&Topic::parse("a.b").expect("a topic"), before.clone())
    }

    #[test]
    fn a_change_touches_what_it_names_and_null_takes_away() {
        let set = r#"{"retentionDays":3,"maxBytes":9,"compaction":true,"tombstoneGraceMs":5,"intervalMs":500}"#;
        let settings = changed(&TopicSettings::default(), set).expect("good");
        assert_eq!(settings.retention.max_age, Some(Duration::from_secs(3 * 86_400)));
        assert_eq!(settings.compaction.map(|compaction| millis(compaction.tombstone_grace)), Some(5));
        assert_eq!(settings.snapshot.as_ref().map(|job| millis(job.interval)), Some(500));
        assert_eq!(changed(&settings, "{}"), Ok(settings.clone()));
        let keyed = changed(&settings, r#"{"keyPath":"/id"}"#).expect("good");
        assert_eq!(keyed.key_path, KeyPath::parse("/id").ok());
        assert_eq!(changed(&keyed, r#"{"keyPath":null}"#), Ok(settings.clone()));
        let less = changed(&settings, r#"{"maxBytes":null,"snapshot":false,"partitions":4}"#).expect("good");
        assert_eq!((less.retention.max_bytes, less.snapshot.is_none(), less.partitions), (None, true, 4));
        assert_eq!((less.retention.max_age, less.compaction), (settings.retention.max_age, settings.compaction));
    }

    #[test]
    fn null_brings_a_detail_back_to_its_default_and_turns_nothing_on() {
        let clear = r#"{"snapshotTopic":null,"snapshotIntervalMs":null,"snapshotKeys":null,"tombstoneGraceMs":null}"#;
        assert_eq!(changed(&TopicSettings::default(), clear), Ok(TopicSettings::default()));
        assert_eq!(changed(&TopicSettings::default(), r#"{"snapshotKeys":[]}"#), Ok(TopicSettings::default()));
        let set = r#"{"compaction":true,"tombstoneGraceMs":5,"snapshotTopic":"x","intervalMs":500,"batchKeys":["a"]}"#;
        let settings = changed(&TopicSettings::default(), set).expect("good");
        let cleared = changed(&settings, clear).expect("good");
        assert_eq!((cleared.compaction, cleared.snapshot), (Some(Compaction::default()), Some(SnapshotJob::default())));
        let off = changed(&settings, r#"{"snapshot":false,"snapshotKeys":null}"#).expect("good");
        assert_eq!(off.snapshot, None);
        let all = changed(&settings, r#"{"partitions":4,"maxEvents":9}"#).expect("good");
        let null = changed(&all, r#"{"partitions":null,"compaction":null,"snapshot":null}"#).expect("good");
        let kept = TopicSettings { retention: all.retention, ..TopicSettings::default() };
        assert_eq!(null, kept, "what stands on its own goes back to its default too");
    }

    #[test]
    fn what_makes_no_sense_is_refused_and_named() {
        for (body, named) in [
            (r#"{"partitions":0}"#, "partitions"),
            (r#"{"partition":1}"#, "partition"),
            (r#"{"maxAgeMs":1,"retentionDays":1}"#, "retentionDays"),
            (r#"{"tombstoneGraceMs":1}"#, "compaction"),
            (r#"{"snapshot":false,"snapshotKeys":["a"]}"#, "snapshot"),
            (r#"{"snapshot":null,"snapshotKeys":["a"]}"#, "snapshot"),
            (r#"{"snapshotTopic":"a.b"}"#, "another topic"),
            (r#"{"snapshotIntervalMs":1}"#, "snapshot_interval"),
            (r#"{"snapshotTopic":"dlq.x"}"#, "dead letters"),
            (r#"{"maxAgeMs":0}"#, "max_age"),
            (r#"{"retentionDays":0}"#, "max_age"),
            (r#"{"maxBytes":0}"#, "max_bytes"),
            (r#"{"maxEvents":0}"#, "max_events"),
            (r#"{"maxEventBytes":0}"#, "max_event_bytes"),
            (r#"{"keyPath":"id"}"#, "keyPath"),
            (r#"{"retentionDays":99999999999999}"#, "max_age"),
            (r#"{"retentionDays":18446744073709551615}"#, "retentionDays"),
            (r#"{"maxAgeMs":18446744073709551615}"#, "max_age"),
            (r#"{"compaction":true,"tombstoneGraceMs":18446744073709551615}"#, "tombstone_grace"),
            (r#"{"snapshotIntervalMs":18446744073709551615}"#, "snapshot_interval"),
        ] {
            let refused = changed(&TopicSettings::default(), body).expect_err(body);
            assert!(refused.contains(named), "{body}: {refused}");
        }
    }
}
