//! `promethean import`: exported events into a hub, with their ids, so that doing it again stores nothing twice that is still there.
//!
//! A thread reads lines and makes batches, at most [`AHEAD`] of them wait; the connection publishes one at a time, in
//! order. So memory does not grow with the input, and a fresh topic gets the seqs that the lines have. A hub that has no
//! room (`rate_limited`) is asked again when it says, at most for 60 s without a single event taken. An event that
//! it refuses for what the event is, is looked for in its batch, and named by its line.

use std::borrow::Cow;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};

use promethean_client::{Code, Error, EventId, Millis, Publish, PublishOptions};
use promethean_event::{Fields, json, limits};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::mpsc;

use super::{hub, out};
use crate::args::ImportArgs;
use crate::exit::Failure;

/// Most events and bytes of a batch.
const BATCH: usize = 1_000;
const BATCH_BYTES: usize = 2 * 1024 * 1024;
/// Batches that wait for the connection.
const AHEAD: usize = 4;
/// Longest line: an event of the largest size that a hub takes by default, many times over.
const MAX_LINE: usize = 64 * 1024 * 1024;

/// Of an exported event, what [`Fields`] does not have.
#[derive(Deserialize)]
struct Line<'a> {
    id: Option<EventId>,
    seq: Option<u64>,
    ts: Option<Millis>,
    #[serde(borrow)]
    topic: Option<Cow<'a, str>>,
    #[serde(borrow)]
    key: Option<Cow<'a, str>>,
    #[serde(borrow, default, deserialize_with = "present")]
    payload: Option<&'a RawValue>,
    /// The payload's own text, where the line could not hold its line breaks.
    #[serde(borrow, rename = "payloadText")]
    payload_text: Option<Cow<'a, str>>,
}

/// A payload of `null` is there, too.
fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

/// Events of one topic, in order.
#[derive(Default)]
struct Batch {
    topic: String,
    events: Vec<Publish>,
    seqs: Vec<Option<u64>>,
    lines: Vec<u64>,
    bytes: usize,
    dropped_headers: u64,
}

/// What came of it.
#[derive(Debug, Default, serde::Serialize)]
#[serde(rename_all = "camelCase")]
struct Imported {
    events: u64,
    /// Of them, were there before.
    duplicates: u64,
    /// Of them, have another seq than in the export.
    other_seq: u64,
    /// Headers of the hub's own that were left out.
    dropped_headers: u64,
    /// Lines that can never be stored, left out by `--skip`.
    skipped: u64,
}

/// Why there is no further batch.
enum Stop {
    /// The input cannot be read on.
    Input(Failure),
    /// A line that is no event.
    Line(Failure),
}

pub(crate) fn run(args: &ImportArgs) -> Result<(), Failure> {
    let (input, length): (Box<dyn Read + Send>, _) = match args.file.as_deref() {
        Some(path) if path.as_os_str() != "-" => {
            let failed = |error| Failure::failed(format!("{} cannot be read: {error}", path.display()));
            let file = File::open(path).map_err(failed)?;
            let length = file.metadata().map_err(failed)?.len();
            (Box::new(file), Some(length))
        }
        _ => (Box::new(std::io::stdin()), None),
    };
    let bar = out::progress(length, if length.is_some() { "bytes" } else { "events" });
    let (sender, batches) = mpsc::channel(AHEAD);
    let (topic, skip) = (args.topic.clone(), args.skip);
    // Not joined: it may wait for input that nobody needs any more.
    std::thread::spawn(move || read(BufReader::with_capacity(256 * 1024, input), topic.as_deref(), skip, &sender));
    let progress = |imported: &Imported, bytes: u64| {
        bar.set_position(if length.is_some() { bytes } else { imported.events });
    };
    let imported = hub::run(publish(args, batches, progress));
    bar.finish_and_clear();
    let imported = imported?;
    if args.json {
        return out::json(&imported);
    }
    let Imported { events, duplicates, other_seq, dropped_headers, skipped } = imported;
    out::done(&format!("{events} events, {duplicates} of them were there already"));
    if other_seq > 0 {
        out::done(&format!("{other_seq} have another seq than where they come from"));
    }
    if skipped > 0 {
        out::done(&format!("{skipped} lines were left out"));
    }
    if dropped_headers > 0 {
        out::done(&format!(
            "{dropped_headers} headers named {}… were left out: they are the hub's own",
            limits::RESERVED_HEADER
        ));
    }
    out::hint("promethean topic list");
    Ok(())
}

