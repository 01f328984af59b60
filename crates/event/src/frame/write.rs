//! Hub frames, written straight into a buffer: no tree, no allocation of their own.
//!
//! Each frame is a struct that is declared once; how it is written and what documents say of it follow from that (see
//! `wire`).

use std::iter::Empty;
use std::time::Duration;

use super::Corr;
use super::shape::{Field, Kind, Part, Shape};
use super::strays::MAX_WARNINGS;
use crate::wire::{
    self, Described, Each, Fields, Filled, List, Name, Number, Object, Open, Said, Text, Whole, Write, said,
};
use crate::{Code, Cursor, Event, EventId, Group, Selector, Seq, limits};

/// A `seq` of an event that is stored.
type Place = Number<1, { limits::MAX_SAFE_INTEGER }>;
const MAX_LEASE: u64 = limits::MAX_LEASE.as_millis() as u64;

fn warnings(corr: Option<&Corr>) -> &[String] {
    corr.map_or(&[], Corr::warnings)
}

said! {
    /// `OK` with nothing more to say.
    struct Done<'a> is "OK" {
        /// The client's mark, which comes back in the answer.
        corr: Option<&'a Corr> as Option<Corr> = "corr",
        /// A sentence for each field of the frame that the hub does not know; left out where there is none.
        warnings: &'a [String] as Filled<Text<0>, MAX_WARNINGS> = "warnings",
    }
}

/// `OK` with nothing more to say.
pub fn ok(out: &mut Vec<u8>, corr: Option<&Corr>) {
    Done { corr, warnings: warnings(corr) }.frame(out);
}

said! {
    /// `OK` to an `AUTH`.
    struct Authenticated<'a> is "OK" {
        /// The client's mark, which comes back in the answer.
        corr: Option<&'a Corr> as Option<Corr> = "corr",
        /// Whose it is, where the token says so.
        sub: Option<&'a str> as Option<Text<0>> = "sub",
        /// When it runs out, in epoch seconds, where it does.
        exp: Option<u64> as Option<Whole> = "exp",
        /// A sentence for each field of the frame that the hub does not know; left out where there is none.
        warnings: &'a [String] as Filled<Text<0>, MAX_WARNINGS> = "warnings",
    }
}

/// `OK` to an `AUTH`.
pub fn authenticated(out: &mut Vec<u8>, corr: Option<&Corr>, sub: Option<&str>, exp: Option<u64>) {
    Authenticated { corr, sub, exp, warnings: warnings(corr) }.frame(out);
}

said! {
    /// `OK` to a `PUBLISH` of one event.
    struct Published<'a> is "OK" {
        /// The client's mark, which comes back in the answer.
        corr: Option<&'a Corr> as Option<Corr> = "corr",
        /// The event's id.
        id: EventId = "id",
        /// Its place in the topic.
        seq: Seq as Place = "seq",
        /// True where the id was there before: nothing was stored, else left out.
        duplicate: bool as Option<bool> = "duplicate",
        /// A sentence for each field of the frame that the hub does not know; left out where there is none.
        warnings: &'a [String] as Filled<Text<0>, MAX_WARNINGS> = "warnings",
    }
}

/// `OK` to a `PUBLISH` of one event.
pub fn published(out: &mut Vec<u8>, corr: Option<&Corr>, id: EventId, seq: Seq, duplicate: bool) {
    Published { corr, id, seq, duplicate, warnings: warnings(corr) }.frame(out);
}

said! {
    /// `OK` to a `PUBLISH` of a batch.
    struct PublishedBatch<'a; I: EventId, S: Seq, D: u64> is "OK" {
        /// The client's mark, which comes back in the answer.
        corr: Option<&'a Corr> as Option<Corr> = "corr",
        /// The events' ids, in order.
        ids: Each<I> as List<EventId, 1, { limits::MAX_BATCH }> = "ids",
        /// Their places in the topic.
        seqs: Each<S> as List<Place, 1, { limits::MAX_BATCH }> = "seqs",
        /// The indexes of those that were there before; left out where there is none.
        duplicates: Each<D> as Filled<Whole, { limits::MAX_BATCH }> = "duplicates",
        /// A sentence for each field of the frame that the hub does not know; left out where there is none.
        warnings: &'a [String] as Filled<Text<0>, MAX_WARNINGS> = "warnings",
    }
}

