//! `promethean replay`: a part of the log, page by page over HTTP; or, with `--group`, sends a group back to it.

use std::io::Write;

use promethean_client::{From, Received};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::address::Port;
use super::fetch::Peer;
use super::hub::{self, Place};
use super::seek::Seek;
use super::{out, print};
use crate::args::ReplayArgs;
use crate::exit::Failure;

/// Most events asked for at once.
const PAGE: u64 = 1_000;

#[derive(Deserialize)]
struct Page<'a> {
    #[serde(borrow)]
    events: Vec<&'a RawValue>,
    next: Option<String>,
}

pub(crate) fn run(args: &ReplayArgs) -> Result<(), Failure> {
    if let Some(group) = &args.group {
        let peer = Peer::new(&args.hub, Port::Ops)?;
        let seek = Seek { yes: args.yes, create: false, json: args.json };
        return seek.run(&peer, &args.topic, group, &args.from);
    }
    if args.yes {
        return Err(Failure::usage("--yes: moves a group; name it with --group"));
    }
    let mut place = match hub::place(&args.from)? {
        Place::From(From::Earliest) => vec![("from", "earliest".to_owned())],
        Place::From(From::Ts(ts)) => vec![("from", "ts".into()), ("ts", ts.to_string())],
        Place::From(From::AfterId(id)) => vec![("from", "afterId".into()), ("afterId", id.to_string())],
        Place::Seq(seq) => at_seq(seq),
        Place::From(From::Latest | From::Snapshot) => {
            let remedy = "a replay starts at earliest, a time, seq:N, or after an event's id";
            return Err(Failure::usage(format!("--from: {remedy}")));
        }
    };
    let peer = Peer::new(&args.hub, Port::Http)?;
    let mut stdout = std::io::BufWriter::new(std::io::stdout().lock());
    let mut left = if args.all { u64::MAX } else { args.limit };
    while left > 0 {
        let mut query = vec![("topic", args.topic.clone()), ("limit", left.min(PAGE).to_string())];
        query.append(&mut place);
        let body = peer.text("/replay", &query)?;
        let unreadable = |error| Failure::failed(format!("{} answered something else: {error}", peer.server()));
        let page: Page<'_> = serde_json::from_str(&body).map_err(unreadable)?;
        let mut last = 0;
        for raw in &page.events {
            let event: Received = serde_json::from_str(raw.get()).map_err(unreadable)?;
            print::event(&mut stdout, &event, raw.get(), args.json)?;
            last = event.seq;
        }
        left -= (page.events.len() as u64).min(left);
        if page.next.is_none() {
            return print::written(stdout.flush());
        }
        // By seq: the event may be gone by compaction when the next page is asked for.
        place = at_seq(last + 1);
        if left == 0 {
            print::written(stdout.flush())?;
            out::done(&format!("there is more: --from seq:{}, or --all", last + 1));
        }
    }
    Ok(())
}

fn at_seq(seq: u64) -> Vec<(&'static str, String)> {
    vec![("from", "seq".to_owned()), ("seq", seq.to_string())]
}
