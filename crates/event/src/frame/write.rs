//! Hub frames, written straight into a buffer: no tree, no allocation of their own.

use std::time::Duration;

use super::Corr;
use crate::{Code, Cursor, Event, EventId, Millis, Seq, json};

fn begin_ok(out: &mut Vec<u8>, corr: Option<&Corr>) {
    out.extend_from_slice(br#"{"op":"OK""#);
    write_corr(out, corr);
}

fn write_corr(out: &mut Vec<u8>, corr: Option<&Corr>) {
    if let Some(corr) = corr {
        out.extend_from_slice(br#","corr":"#);
        out.extend_from_slice(corr.as_bytes());
    }
}

/// `OK` with nothing more to say.
pub fn ok(out: &mut Vec<u8>, corr: Option<&Corr>) {
    begin_ok(out, corr);
    out.push(b'}');
}

/// `OK` to an `AUTH`.
pub fn authenticated(out: &mut Vec<u8>, corr: Option<&Corr>, sub: Option<&str>, exp: Option<u64>) {
    begin_ok(out, corr);
    if let Some(sub) = sub {
        out.extend_from_slice(br#","sub":"#);
        json::write_string(out, sub);
    }
    if let Some(exp) = exp {
        out.extend_from_slice(br#","exp":"#);
        json::write_number(out, exp);
    }
    out.push(b'}');
}

/// `OK` to a `PUBLISH` of one event.
pub fn published(out: &mut Vec<u8>, corr: Option<&Corr>, id: EventId, seq: Seq, duplicate: bool) {
    begin_ok(out, corr);
    out.extend_from_slice(br#","id":""#);
    out.extend_from_slice(id.encode(&mut [0; 36]).as_bytes());
    out.extend_from_slice(br#"","seq":"#);
    json::write_number(out, seq);
    if duplicate {
        out.extend_from_slice(br#","duplicate":true"#);
    }
    out.push(b'}');
}

/// `OK` to a `PUBLISH` of a batch: each event's id and seq, and whether it was there before; those that were are named
/// by their index in `duplicates`, which is left out where there is none.
pub fn published_batch(
    out: &mut Vec<u8>,
    corr: Option<&Corr>,
    places: impl Iterator<Item = (EventId, Seq, bool)> + Clone,
) {
    begin_ok(out, corr);
    out.extend_from_slice(br#","ids":["#);
    for (index, (id, ..)) in places.clone().enumerate() {
        out.extend_from_slice(if index == 0 { b"\"" } else { b",\"" });
        out.extend_from_slice(id.encode(&mut [0; 36]).as_bytes());
        out.push(b'"');
    }
    out.extend_from_slice(br#"],"seqs":["#);
    for (index, (_, seq, _)) in places.clone().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        json::write_number(out, seq);
    }
    let duplicates = places.enumerate().filter(|(_, (.., duplicate))| *duplicate);
    for (count, (index, _)) in duplicates.enumerate() {
        out.extend_from_slice(if count == 0 { br#"],"duplicates":["# } else { b"," });
        json::write_number(out, index as u64);
    }
    out.extend_from_slice(b"]}");
}

/// `OK` to a `SUBSCRIBE`: `cursor` is an object for a single topic, a list for patterns and several topics, and left
/// out for an ephemeral tail, which has none.
pub fn subscribed(out: &mut Vec<u8>, corr: Option<&Corr>, single: bool, cursors: &[Cursor]) {
    begin_ok(out, corr);
    match cursors {
        [] if single => {}
        [one] if single => {
            out.extend_from_slice(br#","cursor":"#);
            write_cursor(out, one);
        }
        several => {
            out.extend_from_slice(br#","cursor":["#);
            for (index, one) in several.iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                write_cursor(out, one);
            }
            out.push(b']');
        }
    }
    out.push(b'}');
}

fn write_cursor(out: &mut Vec<u8>, cursor: &Cursor) {
    out.extend_from_slice(br#"{"topic":"#);
    json::write_string(out, cursor.topic.as_str());
    if let Some(id) = cursor.last_id {
        out.extend_from_slice(br#","lastId":""#);
        out.extend_from_slice(id.encode(&mut [0; 36]).as_bytes());
        out.push(b'"');
    }
    if let Some(Millis(ts)) = cursor.last_ts {
        out.extend_from_slice(br#","lastTs":"#);
        json::write_number(out, ts);
    }
    out.extend_from_slice(br#","seq":"#);
    json::write_number(out, cursor.seq);
    out.push(b'}');
}

/// What an `ERR` says beside its code and message.
#[derive(Debug, Clone, Copy, Default)]
pub struct ErrorDetail<'a> {
    /// When to try again, with `rate_limited`.
    pub retry_after: Option<Duration>,
    /// The subscription that the hub ended, by its topic.
    pub topic: Option<&'a str>,
    /// The group of that subscription.
    pub group: Option<&'a str>,
}

/// `ERR`.
pub fn error(out: &mut Vec<u8>, corr: Option<&Corr>, code: Code, message: &str, detail: ErrorDetail<'_>) {
    out.extend_from_slice(br#"{"op":"ERR","code":""#);
    out.extend_from_slice(code.as_str().as_bytes());
    out.extend_from_slice(br#"","msg":"#);
    json::write_string(out, message);
    write_corr(out, corr);
    if let Some(retry_after) = detail.retry_after {
        out.extend_from_slice(br#","retry_after_ms":"#);
        json::write_number(out, u64::try_from(retry_after.as_millis()).unwrap_or(u64::MAX));
    }
    for (name, value) in [("topic", detail.topic), ("group", detail.group)] {
        if let Some(value) = value {
            out.push(b',');
            json::write_string(out, name);
            out.push(b':');
            json::write_string(out, value);
        }
    }
    out.push(b'}');
}

/// The part of `EVENT` and `EVENTS` frames that is the same for all deliveries of a subscription.
#[derive(Debug, Clone)]
pub struct Head(Box<[u8]>);

impl Head {
    /// The head of a subscription's `EVENT` frames.
    pub fn event(topic: &str, group: Option<&str>) -> Self {
        Self::new(br#"{"op":"EVENT","topic":"#, topic, group, br#","event":"#)
    }

    /// The head of a subscription's `EVENTS` frames.
    pub fn events(topic: &str, group: Option<&str>) -> Self {
        Self::new(br#"{"op":"EVENTS","topic":"#, topic, group, br#","events":["#)
    }

    fn new(begin: &[u8], topic: &str, group: Option<&str>, end: &[u8]) -> Self {
        let mut out = begin.to_vec();
        json::write_string(&mut out, topic);
        if let Some(group) = group {
            out.extend_from_slice(br#","group":"#);
            json::write_string(&mut out, group);
        }
        out.extend_from_slice(end);
        Self(out.into())
    }
}

/// What the hub says about a delivery.
#[derive(Debug, Clone, Copy)]
pub struct Context {
    /// Which delivery of the event to the group this is, from 1.
    pub attempt: u32,
    /// Deliveries before the event is dead-lettered; 0: no limit.
    pub max_attempts: u32,
    /// The time left to ack.
    pub deadline: Duration,
    /// The delivery's number, for the fence.
    pub lease: u64,
    /// Whether the event is part of a snapshot start.
    pub snapshot: bool,
}

impl Context {
    fn write(self, out: &mut Vec<u8>) {
        out.extend_from_slice(br#","ctx":{"attempt":"#);
        json::write_number(out, u64::from(self.attempt));
        out.extend_from_slice(br#","maxAttempts":"#);
        json::write_number(out, u64::from(self.max_attempts));
        out.extend_from_slice(br#","ack_deadline_ms":"#);
        json::write_number(out, u64::try_from(self.deadline.as_millis()).unwrap_or(u64::MAX));
        out.extend_from_slice(br#","lease":"#);
        json::write_number(out, self.lease);
        out.extend_from_slice(if self.snapshot { br#","snapshot":true}"#.as_slice() } else { b"}" });
    }
}

/// `EVENT`.
pub fn event(out: &mut Vec<u8>, head: &Head, event: &Event, context: Context) {
    out.extend_from_slice(&head.0);
    event.write(out);
    context.write(out);
    out.push(b'}');
}

/// Begins an `EVENTS` frame; then [`next_event`] for each, then [`end_events`].
pub fn begin_events(out: &mut Vec<u8>, head: &Head) {
    out.extend_from_slice(&head.0);
}

/// One entry of an `EVENTS` frame.
pub fn next_event(out: &mut Vec<u8>, event: &Event, context: Context) {
    if out.last() == Some(&b'}') {
        out.push(b',');
    }
    out.extend_from_slice(br#"{"event":"#);
    event.write(out);
    context.write(out);
    out.push(b'}');
}

/// Ends an `EVENTS` frame.
pub fn end_events(out: &mut Vec<u8>) {
    out.extend_from_slice(b"]}");
}
