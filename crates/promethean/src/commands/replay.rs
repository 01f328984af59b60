//! `promethean replay`: a part of the log, over HTTP.

use std::io::{Read, Write};

use promethean_client::{From, Received};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{fetch, hub, print};
use crate::args::ReplayArgs;
use crate::exit::Failure;

#[derive(Deserialize)]
struct Page<'a> {
    #[serde(borrow)]
    events: Vec<&'a RawValue>,
    next: Option<String>,
}

pub(crate) fn run(args: &ReplayArgs) -> Result<(), Failure> {
    let mut query = vec![("topic", args.topic.clone()), ("limit", args.limit.to_string())];
    match hub::place(&args.from)? {
        From::Earliest => query.push(("from", "earliest".into())),
        From::Ts(ts) => query.extend([("from", "ts".into()), ("ts", ts.to_string())]),
        From::AfterId(id) => query.extend([("from", "afterId".into()), ("afterId", id.to_string())]),
        From::Latest | From::Snapshot => {
            let remedy = "a replay starts at earliest, after an event's id, or at a time in epoch milliseconds";
            return Err(Failure::usage(format!("--from: {remedy}")));
        }
    }
    let mut body = String::new();
    let read = fetch::get(&args.hub, "/replay", &query)?.read_to_string(&mut body);
    read.map_err(|error| fetch::failed(&args.hub.server, &error))?;
    let unreadable = |error| Failure::failed(format!("{} answered something else: {error}", args.hub.server));
    let page: Page<'_> = serde_json::from_str(&body).map_err(unreadable)?;
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    for raw in &page.events {
        let event: Received = serde_json::from_str(raw.get()).map_err(unreadable)?;
        print::event(&mut out, &event, raw.get(), args.json)?;
    }
    print::written(out.flush())?;
    if let Some(next) = page.next {
        eprintln!("there is more: --from {next}");
    }
    Ok(())
}
