//! `promethean topic`: what topics there are, and the state that their keys have or had.

use std::collections::BTreeMap;

use promethean_client::Received;
use promethean_store::TopicSettings;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::address::Port;
use super::fetch::Peer;
use super::out::{self, Table};
use super::{group, hub, print, remove};
use crate::args::{HttpArgs, LatestArgs, SetArgs, TopicCommand};
use crate::config::{bytes, duration};
use crate::exit::{Exit, Failure};

pub(crate) fn run(command: TopicCommand) -> Result<(), Failure> {
    match command {
        TopicCommand::List { json, hub } => list(&hub, json),
        TopicCommand::Show { topic, json, hub } => describe(&topic, &hub, json),
        TopicCommand::Set(args) => set(&args),
        TopicCommand::Create(args) => create(&args),
        TopicCommand::Delete(args) => remove::topic(&args),
        TopicCommand::Purge(args) => remove::events(&args),
        TopicCommand::Latest(args) => latest(&args),
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    topic: String,
    events: u64,
    bytes: u64,
    first_seq: u64,
    last_seq: u64,
    last_ts: Option<u64>,
    publish_rate: f64,
    groups: u64,
}

#[derive(Deserialize)]
struct Rows {
    topics: Vec<Row>,
}

fn list(args: &HttpArgs, json: bool) -> Result<(), Failure> {
    let peer = Peer::new(args, Port::Ops)?;
    if json {
        return out::line(&peer.pages("/topics", &[])?);
    }
    let rows: Rows = peer.parse(&peer.pages("/topics", &[])?)?;
    let none = rows.topics.is_empty();
    table(rows)?;
    out::hint(if none { "promethean pub orders.created '{\"order\":1}'" } else { "promethean group list" });
    Ok(())
}

fn table(rows: Rows) -> Result<(), Failure> {
    let mut table = Table::new(&["TOPIC", "EVENTS", "SIZE", "FIRST", "LAST", "LAST EVENT", "PER SECOND", "GROUPS"]);
    for row in rows.topics {
        table.row([
            row.topic,
            row.events.to_string(),
            out::size(row.bytes),
            row.first_seq.to_string(),
            row.last_seq.to_string(),
            row.last_ts.map_or_else(|| "-".to_owned(), print::time),
            format!("{:.1}", row.publish_rate),
            row.groups.to_string(),
        ]);
    }
    table.print()
}

/// Counts, settings and groups of one topic.
fn describe(topic: &str, args: &HttpArgs, json: bool) -> Result<(), Failure> {
    let peer = Peer::new(args, Port::Ops)?;
    let query = [("topic", topic.to_owned())];
    let topics = peer.text("/topics", &query)?;
    let rows: Rows = peer.parse(&topics)?;
    let settings: Value = peer.read("/settings", &query)?;
    let groups = peer.pages("/groups", &query)?;
    if json {
        let (topics, groups): (Value, Value) = (peer.parse(&topics)?, peer.parse(&groups)?);
        out::json(&json!({ "topic": topics["topics"][0], "settings": settings, "groups": groups["groups"] }))?;
    } else {
        if !rows.topics.is_empty() {
            table(rows)?;
            out::line("")?;
        }
        show_settings(&settings)?;
        out::line("")?;
        group::table(&peer, &groups)?;
    }
    if peer.parse::<Rows>(&topics)?.topics.is_empty() && is_default(&settings) {
        return Err(Failure::new(Exit::NotFound, format!("there is no topic {topic}: its first event makes it")));
    }
    out::hint(&format!("promethean replay {topic}, or promethean topic set {topic} --max-age 30d"));
    Ok(())
}

/// True if these are the settings of a topic that nobody has given any.
fn is_default(settings: &Value) -> bool {
    let TopicSettings { partitions, .. } = TopicSettings::default();
    let mut settings = settings.clone();
    settings.as_object_mut().into_iter().for_each(|fields| drop(fields.remove("topic")));
    settings == json!({ "partitions": partitions, "compaction": false, "snapshot": false })
}

fn show_settings(settings: &Value) -> Result<(), Failure> {
    let mut table = Table::new(&["SETTING", "VALUE"]);
    for (name, value) in settings.as_object().into_iter().flatten().filter(|(name, _)| *name != "topic") {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        table.row([name.clone(), text]);
    }
    table.print()
}

fn set(args: &SetArgs) -> Result<(), Failure> {
    let body = changes(args)?;
    if body.is_empty() {
        return Err(Failure::usage("nothing to change; promethean topic set --help lists what there is"));
    }
    put(args, "/settings", body)
}

fn create(args: &SetArgs) -> Result<(), Failure> {
    put(args, "/topics", changes(args)?)
}

fn put(args: &SetArgs, path: &str, body: Map<String, Value>) -> Result<(), Failure> {
    let peer = Peer::new(&args.hub, Port::Ops)?;
    let query = [("topic", args.topic.clone())];
    let answer = peer.change("PUT", path, &query, &Value::Object(body).to_string())?;
    if args.json {
        return out::line(&answer);
    }
    show_settings(&peer.parse(&answer)?)?;
    out::hint(&format!("promethean topic show {}", args.topic));
    Ok(())
}

/// What is asked for, as the hub takes it.
fn changes(args: &SetArgs) -> Result<Map<String, Value>, Failure> {
    let mut body = Map::new();
    let wrong = |flag: &str, reason: String| Failure::usage(format!("{flag}: {reason}"));
    let time = |flag: &str, text: &str| match text {
        "none" => Ok(Value::Null),
        _ => {
            let time = duration(text).map_err(|reason| wrong(flag, reason))?;
            let millis = u64::try_from(time.as_millis());
            millis.map(Value::from).map_err(|_| wrong(flag, format!("{text:?} is too long")))
        }
    };
    let size = |flag: &str, text: &str| match text {
        "none" => Ok(Value::Null),
        _ => bytes(text).map(|size| json!(size)).map_err(|reason| wrong(flag, reason)),
    };
    let number = |flag: &str, text: &str| match text {
        "none" => Ok(Value::Null),
        _ => text.parse::<u64>().map(|n| json!(n)).map_err(|_| wrong(flag, format!("{text:?} is no number"))),
    };
    let name = |_: &str, text: &str| Ok(if text == "none" { Value::Null } else { json!(text) });
    type Read<'a> = &'a dyn Fn(&str, &str) -> Result<Value, Failure>;
    let texts: [(&str, &str, &Option<String>, Read<'_>); 9] = [
        ("maxAgeMs", "--max-age", &args.max_age, &time),
        ("retentionDays", "--retention-days", &args.retention_days, &number),
        ("maxBytes", "--max-bytes", &args.max_bytes, &size),
        ("maxEvents", "--max-events", &args.max_events, &number),
        ("maxEventBytes", "--max-event-bytes", &args.max_event_bytes, &size),
        ("keyPath", "--key-path", &args.key_path, &name),
        ("tombstoneGraceMs", "--tombstone-grace", &args.tombstone_grace, &time),
        ("snapshotTopic", "--snapshot-topic", &args.snapshot_topic, &name),
        ("snapshotIntervalMs", "--snapshot-interval", &args.snapshot_interval, &time),
    ];
    for (field, flag, text, read) in texts {
        if let Some(text) = text {
            body.insert(field.to_owned(), read(flag, text)?);
        }
    }
    let mut plain = |field: &str, value: Option<Value>| {
        body.extend(value.map(|value| (field.to_owned(), value)));
    };
    plain("partitions", args.partitions.map(Value::from));
    plain("compaction", args.compaction.map(Value::from));
    plain("snapshot", args.snapshot.map(Value::from));
    let none_among = args.snapshot_key.iter().any(|key| key == "none");
    plain(
        "snapshotKeys",
        match args.snapshot_key.as_slice() {
            [] => None,
            [none] if none == "none" => Some(Value::Null),
            _ if none_among => {
                let reason = "none is for all keys, alone; a key of that name can be set by PUT /settings";
                return Err(wrong("--snapshot-key", reason.to_owned()));
            }
            keys => Some(json!(keys)),
        },
    );
    Ok(body)
}

#[derive(Deserialize)]
struct Page {
    entries: BTreeMap<String, Box<RawValue>>,
    next: Option<String>,
}

fn latest(args: &LatestArgs) -> Result<(), Failure> {
    let peer = Peer::new(&args.hub, Port::Ops)?;
    let mut query = vec![("topic", args.topic.clone())];
    query.extend(args.key.iter().map(|key| ("key", key.clone())));
    if let Some(at) = &args.at {
        query.push(("at", hub::time("--at", at)?.to_string()));
    }
    if args.key.is_empty() {
        query.push(("limit", args.limit.to_string()));
        query.extend(args.after.iter().map(|after| ("after", after.clone())));
    }
    let answer = peer.get("/latest-by-key", &query)?;
    let complete = answer.header("x-promethean-complete") != Some("false");
    let text = answer.text()?;
    let (entries, next) = entries(&peer, args, &text)?;
    let mut missing = Vec::new();
    for (key, event) in &entries {
        match event {
            None => missing.push(out::plain(key)),
            Some(_) if args.json => {}
            Some(raw) => {
                let event: Received = peer.parse(raw.get())?;
                print::event(&mut std::io::stdout().lock(), &event, raw.get(), false)?;
            }
        }
    }
    if args.json {
        out::report(&text)?;
    } else if let Some(next) = next {
        out::done(&format!("there is more: --after {next:?}"));
    }
    if !complete {
        out::done("some of the topic's past was removed by retention or compaction: older states may be missing");
    }
    if missing.is_empty() {
        return Ok(());
    }
    Err(Failure::new(Exit::NotFound, format!("no event of {} with the key {}", args.topic, missing.join(", "))))
}

/// The states by key, none where a key that was asked for has none; and the key where the next page begins.
type Entries = (BTreeMap<String, Option<Box<RawValue>>>, Option<String>);

fn entries(peer: &Peer, args: &LatestArgs, text: &str) -> Result<Entries, Failure> {
    match args.key.as_slice() {
        [] => {
            let page: Page = peer.parse(text)?;
            Ok((page.entries.into_iter().map(|(key, event)| (key, Some(event))).collect(), page.next))
        }
        [key] => Ok((BTreeMap::from([(key.clone(), peer.parse(text)?)]), None)),
        _ => Ok((peer.parse(text)?, None)),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Asked {
        #[command(subcommand)]
        command: TopicCommand,
    }

    fn asked(flags: &[&str]) -> Result<Value, String> {
        let line = ["promethean", "set", "t"].iter().chain(flags);
        let asked = Asked::try_parse_from(line).map_err(|error| error.to_string())?;
        let TopicCommand::Set(args) = asked.command else { return Err("another command".to_owned()) };
        changes(&args).map(Value::Object).map_err(|failure| failure.to_string())
    }

    #[test]
    fn none_takes_a_bound_away_for_every_flag_that_has_one() {
        for (flag, field) in [
            ("--max-age", "maxAgeMs"),
            ("--retention-days", "retentionDays"),
            ("--max-bytes", "maxBytes"),
            ("--max-events", "maxEvents"),
            ("--max-event-bytes", "maxEventBytes"),
            ("--key-path", "keyPath"),
            ("--tombstone-grace", "tombstoneGraceMs"),
            ("--snapshot-topic", "snapshotTopic"),
            ("--snapshot-interval", "snapshotIntervalMs"),
            ("--snapshot-key", "snapshotKeys"),
        ] {
            assert_eq!(asked(&[flag, "none"]), Ok(json!({ field: null })), "{flag}");
        }
        assert_eq!(asked(&["--retention-days", "3"]), Ok(json!({ "retentionDays": 3 })));
        assert_eq!(asked(&["--snapshot-key", "a", "--snapshot-key", "b"]), Ok(json!({ "snapshotKeys": ["a", "b"] })));
    }

    #[test]
    fn what_cannot_be_meant_is_refused_by_its_flag() {
        for (flags, named) in [
            (["--retention-days", "many"].as_slice(), "--retention-days"),
            (&["--max-age", "99999999999999999d"], "--max-age"),
            (&["--max-age", "213503982334601d"], "--max-age"),
            (&["--snapshot-key", "a", "--snapshot-key", "none"], "--snapshot-key"),
        ] {
            let refused = asked(flags).expect_err(named);
            assert!(refused.contains(named), "{flags:?}: {refused}");
        }
    }
}
