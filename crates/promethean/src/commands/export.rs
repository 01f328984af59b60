//! `promethean export`: a topic's events as NDJSON, streamed: no event is held longer than it takes to pass it on.

use std::io::{Read, Write};

use super::{fetch, print};
use crate::args::ExportArgs;
use crate::exit::Failure;

pub(crate) fn run(args: &ExportArgs) -> Result<(), Failure> {
    let mut query = vec![("topic", args.topic.clone()), ("ndjson", "1".to_owned())];
    query.extend(args.from_ts.map(|ts| ("fromTs", ts.to_string())));
    query.extend(args.to_ts.map(|ts| ("toTs", ts.to_string())));
    let mut body = fetch::get(&args.hub, "/export", &query)?;
    let mut out = std::io::stdout().lock();
    let (mut buffer, mut events) = (vec![0; 64 * 1024], 0);
    loop {
        let count = body.read(&mut buffer).map_err(|error| fetch::failed(&args.hub.server, &error))?;
        let part = buffer.get(..count).unwrap_or_default();
        if part.is_empty() {
            break;
        }
        events += part.iter().filter(|byte| **byte == b'\n').count();
        print::written(out.write_all(part))?;
    }
    print::written(out.flush())?;
    eprintln!("{events} events of {}", args.topic);
    Ok(())
}
