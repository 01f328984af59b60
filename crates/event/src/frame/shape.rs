//! What each frame holds, as data: the table that machine-readable documents are made of.
//!
//! [`decode`](super::decode) and [`write`](mod@super::write) are what a hub does; this table says the same to people and
//! tools. Its words and bounds are those of the types and of [`limits`]. That the two agree is tested here by the names
//! of the fields, and over a socket by `e2e/browser/asyncapi.test.ts`: what a schema of the table refuses the hub refuses
//! too, what it allows the hub takes, and no frame of the hub holds what is not written here.

use super::Op;
use crate::{Code, From, Ordered, limits};

/// A frame.
#[derive(Debug)]
pub struct Shape {
    /// What documents call it.
    pub name: &'static str,
    /// What stands in its `op`.
    pub op: &'static str,
    /// What it is for.
    pub about: &'static str,
    /// Everything in it but `op`.
    pub fields: &'static [Field],
    /// Fields of which exactly one is there.
    pub one_of: &'static [&'static str],
    /// Fields that make it another frame.
    pub without: &'static [&'static str],
    /// Of a client's frame: the hub's frame that says it was done. Empty for a hub's frame.
    pub answer: &'static str,
    /// One of them, as JSON.
    pub example: &'static str,
}

/// A field of a frame or of an object in it.
#[derive(Debug)]
pub struct Field {
    /// As it stands on the wire.
    pub name: &'static str,
    /// What it may hold.
    pub kind: Kind,
    /// Whether it has to be there.
    pub needed: bool,
    /// What it says.
    pub about: &'static str,
}

