//! Moving a group's cursor: `promethean replay --group` and `promethean group seek`. Without `--yes` it only says what
//! would happen.

use promethean_client::From;
use serde::Deserialize;
use serde_json::json;

use super::fetch::Peer;
use super::hub::{self, Place};
use super::{out, print};
use crate::exit::Failure;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct At {
    seq: u64,
    last_ts: Option<u64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Moved {
    dry_run: bool,
    before: At,
    after: At,
    lag_before: u64,
    lag_after: u64,
    again: u64,
    skipped: u64,
    #[serde(default)]
    new: bool,
}

pub(super) fn run(peer: &Peer, topic: &str, group: &str, from: &str, yes: bool, json: bool) -> Result<(), Failure> {
    let body = match hub::place(from)? {
        Place::From(From::Earliest) => json!({ "from": "earliest" }),
        Place::From(From::Latest) => json!({ "from": "latest" }),
        Place::From(From::Ts(ts)) => json!({ "from": "ts", "ts": ts }),
        Place::From(From::AfterId(id)) => json!({ "from": "afterId", "afterId": id }),
        Place::Seq(seq) => json!({ "from": "seq", "seq": seq }),
        Place::From(From::Snapshot) => {
            let remedy = "a group is moved to earliest, latest, a time, seq:N, or after an event's id";
            return Err(Failure::usage(format!("--from: {remedy}")));
        }
    };
    let dry = if yes { "0" } else { "1" };
    let query = [("topic", topic.to_owned()), ("group", group.to_owned()), ("dryRun", dry.to_owned())];
    let answer = peer.change("PUT", "/cursors", &query, &body.to_string())?;
    let moved: Moved = peer.parse(&answer)?;
    if json {
        return out::line(&answer);
    }
    out::line(&told(topic, group, &moved))?;
    if moved.dry_run {
        out::done("nothing was moved: add --yes to do it");
    } else {
        out::hint(&format!("promethean group show {topic} {group}"));
    }
    Ok(())
}

fn told(topic: &str, group: &str, moved: &Moved) -> String {
    let place = |at: &At| match (at.seq, at.last_ts) {
        (0, _) => "the beginning".to_owned(),
        (seq, Some(ts)) => format!("after #{seq} ({})", print::time(ts)),
        (seq, None) => format!("after #{seq}"),
    };
    let from = if moved.new { "no cursor yet".to_owned() } else { place(&moved.before) };
    format!(
        "{group} on {topic}: from {from} to {}; {} come again, {} are passed over; lag {} to {}",
        place(&moved.after),
        moved.again,
        moved.skipped,
        moved.lag_before,
        moved.lag_after
    )
}
