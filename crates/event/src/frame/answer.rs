//! A hub's frame as a client reads it. The other side of [`write`](mod@super::write).

use std::borrow::Cow;
use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{Code, EventId, Seq};

/// A hub's frame.
#[derive(Debug)]
pub enum Answer<'a> {
    /// `OK`
    Ok(Box<Done<'a>>),
    /// `ERR`
    Error(Refusal<'a>),
    /// `EVENT` or `EVENTS`
    Events {
        /// The subscription's topic or pattern.
        topic: Cow<'a, str>,
        /// The subscription's group.
        group: Option<Cow<'a, str>>,
        /// The deliveries, in order.
        events: Vec<Delivered<'a>>,
    },
}

/// What an `OK` carries.
#[derive(Debug, Default)]
pub struct Done<'a> {
    /// The request's mark.
    pub corr: Option<u64>,
    /// Of a `PUBLISH`.
    pub id: Option<EventId>,
    /// Of a `PUBLISH`.
    pub seq: Option<Seq>,
    /// Of a `PUBLISH` whose id was there already.
    pub duplicate: bool,
    /// Of a batch.
    pub ids: Vec<EventId>,
    /// Of a batch.
    pub seqs: Vec<Seq>,
    /// The indexes of a batch's events that were there before.
    pub duplicates: Vec<usize>,
    /// Of an `AUTH`.
    pub sub: Option<Cow<'a, str>>,
    /// Of an `AUTH`.
    pub exp: Option<u64>,
    /// Of a `SUBSCRIBE`, as JSON.
    pub cursor: Option<&'a RawValue>,
    /// Of a `SUBSCRIBE` without a group.
    pub resume: Option<Cow<'a, str>>,
    /// Sentences about the request: fields of it that the hub does not know, for example.
    pub warnings: Vec<String>,
}

/// What an `ERR` carries.
#[derive(Debug)]
pub struct Refusal<'a> {
    /// The request's mark; none where the hub speaks by itself.
    pub corr: Option<u64>,
    /// The code; none when this build does not know it.
    pub code: Option<Code>,
    /// The code's text.
    pub code_text: Cow<'a, str>,
    /// For people.
    pub message: Cow<'a, str>,
    /// When to try again.
    pub retry_after: Option<Duration>,
    /// The subscription that ended.
    pub topic: Option<Cow<'a, str>>,
    /// Its group.
    pub group: Option<Cow<'a, str>>,
}

/// One delivery.
#[derive(Debug, Deserialize)]
pub struct Delivered<'a> {
    /// The event's JSON.
    #[serde(borrow)]
    pub event: &'a RawValue,
    /// What the hub says about the delivery.
    pub ctx: DeliveryContext,
}

/// `ctx` of a delivery.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct DeliveryContext {
    /// Which delivery of the event to the group this is, from 1.
    pub attempt: u32,
    /// Deliveries before the event is dead-lettered; 0: no limit.
    #[serde(rename = "maxAttempts")]
    pub max_attempts: u32,
    /// The time left to ack, in milliseconds.
    pub ack_deadline_ms: u64,
    /// The delivery's number.
    pub lease: u64,
    /// True if the event is part of a snapshot start.
    #[serde(default)]
    pub snapshot: bool,
    /// True if the event was redriven from a dead letter.
    #[serde(default)]
    pub redriven: bool,
    /// With the last event of a tail's snapshot: what a tail that has the whole of it goes on after.
    #[serde(default)]
    pub cut: Option<EventId>,
    /// Without a group: the place after this delivery, for `SubscribeOptions::resume`.
    #[serde(default)]
    pub resume: Option<Box<str>>,
}

