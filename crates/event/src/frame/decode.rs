//! A client's frame: from text to a checked request, or to a refusal that names the field.
//!
//! Each kind of frame is declared once, with the type it is read as; what documents say of it follows from the same
//! declarations (see `wire`).

use std::borrow::Cow;
use std::time::Duration;

use super::publish::{self, Publish};
use super::shape::{Field, Shape};
use super::split::{self, FrameFields};
use super::subscribe::Subscribe;
use super::{Corr, field, strays};
use crate::wire::{self, Clamped, Cut, Fields, List, Members, Name, Number, Text, Whole, asked};
use crate::{Code, EventId, Group, Invalid, Selector, json, limits};

/// A frame as it was understood. There is one for every text, whatever it holds.
#[derive(Debug)]
pub struct Frame<'a> {
    /// The client's mark, to be echoed; also where the rest of the frame is refused.
    pub corr: Option<Corr>,
    /// The kind; answers to one kind keep their order.
    pub op: Op,
    /// What is asked, or why not.
    pub request: Result<Request<'a>, Invalid>,
}

/// Declares the kinds of client frames: the word on the wire, the type that a frame of it is read as, and what documents
/// say of it beyond the type: a name, the hub's answer, an example.
macro_rules! requests {
    ($(
        $(#[doc = $doc:literal])+
        $name:ident($request:ty) = $text:literal {
            $($(#[doc = $about:literal])+ $shape:ident($fields:ty) $(without $without:ident)? => $answer:ident, $example:literal;)+
        }
    )*) => {
        /// The kinds of client frames.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Op {
            $(#[doc = concat!("`", $text, "`")] $name,)*
            /// None of them, or not a frame at all.
            Unknown,
        }

        impl Op {
            /// Every kind there is, in the order of the contract.
            pub const ALL: &'static [Op] = &[$(Op::$name,)*];

            /// The word on the wire.
            pub const fn as_str(self) -> &'static str {
                match self { $(Op::$name => $text,)* Op::Unknown => "" }
            }

            fn parse(text: &str) -> Option<Op> {
                match text { $($text => Some(Op::$name),)* _ => None }
            }
        }

        /// What a client asks.
        #[derive(Debug)]
        pub enum Request<'a> {
            $($(#[doc = $doc])+ $name($request),)*
        }

        fn request<'a>(op: Op, fields: &mut FrameFields<'a>) -> Result<Request<'a>, Invalid> {
            match op {
                $(Op::$name => <$request as Members<'a>>::read(fields).map(Request::$name),)*
                Op::Unknown => Err(Invalid::request(FrameFields::NAMES.op, "is missing")),
            }
        }

        /// The bits of the names that a frame of this kind may have.
        #[allow(non_upper_case_globals)]
        fn known(op: Op, fields: &FrameFields<'_>) -> u32 {
            const ALL: &[&str] = FrameFields::ALL;
            const EVERY: u32 = split::known(ALL, &[Mark::OWN]) | split::bit(ALL, FrameFields::NAMES.op);
            match op {
                $(Op::$name => {
                    $(
                        const $shape: (u32, u32) = (
                            EVERY | split::known(ALL, <$fields as Fields>::FIELDS),
                            0 $(| split::bit(ALL, FrameFields::NAMES.$without))?,
                        );
                        if !fields.has($shape.1) {
                            return $shape.0;
                        }
                    )+
                    u32::MAX
                })*
                Op::Unknown => u32::MAX,
            }
        }

        /// The frames of a client. A batch is a frame of its own here: it holds something else and is answered with it.
        pub(super) static ASKED: &[Shape] = &[$($(Shape {
            name: stringify!($shape),
            op: $text,
            about: wire::about(concat!($($about),+)),
            head: Mark::OWN,
            fields: <$fields as Fields>::FIELDS,
            one_of: <$fields as Fields>::ONE_OF,
            without: &[$(FrameFields::NAMES.$without)?],
            answer: stringify!($answer),
            example: $example,
        },)+)*];
    };
}

requests! {
    /// Proves who the client is.
    Auth(Auth<'a>) = "AUTH" {
        /// Proves who the client is; again at any time to renew. Optional where the hub is open.
        auth(Auth<'static>) => authenticated, r#"{"op":"AUTH","token":"devtoken","corr":1}"#;
    }
    /// Publishes.
    Publish(Publish<'a>) = "PUBLISH" {
        /// Stores one event.
        publish(publish::One<'static>) without events => published, r##"{"op":"PUBLISH","topic":"heartbeat.received","payload":{"pid":12345},"opts":{"ts":1731650000000,"key":"dev:stt:12345","headers":{"x-trace":"7"},"tags":["#stt"],"caused_by":["0199d1c0-7d3b-7cc2-8b1a-3f0e2c9a4b5d"],"sid":"s-1"},"corr":2}"##;
        /// Stores several events of one topic, all or none.
        publishBatch(publish::Batch<'static>) without payload => publishedBatch, r#"{"op":"PUBLISH","topic":"heartbeat.received","events":[{"payload":{"pid":1},"key":"dev:a:1"},{"payload":{"pid":2},"key":"dev:b:2"}],"corr":3}"#;
    }
    /// Subscribes.
    Subscribe(Box<Subscribe<'a>>) = "SUBSCRIBE" {
        /// Becomes a member of a group on a topic or pattern, or, without a group, follows it.
        subscribe(Subscribe<'static>) => subscribed, r##"{"op":"SUBSCRIBE","topic":"heartbeat.*","group":"ops","opts":{"from":"ts","ts":1731650000000,"topics":["process.state"],"maxInFlight":10,"batchSize":50,"ackTimeoutMs":30000,"maxAttempts":5,"filter":{"tags":["#stt"],"keys":["dev:stt:12345"],"headers":{"x-trace":"7"}},"ordered":"key","batch":false},"corr":4}"##;
    }
    /// Ends a subscription.
    Unsubscribe(Named<'a>) = "UNSUBSCRIBE" {
        /// Ends a subscription; what it holds goes to the others.
        unsubscribe(Named<'static>) => done, r#"{"op":"UNSUBSCRIBE","topic":"heartbeat.*","group":"ops","corr":5}"#;
    }
    /// Finishes events.
    Ack(Ack<'a>) = "ACK" {
        /// Finishes events. The OK means that it is saved.
        ack(Ack<'static>) => done, r#"{"op":"ACK","topic":"heartbeat.*","group":"ops","id":"0199d1c0-7d3b-7cc2-8b1a-3f0e2c9a4b5d","lease":17,"corr":6}"#;
    }
    /// Gives events back.
    Nack(Nack<'a>) = "NACK" {
        /// Gives events back: they are delivered again, at once the first time, then later and later.
        nack(Nack<'static>) => done, r#"{"op":"NACK","topic":"heartbeat.*","group":"ops","ids":["0199d1c0-7d3b-7cc2-8b1a-3f0e2c9a4b5d"],"reason":"not now","delay_ms":500,"release":false,"corr":7}"#;
    }
    /// Extends leases.
    Modack(Modack<'a>) = "MODACK" {
        /// Sets the lease of events that are in flight.
        modack(Modack<'static>) => done, r#"{"op":"MODACK","topic":"heartbeat.*","group":"ops","id":"0199d1c0-7d3b-7cc2-8b1a-3f0e2c9a4b5d","extend_ms":60000,"corr":8}"#;
    }
    /// Stops deliveries.
    Pause(Named<'a>) = "PAUSE" {
        /// Stops deliveries to this subscriber.
        pause(Named<'static>) => done, r#"{"op":"PAUSE","topic":"heartbeat.*","group":"ops","corr":9}"#;
    }
    /// Goes on with deliveries.
    Resume(Named<'a>) = "RESUME" {
        /// Goes on with deliveries to this subscriber.
        resume(Named<'static>) => done, r#"{"op":"RESUME","topic":"heartbeat.*","group":"ops","corr":10}"#;
    }
    /// Asks for an `OK`.
    Ping(Ping) = "PING" {
        /// Asks for an OK: browsers see no WebSocket pings.
        ping(Ping) => done, r#"{"op":"PING","corr":11}"#;
    }
}

asked! {
    /// What every frame may have.
    struct Mark from FrameFields {
        /// The client's mark, which comes back in the answer.
        corr: Option<Corr>,
    }
}

asked! {
    /// An `AUTH`.
    #[derive(Debug)]
    pub struct Auth<'a> from FrameFields {
        /// The static token or a JWT.
        pub token: Option<Cow<'a, str>> as Option<Text<0>>,
        /// True: frames without corr get no OK from now on, an ERR as ever.
        pub quiet: Option<bool>,
        /// True: from now on a frame with an unknown field is bad_request and does nothing.
        pub strict: Option<bool>,
    }
}

asked! {
    /// A `PING`.
    #[derive(Debug)]
    pub struct Ping from FrameFields {}
}

asked! {
    /// A subscription by its name. The name is not checked: a subscription that exists has a valid one.
    #[derive(Debug)]
    pub struct Named<'a> from FrameFields {
        /// The subscription's topic or pattern.
        pub topic: Cow<'a, str> as Name<Selector>,
        /// The group; without one it is an ephemeral tail.
        pub group: Option<Cow<'a, str>> as Option<Name<Group>>,
    }
}

asked! {
    /// A subscription whose events are acked: it has a group.
    struct Acked<'a> from FrameFields {
        /// The subscription's topic or pattern.
        topic: Cow<'a, str> as Name<Selector>,
        /// The subscription's group.
        group: Cow<'a, str> as Name<Group>,
    }
}

impl<'a> std::convert::From<Acked<'a>> for Named<'a> {
    fn from(Acked { topic, group }: Acked<'a>) -> Self {
        Self { topic, group: Some(group) }
    }
}

/// One id or several: most acks name one, and that one needs no list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ids {
    /// `id`
    One(EventId),
    /// `ids`, 1 to 10,000
    Many(Vec<EventId>),
}

impl Ids {
    /// The ids.
    pub fn as_slice(&self) -> &[EventId] {
        match self {
            Ids::One(id) => std::slice::from_ref(id),
            Ids::Many(ids) => ids,
        }
    }
}

/// What an `ACK` finishes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settled {
    /// These.
    Ids(Ids),
    /// This one and all before it.
    UpTo(EventId),
}

asked! {
    /// `id` or `ids`.
    struct OneOrMany from FrameFields {
        /// The event.
        id: Option<EventId>,
        /// The events.
        ids: Option<Vec<EventId>> as Option<List<EventId, 1, { limits::MAX_BATCH }>>,
    }
}

asked! {
    /// `id`, `ids` or `upTo`.
    struct OneOrManyOrUpTo from FrameFields {
        /// The event.
        id: Option<EventId>,
        /// The events.
        ids: Option<Vec<EventId>> as Option<List<EventId, 1, { limits::MAX_BATCH }>>,
        /// This event and all before it.
        up_to: Option<EventId>,
    }
}

impl Fields for Ids {
    const OWN: &'static [Field] = OneOrMany::OWN;
    const ONE_OF: &'static [&'static [Field]] = OneOrMany::FIELDS;
}

impl<'a> Members<'a> for Ids {
    type Split = FrameFields<'a>;
    fn read(split: &mut FrameFields<'a>) -> Result<Self, Invalid> {
        match OneOrMany::read(split)? {
            OneOrMany { id: Some(id), ids: None } => Ok(Ids::One(id)),
            OneOrMany { id: None, ids: Some(ids) } => Ok(Ids::Many(ids)),
            OneOrMany { id: Some(_), ids: Some(_) } => Err(id_and_ids()),
            OneOrMany { id: None, ids: None } => Err(Invalid::request("id", "is missing: one of id or ids")),
        }
    }
}

impl Fields for Settled {
    const OWN: &'static [Field] = OneOrManyOrUpTo::OWN;
    const ONE_OF: &'static [&'static [Field]] = OneOrManyOrUpTo::FIELDS;
}

impl<'a> Members<'a> for Settled {
    type Split = FrameFields<'a>;
    fn read(split: &mut FrameFields<'a>) -> Result<Self, Invalid> {
        let OneOrManyOrUpTo { id, ids, up_to } = OneOrManyOrUpTo::read(split)?;
        match (id, ids, up_to) {
            (Some(id), None, None) => Ok(Settled::Ids(Ids::One(id))),
            (None, Some(ids), None) => Ok(Settled::Ids(Ids::Many(ids))),
            (None, None, Some(id)) => Ok(Settled::UpTo(id)),
            (None, None, None) => Err(Invalid::request("id", "is missing: one of id, ids or upTo")),
            (Some(_), Some(_), _) => Err(id_and_ids()),
            _ => Err(Invalid::request("upTo", "a frame has id, ids or upTo, only one of them")),
        }
    }
}

fn id_and_ids() -> Invalid {
    Invalid::request("ids", "a frame has either id or ids, not both")
}

const MAX_LEASE: u64 = limits::MAX_LEASE.as_millis() as u64;
const MIN_EXTENSION: u64 = limits::MIN_EXTENSION.as_millis() as u64;

asked! {
    /// An `ACK`.
    #[derive(Debug)]
    pub struct Ack<'a> from FrameFields {
        all of {
            /// The subscription.
            pub of: Named<'a> as Acked<'a>,
            /// The events.
            pub settled: Settled,
        }
        /// The delivery it is about (ctx.lease): a fence for those who need it.
        pub lease: Option<u64> as Option<Whole>,
    }
}

asked! {
    /// A `NACK`.
    #[derive(Debug)]
    pub struct Nack<'a> from FrameFields {
        all of {
            /// The subscription.
            pub of: Named<'a> as Acked<'a>,
            /// The events.
            pub ids: Ids,
        }
        /// The delivery it is about (ctx.lease): a fence for those who need it.
        pub lease: Option<u64> as Option<Whole>,
        /// Why, for the dead letter; the first 4 KiB are kept.
        pub reason: Option<Cow<'a, str>> as Option<Cut<{ limits::MAX_REASON }>>,
        /// When to deliver again; else by the backoff.
        pub delay: Option<Duration> as Option<Number<0, MAX_LEASE>>,
        /// True: the attempt does not count.
        pub release: bool as Option<bool>,
    }
}

asked! {
    /// A `MODACK`.
    #[derive(Debug)]
    pub struct Modack<'a> from FrameFields {
        all of {
            /// The subscription.
            pub of: Named<'a> as Acked<'a>,
            /// The events.
            pub ids: Ids,
        }
        /// The delivery it is about (ctx.lease): a fence for those who need it.
        pub lease: Option<u64> as Option<Whole>,
        /// The lease from now on, at least 1,000 and at most the hub's max_ack_timeout; the subscription's ackTimeoutMs if left out.
        pub extend: Option<Duration> as Option<Clamped<MIN_EXTENSION, MAX_LEASE>>,
    }
}

/// Reads a frame.
pub fn decode(text: &str) -> Frame<'_> {
    let refused = |message: String| Frame {
        corr: None,
        op: Op::Unknown,
        request: Err(Invalid::new(Code::BadJson, "frame", message)),
    };
    let mut fields = match split::frame(text) {
        Ok(fields) => fields,
        Err(error) => return refused(format!("must be one JSON object: {error}")),
    };
    let (corr, bad_corr) = match Mark::read(&mut fields) {
        Ok(Mark { corr }) => (corr, None),
        Err(refused) => (None, Some(refused)),
    };
    let (op, bad_op) = match op(&fields) {
        Ok(op) => (op, None),
        Err(refused) => (Op::Unknown, Some(refused)),
    };
    let deep = json::too_deep(text.as_bytes());
    let request = match bad_op.or(bad_corr) {
        _ if deep && !may_be_deep(op, text) => Err(too_deep("frame")),
        Some(refused) => Err(refused),
        None => request(op, &mut fields).and_then(|request| if deep { shallow(request) } else { Ok(request) }),
    };
    let corr = match &request {
        Ok(_) if fields.is_strange(known(op, &fields)) => Some(Corr::warned(corr, strays::sentences(text, op))),
        _ => corr,
    };
    Frame { corr, op, request }
}

