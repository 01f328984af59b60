//! An event as a document of the collection `events`, and back.
//!
//! ```text
//! { _id: UUID(id), seq: 42, batch: UUID(…), id: "0199…", ts: …, topic: "a.b", key: "k", partition: 3, sid, headers,
//!   caused_by, tags, payload: {…}, appended: …, size: 311, tombstone: true, raw: "…", head: "…" }
//! ```
//!
//! The fields of the seed have its names and are plain values. `raw` is the payload's text where the value does not give
//! the same text again (white space, `1.0e3`, lone surrogates), `head` the same for the fields before it: what was
//! published comes back byte for byte, always. A payload that BSON cannot hold (`1e400`, 100 levels) is its text.
//!
//! `seq` and `batch` stand at fixed places: an event is encoded once and only numbered anew when another hub was faster.

use bytes::Bytes;
use mongodb::bson::{RawBsonRef, RawDocument, RawDocumentBuf};
use promethean_event::{Event, EventId, Millis, NewEvent, Seq, Spans, Topic, json};

use super::transcode;

/// A document's length, `_id`, then type and name of `seq`.
const SEQ_AT: usize = 4 + (1 + 4 + 4 + 1 + 16) + (1 + 4);
/// `seq`'s value, then type, name, length and subtype of `batch`.
const BATCH_AT: usize = SEQ_AT + 8 + (1 + 6 + 4 + 1);
/// A payload whose BSON would be larger than this is kept as text.
const MAX_VALUE: usize = 6 << 20;
/// MongoDB takes documents of 16 MiB.
const MAX_DOCUMENT: usize = 16 << 20;

/// The event's document, with no `seq` and `batch` yet; `None` when it is larger than MongoDB takes.
pub(super) fn encode(event: &NewEvent) -> Option<RawDocumentBuf> {
    let body = std::str::from_utf8(&event.body).ok()?;
    let (head, payload) = (body.get(..event.spans.payload as usize)?, body.get(event.spans.payload as usize..)?);
    let payload = payload.get(..payload.len().checked_sub(1)?)?;
    let mut out = Vec::with_capacity(body.len() + 256);
    transcode::document(&mut out, |out| {
        transcode::uuid(out, "_id", event.id.as_bytes());
        transcode::int64(out, "seq", 0);
        transcode::uuid(out, "batch", &[0; 16]);
        transcode::string(out, "id", event.id.encode(&mut [0; 36]));
        let rebuilt_head = fields(out, event, head);
        let at = out.len();
        let whole = transcode::append(out, "payload", payload).is_ok() && out.len() - at <= MAX_VALUE;
        if !whole {
            out.truncate(at);
            transcode::string(out, "payload", payload);
        }
        transcode::int64(out, "appended", signed(event.appended.0));
        transcode::int64(out, "size", signed(wire_bytes(event)));
        if event.spans.key_start != 0 && payload == "null" {
            transcode::boolean(out, "tombstone", true);
        }
        let mut back = Vec::with_capacity(payload.len());
        if !whole || value_text(&out[at..], &mut back).is_none() || back != payload.as_bytes() {
            transcode::string(out, "raw", payload);
        }
        if !rebuilt_head {
            transcode::string(out, "head", head);
        }
    });
    (out.len() <= MAX_DOCUMENT).then(|| RawDocumentBuf::from_bytes(out).ok()).flatten()
}

/// The JSON of the first element in these bytes.
fn value_text(elements: &[u8], out: &mut Vec<u8>) -> Option<()> {
    let mut wrapped = Vec::with_capacity(elements.len() + 5);
    transcode::document(&mut wrapped, |wrapped| wrapped.extend_from_slice(elements));
    let document = RawDocument::from_bytes(&wrapped).ok()?;
    transcode::write(out, document.iter().next()?.ok()?.1)
}

