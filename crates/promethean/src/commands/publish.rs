//! `promethean pub`: the argument, standard input, or one event a line. Exits 0 when every event was confirmed.

use std::io::{BufRead, Read, Write};

use promethean_client::{Client, EventId, Publish, PublishOptions, Published};
use promethean_event::json;
use serde_json::value::RawValue;

use super::{hub, out, print};
use crate::args::PublishArgs;
use crate::exit::Failure;

/// Most events and bytes of lines in one frame: what of a long input is not confirmed stays bounded, and no frame is
/// larger than a hub takes (16 MiB by default) that a single line would not make so.
const BATCH: usize = 500;
const BATCH_BYTES: usize = 2 * 1024 * 1024;

pub(crate) fn run(args: PublishArgs) -> Result<(), Failure> {
    let options = options(&args)?;
    let limit = hub::patience("--timeout", args.timeout.as_deref())?;
    // Read before connecting: what is no JSON needs no hub.
    let payload = if args.ndjson { None } else { Some(payload(args.payload.as_deref())?) };
    hub::run(hub::within(limit, async {
        let client = hub::connect(&args.at).await?;
        match payload {
            Some(payload) => {
                let event = Publish::raw(payload).options(options);
                let published = client.send(&args.topic, event).await.map_err(hub::failure)?;
                show(&[published], args.json)?;
                if !args.json {
                    out::hint(&format!("promethean sub {} --group NAME --from earliest", args.topic));
                }
            }
            None => lines(&client, &args, &options).await?,
        }
        client.close().await.map_err(hub::failure)
    }))
}

fn options(args: &PublishArgs) -> Result<PublishOptions<'static>, Failure> {
    let header = |text: &String| match text.split_once('=') {
        Some((name, value)) => Ok((name.to_owned().into(), value.to_owned().into())),
        None => Err(Failure::usage(format!("--header: {text:?} must be NAME=VALUE"))),
    };
    let id = args.id.as_deref().map(EventId::parse).transpose();
    Ok(PublishOptions {
        id: id.map_err(|invalid| Failure::usage(format!("--id: {}", invalid.message)))?,
        key: args.key.clone().map(Into::into),
        headers: args.header.iter().map(header).collect::<Result<_, _>>()?,
        tags: args.tag.iter().cloned().map(Into::into).collect(),
        ..PublishOptions::default()
    })
}

/// The argument, or all of standard input.
fn payload(argument: Option<&str>) -> Result<Box<RawValue>, Failure> {
    let text = match argument {
        Some(text) if text != "-" => text.to_owned(),
        _ => {
            let mut text = String::new();
            let read = std::io::stdin().lock().read_to_string(&mut text);
            read.map_err(|error| Failure::failed(format!("cannot read standard input: {error}")))?;
            text
        }
    };
    parse(&text).map_err(|reason| Failure::usage(format!("the payload is no JSON: {reason}; quote text as '\"text\"'")))
}

fn parse(text: &str) -> Result<Box<RawValue>, String> {
    json::value(text).map(ToOwned::to_owned)
}

/// One payload a line; blank lines are passed over.
async fn lines(client: &Client, args: &PublishArgs, options: &PublishOptions<'static>) -> Result<(), Failure> {
    let mut input = std::io::stdin().lock();
    let (mut line, mut number, mut batch) = (String::new(), 0_u64, Vec::new());
    let (mut total, mut bytes) = (0, 0);
    loop {
        line.clear();
        let count = input.read_line(&mut line);
        let end = count.map_err(|error| Failure::failed(format!("cannot read standard input: {error}")))? == 0;
        number += 1;
        let full = batch.len() >= BATCH || bytes + line.len() > BATCH_BYTES;
        if (full || end) && !batch.is_empty() {
            let sent = client.publish_batch(&args.topic, std::mem::take(&mut batch)).await.map_err(hub::failure)?;
            bytes = 0;
            total += sent.len();
            show(&sent, args.json)?;
        }
        if !line.trim().is_empty() {
            let payload = parse(line.trim()).map_err(|reason| {
                let stored = format!("{total} events before it were published");
                Failure::usage(format!("line {number} is no JSON: {reason}; {stored}"))
            })?;
            batch.push(Publish::raw(payload).options(options.clone()));
            bytes += line.len();
        }
        if end {
            out::done(&format!("{total} events published to {}", args.topic));
            return Ok(());
        }
    }
}

fn show(published: &[Published], as_json: bool) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    for Published { id, seq, duplicate } in published {
        let line = match (as_json, duplicate) {
            (true, false) => format!(r#"{{"id":"{id}","seq":{seq}}}"#),
            (true, true) => format!(r#"{{"id":"{id}","seq":{seq},"duplicate":true}}"#),
            (false, false) => format!("{id} {seq}"),
            (false, true) => format!("{id} {seq} duplicate"),
        };
        print::written(writeln!(out, "{line}"))?;
    }
    print::written(out.flush())
}