async fn publish(
    args: &ImportArgs,
    mut batches: mpsc::Receiver<Result<Batch, Stop>>,
    progress: impl Fn(&Imported, u64),
) -> Result<Imported, Failure> {
    let client = hub::connect(&args.at).await?;
    let (mut imported, mut bytes, mut most) = (Imported::default(), 0, BATCH);
    while let Some(batch) = batches.recv().await {
        let batch = match batch {
            Ok(batch) => batch,
            Err(Stop::Line(failure)) => {
                left_out(args, failure, &mut imported)?;
                continue;
            }
            Err(Stop::Input(failure)) => return Err(broken_off(failure, imported.events)),
        };
        let (mut from, mut narrow) = (0, BATCH);
        while from < batch.events.len() {
            let part = &batch.events[from..batch.events.len().min(from + narrow)];
            let line = batch.lines.get(from).copied().unwrap_or_default();
            let sent = match hub::publish_some(&client, &batch.topic, part, &mut most).await {
                Err(error) if is_for_good(&error) && part.len() > 1 => {
                    // A batch is all or none: one of them it is.
                    narrow = (part.len() / 2).max(1);
                    continue;
                }
                Err(error) => {
                    let for_good = is_for_good(&error);
                    let failure = hub::failure(error);
                    let failure = Failure::new(failure.exit, format!("line {line}: {failure}"));
                    if !for_good {
                        return Err(broken_off(failure, imported.events));
                    }
                    left_out(args, failure, &mut imported)?;
                    (from, narrow) = (from + 1, BATCH);
                    continue;
                }
                Ok(sent) => sent,
            };
            imported.events += sent.len() as u64;
            imported.duplicates += sent.iter().filter(|one| one.duplicate).count() as u64;
            let moved = sent.iter().zip(&batch.seqs[from..]).filter(|(one, seq)| seq.is_some_and(|seq| seq != one.seq));
            imported.other_seq += moved.count() as u64;
            from += sent.len();
        }
        imported.dropped_headers += batch.dropped_headers;
        bytes += batch.bytes as u64;
        progress(&imported, bytes);
    }
    client.close().await.map_err(hub::failure)?;
    Ok(imported)
}

/// Why an import did not come to its end, and what became of it.
fn broken_off(failure: Failure, stored: u64) -> Failure {
    let done = format!("{stored} events before it are stored; run it again, nothing is stored twice");
    Failure::new(failure.exit, format!("{failure}; {done}"))
}

/// A line that can never be stored: the end, or left out.
fn left_out(args: &ImportArgs, failure: Failure, imported: &mut Imported) -> Result<(), Failure> {
    if args.skip {
        imported.skipped += 1;
        out::done(&format!("left out: {failure}"));
        return Ok(());
    }
    let remedy = "--skip leaves such lines out and goes on";
    Err(Failure::new(failure.exit, format!("{failure}; {} events before it are stored; {remedy}", imported.events)))
}

/// True if the hub refuses an event for what it is, now and later.
fn is_for_good(error: &Error) -> bool {
    matches!(
        error.code(),
        Some(Code::TooLarge | Code::DuplicateId | Code::BadJson | Code::BadRequest | Code::BadId | Code::BadTopic)
    )
}

/// Reads lines to their end and sends them as batches; a line that makes no sense is the last thing sent.
fn read(mut input: impl BufRead, topic: Option<&str>, skip: bool, sender: &mpsc::Sender<Result<Batch, Stop>>) {
    let (mut line, mut number, mut batch) = (Vec::new(), 0, Batch::default());
    loop {
        line.clear();
        let count = (&mut input).take(MAX_LINE as u64 + 1).read_until(b'\n', &mut line);
        let event = match count {
            Err(error) => Err((Failure::failed(format!("the input cannot be read: {error}")), false)),
            Ok(0) => break,
            Ok(_) if line.len() > MAX_LINE => {
                Err((Failure::usage(format!("it is longer than {MAX_LINE} bytes")), false))
            }
            // The last line may be the half of one that is there in the whole file.
            Ok(_) => parse(&line, topic).map_err(|failure| (failure, skip || line.ends_with(b"\n"))),
        };
        number += 1;
        let event = match event {
            Ok(None) => continue,
            Ok(Some(event)) => event,
            Err((failure, readable)) => {
                // What came before it goes out first.
                let failure = Failure::new(failure.exit, format!("line {number}: {failure}"));
                let stop = if readable { Stop::Line(failure) } else { Stop::Input(failure) };
                let before = std::mem::take(&mut batch);
                let told = sender.blocking_send(Ok(before)).is_ok() && sender.blocking_send(Err(stop)).is_ok();
                if told && readable && skip {
                    continue;
                }
                return;
            }
        };
        let full = batch.events.len() >= BATCH || batch.bytes >= BATCH_BYTES || batch.topic != event.topic;
        if full && !batch.events.is_empty() && sender.blocking_send(Ok(std::mem::take(&mut batch))).is_err() {
            return;
        }
        batch.topic = event.topic;
        batch.events.push(event.publish);
        batch.seqs.push(event.seq);
        batch.bytes += line.len();
        batch.dropped_headers += event.dropped_headers;
        batch.lines.push(number);
    }
    if !batch.events.is_empty() {
        let _ = sender.blocking_send(Ok(batch));
    }
}

