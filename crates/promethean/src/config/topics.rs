//! The `[topics."name"]` tables: what is kept of a topic, and how it is spread.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::Path;
use std::time::Duration;

use promethean_event::{KeyPath, Topic};
use promethean_gateway::limits::Rate;
use promethean_store::{Compaction, Retention, SnapshotJob, SnapshotTargets, TopicSettings};
use serde::Deserialize;

use super::{ConfigError, units};
use promethean_event::nearest;

/// A topic's table as it is written. The seeds' `retentionDays` and `compaction` work.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Table {
    partitions: Option<u32>,
    max_age: Option<String>,
    #[serde(alias = "retentionDays")]
    retention_days: Option<u64>,
    max_bytes: Option<Size>,
    max_events: Option<u64>,
    compaction: bool,
    tombstone_grace: Option<String>,
    snapshot: Option<bool>,
    #[serde(alias = "snapshotTopic")]
    snapshot_topic: Option<String>,
    snapshot_interval: Option<String>,
    #[serde(rename = "intervalMs")]
    interval_ms: Option<u64>,
    #[serde(alias = "batchKeys")]
    snapshot_keys: Option<Vec<String>>,
    max_event_bytes: Option<Size>,
    key_path: Option<String>,
    rate: Option<u32>,
    burst: Option<u32>,
}

/// `1073741824` or `"1GiB"`.
#[derive(Deserialize)]
#[serde(untagged)]
enum Size {
    Number(u64),
    Text(String),
}

/// The keys of a topic's table.
const KEYS: &[&str] = &[
    "partitions",
    "max_age",
    "retention_days",
    "retentionDays",
    "max_bytes",
    "max_events",
    "compaction",
    "tombstone_grace",
    "snapshot",
    "snapshot_topic",
    "snapshotTopic",
    "snapshot_interval",
    "intervalMs",
    "snapshot_keys",
    "batchKeys",
    "max_event_bytes",
    "key_path",
    "rate",
    "burst",
];

/// The tables, by topic.
#[derive(Debug, Clone, Default)]
pub(crate) struct Topics {
    pub(crate) settings: BTreeMap<Topic, TopicSettings>,
    /// Of topics with a quota of their own; `None`: no limit.
    pub(crate) rates: BTreeMap<Topic, Option<Rate>>,
}

/// Reads the tables of `file`.
pub(crate) fn parse(tables: &toml::Table, file: Option<&Path>) -> Result<Topics, ConfigError> {
    let place = |name: &str| match file {
        Some(file) => format!("{}: topics.{name:?}", file.display()),
        None => format!("topics.{name:?}"),
    };
    let (mut topics, mut rates) = (BTreeMap::new(), BTreeMap::new());
    for (name, table) in tables {
        let at = |reason: String| ConfigError::new(&place(name), reason);
        let topic = Topic::parse(name).map_err(|invalid| at(invalid.to_string()))?;
        if !table.is_table() {
            return Err(at("must be a table of settings, [topics.\"name\"]".to_owned()));
        }
        if let Some(key) = table.as_table().and_then(|table| table.keys().find(|key| !KEYS.contains(&key.as_str()))) {
            let likely = nearest(key, KEYS.iter()).map(|name| format!("; did you mean {name}?")).unwrap_or_default();
            return Err(at(format!("unknown key {key:?}{likely}")));
        }
        let table: Table = table.clone().try_into().map_err(|error: toml::de::Error| {
            let culprit =
                table.as_table().and_then(|table| table.iter().find(|(name, value)| alone(name, value).is_err()));
            at(culprit.map_or_else(String::new, |(name, _)| format!("{name}: ")) + error.message())
        })?;
        if let Some(rate) = rate(&table).map_err(at)? {
            rates.insert(topic.clone(), rate);
        }
        let settings = settings(&topic, table).map_err(at)?;
        topics.insert(topic, settings);
    }
    let targets = SnapshotTargets::new(&topics);
    for topic in topics.keys() {
        targets.check(topic).map_err(|reason| ConfigError::new(&place(topic.as_str()), reason))?;
    }
    Ok(Topics { settings: topics, rates })
}

/// The topic's own quota, where it has one: a rate of 0 is no limit.
fn rate(table: &Table) -> Result<Option<Option<Rate>>, String> {
    let (Some(rate), burst) = (table.rate, table.burst) else {
        return table.burst.map_or(Ok(None), |_| Err("burst: needs rate too".to_owned()));
    };
    let own = NonZeroU32::new(rate)
        .map(|per_second| Rate { per_second, burst: burst.and_then(NonZeroU32::new).unwrap_or(per_second) });
    if own.is_none() && burst.is_some_and(|burst| burst > 0) {
        return Err("burst: a rate of 0 is no limit; leave burst out".to_owned());
    }
    Ok(Some(own))
}