#[derive(Deserialize)]
struct Fields<'a> {
    #[serde(borrow)]
    op: Cow<'a, str>,
    corr: Option<u64>,
    id: Option<EventId>,
    seq: Option<Seq>,
    #[serde(default)]
    duplicate: bool,
    #[serde(default)]
    ids: Vec<EventId>,
    #[serde(default)]
    seqs: Vec<Seq>,
    #[serde(default)]
    duplicates: Vec<usize>,
    #[serde(borrow)]
    sub: Option<Cow<'a, str>>,
    exp: Option<u64>,
    #[serde(borrow)]
    cursor: Option<&'a RawValue>,
    #[serde(default)]
    warnings: Vec<String>,
    #[serde(borrow)]
    resume: Option<Cow<'a, str>>,
    #[serde(borrow)]
    code: Option<Cow<'a, str>>,
    #[serde(borrow)]
    msg: Option<Cow<'a, str>>,
    retry_after_ms: Option<u64>,
    #[serde(borrow)]
    topic: Option<Cow<'a, str>>,
    #[serde(borrow)]
    group: Option<Cow<'a, str>>,
    #[serde(borrow)]
    event: Option<&'a RawValue>,
    ctx: Option<DeliveryContext>,
    #[serde(borrow, default)]
    events: Vec<Delivered<'a>>,
}

