//! An event in its wire form: serialised once, at publish, and copied from then on.
//!
//! ```text
//!  wire   {"id":"0199…","seq":42,"ts":1731650000000,"topic":"a.b","key":"k","partition":3,…,"payload":{…}}
//!          └─── head: id, seq ──┘└────────────────────────── body ──────────────────────────────────────┘
//!  body   {"ts":1731650000000,"topic":"a.b","key":"k","partition":3,…,"payload":{…}}   is JSON by itself
//! ```
//!
//! The store gives an event its `seq` after the body was written, so the head is put before it on the way out.
//! Invariants: the body is valid JSON that this crate wrote, the payload is its last member, its bytes are the
//! publisher's.

use std::borrow::Cow;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::frame::shape::{Field, Kind, Part};
use crate::wire::said;
use crate::wire::{Any, Described, Fields as _, Filled, Marked, Number, Object, Open, Pairs, Said, Text, Whole, Write};
use crate::{EventId, Millis, Topic, limits};

/// An event's place in its topic: 1, 2, 3 …
pub type Seq = u64;

/// Who made an event's id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdOrigin {
    /// The hub: a fresh UUIDv7, no other event has it.
    Hub,
    /// The client: the store has to look whether it is taken.
    Client,
}

said! {
    /// How an event begins on the wire.
    struct Head<> {
        /// Unique across the hub.
        id: EventId = "id",
        /// The event's place in its topic: 1, 2, 3…
        seq: Seq as Number<1, { limits::MAX_SAFE_INTEGER }> = "seq",
    }
}

said! {
    /// How an event goes on: what is written at publish, once. The payload is last.
    pub(crate) struct Body<'a> {
        /// Epoch milliseconds.
        pub(crate) ts: Millis as Whole = "ts",
        /// The topic.
        pub(crate) topic: &'a Topic as Topic = "topic",
        /// The key.
        pub(crate) key: Option<Marked<'a>> as Option<Text<{ limits::MAX_KEY_BYTES }>> = "key",
        /// By the key, else by the id.
        pub(crate) partition: u32 as Number<0, { u32::MAX as u64 }> = "partition",
        /// The publisher's session.
        pub(crate) sid: Option<&'a str> as Option<Text<{ limits::MAX_TAG_BYTES }>> = "sid",
        /// Names and values, the hub's own (promethean-…) among them.
        pub(crate) headers: &'a Headers<'a> as Pairs<0> = "headers",
        /// The events that this one follows from.
        pub(crate) caused_by: &'a [EventId] as Filled<EventId, { limits::MAX_LIST }> = "caused_by",
        /// Words to filter by.
        pub(crate) tags: &'a [Cow<'a, str>] as Filled<Text<{ limits::MAX_TAG_BYTES }>, { limits::MAX_LIST }> = "tags",
        /// What was published, byte for byte.
        pub(crate) payload: &'a RawValue as Any = "payload",
    }
}

impl crate::wire::Fields for Event {
    const OWN: &'static [Field] = Head::OWN;
    const FIELDS: &'static [&'static [Field]] = &[Head::OWN, Body::OWN];
}

impl Object for Event {
    const PART: &'static Part = &Part { name: "Event", fields: Self::FIELDS, needs: &[], asked: false };
}

impl Described for Event {
    const KIND: Kind = Kind::Object(Self::PART);
}

impl Write<Open> for Event {
    fn write(_: &Open, _: &mut Vec<u8>) {}
}

/// Where things stand in a body. Small enough to be kept beside it in memory and on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Spans {
    /// Offset of the key's JSON text (inside the quotes); 0: no key.
    pub key_start: u32,
    /// Length of the key's JSON text.
    pub key_len: u32,
    /// Offset of the payload, which ends one byte before the body does.
    pub payload: u32,
}

/// An event that waits for its `seq`: stamped, checked, serialised.
#[derive(Debug, Clone)]
pub struct NewEvent {
    /// The id.
    pub id: EventId,
    /// Who made the id.
    pub origin: IdOrigin,
    /// The event's time.
    pub ts: Millis,
    /// The hub's clock at publish.
    pub appended: Millis,
    /// The topic.
    pub topic: Topic,
    /// Consecutive events of one unit are stored all or none.
    pub unit: u32,
    /// Where things stand in `body`.
    pub spans: Spans,
    /// The event's JSON without `id` and `seq`.
    pub body: Bytes,
}

