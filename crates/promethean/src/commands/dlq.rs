//! `promethean dlq`: dead letters, by topic and group, one by one, and redriving them.

use promethean_bus::Envelope;
use promethean_client::EventId;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::address::Port;
use super::fetch::Peer;
use super::out::{self, Table};
use super::{hub, print};
use crate::args::{DlqCommand, RedriveArgs};
use crate::exit::{Exit, Failure};

pub(crate) fn run(command: &DlqCommand) -> Result<(), Failure> {
    match command {
        DlqCommand::List { topic: None, json, hub, .. } => topics(&Peer::new(hub, Port::Ops)?, *json),
        DlqCommand::List { topic: Some(topic), limit, after, json, hub } => {
            letters(&Peer::new(hub, Port::Ops)?, topic, *limit, after.as_deref(), *json)
        }
        DlqCommand::Show { id, json, hub } => show(&Peer::new(hub, Port::Ops)?, id, *json),
        DlqCommand::Redrive(args) => redrive(args),
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TopicRow {
    topic: String,
    letters: u64,
    last_ts: Option<u64>,
    #[serde(flatten)]
    groups: ByGroup,
}

/// Letters by group.
#[derive(Deserialize)]
struct ByGroup {
    groups: Vec<GroupRow>,
    /// Somebody else's events among them.
    #[serde(default)]
    foreign: u64,
    /// How many letters were counted, where not all were.
    counted: Option<u64>,
}

impl ByGroup {
    fn told(&self) -> String {
        let groups: Vec<String> =
            self.groups.iter().map(|row| format!("{} {}", or_dash(&row.group), row.letters)).collect();
        let mut told = or_dash(&groups.join(", "));
        if self.foreign > 0 {
            told.push_str(&format!("; no dead letters: {}", self.foreign));
        }
        if let Some(counted) = self.counted {
            told.push_str(&format!("; only the oldest {counted} letters are counted, ask again for more"));
        }
        told
    }
}

#[derive(Deserialize)]
struct GroupRow {
    group: String,
    letters: u64,
}

#[derive(Deserialize)]
struct Topics {
    topics: Vec<TopicRow>,
}

fn topics(peer: &Peer, json: bool) -> Result<(), Failure> {
    let text = peer.text("/dlq", &[("groups", "1".to_owned())])?;
    if json {
        return out::line(&text);
    }
    let rows: Topics = peer.parse(&text)?;
    let mut table = Table::new(&["TOPIC", "LETTERS", "LAST", "BY GROUP"]);
    let first = rows.topics.first().map(|row| row.topic.clone());
    for row in rows.topics {
        let last = row.last_ts.map_or_else(|| "-".to_owned(), print::time);
        table.row([row.topic, row.letters.to_string(), last, row.groups.told()]);
    }
    table.print()?;
    if let Some(topic) = first {
        out::hint(&format!("promethean dlq list {topic}"));
    }
    Ok(())
}

#[derive(Deserialize)]
struct Listed {
    letters: u64,
    #[serde(flatten)]
    groups: ByGroup,
    reasons: Vec<Reason>,
    entries: Vec<Entry>,
    next: Option<String>,
}

#[derive(Deserialize)]
struct Reason {
    err: String,
    group: Option<String>,
    count: u64,
}

#[derive(Deserialize)]
struct Entry {
    id: String,
    seq: u64,
    ts: u64,
    group: String,
    err: String,
    attempts: u64,
    redriven: bool,
    #[serde(default)]
    foreign: bool,
    original: Original,
}

#[derive(Deserialize)]
struct Original {
    id: String,
    key: Option<String>,
}

fn letters(peer: &Peer, topic: &str, limit: u64, after: Option<&str>, json: bool) -> Result<(), Failure> {
    if topic.is_empty() {
        return Err(Failure::usage("TOPIC: is empty; leave it out for the topics that have dead letters"));
    }
    let mut query = vec![("topic", topic.to_owned()), ("limit", limit.to_string())];
    query.extend(after.map(|after| ("after", after.to_owned())));
    let text = peer.text("/dlq", &query)?;
    let listed: Listed = peer.parse(&text)?;
    if listed.entries.is_empty() {
        must_exist(peer, topic)?;
    }
    if json {
        return out::line(&text);
    }
    out::line(&format!("{topic}: {} letters not redriven; by group: {}", listed.letters, listed.groups.told()))?;
    for Reason { err, group, count } in &listed.reasons {
        let group = group.as_deref().map_or_else(String::new, |group| format!(" ({group})"));
        out::line(&out::plain(&format!("  {count} × {err}{group}")))?;
    }
    let mut table = Table::new(&["SEQ", "ID", "TIME", "GROUP", "ATTEMPTS", "REDRIVEN", "KEY", "EVENT", "REASON"]);
    for entry in listed.entries {
        table.row([
            entry.seq.to_string(),
            entry.id,
            print::time(entry.ts),
            or_dash(&entry.group),
            entry.attempts.to_string(),
            (if entry.foreign {
                "never"
            } else if entry.redriven {
                "yes"
            } else {
                "no"
            })
            .to_owned(),
            or_dash(&entry.original.key.unwrap_or_default()),
            entry.original.id,
            entry.err,
        ]);
    }
    table.print()?;
    if let Some(next) = listed.next {
        out::done(&format!("there is more: --after {next}"));
    }
    if listed.letters > 0 {
        out::hint(&format!("promethean dlq show ID, or promethean dlq redrive {topic} --all"));
    }
    Ok(())
}

/// No letters of a topic: it has none, or there is no such topic.
fn must_exist(peer: &Peer, topic: &str) -> Result<(), Failure> {
    for name in [topic.to_owned(), format!("dlq.{topic}")] {
        match peer.read::<Value>("/topics", &[("topic", name)]) {
            Ok(found) if found["topics"].as_array().is_some_and(Vec::is_empty) => {}
            // Whoever may see the letters need not see the topic.
            Err(failure) if failure.exit != Exit::Denied => return Err(failure),
            _ => return Ok(()),
        }
    }
    Err(Failure::new(Exit::NotFound, format!("there is no topic {topic}, and no dead letters of it")))
}

fn or_dash(text: &str) -> String {
    if text.is_empty() { "-".to_owned() } else { text.to_owned() }
}

#[derive(Deserialize)]
struct Letter<'a> {
    topic: String,
    seq: u64,
    ts: u64,
    #[serde(borrow)]
    payload: Envelope<'a>,
}

fn show(peer: &Peer, id: &str, json: bool) -> Result<(), Failure> {
    EventId::parse(id).map_err(|invalid| Failure::usage(format!("ID: {}", invalid.message)))?;
    let text = peer.text("/event", &[("id", id.to_owned())])?;
    let no_letter = |_| Failure::new(Exit::NotFound, format!("{id} is an event, but no dead letter"));
    let letter: Letter<'_> = serde_json::from_str(&text).map_err(no_letter)?;
    let Some(topic) = letter.topic.strip_prefix("dlq.") else {
        return Err(Failure::new(Exit::NotFound, format!("{id} is an event of {}, no dead letter", letter.topic)));
    };
    if json {
        return out::line(&text);
    }
    let Envelope { group, err, attempts, original, .. } = letter.payload;
    let mut table = Table::new(&["LETTER", id]);
    for (name, value) in [
        ("topic", topic.to_owned()),
        ("group", group.unwrap_or_default().into_owned()),
        ("time", print::time(letter.ts)),
        ("attempts", attempts.to_string()),
        ("reason", err.unwrap_or_default().into_owned()),
        ("place", format!("dlq.{topic}#{}", letter.seq)),
    ] {
        table.row([name.to_owned(), value]);
    }
    table.print()?;
    out::line(original.get())?;
    out::hint(&format!("promethean dlq redrive {topic} {id}"));
    Ok(())
}

#[derive(Deserialize)]
struct Redriven {
    redriven: u64,
    remaining: u64,
    gone: u64,
    #[serde(default)]
    refused: u64,
    #[serde(default)]
    refusals: Vec<Refusal>,
}

#[derive(Deserialize)]
struct Refusal {
    id: String,
    code: String,
    error: String,
}

impl Redriven {
    /// True if every letter that was asked for went: else which did not, and why.
    fn verdict(&self, topic: &str) -> Result<(), Failure> {
        if self.refused == 0 {
            return Ok(());
        }
        let mut said = match self.refused {
            1 => format!("1 letter was refused by {topic} and stays:"),
            refused => format!("{refused} letters were refused by {topic} and stay:"),
        };
        for Refusal { id, code, error } in &self.refusals {
            said.push_str(&out::plain(&format!(" {id}: {error} ({code});")));
        }
        match self.refused - self.refusals.len() as u64 {
            0 => drop(said.pop()),
            more => said.push_str(&format!(" and {more} more")),
        }
        Err(Failure::failed(said))
    }
}

/// What is read of an event: the rest may be any JSON, also what no number or string of Rust can be.
#[derive(Deserialize)]
struct OnTopic {
    topic: String,
}

fn redrive(args: &RedriveArgs) -> Result<(), Failure> {
    let body = filter(args)?;
    let peer = Peer::new(&args.hub, Port::Ops)?;
    for id in &args.ids {
        // One that is not there is a mistake; one that was sent back before is not.
        let OnTopic { topic } = peer.read("/event", &[("id", id.clone())])?;
        if topic != format!("dlq.{}", args.topic) {
            return Err(Failure::new(
                Exit::NotFound,
                format!("{id} is no dead letter of {}: it is on {topic}", args.topic),
            ));
        }
    }
    must_be_meant(&peer, args)?;
    let query = [("topic", args.topic.clone())];
    let answer = peer.change("POST", "/dlq/redrive", &query, &Value::Object(body).to_string())?;
    let told: Redriven = peer.parse(&answer)?;
    let none = told.remaining == 0 && told.redriven == 0;
    if none {
        must_exist(&peer, &args.topic)?;
    }
    if args.json {
        out::line(&answer)?;
        return told.verdict(&args.topic);
    }
    let Redriven { redriven, remaining, gone, .. } = told;
    if none && args.ids.is_empty() {
        out::line(&format!("{} has no letters to redrive", args.topic))?;
    } else if args.dry_run {
        out::line(&format!("{redriven} of {} letters fit; none was redriven", redriven + remaining))?;
    } else {
        let letters = if redriven == 1 { "letter" } else { "letters" };
        let to = if args.to_topic { format!("to {}", args.topic) } else { "to the group that failed".to_owned() };
        out::line(&format!("{redriven} {letters} redriven {to}, {remaining} left"))?;
        out::hint(&format!("promethean group list {}", args.topic));
    }
    if gone > 0 {
        out::done(&format!("{gone} cannot go to their group: the event has left the log; --to-topic publishes a copy"));
    }
    told.verdict(&args.topic)
}

/// Refuses a redrive that more than one group would get events of, without `--yes`.
fn must_be_meant(peer: &Peer, args: &RedriveArgs) -> Result<(), Failure> {
    if args.yes || args.dry_run || (args.group.is_some() && !args.to_topic) {
        return Ok(());
    }
    let topic = ("topic", args.topic.clone());
    let listed: Value = if args.to_topic {
        peer.parse(&peer.pages("/groups", &[topic])?)?
    } else if args.ids.is_empty() {
        peer.read("/dlq", &[topic, ("limit", "1".to_owned())])?
    } else {
        return Ok(());
    };
    let rows = listed["groups"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut groups: Vec<&str> = rows.iter().filter_map(|row| row["group"].as_str()).collect();
    groups.sort_unstable();
    groups.dedup();
    match groups.as_slice() {
        [] | [_] => Ok(()),
        several => {
            let message = format!("{} groups would get events again: {}", several.len(), several.join(", "));
            Err(Failure::usage(format!("{message}; add --yes, name one with --group, or look with --dry-run")))
        }
    }
}

/// What is asked for, as the hub takes it.
fn filter(args: &RedriveArgs) -> Result<Map<String, Value>, Failure> {
    let mut body = Map::new();
    for id in &args.ids {
        EventId::parse(id).map_err(|invalid| Failure::usage(format!("ID: {}", invalid.message)))?;
    }
    for (flag, text) in [("--group", &args.group), ("--key", &args.key), ("--reason", &args.reason)] {
        if text.as_deref() == Some("") {
            return Err(Failure::usage(format!("{flag}: is empty; name one, or leave it out")));
        }
    }
    let time = |name: &str, text: &Option<String>| text.as_deref().map(|text| hub::time(name, text)).transpose();
    let fields = [
        ("ids", (!args.ids.is_empty()).then(|| json!(args.ids))),
        ("group", args.group.as_ref().map(|group| json!(group))),
        ("key", args.key.as_ref().map(|key| json!(key))),
        ("errContains", args.reason.as_ref().map(|reason| json!(reason))),
        ("since", time("--since", &args.since)?.map(|ts| json!(ts))),
        ("until", time("--until", &args.until)?.map(|ts| json!(ts))),
    ];
    body.extend(fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
    if body.is_empty() && !args.all {
        return Err(Failure::usage(
            "which letters? name ids, a filter (--group, --key, --reason, --since, --until) or --all",
        ));
    }
    body.extend(args.to_topic.then(|| ("to".to_owned(), json!("topic"))));
    body.extend(args.limit.map(|limit| ("limit".to_owned(), json!(limit))));
    body.extend(args.dry_run.then(|| ("dryRun".to_owned(), json!(true))));
    Ok(body)
}
