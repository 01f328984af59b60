//! From what a publisher says to what the log keeps: checks, stamps and serialises, once.

use std::borrow::Cow;

use bytes::Bytes;
use serde_json::value::RawValue;

use crate::record::{Body, Spans};
use crate::wire::{self, Marked, Place};
use crate::{Code, EventId, IdOrigin, Invalid, Limits, Millis, NewEvent, PublishOptions, Topic, limits, partition_of};

/// An event as its publisher describes it.
#[derive(Debug, Clone)]
pub struct Draft<'a> {
    /// The topic.
    pub topic: Topic,
    /// The payload, kept byte for byte.
    pub payload: Cow<'a, RawValue>,
    /// Everything else.
    pub options: PublishOptions<'a>,
}

impl<'a> Draft<'a> {
    /// A draft with nothing but a payload.
    pub fn new(topic: Topic, payload: impl Into<Cow<'a, RawValue>>) -> Self {
        Self { topic, payload: payload.into(), options: PublishOptions::default() }
    }
}

/// `value` as a payload.
///
/// # Errors
/// `bad_json`: the value does not serialise (a map whose keys are not strings, for example).
pub fn payload_of<T: serde::Serialize + ?Sized>(value: &T) -> Result<Box<RawValue>, Invalid> {
    serde_json::value::to_raw_value(value)
        .map_err(|error| Invalid::new(Code::BadJson, "payload", format!("does not serialise to JSON: {error}")))
}

/// Turns drafts into [`NewEvent`]s whose bytes share one allocation.
#[derive(Debug)]
pub struct Sealer {
    limits: Limits,
    buffer: Vec<u8>,
    /// The events, their bodies still to be set.
    sealed: Vec<NewEvent>,
    /// Where each body ends in `buffer`.
    ends: Vec<usize>,
}

impl Sealer {
    /// A sealer that keeps `limits`.
    pub fn new(limits: Limits) -> Self {
        Self { limits, buffer: Vec::new(), sealed: Vec::new(), ends: Vec::new() }
    }

    /// Makes room for about that many events and bytes at once.
    pub fn reserve(&mut self, events: usize, bytes: usize) {
        self.buffer.reserve(bytes);
        self.sealed.reserve(events);
        self.ends.reserve(events);
    }

