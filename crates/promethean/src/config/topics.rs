//! The `[topics."name"]` tables: what is kept of a topic, and how it is spread.

use std::collections::BTreeMap;
use std::time::Duration;

use promethean_event::Topic;
use promethean_store::{Compaction, Retention, TopicSettings};
use serde::Deserialize;

use super::{ConfigError, units};

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
}

/// `1073741824` or `"1GiB"`.
#[derive(Deserialize)]
#[serde(untagged)]
enum Size {
    Number(u64),
    Text(String),
}

pub(crate) fn parse(tables: &toml::Table) -> Result<BTreeMap<Topic, TopicSettings>, ConfigError> {
    let mut topics = BTreeMap::new();
    for (name, table) in tables {
        let at = |reason: String| ConfigError::new(&format!("topics.{name:?}"), reason);
        let topic = Topic::parse(name).map_err(|invalid| at(invalid.to_string()))?;
        let table: Table = table.clone().try_into().map_err(|error: toml::de::Error| at(error.message().to_owned()))?;
        topics.insert(topic, settings(table).map_err(at)?);
    }
    Ok(topics)
}

fn settings(table: Table) -> Result<TopicSettings, String> {
    let partitions = table.partitions.unwrap_or(promethean_event::DEFAULT_PARTITIONS);
    if partitions == 0 {
        return Err("partitions must be at least 1".into());
    }
    let max_age = match (table.max_age, table.retention_days) {
        (Some(_), Some(_)) => return Err("max_age and retentionDays say the same: keep one".into()),
        (Some(age), None) => Some(units::duration(&age).map_err(|reason| format!("max_age: {reason}"))?),
        (None, Some(days)) => {
            let seconds = days.checked_mul(86_400).ok_or("retentionDays is too large")?;
            Some(Duration::from_secs(seconds))
        }
        (None, None) => None,
    };
    let max_bytes = match table.max_bytes {
        Some(Size::Number(bytes)) => Some(bytes),
        Some(Size::Text(text)) => Some(units::bytes(&text).map_err(|reason| format!("max_bytes: {reason}"))?),
        None => None,
    };
    let compaction = match (table.compaction, table.tombstone_grace) {
        (false, Some(_)) => return Err("tombstone_grace needs compaction = true".into()),
        (false, None) => None,
        (true, None) => Some(Compaction::default()),
        (true, Some(grace)) => {
            let tombstone_grace = units::duration(&grace).map_err(|reason| format!("tombstone_grace: {reason}"))?;
            Some(Compaction { tombstone_grace })
        }
    };
    Ok(TopicSettings {
        partitions,
        retention: Retention { max_age, max_bytes, max_events: table.max_events },
        compaction,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<BTreeMap<Topic, TopicSettings>, ConfigError> {
        parse(&text.parse::<toml::Table>().expect("toml"))
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
        assert_eq!(of("kv.set").compaction.map(|c| c.tombstone_grace), Some(Duration::from_secs(3600)));
    }

    #[test]
    fn what_makes_no_sense_is_refused_and_named() {
        for (text, named) in [
            ("[\"a b\"]\npartitions = 1", "a b"),
            ("[a]\npartition = 1", "partition"),
            ("[a]\npartitions = 0", "partitions"),
            ("[a]\nmax_age = \"long\"", "max_age"),
            ("[a]\nmax_age = \"1d\"\nretentionDays = 1", "retentionDays"),
            ("[a]\ntombstone_grace = \"1d\"", "compaction"),
            ("[a]\nmax_bytes = -1", "topics.\"a\""),
            ("a = 1", "topics.\"a\""),
        ] {
            let refused = parsed(text).expect_err(text).to_string();
            assert!(refused.contains(named), "{text}: {refused}");
        }
    }
}