/// Appends the fields before the payload; `false` when they would not give the same text again.
fn fields(out: &mut Vec<u8>, event: &NewEvent, head: &str) -> bool {
    let at = out.len();
    let text = format!("{}null}}", head);
    let inner = || -> Option<Vec<u8>> {
        let mut inner = Vec::with_capacity(text.len() + 64);
        transcode::append(&mut inner, "", &text).ok()?;
        // The element's type and empty name, the document's length; then its elements; `payload: null` and the end.
        let elements = inner.get(2 + 4..inner.len().checked_sub(1 + 9)?)?;
        Some(elements.to_vec())
    };
    if let Some(elements) = inner() {
        out.extend_from_slice(&elements);
        let mut wrapped = Vec::with_capacity(elements.len() + 5);
        transcode::document(&mut wrapped, |wrapped| wrapped.extend_from_slice(&elements));
        let back = RawDocument::from_bytes(&wrapped).ok().and_then(|document| Head::of(document).ok()).map(|head| {
            let mut back = Vec::new();
            head.write(&mut back);
            back
        });
        if back.as_deref() == Some(head.as_bytes()) {
            return true;
        }
        out.truncate(at);
    }
    transcode::int64(out, "ts", signed(event.ts.0));
    transcode::string(out, "topic", event.topic.as_str());
    if let Some(key) = event.key() {
        transcode::string(out, "key", &key);
    }
    false
}

/// The document at its place, of this append.
pub(super) fn number(document: RawDocumentBuf, seq: Seq, batch: &[u8; 16]) -> Option<RawDocumentBuf> {
    let mut bytes = document.into_bytes();
    bytes.get_mut(SEQ_AT..SEQ_AT + 8)?.copy_from_slice(&signed(seq).to_le_bytes());
    bytes.get_mut(BATCH_AT..BATCH_AT + 16)?.copy_from_slice(batch);
    RawDocumentBuf::from_bytes(bytes).ok()
}

/// The event's bytes in the wire form, about: the head is `{"id":"…","seq":42,` in place of the body's `{`.
pub(super) fn wire_bytes(event: &NewEvent) -> u64 {
    event.body.len() as u64 + 53
}

/// BSON has no unsigned numbers.
pub(super) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A number of any of BSON's types.
pub(super) fn unsigned(value: Option<RawBsonRef<'_>>) -> Option<u64> {
    match value? {
        RawBsonRef::Int32(number) => u64::try_from(number).ok(),
        RawBsonRef::Int64(number) => u64::try_from(number).ok(),
        RawBsonRef::Double(number) if number >= 0.0 => Some(number as u64),
        RawBsonRef::DateTime(time) => u64::try_from(time.timestamp_millis()).ok(),
        _ => None,
    }
}

/// The fields of a document, in the order the wire has them.
#[derive(Default)]
struct Head<'a> {
    ts: Millis,
    topic: &'a str,
    key: Option<&'a str>,
    partition: Option<u64>,
    sid: Option<RawBsonRef<'a>>,
    headers: Option<RawBsonRef<'a>>,
    caused_by: Option<RawBsonRef<'a>>,
    tags: Option<RawBsonRef<'a>>,
}

impl<'a> Head<'a> {
    fn of(document: &'a RawDocument) -> Result<Self, String> {
        let mut head = Self::default();
        for item in document {
            let (name, value) = item.map_err(|error| error.to_string())?;
            head.take(name.as_str(), value);
        }
        Ok(head)
    }

    fn take(&mut self, name: &str, value: RawBsonRef<'a>) {
        match name {
            "ts" => self.ts = Millis(unsigned(Some(value)).unwrap_or(0)),
            "topic" => self.topic = value.as_str().unwrap_or_default(),
            "key" => self.key = value.as_str(),
            "partition" => self.partition = unsigned(Some(value)),
            "sid" => self.sid = Some(value),
            "headers" => self.headers = Some(value),
            "caused_by" => self.caused_by = Some(value),
            "tags" => self.tags = Some(value),
            _ => {}
        }
    }