/// True if it is for the payloads to say if a frame nests too deep: what stands around them does not count, or an event
/// that came alone could not be sent in a batch.
fn may_be_deep(op: Op, text: &str) -> bool {
    let most = limits::MAX_DEPTH + limits::Around::MOST_LEVELS + publish::LEVELS;
    op == Op::Publish && !json::deeper_than(text.as_bytes(), most)
}

fn shallow(request: Request<'_>) -> Result<Request<'_>, Invalid> {
    match &request {
        Request::Publish(publish)
            if publish.payloads().any(|payload| json::too_deep_on(&publish.topic, payload.get())) =>
        {
            Err(too_deep("payload"))
        }
        _ => Ok(request),
    }
}

fn too_deep(what: &str) -> Invalid {
    Invalid::new(Code::BadJson, what, format!("nests deeper than {} levels", limits::MAX_DEPTH))
}

fn op(fields: &FrameFields<'_>) -> Result<Op, Invalid> {
    let name = FrameFields::NAMES.op;
    let raw = field::present(fields.op).ok_or_else(|| Invalid::request(name, "is missing"))?;
    let text = field::text(raw, name)?;
    Op::parse(&text).ok_or_else(|| {
        let shown: String = text.chars().take(32).collect();
        let words: Vec<&str> = Op::ALL.iter().map(|op| op.as_str()).collect();
        Invalid::request(name, format!("must be one of {}, is {shown:?}", words.join(" ")))
    })
}

#[cfg(test)]
#[path = "decode_tests.rs"]
mod tests;