/// `OK` to a `PUBLISH` of a batch: each event's id and seq, and whether it was there before; those that were are named
/// by their index in `duplicates`, which is left out where there is none.
pub fn published_batch(
    out: &mut Vec<u8>,
    corr: Option<&Corr>,
    places: impl Iterator<Item = (EventId, Seq, bool)> + Clone,
) {
    let ids = Each(places.clone().map(|(id, ..)| id));
    let seqs = Each(places.clone().map(|(_, seq, _)| seq));
    let indexed = places.zip(0_u64..);
    let duplicates = Each(indexed.filter_map(|((.., duplicate), index)| duplicate.then_some(index)));
    PublishedBatch { corr, ids, seqs, duplicates, warnings: warnings(corr) }.frame(out);
}

said! {
    /// `OK` to a `SUBSCRIBE`.
    struct Subscribed<'a> is "OK" {
        /// The client's mark, which comes back in the answer.
        corr: Option<&'a Corr> as Option<Corr> = "corr",
        /// Where the group stands: one for a topic, a list for patterns and several topics, left out for a tail.
        cursor: Cursors<'a> = "cursor",
        /// Without a group: where it begins, for opts.resume of a later subscription.
        resume: Option<&'a str> as Option<Text<{ limits::MAX_RESUME }>> = "resume",
        /// A sentence for each field of the frame that the hub does not know, and for each value that it lowered.
        warnings: &'a [String] as Filled<Text<0>, MAX_WARNINGS> = "warnings",
    }
}

/// One cursor or a list of them.
struct Cursors<'a> {
    /// True if the subscription is to one topic.
    single: bool,
    all: &'a [Cursor],
}

impl Described for Cursors<'_> {
    const KIND: Kind = Kind::Either(&Cursor::KIND, &Kind::List(&Cursor::KIND, 0, usize::MAX));
    const NEEDED: bool = false;
}

impl<'a> Write<Cursors<'a>> for Cursors<'a> {
    fn write(value: &Cursors<'a>, out: &mut Vec<u8>) {
        match value.all {
            [one] if value.single => Cursor::write(one, out),
            several => {
                out.push(b'[');
                for (index, one) in several.iter().enumerate() {
                    if index > 0 {
                        out.push(b',');
                    }
                    Cursor::write(one, out);
                }
                out.push(b']');
            }
        }
    }
    fn member(value: &Cursors<'a>, name: &str, out: &mut Vec<u8>) {
        if !(value.single && value.all.is_empty()) {
            out.extend_from_slice(name.as_bytes());
            Self::write(value, out);
        }
    }
}

/// `OK` to a `SUBSCRIBE`: `cursor` is an object for a single topic, a list for patterns and several topics, and left
/// out for an ephemeral tail, which has `resume` instead.
pub fn subscribed(out: &mut Vec<u8>, corr: Option<&Corr>, single: bool, cursors: &[Cursor], resume: Option<&str>) {
    Subscribed { corr, cursor: Cursors { single, all: cursors }, resume, warnings: warnings(corr) }.frame(out);
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

said! {
    /// `ERR`.
    struct Refused<'a> is "ERR" {
        /// The stable reason, for programs.
        code: Code = "code",
        /// The cause and the remedy, for people.
        msg: &'a str as Text<0> = "msg",
        /// The client's mark, which comes back in the answer.
        corr: Option<&'a Corr> as Option<Corr> = "corr",
        /// With rate_limited: when to try again.
        retry_after: Option<Duration> as Option<Whole> = "retry_after_ms",
        /// The subscription that the hub ended.
        topic: Option<&'a str> as Option<Name<Selector>> = "topic",
        /// Its group.
        group: Option<&'a str> as Option<Name<Group>> = "group",
    }
}

/// `ERR`.
pub fn error(out: &mut Vec<u8>, corr: Option<&Corr>, code: Code, message: &str, detail: ErrorDetail<'_>) {
    let ErrorDetail { retry_after, topic, group } = detail;
    Refused { code, msg: message, corr, retry_after, topic, group }.frame(out);
}