impl NewEvent {
    /// The event at its place.
    pub fn at(self, seq: Seq) -> Event {
        Event {
            id: self.id,
            seq,
            ts: self.ts,
            appended: self.appended,
            topic: self.topic,
            spans: self.spans,
            body: self.body,
        }
    }

    /// The key.
    pub fn key(&self) -> Option<Cow<'_, str>> {
        key(&self.body, self.spans)
    }
}

/// An event of the log. Cheap to clone: the bytes are shared.
#[derive(Debug, Clone)]
pub struct Event {
    /// The id.
    pub id: EventId,
    /// The place in the topic.
    pub seq: Seq,
    /// The event's time, the client's where it gave one.
    pub ts: Millis,
    /// The hub's clock at publish.
    pub appended: Millis,
    /// The topic.
    pub topic: Topic,
    /// Where things stand in `body`.
    pub spans: Spans,
    /// The event's JSON without `id` and `seq`.
    pub body: Bytes,
}

impl Event {
    /// The key that compaction, order and `latest-by-key` go by.
    pub fn key(&self) -> Option<Cow<'_, str>> {
        key(&self.body, self.spans)
    }

    /// The payload's bytes, as they were sent.
    pub fn payload(&self) -> &str {
        let end = self.body.len().saturating_sub(1);
        let bytes = self.body.get(self.spans.payload as usize..end).unwrap_or_default();
        std::str::from_utf8(bytes).unwrap_or_default()
    }

    /// True if the payload is `null`: the key is gone.
    pub fn is_tombstone(&self) -> bool {
        self.payload() == "null"
    }

    /// The payload as a `T`.
    ///
    /// # Errors
    /// The payload is not a `T`.
    pub fn payload_as<'a, T: Deserialize<'a>>(&'a self) -> Result<T, serde_json::Error> {
        serde_json::from_str(self.payload())
    }

    /// The optional fields, parsed anew at each call.
    pub fn fields(&self) -> Fields<'_> {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// How many bytes [`Event::write`] appends.
    pub fn wire_len(&self) -> usize {
        br#"{"id":"","seq":,"#.len() + 36 + self.seq.checked_ilog10().unwrap_or(0) as usize + 1 + self.body.len() - 1
    }

    /// Appends the event's JSON.
    pub fn write(&self, out: &mut Vec<u8>) {
        Head { id: self.id, seq: self.seq }.open(out);
        out.push(b',');
        out.extend_from_slice(self.body.get(1..).unwrap_or_default());
    }

    /// The event's JSON.
    pub fn to_json(&self) -> String {
        let mut out = Vec::with_capacity(self.wire_len());
        self.write(&mut out);
        String::from_utf8(out).unwrap_or_default()
    }
}

/// Of an event on the wire, what is looked at.
#[derive(Deserialize)]
struct Wire<'a> {
    id: EventId,
    seq: Seq,
    ts: Millis,
    topic: Topic,
    #[serde(borrow)]
    key: Option<&'a RawValue>,
    #[serde(borrow)]
    payload: &'a RawValue,
}

impl Event {
    /// Reads an event's JSON as [`Event::write`] wrote it. The time of its append is not on the wire; it is taken to be
    /// its `ts`.
    ///
    /// # Errors
    /// These are not the bytes of a hub's event.
    pub fn read(text: &str) -> Result<Self, serde_json::Error> {
        let wire: Wire<'_> = serde_json::from_str(text)?;
        let other = || <serde_json::Error as serde::de::Error>::custom("not an event as a hub writes it");
        // id and seq come first, and the payload last.
        let head = format!(r#"{{"id":"{}","seq":{},"#, wire.id, wire.seq);
        let rest = text.strip_prefix(&head).ok_or_else(other)?;
        let head = head.len();
        let mut body = Vec::with_capacity(rest.len() + 1);
        body.push(b'{');
        body.extend_from_slice(rest.as_bytes());
        // `raw` is a part of `text`.
        let place = |raw: &RawValue| {
            let at = (raw.get().as_ptr() as usize).checked_sub(text.as_ptr() as usize + head)? + 1;
            u32::try_from(at).ok()
        };
        let payload = place(wire.payload).ok_or_else(other)?;
        let (key_start, key_len) = match wire.key {
            None => (0, 0),
            Some(raw) => {
                let len = u32::try_from(raw.get().len().saturating_sub(2)).map_err(|_| other())?;
                (place(raw).ok_or_else(other)? + 1, len)
            }
        };
        let spans = Spans { key_start, key_len, payload };
        let Wire { id, seq, ts, topic, .. } = wire;
        Ok(Self { id, seq, ts, appended: ts, topic, spans, body: Bytes::from(body) })
    }
}

impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        (self.id, self.seq, &self.topic, &self.body) == (other.id, other.seq, &other.topic, &other.body)
    }
}

