//! `promethean topic`: what topics there are, and the state that their keys have or had.

use std::collections::BTreeMap;

use promethean_client::Received;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::address::Port;
use super::fetch::Peer;
use super::out::{self, Table};
use super::{hub, print};
use crate::args::{HttpArgs, LatestArgs, TopicCommand};
use crate::exit::{Exit, Failure};

pub(crate) fn run(command: TopicCommand) -> Result<(), Failure> {
    match command {
        TopicCommand::List { json, hub } => list(&hub, json),
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
        return out::line(&peer.text("/topics", &[])?);
    }
    let rows: Rows = peer.read("/topics", &[])?;
    let mut table = Table::new(&["TOPIC", "EVENTS", "SIZE", "FIRST", "LAST", "LAST EVENT", "PER SECOND", "GROUPS"]);
    let none = rows.topics.is_empty();
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
    table.print()?;
    out::hint(if none { "promethean pub orders.created '{\"order\":1}'" } else { "promethean group list" });
    Ok(())
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
    if args.json {
        out::line(&text)?;
    } else {
        show(&peer, args, &text)?;
    }
    if !complete {
        out::done("some of the topic's past was removed by retention or compaction: older states may be missing");
    }
    Ok(())
}

fn show(peer: &Peer, args: &LatestArgs, text: &str) -> Result<(), Failure> {
    let (entries, next): (BTreeMap<String, Option<Box<RawValue>>>, _) = match args.key.as_slice() {
        [] => {
            let page: Page = peer.parse(text)?;
            (page.entries.into_iter().map(|(key, event)| (key, Some(event))).collect(), page.next)
        }
        [key] => (BTreeMap::from([(key.clone(), peer.parse(text)?)]), None),
        _ => (peer.parse(text)?, None),
    };
    let mut missing = Vec::new();
    for (key, event) in &entries {
        match event {
            None => missing.push(out::plain(key)),
            Some(raw) => {
                let event: Received = peer.parse(raw.get())?;
                print::event(&mut std::io::stdout().lock(), &event, raw.get(), false)?;
            }
        }
    }
    if let Some(next) = next {
        out::done(&format!("there is more: --after {next:?}"));
    }
    match missing.len() {
        0 => Ok(()),
        _ => {
            Err(Failure::new(Exit::NotFound, format!("no event of {} with the key {}", args.topic, missing.join(", "))))
        }
    }
}