/// True if a setting could be read if it were the only one.
fn alone(name: &str, value: &toml::Value) -> Result<Table, toml::de::Error> {
    toml::Table::from_iter([(name.to_owned(), value.clone())]).try_into()
}

fn settings(topic: &Topic, table: Table) -> Result<TopicSettings, String> {
    let snapshot = snapshot_job(&table)?;
    let partitions = table.partitions.unwrap_or(promethean_event::DEFAULT_PARTITIONS);
    let max_age = match (table.max_age, table.retention_days) {
        (Some(_), Some(_)) => return Err("max_age and retentionDays say the same: keep one".into()),
        (Some(age), None) => Some(units::duration(&age).map_err(|reason| format!("max_age: {reason}"))?),
        (None, Some(days)) => {
            let seconds = days.checked_mul(86_400).ok_or("retentionDays is too large")?;
            Some(Duration::from_secs(seconds))
        }
        (None, None) => None,
    };
    let max_bytes = table.max_bytes.map(|size| size.bytes("max_bytes")).transpose()?;
    let max_event_bytes = table.max_event_bytes.map(|size| size.bytes("max_event_bytes")).transpose()?;
    let key_path = table.key_path.as_deref().map(KeyPath::parse).transpose();
    let key_path = key_path.map_err(|reason| format!("key_path: {reason}"))?;
    let compaction = match (table.compaction, table.tombstone_grace) {
        (false, Some(_)) => return Err("tombstone_grace needs compaction = true".into()),
        (false, None) => None,
        (true, None) => Some(Compaction::default()),
        (true, Some(grace)) => {
            let tombstone_grace = units::duration(&grace).map_err(|reason| format!("tombstone_grace: {reason}"))?;
            Some(Compaction { tombstone_grace })
        }
    };
    let settings = TopicSettings {
        partitions,
        retention: Retention { max_age, max_bytes, max_events: table.max_events },
        compaction,
        snapshot,
        max_event_bytes,
        key_path,
    };
    settings.check(topic)?;
    Ok(settings)
}

/// The compactor's part: `snapshot = true`, or any of its details.
fn snapshot_job(table: &Table) -> Result<Option<SnapshotJob>, String> {
    let details = [
        table.snapshot_topic.is_some(),
        table.snapshot_interval.is_some(),
        table.interval_ms.is_some(),
        table.snapshot_keys.is_some(),
    ];
    match (table.snapshot, details.contains(&true)) {
        (Some(true), _) | (None, true) => {}
        (Some(false), true) => return Err("snapshot is false, but its details are given: keep one of the two".into()),
        (Some(false) | None, false) => return Ok(None),
    }
    let interval = match (&table.snapshot_interval, table.interval_ms) {
        (Some(_), Some(_)) => return Err("snapshot_interval and intervalMs say the same: keep one".into()),
        (Some(text), None) => units::duration(text).map_err(|reason| format!("snapshot_interval: {reason}"))?,
        (None, Some(ms)) => Duration::from_millis(ms),
        (None, None) => SnapshotJob::default().interval,
    };
    let keys = table.snapshot_keys.clone().unwrap_or_default();
    let topic = table.snapshot_topic.as_deref().map(Topic::parse).transpose();
    let topic = topic.map_err(|invalid| format!("snapshot_topic: {}", invalid.message))?;
    Ok(Some(SnapshotJob { topic, interval, keys }))
}