impl<'a> Answer<'a> {
    /// Reads a hub's frame; `None` for one that this build does not know.
    ///
    /// # Errors
    /// Not a hub's frame: the peer is something else, or speaks another version.
    pub fn parse(text: &'a str) -> Result<Option<Self>, serde_json::Error> {
        let fields: Fields<'a> = serde_json::from_str(text)?;
        let missing = |name| <serde_json::Error as serde::de::Error>::missing_field(name);
        Ok(Some(match &*fields.op {
            "OK" => Answer::Ok(Box::new(Done {
                corr: fields.corr,
                id: fields.id,
                seq: fields.seq,
                duplicate: fields.duplicate,
                ids: fields.ids,
                seqs: fields.seqs,
                duplicates: fields.duplicates,
                sub: fields.sub,
                exp: fields.exp,
                cursor: fields.cursor,
                resume: fields.resume,
                warnings: fields.warnings,
            })),
            "ERR" => {
                let code_text = fields.code.ok_or_else(|| missing("code"))?;
                Answer::Error(Refusal {
                    corr: fields.corr,
                    code: Code::parse(&code_text),
                    code_text,
                    message: fields.msg.unwrap_or_default(),
                    retry_after: fields.retry_after_ms.map(Duration::from_millis),
                    topic: fields.topic,
                    group: fields.group,
                })
            }
            "EVENT" => {
                let event = fields.event.ok_or_else(|| missing("event"))?;
                let ctx = fields.ctx.ok_or_else(|| missing("ctx"))?;
                let topic = fields.topic.ok_or_else(|| missing("topic"))?;
                Answer::Events { topic, group: fields.group, events: vec![Delivered { event, ctx }] }
            }
            "EVENTS" => Answer::Events {
                topic: fields.topic.ok_or_else(|| missing("topic"))?,
                group: fields.group,
                events: fields.events,
            },
            _ => return Ok(None),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{Corr, decode, write};
    use crate::{Cursor, Draft, Limits, Millis, Sealer, Topic};

    fn parse(out: &[u8]) -> Answer<'_> {
        let text = std::str::from_utf8(out).expect("text");
        serde_json::from_str::<serde_json::Value>(text).expect("valid JSON");
        Answer::parse(text).expect("a hub's frame").expect("known")
    }

    fn corr() -> Option<Corr> {
        decode(r#"{"op":"PING","corr":7}"#).corr
    }

    #[test]
    fn what_the_hub_answers_is_what_a_client_reads() {
        let id = EventId::from_bytes([7; 16]);
        let mut out = Vec::new();
        write::published(&mut out, corr().as_ref(), id, 42, true);
        let Answer::Ok(done) = parse(&out) else { panic!("OK") };
        assert_eq!((done.corr, done.id, done.seq, done.duplicate), (Some(7), Some(id), Some(42), true));

        out.clear();
        write::published_batch(&mut out, None, [(id, 1, false), (id, 2, false)].into_iter());
        assert!(!String::from_utf8_lossy(&out).contains("duplicates"));
        let Answer::Ok(done) = parse(&out) else { panic!("OK") };
        assert_eq!((done.corr, done.ids, done.seqs), (None, vec![id, id], vec![1, 2]));

        out.clear();
        write::published_batch(&mut out, None, [(id, 1, true), (id, 5, false), (id, 2, true)].into_iter());
        let Answer::Ok(done) = parse(&out) else { panic!("OK") };
        assert_eq!((done.seqs, done.duplicates), (vec![1, 5, 2], vec![0, 2]));

        out.clear();
        write::authenticated(&mut out, None, Some("me\""), Some(9));
        let Answer::Ok(done) = parse(&out) else { panic!("OK") };
        assert_eq!((done.sub.as_deref(), done.exp), (Some("me\""), Some(9)));

        out.clear();
        let topic = Topic::parse("a.b").expect("topic");
        let cursor = Cursor { topic, last_id: Some(id), last_ts: Some(Millis(3)), seq: 1 };
        write::subscribed(&mut out, None, true, std::slice::from_ref(&cursor), Some("r"));
        let Answer::Ok(done) = parse(&out) else { panic!("OK") };
        assert_eq!(done.cursor.map(|raw| raw.get().to_owned()), serde_json::to_string(&cursor).ok());
        assert_eq!(done.resume.as_deref(), Some("r"));

        out.clear();
        let detail = write::ErrorDetail { retry_after: Some(Duration::from_millis(20)), topic: Some("a"), group: None };
        write::error(&mut out, corr().as_ref(), Code::RateLimited, "slow\n", detail);
        let Answer::Error(refusal) = parse(&out) else { panic!("ERR") };
        assert_eq!((refusal.corr, refusal.code, &*refusal.message), (Some(7), Some(Code::RateLimited), "slow\n"));
        assert_eq!((refusal.retry_after, refusal.topic.as_deref()), (Some(Duration::from_millis(20)), Some("a")));
    }

    #[test]
    fn deliveries_come_one_by_one_or_as_a_batch() {
        let payload = crate::payload_of(&[1]).expect("JSON");
        let draft = Draft::new(Topic::parse("a.b").expect("topic"), std::borrow::Cow::Owned(payload));
        let mut sealer = Sealer::new(Limits::default());
        sealer.seal(&draft, EventId::from_bytes([7; 16]), Millis(9), 16, 0).expect("valid");
        let event = sealer.finish().remove(0).at(42);
        let deadline = Duration::from_secs(30);
        let context = write::Context {
            attempt: 1,
            max_attempts: 5,
            deadline,
            lease: 17,
            snapshot: false,
            redriven: false,
            cut: None,
            resume: None,
        };

        let mut out = Vec::new();
        write::event(&mut out, &write::Head::event("a.*", Some("g")), &event, context);
        let expected = format!(
            r#"{{"op":"EVENT","topic":"a.*","group":"g","event":{},"ctx":{{"attempt":1,"maxAttempts":5,"ack_deadline_ms":30000,"lease":17}}}}"#,
            event.to_json()
        );
        assert_eq!(String::from_utf8(out).expect("text"), expected);

        let mut out = b"earlier}".to_vec();
        let start = out.len();
        write::begin_events(&mut out, &write::Head::events("a.*", None));
        write::next_event(&mut out, &event, context);
        let cut = Some(event.id);
        write::next_event(&mut out, &event, write::Context { snapshot: true, cut, resume: Some("r"), ..context });
        write::end_events(&mut out);
        let Answer::Events { topic, group, events } = parse(&out[start..]) else { panic!("EVENTS") };
        assert_eq!((&*topic, group, events.len()), ("a.*", None, 2));
        assert_eq!((events[0].event.get(), events[1].ctx.snapshot), (&*event.to_json(), true));
        assert_eq!((events[0].ctx.cut, events[1].ctx.cut), (None, cut));
        assert_eq!((&events[0].ctx.resume, events[1].ctx.resume.as_deref()), (&None, Some("r")));
    }
}