/// What a field may hold.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    /// Any JSON value, kept byte for byte.
    Any,
    /// `true` or `false`.
    Flag,
    /// A string of at most this many bytes; 0: as long as the frame allows.
    Text(usize),
    /// One of these words.
    Word(&'static [&'static str]),
    /// A whole number in this range.
    Number(u64, u64),
    /// A string or a number that marks a frame.
    Mark,
    /// An event's id.
    Id,
    /// A topic's name.
    Topic,
    /// A topic's name or a pattern.
    Selector,
    /// A group's name.
    Group,
    /// A reason to refuse.
    Code,
    /// A list of so many entries.
    List(&'static Kind, usize, usize),
    /// Names and strings, at most so many.
    Map(usize),
    /// The same, without names that are the hub's own.
    Headers,
    /// An object.
    Object(&'static Part),
    /// Either of them.
    Either(&'static Kind, &'static Kind),
}

/// An object that stands in frames.
#[derive(Debug)]
pub struct Part {
    /// What documents call it.
    pub name: &'static str,
    /// What is in it.
    pub fields: &'static [Field],
    /// Where the first field is the one word, the other field is needed.
    pub needs: &'static [(&'static str, &'static str)],
    /// Whether a client says it: then `null` is the same as left out.
    pub asked: bool,
}

const fn needed(name: &'static str, kind: Kind, about: &'static str) -> Field {
    Field { name, kind, needed: true, about }
}

const fn optional(name: &'static str, kind: Kind, about: &'static str) -> Field {
    Field { name, kind, needed: false, about }
}

const MAX_LEASE: u64 = limits::MAX_LEASE.as_millis() as u64;
/// Times, counts and numbers that every JSON reader keeps exactly.
const WHOLE: Kind = Kind::Number(0, limits::MAX_SAFE_INTEGER);
const IDS: Kind = Kind::List(&Kind::Id, 1, limits::MAX_BATCH);

const CORR: Field = optional("corr", Kind::Mark, "The client's mark, which comes back in the answer.");
const TOPIC: Field = needed("topic", Kind::Selector, "The subscription's topic or pattern.");
const GROUP: Field = needed("group", Kind::Group, "The subscription's group.");
const GROUP_OR_TAIL: Field = optional("group", Kind::Group, "The group; without one it is an ephemeral tail.");
const LEASE: Field = optional("lease", WHOLE, "The delivery it is about (ctx.lease): a fence for those who need it.");
const ONE_ID: Field = optional("id", Kind::Id, "The event.");
const MANY_IDS: Field = optional("ids", IDS, "The events.");

macro_rules! options_of_an_event {
    ($($first:expr)?) => {
        &[
            $($first,)?
            optional("id", Kind::Id, "The event's id, any UUID; the hub makes one where it is left out."),
            optional("ts", WHOLE, "The event's time, epoch milliseconds; else the hub's clock."),
            optional("key", Kind::Text(limits::MAX_KEY_BYTES), "What compaction, order and latest-by-key go by."),
            optional("headers", Kind::Headers, "Names and values, at most 16 KiB together."),
            optional("tags", Kind::List(&Kind::Text(limits::MAX_TAG_BYTES), 0, limits::MAX_LIST), "Words to filter by."),
            optional("caused_by", Kind::List(&Kind::Id, 0, limits::MAX_LIST), "The events that this one follows from."),
            optional("sid", Kind::Text(limits::MAX_TAG_BYTES), "The publisher's session."),
        ]
    };
}

/// `opts` of a `PUBLISH`.
pub static PUBLISH_OPTIONS: Part =
    Part { name: "PublishOptions", fields: options_of_an_event!(), needs: &[], asked: true };

const PAYLOAD: Field = needed("payload", Kind::Any, "Any JSON value.");

/// An entry of a batch.
pub static BATCH_ITEM: Part =
    Part { name: "BatchItem", fields: options_of_an_event!(PAYLOAD), needs: &[], asked: true };

const FILTER_WORDS: Kind = Kind::List(&Kind::Text(0), 0, limits::MAX_FILTER_VALUES);

/// `opts.filter` of a `SUBSCRIBE`.
pub static FILTER: Part = Part {
    name: "Filter",
    fields: &[
        optional("tags", FILTER_WORDS, "Any of these tags."),
        optional("keys", FILTER_WORDS, "Any of these keys."),
        optional("headers", Kind::Map(limits::MAX_HEADERS), "All of these headers."),
    ],
    needs: &[],
    asked: true,
};

/// `opts` of a `SUBSCRIBE`.
pub static SUBSCRIBE_OPTIONS: Part = Part {
    name: "SubscribeOptions",
    fields: &[
        optional("from", Kind::Word(From::WORDS), "Where a group without a cursor starts; latest if left out."),
        optional("ts", WHOLE, "For from=ts: epoch milliseconds."),
        optional("afterId", Kind::Id, "For from=afterId: an event of the topic."),
        optional("topics", Kind::List(&Kind::Selector, 0, limits::MAX_SELECTORS), "Further topics or patterns."),
        optional(
            "maxInFlight",
            Kind::Number(1, limits::MAX_IN_FLIGHT as u64),
            "Most events held without an ack; 100 if left out.",
        ),
        optional("batchSize", Kind::Number(1, limits::MAX_IN_FLIGHT as u64), "How many events are read at a time."),
        optional("ackTimeoutMs", Kind::Number(100, MAX_LEASE), "How long a delivery is leased; 30,000 if left out."),
        optional("maxAttempts", Kind::Number(0, u32::MAX as u64), "Deliveries before a dead letter; 0: no limit."),
        optional("filter", Kind::Object(&FILTER), "Which events the group wants; the kinds combine with AND."),
        optional("ordered", Kind::Word(Ordered::WORDS), "In which order; none if left out."),
        optional("batch", Kind::Flag, "Whether deliveries come as EVENTS."),
    ],
    needs: &[("ts", "ts"), ("afterId", "afterId")],
    asked: true,
};

/// An event as it is stored and delivered.
pub static EVENT: Part = Part {
    name: "Event",
    fields: &[
        needed("id", Kind::Id, "Unique across the hub."),
        needed("seq", Kind::Number(1, limits::MAX_SAFE_INTEGER), "The event's place in its topic: 1, 2, 3…"),
        needed("ts", WHOLE, "Epoch milliseconds."),
        needed("topic", Kind::Topic, "The topic."),
        optional("key", Kind::Text(limits::MAX_KEY_BYTES), "The key."),
        needed("partition", Kind::Number(0, u32::MAX as u64), "By the key, else by the id."),
        optional("sid", Kind::Text(limits::MAX_TAG_BYTES), "The publisher's session."),
        optional("headers", Kind::Map(0), "Names and values, the hub's own (promethean-…) among them."),
        optional("caused_by", Kind::List(&Kind::Id, 1, limits::MAX_LIST), "The events that this one follows from."),
        optional("tags", Kind::List(&Kind::Text(limits::MAX_TAG_BYTES), 1, limits::MAX_LIST), "Words to filter by."),
        needed("payload", Kind::Any, "What was published, byte for byte."),
    ],
    needs: &[],
    asked: false,
};

/// `ctx` of a delivery.
pub static CONTEXT: Part = Part {
    name: "Context",
    fields: &[
        needed("attempt", Kind::Number(1, u32::MAX as u64), "Which delivery of the event to the group this is."),
        needed("maxAttempts", Kind::Number(0, u32::MAX as u64), "Deliveries before a dead letter; 0: no limit."),
        needed("ack_deadline_ms", Kind::Number(0, MAX_LEASE), "The time left to ack."),
        needed("lease", WHOLE, "The delivery's number."),
        optional("snapshot", Kind::Flag, "True where the event is part of a snapshot start, else left out."),
    ],
    needs: &[],
    asked: false,
};

/// One delivery of an `EVENTS` frame.
pub static DELIVERY: Part = Part {
    name: "Delivery",
    fields: &[
        needed("event", Kind::Object(&EVENT), "The event."),
        needed("ctx", Kind::Object(&CONTEXT), "What the hub says about the delivery."),
    ],
    needs: &[],
    asked: false,
};

/// Where a group stands.
pub static CURSOR: Part = Part {
    name: "Cursor",
    fields: &[
        needed("topic", Kind::Topic, "The topic."),
        optional("lastId", Kind::Id, "The last event below which all are done; left out before the first."),
        optional("lastTs", WHOLE, "That event's time."),
        needed("seq", WHOLE, "That event's seq; 0 before the first."),
    ],
    needs: &[],
    asked: false,
};

const fn asked(
    (name, op): (&'static str, Op),
    about: &'static str,
    fields: &'static [Field],
    answer: &'static str,
    example: &'static str,
) -> Shape {
    Shape { name, op: op.as_str(), about, fields, one_of: &[], without: &[], answer, example }
}

const fn said(
    (name, op): (&'static str, &'static str),
    about: &'static str,
    fields: &'static [Field],
    example: &'static str,
) -> Shape {
    Shape { name, op, about, fields, one_of: &[], without: &[], answer: "", example }
}

/// The frames of a client. A batch is a frame of its own here: it holds something else and is answered with it.
pub static ASKED: &[Shape] = &[
    asked(
        ("auth", Op::Auth),
        "Proves who the client is; again at any time to renew. Optional where the hub is open.",
        &[
            CORR,
            optional("token", Kind::Text(0), "The static token or a JWT."),
            optional("quiet", Kind::Flag, "True: frames without corr get no OK from now on, an ERR as ever."),
        ],
        "authenticated",
        r#"{"op":"AUTH","token":"devtoken","corr":1}"#,
    ),
    Shape {
        without: &["events"],
        ..asked(
            ("publish", Op::Publish),
            "Stores one event.",
            &[
                CORR,
                needed("topic", Kind::Topic, "The topic."),
                PAYLOAD,
                optional("opts", Kind::Object(&PUBLISH_OPTIONS), "Everything optional of the event."),
            ],
            "published",
            r##"{"op":"PUBLISH","topic":"heartbeat.received","payload":{"pid":12345},"opts":{"ts":1731650000000,"key":"dev:stt:12345","headers":{"x-trace":"7"},"tags":["#stt"],"caused_by":["0199d1c0-7d3b-7cc2-8b1a-3f0e2c9a4b5d"],"sid":"s-1"},"corr":2}"##,
        )
    },
    Shape {
        without: &["payload"],
        ..asked(
            ("publishBatch", Op::Publish),
            "Stores several events of one topic, all or none.",
            &[
                CORR,
                needed("topic", Kind::Topic, "The topic."),
                needed("events", Kind::List(&Kind::Object(&BATCH_ITEM), 1, limits::MAX_BATCH), "The events."),
            ],
            "publishedBatch",
            r#"{"op":"PUBLISH","topic":"heartbeat.received","events":[{"payload":{"pid":1},"key":"dev:a:1"},{"payload":{"pid":2},"key":"dev:b:2"}],"corr":3}"#,
        )
    },
    asked(
        ("subscribe", Op::Subscribe),
        "Becomes a member of a group on a topic or pattern, or, without a group, follows it.",
        &[CORR, TOPIC, GROUP_OR_TAIL, optional("opts", Kind::Object(&SUBSCRIBE_OPTIONS), "Everything optional.")],
        "subscribed",
        r##"{"op":"SUBSCRIBE","topic":"heartbeat.*","group":"ops","opts":{"from":"ts","ts":1731650000000,"topics":["process.state"],"maxInFlight":10,"batchSize":50,"ackTimeoutMs":30000,"maxAttempts":5,"filter":{"tags":["#stt"],"keys":["dev:stt:12345"],"headers":{"x-trace":"7"}},"ordered":"key","batch":false},"corr":4}"##,
    ),
    asked(
        ("unsubscribe", Op::Unsubscribe),
        "Ends a subscription; what it holds goes to the others.",
        &[CORR, TOPIC, GROUP_OR_TAIL],
        "done",
        r#"{"op":"UNSUBSCRIBE","topic":"heartbeat.*","group":"ops","corr":5}"#,
    ),
    Shape {
        one_of: &["id", "ids", "upTo"],
        ..asked(
            ("ack", Op::Ack),
            "Finishes events. The OK means that it is saved.",
            &[CORR, TOPIC, GROUP, ONE_ID, MANY_IDS, optional("upTo", Kind::Id, "This event and all before it."), LEASE],
            "done",
            r#"{"op":"ACK","topic":"heartbeat.*","group":"ops","id":"0199d1c0-7d3b-7cc2-8b1a-3f0e2c9a4b5d","lease":17,"corr":6}"#,
        )
    },
    Shape {
        one_of: &["id", "ids"],
        ..asked(
            ("nack", Op::Nack),
            "Gives events back: they are delivered again, at once the first time, then later and later.",
            &[
                CORR,
                TOPIC,
                GROUP,
                ONE_ID,
                MANY_IDS,
                LEASE,
                optional("reason", Kind::Text(0), "Why, for the dead letter; the first 4 KiB are kept."),
                optional("delay_ms", Kind::Number(0, MAX_LEASE), "When to deliver again; else by the backoff."),
                optional("release", Kind::Flag, "True: the attempt does not count."),
            ],
            "done",
            r#"{"op":"NACK","topic":"heartbeat.*","group":"ops","ids":["0199d1c0-7d3b-7cc2-8b1a-3f0e2c9a4b5d"],"reason":"not now","delay_ms":500,"release":false,"corr":7}"#,
        )
    },
    Shape {
        one_of: &["id", "ids"],
        ..asked(
            ("modack", Op::Modack),
            "Sets the lease of events that are in flight.",
            &[
                CORR,
                TOPIC,
                GROUP,
                ONE_ID,
                MANY_IDS,
                LEASE,
                needed(
                    "extend_ms",
                    WHOLE,
                    "The lease from now on; less than 1,000 counts as that, more than 12 h as 12 h.",
                ),
            ],
            "done",
            r#"{"op":"MODACK","topic":"heartbeat.*","group":"ops","id":"0199d1c0-7d3b-7cc2-8b1a-3f0e2c9a4b5d","extend_ms":60000,"corr":8}"#,
        )
    },
    asked(
        ("pause", Op::Pause),
        "Stops deliveries to this subscriber.",
        &[CORR, TOPIC, GROUP_OR_TAIL],
        "done",
        r#"{"op":"PAUSE","topic":"heartbeat.*","group":"ops","corr":9}"#,
    ),
    asked(
        ("resume", Op::Resume),
        "Goes on with deliveries to this subscriber.",
        &[CORR, TOPIC, GROUP_OR_TAIL],
        "done",
        r#"{"op":"RESUME","topic":"heartbeat.*","group":"ops","corr":10}"#,
    ),
    asked(
        ("ping", Op::Ping),
        "Asks for an OK: browsers see no WebSocket pings.",
        &[CORR],
        "done",
        r#"{"op":"PING","corr":11}"#,
    ),
];

/// The frames of a hub.
pub static SAID: &[Shape] = &[
    said(("done", "OK"), "It is done.", &[CORR], r#"{"op":"OK","corr":6}"#),
    said(
        ("authenticated", "OK"),
        "The token counts.",
        &[
            CORR,
            optional("sub", Kind::Text(0), "Whose it is, where the token says so."),
            optional("exp", WHOLE, "When it runs out, in epoch seconds, where it does."),
        ],
        r#"{"op":"OK","corr":1,"sub":"stt","exp":1731653600}"#,
    ),
    said(
        ("published", "OK"),
        "The event is stored, as durable as the store's setting says.",
        &[
            CORR,
            needed("id", Kind::Id, "The event's id."),
            needed("seq", Kind::Number(1, limits::MAX_SAFE_INTEGER), "Its place in the topic."),
            optional("duplicate", Kind::Flag, "True where the id was there before: nothing was stored, else left out."),
        ],
        r#"{"op":"OK","corr":2,"id":"0199d1c0-7d3b-7cc2-8b1a-3f0e2c9a4b5d","seq":42}"#,
    ),
    said(
        ("publishedBatch", "OK"),
        "The batch is stored.",
        &[
            CORR,
            needed("ids", IDS, "The events' ids, in order."),
            needed(
                "seqs",
                Kind::List(&Kind::Number(1, limits::MAX_SAFE_INTEGER), 1, limits::MAX_BATCH),
                "Their places in the topic.",
            ),
            optional(
                "duplicates",
                Kind::List(&WHOLE, 1, limits::MAX_BATCH),
                "The indexes of those that were there before; left out where there is none.",
            ),
        ],
        r#"{"op":"OK","corr":3,"ids":["0199d1c0-7d3b-7cc2-8b1a-3f0e2c9a4b5d","0199d1c0-7d3b-7cc2-8b1a-3f0e2c9a4b5e"],"seqs":[43,44]}"#,
    ),
    said(
        ("subscribed", "OK"),
        "Deliveries follow.",
        &[
            CORR,
            optional(
                "cursor",
                Kind::Either(&Kind::Object(&CURSOR), &Kind::List(&Kind::Object(&CURSOR), 0, usize::MAX)),
                "Where the group stands: one for a topic, a list for patterns and several topics, left out for a tail.",
            ),
        ],
        r#"{"op":"OK","corr":4,"cursor":{"topic":"heartbeat.received","lastId":"0199d1c0-7d3b-7cc2-8b1a-3f0e2c9a4b5d","lastTs":1731650000000,"seq":42}}"#,
    ),
    said(
        ("refused", "ERR"),
        "The frame is refused; nothing of it was done. Without corr it may also be the hub's own: a token that ran \
                out, a subscription that a renewed token no longer allows.",
        &[
            CORR,
            needed("code", Kind::Code, "The stable reason, for programs."),
            needed("msg", Kind::Text(0), "The cause and the remedy, for people."),
            optional("retry_after_ms", WHOLE, "With rate_limited: when to try again."),
            optional("topic", Kind::Selector, "The subscription that the hub ended."),
            optional("group", Kind::Group, "Its group."),
        ],
        r#"{"op":"ERR","code":"bad_request","msg":"topic: is missing","corr":2}"#,
    ),
    said(
        ("event", "EVENT"),
        "A delivery.",
        &[
            TOPIC,
            GROUP_OR_TAIL,
            needed("event", Kind::Object(&EVENT), "The event; event.topic is the concrete one."),
            needed("ctx", Kind::Object(&CONTEXT), "What the hub says about the delivery."),
        ],
        r#"{"op":"EVENT","topic":"heartbeat.*","group":"ops","event":{"id":"0199d1c0-7d3b-7cc2-8b1a-3f0e2c9a4b5d","seq":42,"ts":1731650000000,"topic":"heartbeat.received","key":"dev:stt:12345","partition":3,"payload":{"pid":12345}},"ctx":{"attempt":1,"maxAttempts":5,"ack_deadline_ms":30000,"lease":17}}"#,
    ),
    said(
        ("events", "EVENTS"),
        "Several deliveries, where the subscription asked for opts.batch.",
        &[
            TOPIC,
            GROUP_OR_TAIL,
            needed("events", Kind::List(&Kind::Object(&DELIVERY), 1, limits::MAX_BATCH), "The deliveries, in order."),
        ],
        r#"{"op":"EVENTS","topic":"heartbeat.*","group":"ops","events":[{"event":{"id":"0199d1c0-7d3b-7cc2-8b1a-3f0e2c9a4b5d","seq":42,"ts":1731650000000,"topic":"heartbeat.received","partition":3,"payload":null},"ctx":{"attempt":1,"maxAttempts":5,"ack_deadline_ms":30000,"lease":17}}]}"#,
    ),
];

/// Every object that stands in frames.
pub static PARTS: &[&Part] =
    &[&EVENT, &CONTEXT, &DELIVERY, &CURSOR, &PUBLISH_OPTIONS, &BATCH_ITEM, &SUBSCRIBE_OPTIONS, &FILTER];

/// The words of [`Kind::Code`].
pub fn codes() -> impl Iterator<Item = &'static str> {
    Code::ALL.iter().map(|code| code.as_str())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::{Answer, decode, split};
    use super::*;

    fn names<'a>(fields: impl IntoIterator<Item = &'a Field>) -> BTreeSet<&'a str> {
        fields.into_iter().map(|field| field.name).collect()
    }

    #[test]
    fn every_field_that_is_read_is_in_the_table_and_no_other() {
        let asked: BTreeSet<&str> =
            names(ASKED.iter().flat_map(|shape| shape.fields)).into_iter().chain(["op"]).collect();
        assert_eq!(asked, split::FrameKey::NAMES.iter().copied().collect());
        assert_eq!(names(BATCH_ITEM.fields), split::EventKey::NAMES.iter().copied().collect());
        assert_eq!(names(SUBSCRIBE_OPTIONS.fields), split::SubscribeKey::NAMES.iter().copied().collect());
        assert_eq!(names(FILTER.fields), split::FilterKey::NAMES.iter().copied().collect());
    }

    #[test]
    fn every_op_has_a_shape_whose_example_is_understood() {
        for op in Op::ALL {
            assert!(ASKED.iter().any(|shape| shape.op == op.as_str()), "{op:?}");
        }
        for shape in ASKED {
            let frame = decode(shape.example);
            assert_eq!((frame.op.as_str(), frame.request.err()), (shape.op, None), "{}", shape.name);
            assert!(SAID.iter().any(|said| said.name == shape.answer), "{}", shape.answer);
        }
    }

    #[test]
    fn a_client_reads_the_examples_of_the_hubs_frames() {
        for shape in SAID {
            let answer = Answer::parse(shape.example).expect(shape.name).expect("known");
            let op = match &answer {
                Answer::Ok(_) => "OK",
                Answer::Error(_) => "ERR",
                Answer::Events { .. } => "EVENT",
            };
            assert!(shape.op.starts_with(op), "{} is read as {answer:?}", shape.name);
        }
    }
}
