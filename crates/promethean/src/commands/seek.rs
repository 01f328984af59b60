//! Moving a group's cursor: `promethean replay --group` and `promethean group seek`. Without `--yes` it only says what
//! would happen.

use promethean_client::From;
use serde::Deserialize;
use serde_json::json;

use super::fetch::Peer;
use super::hub::{self, Place};
use super::{out, print};
use crate::exit::{Exit, Failure};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct At {
    seq: u64,
    last_ts: Option<u64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Moved {
    before: At,
    after: At,
    lag_before: u64,
    lag_after: u64,
    again: u64,
    skipped: u64,
    #[serde(default)]
    new: bool,
}

/// What to do beyond saying what would happen.
pub(super) struct Seek {
    pub(super) yes: bool,
    /// Of a group that does not exist, too.
    pub(super) create: bool,
    pub(super) json: bool,
}

impl Seek {
    pub(super) fn run(&self, peer: &Peer, topic: &str, group: &str, from: &str) -> Result<(), Failure> {
        let body = body(from)?;
        let ask = |dry: bool| {
            let dry = if dry { "1" } else { "0" };
            let query = [("topic", topic.to_owned()), ("group", group.to_owned()), ("dryRun", dry.to_owned())];
            peer.change("PUT", "/cursors", &query, &body)
        };
        let mut answer = ask(true)?;
        let plan: Moved = peer.parse(&answer)?;
        if plan.new && !self.create {
            let remedy = "promethean group list shows those there are, promethean group seek --create makes one";
            return Err(Failure::new(Exit::NotFound, format!("no such group: {group} on {topic}; {remedy}")));
        }
        if self.yes {
            answer = ask(false)?;
        }
        if self.json {
            return out::line(&answer);
        }
        out::line(&told(topic, group, &peer.parse(&answer)?))?;
        if self.yes {
            out::hint(&format!("promethean group show {topic} {group}"));
        } else {
            out::done("nothing was moved: add --yes to do it");
        }
        Ok(())
    }
}

/// Returns the body of the request.
fn body(from: &str) -> Result<String, Failure> {
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
    Ok(body.to_string())
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
