//! `promethean group`: how groups stand, why they do not move, moving and forgetting them.

use serde::Deserialize;
use serde_json::{Value, json};

use super::address::Port;
use super::fetch::Peer;
use super::out::{self, Table};
use super::print;
use super::seek::Seek;
use crate::args::{GroupArgs, GroupCommand};
use crate::exit::{Exit, Failure};

pub(crate) fn run(command: &GroupCommand) -> Result<(), Failure> {
    match command {
        GroupCommand::List { topic, json, hub } => {
            let peer = Peer::new(hub, Port::Ops)?;
            let query: Vec<_> = topic.iter().map(|topic| ("topic", topic.clone())).collect();
            let text = peer.pages("/groups", &query)?;
            if *json {
                return out::line(&text);
            }
            let none = peer.parse::<Rows>(&text)?.groups.is_empty();
            table(&peer, &text)?;
            out::hint(if none {
                "promethean sub TOPIC --group NAME makes one"
            } else {
                "promethean group explain TOPIC GROUP says why one does not move"
            });
            Ok(())
        }
        GroupCommand::Show(args) => show(args),
        GroupCommand::Explain(args) => explain(args),
        GroupCommand::Seek { from, yes, create, group } => {
            let peer = Peer::new(&group.hub, Port::Ops)?;
            let seek = Seek { yes: *yes, create: *create, json: group.json };
            seek.run(&peer, &group.topic, &group.group, from)
        }
        GroupCommand::Forget { yes, group } => forget(group, *yes),
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    topic: String,
    group: String,
    members: u64,
    inflight: u64,
    lag: u64,
    lag_ms: u64,
    seq: u64,
    redelivered: u64,
    dead_lettered: u64,
    paused: bool,
    last_id: Option<String>,
}

#[derive(Deserialize)]
struct Rows {
    groups: Vec<Row>,
}

/// The answer of `/groups`.
pub(super) fn table(peer: &Peer, text: &str) -> Result<(), Failure> {
    let rows: Rows = peer.parse(text)?;
    let headings =
        ["TOPIC", "GROUP", "MEMBERS", "LAG", "BEHIND", "IN FLIGHT", "SEQ", "LAST", "REDELIVERED", "DEAD", "PAUSED"];
    let mut table = Table::new(&headings);
    for row in rows.groups {
        table.row([
            row.topic,
            row.group,
            row.members.to_string(),
            row.lag.to_string(),
            seconds(row.lag_ms),
            row.inflight.to_string(),
            row.seq.to_string(),
            row.last_id.unwrap_or_else(|| "-".to_owned()),
            row.redelivered.to_string(),
            row.dead_lettered.to_string(),
            (if row.paused { "yes" } else { "no" }).to_owned(),
        ]);
    }
    table.print()
}

fn seconds(millis: u64) -> String {
    match millis {
        0 => "-".to_owned(),
        1..10_000 => format!("{:.1} s", millis as f64 / 1_000.0),
        10_000..7_200_000 => format!("{} s", millis / 1_000),
        _ => format!("{} h", millis / 3_600_000),
    }
}

fn query(args: &GroupArgs) -> [(&'static str, String); 2] {
    [("topic", args.topic.clone()), ("group", args.group.clone())]
}

fn missing(args: &GroupArgs) -> Failure {
    let remedy = "its first subscriber creates it; promethean group list shows those there are";
    Failure::new(Exit::NotFound, format!("no such group: {} on {}; {remedy}", args.group, args.topic))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Unfinished {
    inflight: Vec<Event>,
    waiting: Vec<Event>,
}

#[derive(Deserialize)]
struct Event {
    id: String,
    seq: u64,
    key: Option<String>,
    connection: Option<String>,
    attempt: u64,
    deadline: Option<u64>,
    until: Option<u64>,
    reason: Option<String>,
}

fn show(args: &GroupArgs) -> Result<(), Failure> {
    let peer = Peer::new(&args.hub, Port::Ops)?;
    let mut groups: Value = peer.parse(&peer.pages("/groups", &[("topic", args.topic.clone())])?)?;
    let rows = groups["groups"].as_array_mut().map(std::mem::take).unwrap_or_default();
    let row = rows.into_iter().find(|row| row["group"] == args.group.as_str()).ok_or_else(|| missing(args))?;
    let unfinished = peer.text("/inflight", &query(args))?;
    if args.json {
        let unfinished: Value = peer.parse(&unfinished)?;
        return out::json(&json!({ "group": row, "unfinished": unfinished }));
    }
    table(&peer, &json!({ "groups": [row] }).to_string())?;
    let Unfinished { inflight, waiting } = peer.parse(&unfinished)?;
    if !(inflight.is_empty() && waiting.is_empty()) {
        out::line("")?;
        let mut table = Table::new(&["SEQ", "ID", "KEY", "STATE", "ATTEMPT", "UNTIL", "HELD BY", "REASON"]);
        let both = inflight.into_iter().map(|one| ("held", one)).chain(waiting.into_iter().map(|one| ("waits", one)));
        for (state, event) in both {
            let dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
            table.row([
                event.seq.to_string(),
                event.id,
                dash(event.key),
                state.to_owned(),
                event.attempt.to_string(),
                dash(event.deadline.or(event.until).map(print::time)),
                dash(event.connection),
                dash(event.reason),
            ]);
        }
        table.print()?;
    }
    out::hint(&format!("promethean group explain {} {}", args.topic, args.group));
    Ok(())
}

#[derive(Deserialize)]
struct Explanation {
    lag: u64,
    inflight: u64,
    reasons: Vec<Reason>,
}

#[derive(Deserialize)]
struct Reason {
    code: String,
    text: String,
}

fn explain(args: &GroupArgs) -> Result<(), Failure> {
    let peer = Peer::new(&args.hub, Port::Ops)?;
    let text = peer.text("/explain", &query(args))?;
    let told: Explanation = peer.parse(&text)?;
    if args.json {
        out::line(&text)?;
    } else {
        out::line(&format!("{} on {}: {} not done, {} in flight", args.group, args.topic, told.lag, told.inflight))?;
        for reason in &told.reasons {
            out::line(&format!("{}: {}", reason.code, out::plain(&reason.text)))?;
        }
        out::hint(&format!("promethean group show {} {}", args.topic, args.group));
    }
    if told.reasons.iter().any(|reason| reason.code == "unknown_group") { Err(missing(args)) } else { Ok(()) }
}

fn forget(args: &GroupArgs, yes: bool) -> Result<(), Failure> {
    let peer = Peer::new(&args.hub, Port::Ops)?;
    if !yes {
        let groups: Rows = peer.parse(&peer.pages("/groups", &[("topic", args.topic.clone())])?)?;
        let row = groups.groups.iter().find(|row| row.group == args.group).ok_or_else(|| missing(args))?;
        let Row { topic, group, seq, lag, .. } = row;
        if args.json {
            let told =
                json!({ "topic": topic, "group": group, "forgotten": false, "dryRun": true, "seq": seq, "lag": lag });
            return out::json(&told);
        }
        out::line(&format!("{group} on {topic} would be forgotten: it is at #{seq}, lag {lag}"))?;
        out::done("nothing was done: add --yes to do it");
        return Ok(());
    }
    let answer = peer.change("DELETE", "/groups", &query(args), "")?;
    let told: Value = peer.parse(&answer)?;
    if told["forgotten"] != true {
        return Err(missing(args));
    }
    if args.json { out::line(&answer) } else { out::line(&format!("{} on {} is forgotten", args.group, args.topic)) }
}
