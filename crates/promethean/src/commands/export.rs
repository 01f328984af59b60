//! `promethean export`: topics' events as NDJSON, streamed: no event is held longer than it takes to pass it on.
//!
//! The lines are exact (`exact=1`): what `promethean import` makes of them has every byte of the payloads.

use std::io::Write;

use promethean_client::From;

use super::address::Port;
use super::fetch::{Answer, Peer};
use super::hub::{self, Place};
use super::{out, print};
use crate::args::ExportArgs;
use crate::exit::Failure;

pub(crate) fn run(args: &ExportArgs) -> Result<(), Failure> {
    let peer = Peer::new(&args.hub, Port::Http)?;
    let range = range(args)?;
    for topic in &args.topics {
        let mut query = vec![("topic", topic.clone()), ("ndjson", "1".to_owned()), ("exact", "1".to_owned())];
        query.extend(range.iter().cloned());
        let mut answer = peer.get("/export", &query)?;
        let events = pass_on(&mut answer)?;
        out::done(&format!("{events} events of {topic}"));
    }
    Ok(())
}

fn range(args: &ExportArgs) -> Result<Vec<(&'static str, String)>, Failure> {
    let mut query = Vec::new();
    let remedy = "an export starts at earliest, a time, how long ago, seq:N, or after an event's id";
    let wrong = |_| Failure::usage(format!("--from: {:?} is no place to start; {remedy}", args.from));
    match hub::place(&args.from).map_err(wrong)? {
        Place::From(From::Earliest) => {}
        Place::From(From::Ts(ts)) => query.push(("fromTs", ts.to_string())),
        Place::From(From::AfterId(id)) => query.push(("afterId", id.to_string())),
        Place::Seq(seq) => query.push(("fromSeq", seq.to_string())),
        Place::From(From::Latest | From::Snapshot) => {
            return Err(Failure::usage(format!("--from: {remedy}")));
        }
    }
    let time =
        |name: &'static str, text: &Option<String>| text.as_deref().map(|text| hub::time(name, text)).transpose();
    query.extend(time("--from-ts", &args.from_ts)?.map(|ts| ("fromTs", ts.to_string())));
    query.extend(time("--to-ts", &args.to_ts)?.map(|ts| ("toTs", ts.to_string())));
    query.extend(args.to_seq.map(|seq| ("toSeq", seq.to_string())));
    Ok(query)
}

/// Copies the body to standard output; how many events it had.
fn pass_on(answer: &mut Answer) -> Result<u64, Failure> {
    let seq = |name: &str| answer.header(name).and_then(|text| text.parse::<u64>().ok());
    let length = seq("x-promethean-last-seq").zip(seq("x-promethean-first-seq"));
    let bar = out::progress(length.map(|(last, first)| (last + 1).saturating_sub(first)), "events");
    let mut stdout = std::io::stdout().lock();
    let (mut buffer, mut events) = (vec![0; 64 * 1024], 0);
    loop {
        let count = answer.read(&mut buffer)?;
        let part = buffer.get(..count).unwrap_or_default();
        if part.is_empty() {
            break;
        }
        events += part.iter().filter(|byte| **byte == b'\n').count() as u64;
        bar.set_position(events);
        print::written(stdout.write_all(part))?;
    }
    bar.finish_and_clear();
    print::written(stdout.flush())?;
    Ok(events)
}