impl serde::Serialize for Event {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        RawValue::from_string(self.to_json()).map_err(serde::ser::Error::custom)?.serialize(serializer)
    }
}

fn key(body: &[u8], spans: Spans) -> Option<Cow<'_, str>> {
    if spans.key_start == 0 {
        return None;
    }
    let start = spans.key_start as usize;
    let end = start + spans.key_len as usize;
    let inside = std::str::from_utf8(body.get(start..end)?).ok()?;
    if !inside.contains('\\') {
        return Some(Cow::Borrowed(inside));
    }
    let quoted = std::str::from_utf8(body.get(start - 1..=end)?).ok()?;
    serde_json::from_str(quoted).ok().map(Cow::Owned)
}

/// Header names and values, in the order they were sent.
pub type Headers<'a> = Vec<(Cow<'a, str>, Cow<'a, str>)>;

/// The optional fields of an event.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Fields<'a> {
    /// The partition.
    pub partition: u32,
    /// The publisher's session.
    #[serde(borrow)]
    pub sid: Option<Cow<'a, str>>,
    /// The headers, in the order they were sent.
    #[serde(borrow, deserialize_with = "headers")]
    pub headers: Headers<'a>,
    /// The events this one follows from.
    pub caused_by: Vec<EventId>,
    /// The tags.
    #[serde(borrow)]
    pub tags: Vec<Cow<'a, str>>,
}

impl Fields<'_> {
    /// The value of the header `name`.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(this, _)| this == name).map(|(_, value)| value.as_ref())
    }
}

/// Reads a JSON object of strings as pairs, in order; of a name that comes twice, the last.
pub(crate) fn headers<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Headers<'de>, D::Error> {
    struct Pairs;
    impl<'de> serde::de::Visitor<'de> for Pairs {
        type Value = Headers<'de>;
        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("an object of strings")
        }
        fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            #[derive(Deserialize)]
            struct Text<'a>(#[serde(borrow)] Cow<'a, str>);
            let mut pairs: Self::Value = Vec::new();
            while let Some((Text(name), Text(value))) = map.next_entry()? {
                match pairs.iter().position(|(this, _)| *this == name) {
                    Some(index) => pairs[index].1 = value,
                    // One over the limit is enough for the check to refuse it.
                    None if pairs.len() > crate::limits::MAX_HEADERS => {}
                    None => pairs.push((name, value)),
                }
            }
            Ok(pairs)
        }
    }
    deserializer.deserialize_map(Pairs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Draft, Limits, Sealer};

    #[test]
    fn an_event_reads_back_from_the_wire_as_it_was_written() {
        for (key, payload) in
            [(None, "1"), (Some("k\"\u{e9}"), r#"{"key":"x","payload": [1.0e3, "\ud800"]}"#), (Some("k"), "null")]
        {
            let payload = RawValue::from_string(payload.to_owned()).expect("JSON");
            let mut draft = Draft::new(Topic::parse("a.b").expect("topic"), Cow::Owned(payload));
            draft.options.key = key.map(Cow::Borrowed);
            draft.options.tags = vec!["#t".into()];
            let mut sealer = Sealer::new(Limits::default());
            sealer.seal(&draft, EventId::from_bytes([7; 16]), Millis(9), 16, 0).expect("valid");
            let event = sealer.finish().remove(0).at(42);
            let read = Event::read(&event.to_json()).expect("an event");
            assert_eq!((&read, read.spans, read.ts), (&event, event.spans, event.ts));
            assert_eq!((read.key().as_deref(), read.payload()), (key, event.payload()));
        }
        for other in ["{}", r#"{"seq":1,"id":"00000000-0000-0000-0000-000000000000","ts":1,"topic":"a","payload":1}"#] {
            assert!(Event::read(other).is_err(), "{other}");
        }
    }
}