struct Parsed {
    topic: String,
    seq: Option<u64>,
    publish: Publish,
    dropped_headers: u64,
}

/// An exported event; nothing for a blank line.
fn parse(line: &[u8], topic: Option<&str>) -> Result<Option<Parsed>, Failure> {
    let text = std::str::from_utf8(line).map_err(|_| Failure::usage("is not UTF-8"))?.trim();
    if text.is_empty() {
        return Ok(None);
    }
    let no_event = |reason: String| {
        let remedy = "import takes what promethean export prints; promethean pub --ndjson publishes plain payloads";
        Failure::usage(format!("is no exported event: {reason}; {remedy}"))
    };
    let parsed: Line<'_> = serde_json::from_str(text).map_err(|error| no_event(error.to_string()))?;
    let fields: Fields<'_> = serde_json::from_str(text).map_err(|error| no_event(error.to_string()))?;
    let missing = |name: &str| no_event(format!("it has no {name}"));
    let topic = topic.map(str::to_owned).or_else(|| parsed.topic.map(Cow::into_owned));
    let on = topic.clone().unwrap_or_default();
    let payload = match (parsed.payload_text, parsed.payload) {
        (Some(text), _) => json::value_on(&on, &text).map_err(no_event)?.to_owned(),
        (None, Some(raw)) => json::value_on(&on, raw.get()).map_err(no_event)?.to_owned(),
        (None, None) => return Err(missing("payload")),
    };
    let owned = |text: Cow<'_, str>| -> Cow<'static, str> { Cow::Owned(text.into_owned()) };
    let all = fields.headers.len();
    // The hub's own headers say what one hub did with an event: another one makes its own.
    let headers =
        fields.headers.into_iter().filter(|(name, _)| !name.to_ascii_lowercase().starts_with(limits::RESERVED_HEADER));
    let headers: Vec<_> = headers.map(|(name, value)| (owned(name), owned(value))).collect();
    let dropped_headers = (all - headers.len()) as u64;
    let options = PublishOptions {
        id: Some(parsed.id.ok_or_else(|| missing("id"))?),
        ts: Some(parsed.ts.ok_or_else(|| missing("ts"))?),
        key: parsed.key.map(owned),
        headers,
        tags: fields.tags.into_iter().map(owned).collect(),
        caused_by: fields.caused_by,
        sid: fields.sid.map(owned),
    };
    Ok(Some(Parsed {
        topic: topic.ok_or_else(|| missing("topic"))?,
        seq: parsed.seq,
        publish: Publish::raw(payload).options(options),
        dropped_headers,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0199d1c0-7d3b-7cc2-8b1a-3f0e2c9a4b5d";

    #[test]
    fn a_line_that_is_no_exported_event_says_what_it_lacks() {
        let text =
            |line: &str| parse(line.as_bytes(), None).err().map(|failure| failure.to_string()).unwrap_or_default();
        assert!(parse(b" \n", None).expect("blank").is_none());
        for (line, said) in [
            ("{", "EOF"),
            ("[1]", "no exported event"),
            (r#"{"topic":"a","ts":1,"payload":1}"#, "no id"),
            (&format!(r#"{{"id":"{ID}","topic":"a","payload":1}}"#), "no ts"),
            (&format!(r#"{{"id":"{ID}","ts":1,"payload":1}}"#), "no topic"),
            (&format!(r#"{{"id":"{ID}","ts":1,"topic":"a"}}"#), "no payload"),
            (&format!(r#"{{"id":"{ID}","ts":1,"topic":"a","payload":1,"payloadText":"{{"}}"#), "EOF"),
        ] {
            assert!(text(line).contains(said), "{line}: {}", text(line));
        }
    }

    #[test]
    fn long_inputs_come_in_batches_of_one_topic_each_and_an_error_comes_last() {
        let line =
            |topic: &str| format!("{{\"id\":\"{ID}\",\"seq\":7,\"ts\":1,\"topic\":\"{topic}\",\"payload\":1}}\n");
        let input = format!("{}\n{}oops\n", line("a").repeat(1_500), line("b").repeat(2));
        let (sender, mut batches) = mpsc::channel(100);
        read(input.as_bytes(), None, false, &sender);
        drop(sender);
        let mut seen = Vec::new();
        while let Some(batch) = batches.blocking_recv() {
            match batch {
                Ok(batch) => seen.push((batch.topic, batch.events.len(), batch.lines.last().copied().unwrap_or(0))),
                Err(Stop::Input(failure) | Stop::Line(failure)) => {
                    assert!(failure.to_string().starts_with("line 1504: "), "{failure}");
                    seen.push(("error".into(), 0, 0));
                }
            }
        }
        let expected = [("a", 1_000, 1_000), ("a", 500, 1_500), ("b", 2, 1_503), ("error", 0, 0)];
        assert_eq!(seen, expected.map(|(topic, count, line)| (topic.to_owned(), count, line)));
    }
}