    /// Keeps `limits` from here on.
    pub fn limit(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// How many events are sealed so far.
    pub fn len(&self) -> usize {
        self.sealed.len()
    }

    /// True if nothing is sealed yet.
    pub fn is_empty(&self) -> bool {
        self.sealed.is_empty()
    }

    /// Forgets what was sealed after the first `len` events: a batch is all or none.
    pub fn truncate(&mut self, len: usize) {
        self.sealed.truncate(len);
        self.ends.truncate(len);
        self.buffer.truncate(self.ends.last().copied().unwrap_or(0));
    }

    /// Checks `draft`, stamps it and adds it. `id` is the hub's own where the draft brings none.
    ///
    /// # Errors
    /// What the contract refuses, with the field; nothing is added.
    pub fn seal(
        &mut self,
        draft: &Draft<'_>,
        id: EventId,
        now: Millis,
        partitions: u32,
        unit: u32,
    ) -> Result<(), Invalid> {
        let options = &draft.options;
        options.check()?;
        let start = self.buffer.len();
        let (id, origin) = options.id.map_or((id, IdOrigin::Hub), |id| (id, IdOrigin::Client));
        let ts = options.ts.unwrap_or(now);
        let spans = write_body(&mut self.buffer, draft, id, ts, partitions);
        let head = br#"{"id":"","seq":,"#.len() + 36 + 1;
        let size = self.buffer.len() - start + head;
        if size > self.limits.max_event_bytes && size > self.limits.max_event_bytes.saturating_add(added(draft)) {
            self.buffer.truncate(start);
            let message = format!(
                "the event has {size} bytes, the limit is {}; send a reference instead, or raise max_event_bytes",
                self.limits.max_event_bytes
            );
            return Err(Invalid::new(Code::TooLarge, "payload", message));
        }
        let topic = draft.topic.clone();
        let event = NewEvent { id, origin, ts, appended: now, topic, unit, spans, body: Bytes::new() };
        self.sealed.push(event);
        self.ends.push(self.buffer.len());
        Ok(())
    }

    /// The sealed events.
    pub fn finish(mut self) -> Vec<NewEvent> {
        // The log keeps the bytes for a while: room that was not needed is not to be kept with them.
        if self.buffer.capacity() / 2 > self.buffer.len() {
            self.buffer.shrink_to_fit();
        }
        let (shared, mut start) = (Bytes::from(self.buffer), 0);
        for (event, end) in self.sealed.iter_mut().zip(self.ends) {
            event.body = shared.slice(start..end);
            start = end;
        }
        self.sealed
    }
}

/// By how much an event may be over the limit because of what a hub adds to events.
fn added(draft: &Draft<'_>) -> usize {
    let cause = if draft.options.caused_by.is_empty() { 0 } else { limits::SENT_BACK_BYTES };
    limits::Around::of(draft.topic.as_str()).bytes + cause
}

fn write_body(out: &mut Vec<u8>, draft: &Draft<'_>, id: EventId, ts: Millis, partitions: u32) -> Spans {
    let options = &draft.options;
    let start = out.len();
    let offset = |at: usize| u32::try_from(at - start).unwrap_or(u32::MAX);
    let mut text = [0; 36];
    let hashed = options.key.as_deref().unwrap_or_else(|| id.encode(&mut text));
    let place = Place::default();
    let body = Body {
        ts,
        topic: &draft.topic,
        key: options.key.as_ref().map(|text| Marked { text, place: &place }),
        partition: partition_of(hashed, partitions),
        sid: options.sid.as_deref(),
        headers: &options.headers,
        caused_by: &options.caused_by,
        tags: &options.tags,
        payload: &draft.payload,
    };
    wire::object(&body, out);
    // The payload is the last member.
    let payload = offset(out.len() - 1 - draft.payload.get().len());
    match (&options.key, place.get()) {
        (None, _) => Spans { key_start: 0, key_len: 0, payload },
        (Some(_), (from, to)) => Spans { key_start: offset(from), key_len: offset(to) - offset(from), payload },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn seal(draft: &Draft<'_>) -> Result<crate::Event, Invalid> {
        let mut sealer = Sealer::new(Limits::default());
        sealer.seal(draft, EventId::from_bytes([7; 16]), Millis(9), 16, 0)?;
        Ok(sealer.finish().remove(0).at(42))
    }

    fn raw(json: &str) -> Box<RawValue> {
        RawValue::from_string(json.to_owned()).expect("valid JSON")
    }

    #[test]
    fn an_event_is_written_with_all_its_fields_and_no_nulls() {
        let mut draft = Draft::new(Topic::parse("a.b").expect("topic"), Cow::Owned(raw(r#"{"any": "json"}"#)));
        let bare = seal(&draft).expect("valid");
        let expected = r#"{"id":"07070707-0707-0707-0707-070707070707","seq":42,"ts":9,"topic":"a.b","partition":5,"payload":{"any": "json"}}"#;
        assert_eq!(bare.to_json(), expected);
        assert_eq!(bare.wire_len(), expected.len());

        draft.options = PublishOptions {
            id: Some(EventId::from_bytes([1; 16])),
            ts: Some(Millis(5)),
            key: Some("k\"1".into()),
            headers: vec![("x-trace".into(), "1".into())],
            tags: vec!["#stt".into()],
            caused_by: vec![EventId::from_bytes([2; 16])],
            sid: Some("s".into()),
        };
        let full = seal(&draft).expect("valid");
        let fields = full.fields();
        assert_eq!(full.key().as_deref(), Some("k\"1"));
        assert_eq!((full.ts, fields.sid.as_deref(), fields.header("x-trace")), (Millis(5), Some("s"), Some("1")));
        assert_eq!((fields.tags, fields.caused_by), (vec![Cow::Borrowed("#stt")], draft.options.caused_by.clone()));
        assert_eq!(full.payload(), r#"{"any": "json"}"#);
        serde_json::from_str::<serde_json::Value>(&full.to_json()).expect("valid JSON");
    }

    #[test]
    fn payload_bytes_are_kept_whatever_json_allows() {
        for payload in [
            r#""\ud800""#,
            "1e400",
            r#"{"a":1,"a":2}"#,
            "[1 ,\t2]",
            "-0.0",
            "12345678901234567890123",
            "null",
            r#""\u00e9é""#,
        ] {
            let event = seal(&Draft::new(Topic::parse("t").expect("topic"), Cow::Owned(raw(payload)))).expect("valid");
            assert_eq!(event.payload(), payload);
        }
    }

    #[test]
    fn an_event_over_the_limit_is_refused_and_leaves_nothing() {
        let big = raw(&format!("\"{}\"", "x".repeat(1024 * 1024)));
        let draft = Draft::new(Topic::parse("t").expect("topic"), Cow::Owned(big));
        let mut sealer = Sealer::new(Limits::default());
        let refused = sealer.seal(&draft, EventId::from_bytes([7; 16]), Millis(9), 16, 0).expect_err("too large");
        assert_eq!(refused.code, Code::TooLarge);
        assert!(sealer.is_empty() && sealer.finish().is_empty());
    }

    fn any_json() -> impl Strategy<Value = String> {
        let leaf = prop_oneof![
            Just("null".to_owned()),
            any::<i64>().prop_map(|n| n.to_string()),
            any::<f64>().prop_filter("finite", |n| n.is_finite()).prop_map(|n| format!("{n:?}")),
            any::<String>().prop_map(|s| serde_json::to_string(&s).expect("string")),
            "\"(\\\\u[0-9a-fA-F]{4}){1,3}\"",
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(|v| format!("[{}]", v.join(" , "))),
                proptest::collection::vec(("[a-b]", inner), 0..4).prop_map(|v| format!(
                    "{{\n{}}}",
                    v.iter().map(|(k, v)| format!("\"{k}\": {v}")).collect::<Vec<_>>().join(",")
                )),
            ]
        })
    }

    proptest! {
        #[test]
        fn any_json_comes_back_byte_for_byte(json in any_json(), key in proptest::option::of(".{0,20}")) {
            let payload = raw(&json);
            let mut draft = Draft::new(Topic::parse("t").expect("topic"), Cow::Borrowed(&*payload));
            draft.options.key = key.clone().map(Cow::Owned);
            let event = seal(&draft).expect("valid");
            prop_assert_eq!(event.payload(), payload.get());
            prop_assert_eq!(event.key().map(Cow::into_owned), key);
            prop_assert!(serde_json::from_str::<&RawValue>(&event.to_json()).is_ok());
        }
    }
}