impl Size {
    fn bytes(self, name: &str) -> Result<u64, String> {
        match self {
            Self::Number(bytes) => Ok(bytes),
            Self::Text(text) => units::bytes(&text).map_err(|reason| format!("{name}: {reason}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<BTreeMap<Topic, TopicSettings>, ConfigError> {
        Ok(parse(&text.parse::<toml::Table>().expect("toml"), Some(Path::new("f.toml")))?.settings)
    }

    #[test]
    fn the_names_of_the_seeds_and_of_the_hub_work() {
        let topics = parsed(
            r#"
            ["heartbeat.received"]
            retentionDays = 3
            ["process.state"]
            compaction = true
            ["orders"]
            partitions = 4
            max_age = "12h"
            max_bytes = "1GiB"
            max_events = 1000
            ["kv.set"]
            compaction = true
            tombstone_grace = "1h"
            snapshotTopic = "kv.now"
            intervalMs = 5000
            batchKeys = ["a", "b"]
            max_event_bytes = "64KiB"
            key_path = "/id"
            ["agent.state"]
            snapshot = true
            snapshot_interval = "10s"
            ["none"]
            snapshot = false
            "#,
        )
        .expect("good");
        let of = |name: &str| topics[&Topic::parse(name).expect("a topic")].clone();
        assert_eq!(of("heartbeat.received").retention.max_age, Some(Duration::from_secs(3 * 86_400)));
        assert_eq!(of("process.state").compaction, Some(Compaction::default()));
        let orders = of("orders");
        assert_eq!(orders.partitions, 4);
        let hours = Duration::from_secs(12 * 3600);
        let retention = Retention { max_age: Some(hours), max_bytes: Some(1 << 30), max_events: Some(1000) };
        assert_eq!(orders.retention, retention);
        let kv = of("kv.set");
        assert_eq!(kv.compaction.map(|c| c.tombstone_grace), Some(Duration::from_secs(3600)));
        let (topic, keys) = (Some(Topic::parse("kv.now").expect("a topic")), vec!["a".to_owned(), "b".to_owned()]);
        assert_eq!(kv.snapshot, Some(SnapshotJob { topic, interval: Duration::from_secs(5), keys }));
        assert_eq!(kv.max_event_bytes, Some(64 << 10));
        assert_eq!(kv.key_path, KeyPath::parse("/id").ok());
        let ten = SnapshotJob { interval: Duration::from_secs(10), ..SnapshotJob::default() };
        assert_eq!(of("agent.state").snapshot, Some(ten));
        assert_eq!((of("process.state").snapshot, of("none").snapshot), (None, None));
    }

    #[test]
    fn a_topic_may_have_a_rate_of_its_own_or_none() {
        let tables = "[a]\nrate = 10\nburst = 20\n[b]\nrate = 5\n[c]\nrate = 0\n[d]\npartitions = 4";
        let rates = parse(&tables.parse::<toml::Table>().expect("toml"), None).expect("good").rates;
        let shown: Vec<_> = rates
            .iter()
            .map(|(topic, rate)| (topic.as_str(), rate.map(|rate| (rate.per_second.get(), rate.burst.get()))))
            .collect();
        assert_eq!(shown, [("a", Some((10, 20))), ("b", Some((5, 5))), ("c", None)]);
    }

    #[test]
    fn every_key_of_the_list_is_one_of_the_table_and_every_one_of_the_table_is_listed() {
        let refused = |key: &str| alone(key, &toml::Value::Boolean(true)).err().map(|error| error.message().to_owned());
        for key in KEYS {
            assert!(!refused(key).is_some_and(|why| why.contains("unknown field")), "{key}");
        }
        let expected = refused("no_such_key").expect("refused");
        for name in expected.split('`').skip(3).step_by(2) {
            assert!(KEYS.contains(&name), "{name} is missing: {expected}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused_and_named() {
        for (text, named) in [
            ("[\"a b\"]\npartitions = 1", "a b"),
            ("[a]\npartition = 1", "f.toml: topics.\"a\": unknown key \"partition\"; did you mean partitions?"),
            ("[a]\nmaxage = \"1d\"", "did you mean max_age?"),
            ("[a]\nzzz = 1", "unknown key \"zzz\""),
            ("[a]\ncompaction = \"yes\"", "compaction: invalid type"),
            ("[a]\npartitions = 3\nretentionDays = 1.5", "retentionDays: invalid type"),
            ("[a]\npartitions = 0", "partitions"),
            ("[a]\nmax_age = \"long\"", "max_age"),
            ("[a]\nmax_age = \"1d\"\nretentionDays = 1", "retentionDays"),
            ("[a]\ntombstone_grace = \"1d\"", "compaction"),
            ("[a]\nsnapshot_topic = \"a b\"", "snapshot_topic"),
            ("[a]\nsnapshot_topic = \"a\"", "another topic"),
            ("[a]\nintervalMs = 5", "snapshot_interval"),
            ("[a]\nsnapshot = false\nintervalMs = 1000", "snapshot is false"),
            ("[a]\nsnapshot = false\nsnapshotTopic = \"b\"", "snapshot is false"),
            ("[a]\nintervalMs = 500\nsnapshot_interval = \"1s\"", "intervalMs"),
            ("[a]\nmax_bytes = -1", "topics.\"a\""),
            ("a = 1", "topics.\"a\""),
            ("a = [1]", "must be a table"),
            ("[a]\nmax_age = \"0s\"", "max_age"),
            ("[a]\nretentionDays = 0", "max_age"),
            ("[a]\nretentionDays = 99999999999999", "max_age"),
            ("[a]\nmax_bytes = 0", "max_bytes"),
            ("[a]\nmax_events = 0", "max_events"),
            ("[a]\nmax_event_bytes = 0", "max_event_bytes"),
            ("[a]\nkey_path = \"id\"", "key_path"),
            ("[a]\nburst = 5", "burst: needs rate"),
            ("[a]\nrate = 0\nburst = 5", "burst"),
            ("[a]\nrate = -1", "rate"),
            ("[a]\nsnapshot_topic = \"dlq.b\"", "dead letters"),
            ("[a]\nsnapshot_topic = \"b\"\n[b]\nsnapshot_topic = \"a\"", "a → b → a"),
            ("[a]\nsnapshot_topic = \"b.snapshot\"\n[b]\nsnapshot = true", "snapshots of b"),
        ] {
            let refused = parsed(text).expect_err(text).to_string();
            assert!(refused.contains(named), "{text}: {refused}");
        }
    }
}