    /// Up to where the payload begins.
    fn write(&self, out: &mut Vec<u8>) -> Option<Spans> {
        let (start, mut spans) = (out.len(), Spans::default());
        let offset = |at: usize| u32::try_from(at - start).ok();
        out.extend_from_slice(br#"{"ts":"#);
        json::write_number(out, self.ts.0);
        out.extend_from_slice(br#","topic":""#);
        out.extend_from_slice(self.topic.as_bytes());
        out.push(b'"');
        if let Some(key) = self.key {
            out.extend_from_slice(br#","key":"#);
            spans.key_start = offset(out.len() + 1)?;
            json::write_string(out, key);
            spans.key_len = offset(out.len() - 1)? - spans.key_start;
        }
        if let Some(partition) = self.partition {
            out.extend_from_slice(br#","partition":"#);
            json::write_number(out, partition);
        }
        let rest = [("sid", self.sid), ("headers", self.headers), ("caused_by", self.caused_by), ("tags", self.tags)];
        for (name, value) in rest {
            if let Some(value) = value.filter(|value| !matches!(value, RawBsonRef::Null)) {
                out.extend_from_slice(format!(",\"{name}\":").as_bytes());
                transcode::write(out, value)?;
            }
        }
        out.extend_from_slice(br#","payload":"#);
        spans.payload = offset(out.len())?;
        Some(spans)
    }
}

/// The event of a document.
///
/// # Errors
/// What is wrong with it.
pub(super) fn decode(document: &RawDocument) -> Result<Event, String> {
    let (mut head, mut id, mut seq, mut appended) = (Head::default(), None, None, None);
    let (mut payload, mut raw, mut head_text) = (None, None, None);
    for item in document {
        let (name, value) = item.map_err(|error| error.to_string())?;
        match name.as_str() {
            "id" => id = value.as_str().and_then(|text| EventId::parse(text).ok()),
            "seq" => seq = unsigned(Some(value)),
            "appended" => appended = unsigned(Some(value)).map(Millis),
            "payload" => payload = Some(value),
            "raw" => raw = value.as_str(),
            "head" => head_text = value.as_str(),
            name => head.take(name, value),
        }
    }
    let broken = || format!("a document of the collection events is not an event: {}", shown(document));
    let (id, seq) = (id.ok_or_else(broken)?, seq.ok_or_else(broken)?);
    let topic = Topic::parse(head.topic).map_err(|_| broken())?;
    let mut body = Vec::with_capacity(document.as_bytes().len());
    let mut spans = head.write(&mut body).ok_or_else(broken)?;
    if let Some(text) = head_text {
        body.clear();
        body.extend_from_slice(text.as_bytes());
        spans.payload = u32::try_from(body.len()).map_err(|_| broken())?;
    }
    match raw {
        Some(text) => body.extend_from_slice(text.as_bytes()),
        None => transcode::write(&mut body, payload.unwrap_or(RawBsonRef::Null)).ok_or_else(broken)?,
    }
    body.push(b'}');
    let appended = appended.unwrap_or(head.ts);
    Ok(Event { id, seq, ts: head.ts, appended, topic, spans, body: Bytes::from(body) })
}

fn shown(document: &RawDocument) -> String {
    let id = document.get("_id").ok().flatten();
    format!("_id {id:?}")
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use promethean_event::{Draft, Limits, PublishOptions, Sealer};
    use proptest::prelude::*;
    use serde_json::value::RawValue;

    use super::*;

    fn sealed(payload: &str, options: PublishOptions<'_>) -> NewEvent {
        let payload = RawValue::from_string(payload.to_owned()).expect("valid JSON");
        let mut draft = Draft::new(Topic::parse("a.b").expect("a topic"), Cow::Owned(payload));
        draft.options = options;
        let mut sealer = Sealer::new(Limits::default());
        sealer.seal(&draft, EventId::from_bytes([7; 16]), Millis(1_731_650_000_000), 16, 0).expect("valid");
        sealer.finish().remove(0)
    }

    fn comes_back(event: &NewEvent) -> RawDocumentBuf {
        let document = number(encode(event).expect("encoded"), 42, &[9; 16]).expect("numbered");
        let back = decode(&document).expect("decoded");
        assert_eq!((back.appended, back.spans), (event.appended, event.spans));
        assert_eq!(back.to_json(), event.clone().at(42).to_json());
        document
    }

    fn full() -> PublishOptions<'static> {
        PublishOptions {
            key: Some("k\"1\0é".into()),
            headers: vec![("x.y".into(), "1".into()), ("$z".into(), "\n".into())],
            tags: vec!["#stt".into()],
            caused_by: vec![EventId::from_bytes([2; 16])],
            sid: Some("s".into()),
            ..PublishOptions::default()
        }
    }

    #[test]
    fn a_document_has_the_fields_of_the_seed_as_values_and_no_text_beside_them() {
        let event = sealed(r#"{"pid":12345,"cpu":12.5,"up":true,"no":null,"list":[1,-2,4000000000]}"#, full());
        let document = comes_back(&event);
        let payload = document.get_document("payload").expect("a document");
        assert_eq!((payload.get_i32("pid").ok(), payload.get_f64("cpu").ok()), (Some(12345), Some(12.5)));
        assert_eq!(document.get_str("id").expect("text"), event.id.to_string());
        assert_eq!(document.get_i64("ts").expect("a number"), 1_731_650_000_000);
        assert_eq!(document.get_document("headers").expect("headers").get_str("x.y").ok(), Some("1"));
        assert_eq!((document.get_i64("seq").ok(), document.get_str("key").ok()), (Some(42), Some("k\"1\0é")));
        assert!(document.get("raw").expect("whole").is_none() && document.get("head").expect("whole").is_none());
    }

    #[test]
    fn what_bson_cannot_give_back_is_kept_as_text_beside_it() {
        let deep = "[".repeat(120) + &"]".repeat(120);
        let odd = [r#""\ud800""#, "1e400", "[1 ,\t2]", "-0", "12345678901234567890123", r#""\u00e9é""#, "1.50", &deep];
        for payload in odd {
            let document = comes_back(&sealed(payload, full()));
            assert_eq!(document.get_str("raw").ok(), Some(payload));
        }
        for payload in ["null", "{}", "[]", r#"{"":{"$oid":"x","a.b":[[]]}}"#, "-0.0", "1e300", "\"\\u0000\""] {
            comes_back(&sealed(payload, PublishOptions::default()));
        }
    }

    #[test]
    fn a_tombstone_says_so_only_with_a_key() {
        let has = |options| comes_back(&sealed("null", options)).get("tombstone").expect("whole").is_some();
        assert!(has(full()) && !has(PublishOptions::default()));
    }

    fn any_json() -> impl Strategy<Value = String> {
        let leaf = prop_oneof![
            any::<i64>().prop_map(|n| n.to_string()),
            any::<u64>().prop_map(|n| n.to_string()),
            any::<f64>().prop_filter("finite", |n| n.is_finite()).prop_map(|n| format!("{n:?}")),
            any::<String>().prop_map(|s| serde_json::to_string(&s).expect("a string")),
            "\"(\\\\u[0-9a-fA-F]{4}){1,3}\"",
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(|v| format!("[{}]", v.join(","))),
                proptest::collection::vec(("[a-b]", inner), 0..4).prop_map(|v| format!(
                    "{{{}}}",
                    v.iter().map(|(k, v)| format!("\"{k}\":{v}")).collect::<Vec<_>>().join(", ")
                )),
            ]
        })
    }

    proptest! {
        #[test]
        fn any_event_comes_back_byte_for_byte(
            payload in any_json(), key in proptest::option::of(".{0,9}"), value in ".{0,9}", tag in ".{1,9}",
        ) {
            let options = PublishOptions {
                key: key.map(Cow::Owned),
                headers: vec![("h".into(), value.into())],
                tags: vec![tag.into()],
                ..PublishOptions::default()
            };
            comes_back(&sealed(&payload, options));
        }
    }
}