/// The part of `EVENT` and `EVENTS` frames that is the same for all deliveries of a subscription.
#[derive(Debug, Clone)]
pub struct Head(Box<[u8]>);

said! {
    /// How an `EVENT` begins.
    struct OneFrom<'a> is "EVENT" {
        /// The subscription's topic or pattern.
        topic: &'a str as Name<Selector> = "topic",
        /// The group; without one it is an ephemeral tail.
        group: Option<&'a str> as Option<Name<Group>> = "group",
        /// The event; event.topic is the concrete one.
        event: Open as Event = "event",
    }
}

said! {
    /// How an `EVENT` ends.
    struct OneTo<'a> {
        /// What the hub says about the delivery.
        ctx: Context<'a> = "ctx",
    }
}

said! {
    /// How an `EVENTS` begins.
    struct SeveralFrom<'a> is "EVENTS" {
        /// The subscription's topic or pattern.
        topic: &'a str as Name<Selector> = "topic",
        /// The group; without one it is an ephemeral tail.
        group: Option<&'a str> as Option<Name<Group>> = "group",
        /// The deliveries, in order.
        events: Open as List<Delivery, 1, { limits::MAX_BATCH }> = "events",
    }
}

impl Head {
    /// The head of a subscription's `EVENT` frames.
    pub fn event(topic: &str, group: Option<&str>) -> Self {
        Self::new(&OneFrom { topic, group, event: Open })
    }

    /// The head of a subscription's `EVENTS` frames.
    pub fn events(topic: &str, group: Option<&str>) -> Self {
        Self::new(&SeveralFrom { topic, group, events: Open })
    }

    fn new<T: Said>(said: &T) -> Self {
        let mut out = T::BEGIN.as_bytes().to_vec();
        said.members(&mut out);
        Self(out.into())
    }
}

said! {
    /// What the hub says about a delivery.
    #[derive(Debug, Clone, Copy)]
    pub struct Context<'a> named "Context" {
        /// Which delivery of the event to the group this is.
        pub attempt: u32 as Number<1, { u32::MAX as u64 }> = "attempt",
        /// Deliveries before a dead letter; 0: no limit.
        pub max_attempts: u32 as Number<0, { u32::MAX as u64 }> = "maxAttempts",
        /// The time left to ack.
        pub deadline: Duration as Number<0, MAX_LEASE> = "ack_deadline_ms",
        /// The delivery's number.
        pub lease: u64 as Whole = "lease",
        /// True where the event is part of a snapshot start, else left out.
        pub snapshot: bool as Option<bool> = "snapshot",
        /// True where the event was redriven from a dead letter, else left out.
        pub redriven: bool as Option<bool> = "redriven",
        /// On the last event of a tail's snapshot: the id of the event at which the snapshot was taken. A tail that goes on after
        /// it gets everything since.
        pub cut: Option<EventId> = "cut",
        /// Without a group: the place after this delivery, for opts.resume of a later subscription.
        pub resume: Option<&'a str> as Option<Text<{ limits::MAX_RESUME }>> = "resume",
    }
}

said! {
    /// How a delivery of an `EVENTS` begins; it ends as an `EVENT` does.
    struct DeliveryFrom<> {
        /// The event.
        event: Open as Event = "event",
    }
}

/// One delivery of an `EVENTS`.
struct Delivery;

impl Fields for Delivery {
    const OWN: &'static [Field] = DeliveryFrom::OWN;
    const FIELDS: &'static [&'static [Field]] = &[DeliveryFrom::OWN, OneTo::<'static>::OWN];
}

impl Object for Delivery {
    const PART: &'static Part = &Part { name: "Delivery", fields: Self::FIELDS, needs: &[], asked: false };
}

impl Described for Delivery {
    const KIND: Kind = Kind::Object(Self::PART);
}

/// `EVENT`.
pub fn event(out: &mut Vec<u8>, head: &Head, event: &Event, context: Context<'_>) {
    out.extend_from_slice(&head.0);
    event.write(out);
    OneTo { ctx: context }.members(out);
    out.push(b'}');
}

