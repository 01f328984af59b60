//! `promethean pub`: the argument, standard input, or one event a line. Exits 0 when every event was confirmed.
//!
//! Standard input is read by a thread of its own: while it waits for more, the connection lives, the time counts, and a
//! signal is heard.

use std::cell::Cell;
use std::io::{BufRead, BufReader, Read};

use promethean_client::{EventId, Publish, PublishOptions, Published};
use promethean_event::json;
use serde_json::value::RawValue;
use tokio::sync::{mpsc, oneshot};

use super::output::Output;
use super::{hub, out, print};
use crate::args::PublishArgs;
use crate::exit::Failure;

/// Most events and bytes of lines in one frame: what of a long input is not confirmed stays bounded, and no frame is
/// larger than a hub takes (16 MiB by default) that a single line would not make so.
const BATCH: usize = 500;
const BATCH_BYTES: usize = 2 * 1024 * 1024;
/// Pieces of the input that wait for the connection; the thread that reads waits where they are more.
const AHEAD: usize = 4;
/// Longest line: an event of the largest size that a hub takes by default, many times over.
const MAX_LINE: usize = 64 * 1024 * 1024;

pub(crate) fn run(args: PublishArgs) -> Result<(), Failure> {
    let options = options(&args)?;
    let limit = hub::patience("--timeout", args.timeout.as_deref())?;
    if args.ndjson {
        let total = Cell::new(0);
        let ended = hub::run(hub::within(limit, lines(&args, &options, &total)));
        let total = total.get();
        return ended.map_err(|failure| {
            Failure::new(failure.exit, format!("{failure}; {total} events before it were published"))
        });
    }
    hub::run(hub::within(limit, async {
        // Before connecting: what is no JSON needs no hub.
        let payload = payload(args.payload.as_deref()).await?;
        let client = hub::connect(&args.at).await?;
        let event = Publish::raw(payload).options(options);
        let published = client.send(&args.topic, event).await.map_err(hub::failure)?;
        let output = Output::start();
        output.write(shown(&[published], args.json));
        written(&output).await?;
        if !args.json {
            out::hint(&format!("promethean sub {} --group NAME --from earliest", args.topic));
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
async fn payload(argument: Option<&str>) -> Result<Box<RawValue>, Failure> {
    let text = match argument {
        Some(text) if text != "-" => text.to_owned(),
        _ => {
            let (sender, text) = oneshot::channel();
            // Not joined: it may wait for input that nobody needs any more.
            std::thread::spawn(move || sender.send(std::io::read_to_string(std::io::stdin())));
            text.await.map_err(Failure::failed)?.map_err(|error| unreadable(&error))?
        }
    };
    parse(&text).map_err(|reason| Failure::usage(format!("the payload is no JSON: {reason}; quote text as '\"text\"'")))
}

fn unreadable(error: &std::io::Error) -> Failure {
    Failure::failed(format!("cannot read standard input: {error}"))
}

fn parse(text: &str) -> Result<Box<RawValue>, String> {
    json::value(text).map(ToOwned::to_owned)
}

/// One payload a line; blank lines are passed over. What is there goes out at once: whoever writes line by line into a
/// pipe has each event published as it comes, and a file goes in whole frames.
async fn lines(args: &PublishArgs, options: &PublishOptions<'static>, total: &Cell<usize>) -> Result<(), Failure> {
    let (sender, mut pieces) = mpsc::channel(AHEAD);
    // Not joined: it may wait for input that nobody needs any more.
    std::thread::spawn(move || read(BufReader::with_capacity(256 * 1024, std::io::stdin()), &sender));
    let client = hub::connect(&args.at).await?;
    let output = Output::start();
    let (mut held, mut most) = (None, BATCH);
    loop {
        let next = match held.take() {
            Some(next) => Some(next),
            None => pieces.recv().await,
        };
        let Some(next) = next else { break };
        let mut batch: Piece = next?;
        // What came while the hub answered goes along.
        while let Ok(more) = pieces.try_recv() {
            match more {
                Ok(more) if batch.has_room(more.payloads.len(), more.bytes) => batch.append(more),
                other => {
                    held = Some(other);
                    break;
                }
            }
        }
        let events = batch.payloads.into_iter().map(|payload| Publish::raw(payload).options(options.clone()));
        let mut events: Vec<Publish> = events.collect();
        while !events.is_empty() {
            let sent = hub::publish_some(&client, &args.topic, &events, &mut most).await.map_err(hub::failure)?;
            events.drain(..sent.len());
            total.set(total.get() + sent.len());
            output.write(shown(&sent, args.json));
        }
    }
    client.close().await.map_err(hub::failure)?;
    written(&output).await?;
    out::done(&format!("{} events published to {}", total.get(), args.topic));
    Ok(())
}

/// Waits until the ids are written. Without a reader (`| head`) the events are published all the same.
async fn written(output: &Output) -> Result<(), Failure> {
    match output.written().await {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => print::written(written),
    }
}

/// Lines that go out together.
#[derive(Default)]
struct Piece {
    payloads: Vec<Box<RawValue>>,
    bytes: usize,
}

impl Piece {
    /// True if so many more may go along; a line that is too long for any company goes alone.
    fn has_room(&self, events: usize, bytes: usize) -> bool {
        self.payloads.is_empty() || (self.payloads.len() + events <= BATCH && self.bytes + bytes <= BATCH_BYTES)
    }

    fn append(&mut self, other: Self) {
        self.payloads.extend(other.payloads);
        self.bytes += other.bytes;
    }
}

/// Reads lines to their end. A piece is handed over where it is full, or where no further line is there yet; a line that
/// makes no sense is the last thing sent.
fn read(mut input: BufReader<impl Read>, sender: &mpsc::Sender<Result<Piece, Failure>>) {
    let (mut line, mut number, mut piece) = (Vec::new(), 0_u64, Piece::default());
    let hand_over = |piece: &mut Piece| {
        let piece = std::mem::take(piece);
        piece.payloads.is_empty() || sender.blocking_send(Ok(piece)).is_ok()
    };
    loop {
        line.clear();
        let count = (&mut input).take(MAX_LINE as u64 + 1).read_until(b'\n', &mut line);
        number += 1;
        let payload = match count {
            Ok(0) => return,
            Ok(_) if line.len() > MAX_LINE => {
                Err(Failure::usage(format!("line {number} is longer than {MAX_LINE} bytes")))
            }
            Ok(_) => of_line(&line).map_err(|reason| Failure::usage(format!("line {number} is no JSON: {reason}"))),
            Err(error) => Err(unreadable(&error)),
        };
        match payload {
            Ok(None) => {}
            Ok(Some(payload)) => {
                if !piece.has_room(1, line.len()) && !hand_over(&mut piece) {
                    return;
                }
                piece.append(Piece { payloads: vec![payload], bytes: line.len() });
            }
            Err(failure) => {
                // What came before it goes out first.
                let _ = hand_over(&mut piece) && sender.blocking_send(Err(failure)).is_ok();
                return;
            }
        }
        if !input.buffer().contains(&b'\n') && !hand_over(&mut piece) {
            return;
        }
    }
}

/// The payload of a line; nothing for a blank one.
fn of_line(line: &[u8]) -> Result<Option<Box<RawValue>>, String> {
    let text = std::str::from_utf8(line).map_err(|_| "it is not UTF-8".to_owned())?.trim();
    if text.is_empty() { Ok(None) } else { parse(text).map(Some) }
}

/// Returns a line for each event.
fn shown(published: &[Published], as_json: bool) -> Vec<u8> {
    let mut text = String::new();
    for Published { id, seq, duplicate } in published {
        text.push_str(&match (as_json, duplicate) {
            (true, false) => format!("{{\"id\":\"{id}\",\"seq\":{seq}}}\n"),
            (true, true) => format!("{{\"id\":\"{id}\",\"seq\":{seq},\"duplicate\":true}}\n"),
            (false, false) => format!("{id} {seq}\n"),
            (false, true) => format!("{id} {seq} duplicate\n"),
        });
    }
    text.into_bytes()
}
