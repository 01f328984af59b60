//! `promethean consume`: one request's worth of a group's events over HTTP, printed and then acked.

use std::io::Write;

use promethean_client::{From, Received};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::address::Port;
use super::fetch::Peer;
use super::hub::{self, Place};
use super::print;
use crate::args::ConsumeArgs;
use crate::exit::{Exit, Failure};

#[derive(Deserialize)]
struct Page<'a> {
    #[serde(borrow)]
    events: Vec<Delivery<'a>>,
}

#[derive(Deserialize)]
struct Delivery<'a> {
    #[serde(borrow)]
    event: &'a RawValue,
    ctx: Context,
}

#[derive(Deserialize)]
struct Context {
    lease: u64,
}

pub(crate) fn run(args: &ConsumeArgs) -> Result<(), Failure> {
    let peer = Peer::new(&args.hub, Port::Http)?;
    let wait = hub::patience("--wait", args.wait.as_deref())?.unwrap_or_default();
    let mut asked = Map::new();
    asked.insert("max".into(), args.max.into());
    asked.insert("waitMs".into(), json!(wait.as_millis()));
    match hub::place(&args.from)? {
        Place::From(From::Earliest) => _ = asked.insert("from".into(), "earliest".into()),
        Place::From(From::Latest) => _ = asked.insert("from".into(), "latest".into()),
        Place::From(From::Ts(ts)) => {
            asked.insert("from".into(), "ts".into());
            asked.insert("ts".into(), json!(ts));
        }
        Place::From(From::AfterId(id)) => {
            asked.insert("from".into(), "afterId".into());
            asked.insert("afterId".into(), json!(id));
        }
        Place::Seq(_) | Place::From(From::Snapshot) => {
            return Err(Failure::usage("--from: consume starts at latest, earliest, a time, or after an event's id"));
        }
    }
    let path = |route: &str| format!("/{route}/{}/{}", args.topic, args.group);
    let body = peer.change("POST", &path("consume"), &[], &Value::Object(asked).to_string())?;
    let unreadable = |error| Failure::failed(format!("{} answered something else: {error}", peer.server()));
    let page: Page<'_> = serde_json::from_str(&body).map_err(unreadable)?;
    if page.events.is_empty() {
        return Err(Failure::new(Exit::Timeout, "no event came in time"));
    }
    let mut stdout = std::io::BufWriter::new(std::io::stdout().lock());
    let (mut ids, mut leases) = (Vec::new(), Map::new());
    for Delivery { event: raw, ctx } in &page.events {
        let event: Received = serde_json::from_str(raw.get()).map_err(unreadable)?;
        print::event(&mut stdout, &event, raw.get(), args.json)?;
        leases.insert(event.id.to_string(), ctx.lease.into());
        ids.push(event.id.to_string());
    }
    print::written(stdout.flush())?;
    let answer = json!({"ids": ids, "leases": leases});
    if args.no_ack {
        let released = json!({"ids": ids, "leases": leases, "release": true});
        return peer.change("POST", &path("nack"), &[], &released.to_string()).map(drop);
    }
    peer.change("POST", &path("ack"), &[], &answer.to_string()).map(drop)
}
