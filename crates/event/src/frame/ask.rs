//! Client frames, written straight into a buffer. The other side of [`decode`](super::decode).

use std::time::Duration;

use serde_json::value::RawValue;

use crate::{EventId, Filter, From, Group, Ordered, PublishOptions, SubscribeOptions, json};

fn begin(out: &mut Vec<u8>, op: &str, corr: u64) {
    out.extend_from_slice(br#"{"op":""#);
    out.extend_from_slice(op.as_bytes());
    out.extend_from_slice(br#"","corr":"#);
    json::write_number(out, corr);
}

fn member(out: &mut Vec<u8>, name: &str, value: &str) {
    name_of(out, name);
    json::write_string(out, value);
}

fn name_of(out: &mut Vec<u8>, name: &str) {
    if !matches!(out.last(), Some(b'{')) {
        out.push(b',');
    }
    json::write_string(out, name);
    out.push(b':');
}

fn number(out: &mut Vec<u8>, name: &str, value: u64) {
    name_of(out, name);
    json::write_number(out, value);
}

fn strings<'a>(out: &mut Vec<u8>, name: &str, values: impl Iterator<Item = &'a str>) {
    name_of(out, name);
    out.push(b'[');
    for (index, value) in values.enumerate() {
        if index > 0 {
            out.push(b',');
        }
        json::write_string(out, value);
    }
    out.push(b']');
}

fn ids(out: &mut Vec<u8>, name: &str, ids: &[EventId]) {
    name_of(out, name);
    out.push(b'[');
    for (index, id) in ids.iter().enumerate() {
        out.extend_from_slice(if index == 0 { b"\"" } else { b",\"" });
        out.extend_from_slice(id.encode(&mut [0; 36]).as_bytes());
        out.push(b'"');
    }
    out.push(b']');
}

fn pairs<'a>(out: &mut Vec<u8>, name: &str, pairs: impl Iterator<Item = (&'a str, &'a str)>) {
    name_of(out, name);
    out.push(b'{');
    for (name, value) in pairs {
        member(out, name, value);
    }
    out.push(b'}');
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// `AUTH`.
pub fn auth(out: &mut Vec<u8>, corr: u64, token: &str) {
    begin(out, "AUTH", corr);
    member(out, "token", token);
    out.push(b'}');
}

/// `PING`.
pub fn ping(out: &mut Vec<u8>, corr: u64) {
    begin(out, "PING", corr);
    out.push(b'}');
}

/// `PUBLISH` of one event.
pub fn publish(out: &mut Vec<u8>, corr: u64, topic: &str, payload: &RawValue, options: &PublishOptions<'_>) {
    begin(out, "PUBLISH", corr);
    member(out, "topic", topic);
    out.extend_from_slice(br#","opts":{"#);
    publish_options(out, options);
    out.extend_from_slice(br#"},"payload":"#);
    out.extend_from_slice(payload.get().as_bytes());
    out.push(b'}');
}

/// `PUBLISH` of a batch.
pub fn publish_batch<'a>(
    out: &mut Vec<u8>,
    corr: u64,
    topic: &str,
    events: impl Iterator<Item = (&'a RawValue, &'a PublishOptions<'a>)>,
) {
    begin(out, "PUBLISH", corr);
    member(out, "topic", topic);
    out.extend_from_slice(br#","events":["#);
    for (index, (payload, options)) in events.enumerate() {
        out.extend_from_slice(if index == 0 { b"{" } else { b",{" });
        publish_options(out, options);
        name_of(out, "payload");
        out.extend_from_slice(payload.get().as_bytes());
        out.push(b'}');
    }
    out.extend_from_slice(b"]}");
}

fn publish_options(out: &mut Vec<u8>, options: &PublishOptions<'_>) {
    if let Some(id) = options.id {
        member(out, "id", id.encode(&mut [0; 36]));
    }
    if let Some(ts) = options.ts {
        number(out, "ts", ts.0);
    }
    if let Some(key) = &options.key {
        member(out, "key", key);
    }
    if !options.headers.is_empty() {
        pairs(out, "headers", options.headers.iter().map(|(name, value)| (name.as_ref(), value.as_ref())));
    }
    if !options.tags.is_empty() {
        strings(out, "tags", options.tags.iter().map(AsRef::as_ref));
    }
    if !options.caused_by.is_empty() {
        ids(out, "caused_by", &options.caused_by);
    }
    if let Some(sid) = &options.sid {
        member(out, "sid", sid);
    }
}

/// `SUBSCRIBE`, with every option spelled out but `batchSize` where it is the default: said, it bounds the frames.
pub fn subscribe(
    out: &mut Vec<u8>,
    corr: u64,
    topic: &str,
    group: Option<&Group>,
    options: &SubscribeOptions,
    batch: bool,
) {
    begin(out, "SUBSCRIBE", corr);
    named(out, topic, group.map(Group::as_str));
    out.extend_from_slice(br#","opts":{"#);
    member(out, "from", options.from.as_str());
    match options.from {
        From::Ts(ts) => number(out, "ts", ts.0),
        From::AfterId(id) => member(out, "afterId", id.encode(&mut [0; 36])),
        From::Latest | From::Earliest | From::Snapshot => {}
    }
    if !options.topics.is_empty() {
        strings(out, "topics", options.topics.iter().map(crate::Selector::as_str));
    }
    number(out, "maxInFlight", options.max_in_flight as u64);
    if options.batch_size != SubscribeOptions::default().batch_size {
        number(out, "batchSize", options.batch_size as u64);
    }
    number(out, "ackTimeoutMs", millis(options.ack_timeout));
    number(out, "maxAttempts", u64::from(options.max_attempts));
    if !options.filter.is_empty() {
        name_of(out, "filter");
        out.push(b'{');
        filter(out, &options.filter);
        out.push(b'}');
    }
    if options.ordered != Ordered::None {
        member(out, "ordered", options.ordered.as_str());
    }
    if let Some(resume) = &options.resume {
        member(out, "resume", resume);
    }
    if batch {
        out.extend_from_slice(br#","batch":true"#);
    }
    out.extend_from_slice(b"}}");
}

fn filter(out: &mut Vec<u8>, filter: &Filter) {
    if !filter.tags.is_empty() {
        strings(out, "tags", filter.tags.iter().map(String::as_str));
    }
    if !filter.keys.is_empty() {
        strings(out, "keys", filter.keys.iter().map(String::as_str));
    }
    if !filter.headers.is_empty() {
        pairs(out, "headers", filter.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())));
    }
}

fn named(out: &mut Vec<u8>, topic: &str, group: Option<&str>) {
    member(out, "topic", topic);
    if let Some(group) = group {
        member(out, "group", group);
    }
}

/// `UNSUBSCRIBE`.
pub fn unsubscribe(out: &mut Vec<u8>, corr: u64, topic: &str, group: Option<&Group>) {
    begin(out, "UNSUBSCRIBE", corr);
    named(out, topic, group.map(Group::as_str));
    out.push(b'}');
}

/// `PAUSE`.
pub fn pause(out: &mut Vec<u8>, corr: u64, topic: &str, group: Option<&Group>) {
    begin(out, "PAUSE", corr);
    named(out, topic, group.map(Group::as_str));
    out.push(b'}');
}

/// `RESUME`.
pub fn resume(out: &mut Vec<u8>, corr: u64, topic: &str, group: Option<&Group>) {
    begin(out, "RESUME", corr);
    named(out, topic, group.map(Group::as_str));
    out.push(b'}');
}

/// `ACK` of these events; with a lease it is refused with `lease_lost` once the event was delivered again.
pub fn ack(out: &mut Vec<u8>, corr: u64, topic: &str, group: &Group, events: &[EventId], lease: Option<u64>) {
    answer(out, "ACK", corr, (topic, group), events, lease);
    out.push(b'}');
}

/// What the answers to deliveries have in common.
fn answer(
    out: &mut Vec<u8>,
    op: &str,
    corr: u64,
    (topic, group): (&str, &Group),
    events: &[EventId],
    lease: Option<u64>,
) {
    begin(out, op, corr);
    named(out, topic, Some(group.as_str()));
    ids(out, "ids", events);
    if let Some(lease) = lease {
        number(out, "lease", lease);
    }
}

/// How a `NACK` wants its events back.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GiveBack {
    /// Why, for the dead letter.
    pub reason: Option<String>,
    /// When; none: by the backoff.
    pub delay: Option<Duration>,
    /// True if the attempt does not count.
    pub release: bool,
}

/// `NACK` of these events; with a lease it counts only under that one.
pub fn nack(
    out: &mut Vec<u8>,
    corr: u64,
    topic: &str,
    group: &Group,
    events: &[EventId],
    how: &GiveBack,
    lease: Option<u64>,
) {
    answer(out, "NACK", corr, (topic, group), events, lease);
    if let Some(reason) = &how.reason {
        member(out, "reason", reason);
    }
    if let Some(delay) = how.delay {
        number(out, "delay_ms", millis(delay));
    }
    if how.release {
        out.extend_from_slice(br#","release":true"#);
    }
    out.push(b'}');
}

/// `MODACK` of these events; with a lease it counts only under that one.
pub fn modack(
    out: &mut Vec<u8>,
    corr: u64,
    topic: &str,
    group: &Group,
    events: &[EventId],
    extend: Duration,
    lease: Option<u64>,
) {
    answer(out, "MODACK", corr, (topic, group), events, lease);
    number(out, "extend_ms", millis(extend));
    out.push(b'}');
}
