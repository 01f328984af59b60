//! `promethean topic delete` and `promethean topic purge`: a dry run first, then a confirmation.

use std::io::{IsTerminal as _, Write as _};

use serde::Deserialize;
use serde_json::{Value, json};

use super::address::Port;
use super::fetch::Peer;
use super::{hub, out};
use crate::args::{Confirmed, DeleteArgs, PurgeArgs};
use crate::exit::Failure;

/// The hub's answer.
#[derive(Deserialize)]
struct Gone {
    topic: String,
    events: u64,
    bytes: u64,
    /// Only of a deletion.
    groups: Option<u64>,
    dlq: Option<Box<Gone>>,
}

impl Gone {
    fn told(&self) -> String {
        let groups = self.groups.map_or_else(String::new, |groups| format!(", the positions of {groups} groups"));
        let letters = self.dlq.as_ref().map_or_else(String::new, |dlq| format!("; {}", dlq.told()));
        format!("{}: {} events, {}{groups}{letters}", self.topic, self.events, out::size(self.bytes))
    }
}

/// A change that removes something.
struct Removal<'a> {
    method: &'a str,
    path: &'a str,
    query: Vec<(&'a str, String)>,
    body: String,
}

impl Removal<'_> {
    fn carry_out(self, how: &Confirmed) -> Result<(), Failure> {
        let peer = Peer::new(&how.hub, Port::Ops)?;
        if !how.yes {
            let mut query = self.query.clone();
            query.push(("dryRun", "1".to_owned()));
            let plan = peer.change(self.method, self.path, &query, &self.body)?;
            let told = peer.parse::<Gone>(&plan)?.told();
            let asks = !how.dry_run && !how.json && std::io::stdin().is_terminal();
            if !asks || !agreed(&told)? {
                if how.json {
                    out::line(&plan)?
                } else {
                    out::line(&format!("would go: {told}"))?
                }
                out::done("nothing was removed: add --yes to do it");
                return Ok(());
            }
        }
        let answer = peer.change(self.method, self.path, &self.query, &self.body)?;
        if how.json {
            out::line(&answer)
        } else {
            out::line(&format!("removed {}", peer.parse::<Gone>(&answer)?.told()))
        }
    }
}

/// Asks on the terminal.
fn agreed(told: &str) -> Result<bool, Failure> {
    let unreadable = |error| Failure::failed(format!("cannot ask: {error}"));
    let mut stderr = std::io::stderr();
    write!(stderr, "remove {told}? [y/N] ").and_then(|()| stderr.flush()).map_err(unreadable)?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer).map_err(unreadable)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

pub(super) fn topic(args: &DeleteArgs) -> Result<(), Failure> {
    let mut query = vec![("topic", args.topic.clone())];
    query.extend(args.dlq.then(|| ("dlq", "1".to_owned())));
    Removal { method: "DELETE", path: "/topics", query, body: String::new() }.carry_out(&args.how)
}

pub(super) fn events(args: &PurgeArgs) -> Result<(), Failure> {
    let body: Value = match (&args.before_seq, &args.before) {
        (Some(seq), _) => json!({ "beforeSeq": seq }),
        (None, Some(time)) => json!({ "beforeTs": hub::time("--before", time)? }),
        (None, None) => json!({ "keys": args.key }),
    };
    let query = vec![("topic", args.topic.clone())];
    Removal { method: "POST", path: "/purge", query, body: body.to_string() }.carry_out(&args.how)
}