/// Begins an `EVENTS` frame; then [`next_event`] for each, then [`end_events`].
pub fn begin_events(out: &mut Vec<u8>, head: &Head) {
    out.extend_from_slice(&head.0);
}

/// One entry of an `EVENTS` frame.
pub fn next_event(out: &mut Vec<u8>, event: &Event, context: Context<'_>) {
    if out.last() == Some(&b'}') {
        out.push(b',');
    }
    DeliveryFrom { event: Open }.open(out);
    event.write(out);
    OneTo { ctx: context }.members(out);
    out.push(b'}');
}

/// Ends an `EVENTS` frame.
pub fn end_events(out: &mut Vec<u8>) {
    out.extend_from_slice(b"]}");
}

/// Lists the hub's frames for documents: a name, the types that it is written by, an example.
macro_rules! shapes {
    ($($(#[doc = $about:literal])+ $name:ident($first:ty $(, $rest:ty)?), $example:literal;)*) => {
        &[$(Shape {
            name: stringify!($name),
            op: <$first as Said>::OP,
            about: wire::about(concat!($($about),+)),
            head: &[],
            fields: &[<$first as Fields>::OWN, $(<$rest as Fields>::OWN)?],
            one_of: &[],
            without: &[],
            answer: "",
            example: $example,
        },)*]
    };
}

/// The frames of a hub.
pub(super) static SAID: &[Shape] = shapes! {
    /// It is done.
    done(Done<'static>), r#"{"op":"OK","corr":6}"#;
    /// The token counts.
    authenticated(Authenticated<'static>), r#"{"op":"OK","corr":1,"sub":"stt","exp":1731653600}"#;
    /// The event is stored, as durable as the store's setting says.
    published(Published<'static>), r#"{"op":"OK","corr":2,"id":"0199d1c0-7d3b-7cc2-8b1a-3f0e2c9a4b5d","seq":42}"#;
    /// The batch is stored.
    publishedBatch(PublishedBatch<'static, Empty<EventId>, Empty<Seq>, Empty<u64>>), r#"{"op":"OK","corr":3,"ids":["0199d1c0-7d3b-7cc2-8b1a-3f0e2c9a4b5d","0199d1c0-7d3b-7cc2-8b1a-3f0e2c9a4b5e"],"seqs":[43,44]}"#;
    /// Deliveries follow.
    subscribed(Subscribed<'static>), r#"{"op":"OK","corr":4,"cursor":{"topic":"heartbeat.received","lastId":"0199d1c0-7d3b-7cc2-8b1a-3f0e2c9a4b5d","lastTs":1731650000000,"seq":42}}"#;
    /// The frame is refused; nothing of it was done. Without corr it may also be the hub's own: a token that ran out, a
    /// subscription that a renewed token no longer allows.
    refused(Refused<'static>), r#"{"op":"ERR","code":"bad_request","msg":"topic: is missing","corr":2}"#;
    /// A delivery.
    event(OneFrom<'static>, OneTo<'static>), r#"{"op":"EVENT","topic":"heartbeat.*","group":"ops","event":{"id":"0199d1c0-7d3b-7cc2-8b1a-3f0e2c9a4b5d","seq":42,"ts":1731650000000,"topic":"heartbeat.received","key":"dev:stt:12345","partition":3,"payload":{"pid":12345}},"ctx":{"attempt":1,"maxAttempts":5,"ack_deadline_ms":30000,"lease":17}}"#;
    /// Several deliveries, where the subscription asked for opts.batch.
    events(SeveralFrom<'static>), r#"{"op":"EVENTS","topic":"heartbeat.*","group":"ops","events":[{"event":{"id":"0199d1c0-7d3b-7cc2-8b1a-3f0e2c9a4b5d","seq":42,"ts":1731650000000,"topic":"heartbeat.received","partition":3,"payload":null},"ctx":{"attempt":1,"maxAttempts":5,"ack_deadline_ms":30000,"lease":17}}]}"#;
};

/// The objects of the hub's frames.
pub(super) static PARTS: &[&Part] = &[Event::PART, Context::PART, Delivery::PART, Cursor::PART];
