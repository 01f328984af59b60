//! A client's frame: from text to a checked request, or to a refusal that names the field.

use std::borrow::Cow;
use std::time::Duration;

use super::publish::{self, Publish};
use super::split::{self, FrameFields};
use super::subscribe::{self, Subscribe};
use super::{Corr, field};
use crate::{Code, EventId, Invalid, json, limits};

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

macro_rules! ops {
    ($($name:ident = $text:literal,)*) => {
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
    };
}

ops! {
    Auth = "AUTH", Publish = "PUBLISH", Subscribe = "SUBSCRIBE", Unsubscribe = "UNSUBSCRIBE", Ack = "ACK", Nack = "NACK",
    Modack = "MODACK", Pause = "PAUSE", Resume = "RESUME", Ping = "PING",
}

/// What a client asks.
#[derive(Debug)]
pub enum Request<'a> {
    /// Proves who the client is.
    Auth {
        /// The token; none where it is left out.
        token: Option<Cow<'a, str>>,
        /// Whether `OK`s of frames without `corr` are left out from now on; none: as before.
        quiet: Option<bool>,
    },
    /// Publishes.
    Publish(Publish<'a>),
    /// Subscribes.
    Subscribe(Box<Subscribe<'a>>),
    /// Ends a subscription.
    Unsubscribe(Named<'a>),
    /// Finishes events.
    Ack(Ack<'a>),
    /// Gives events back.
    Nack(Nack<'a>),
    /// Extends leases.
    Modack(Modack<'a>),
    /// Stops deliveries.
    Pause(Named<'a>),
    /// Goes on with deliveries.
    Resume(Named<'a>),
    /// Asks for an `OK`.
    Ping,
}

/// A subscription by its name. The name is not checked: a subscription that exists has a valid one.
#[derive(Debug)]
pub struct Named<'a> {
    /// The subscription's topic or pattern.
    pub topic: Cow<'a, str>,
    /// Its group; none for an ephemeral tail.
    pub group: Option<Cow<'a, str>>,
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

/// An `ACK`.
#[derive(Debug)]
pub struct Ack<'a> {
    /// The subscription.
    pub of: Named<'a>,
    /// The events.
    pub settled: Settled,
    /// The delivery it is about, where the client wants the fence.
    pub lease: Option<u64>,
}

/// A `NACK`.
#[derive(Debug)]
pub struct Nack<'a> {
    /// The subscription.
    pub of: Named<'a>,
    /// The events.
    pub ids: Ids,
    /// The delivery it is about, where the client wants the fence.
    pub lease: Option<u64>,
    /// Why, for the dead letter.
    pub reason: Option<Cow<'a, str>>,
    /// When to redeliver; none: by the backoff.
    pub delay: Option<Duration>,
    /// Whether the attempt does not count.
    pub release: bool,
}

/// A `MODACK`.
#[derive(Debug)]
pub struct Modack<'a> {
    /// The subscription.
    pub of: Named<'a>,
    /// The events.
    pub ids: Ids,
    /// The delivery it is about, where the client wants the fence.
    pub lease: Option<u64>,
    /// The lease from now on, clamped to 1 s – 12 h.
    pub extend: Duration,
}

/// Longest `reason` that is kept, in bytes; the rest is cut off.
const MAX_REASON: usize = 4 * 1024;

/// Reads a frame.
pub fn decode(text: &str) -> Frame<'_> {
    let refused = |message: String| Frame {
        corr: None,
        op: Op::Unknown,
        request: Err(Invalid::new(Code::BadJson, "frame", message)),
    };
    if json::too_deep(text.as_bytes()) {
        return refused(format!("nests deeper than {} levels", limits::MAX_DEPTH));
    }
    let fields = match split::frame(text) {
        Ok(fields) => fields,
        Err(error) => return refused(format!("must be one JSON object: {error}")),
    };
    let (corr, bad_corr) = match field::present(fields.corr).map(Corr::parse).transpose() {
        Ok(corr) => (corr, None),
        Err(refused) => (None, Some(refused)),
    };
    let (op, bad_op) = match op(&fields) {
        Ok(op) => (op, None),
        Err(refused) => (Op::Unknown, Some(refused)),
    };
    let request = match bad_op.or(bad_corr) {
        Some(refused) => Err(refused),
        None => request(op, fields),
    };
    Frame { corr, op, request }
}

fn op(fields: &FrameFields<'_>) -> Result<Op, Invalid> {
    let name = field::text(field::required(fields.op, "op")?, "op")?;
    Op::parse(&name).ok_or_else(|| {
        let shown: String = name.chars().take(32).collect();
        let words: Vec<&str> = Op::ALL.iter().map(|op| op.as_str()).collect();
        Invalid::request("op", format!("must be one of {}, is {shown:?}", words.join(" ")))
    })
}

fn request<'a>(op: Op, fields: FrameFields<'a>) -> Result<Request<'a>, Invalid> {
    Ok(match op {
        Op::Auth => Request::Auth {
            token: field::present(fields.token).map(|raw| field::text(raw, "token")).transpose()?,
            quiet: field::flag(fields.quiet, "quiet")?,
        },
        Op::Publish => Request::Publish(publish::read(fields)?),
        Op::Subscribe => Request::Subscribe(Box::new(subscribe::read(&fields)?)),
        Op::Unsubscribe => Request::Unsubscribe(named(&fields)?),
        Op::Pause => Request::Pause(named(&fields)?),
        Op::Resume => Request::Resume(named(&fields)?),
        Op::Ack => Request::Ack(ack(&fields)?),
        Op::Nack => Request::Nack(nack(&fields)?),
        Op::Modack => Request::Modack(modack(&fields)?),
        Op::Ping => Request::Ping,
        Op::Unknown => return Err(Invalid::request("op", "is missing")),
    })
}

fn named<'a>(fields: &FrameFields<'a>) -> Result<Named<'a>, Invalid> {
    let topic = field::text(field::required(fields.topic, "topic")?, "topic")?;
    let group = field::present(fields.group).map(|raw| field::text(raw, "group")).transpose()?;
    Ok(Named { topic, group })
}

/// A subscription whose events are acked: it has a group.
fn acked<'a>(fields: &FrameFields<'a>) -> Result<Named<'a>, Invalid> {
    let of = named(fields)?;
    if of.group.is_none() {
        return Err(Invalid::request("group", "is missing"));
    }
    Ok(of)
}

fn ids(fields: &FrameFields<'_>) -> Result<Option<Ids>, Invalid> {
    match (field::present(fields.id), field::present(fields.ids)) {
        (Some(_), Some(_)) => Err(Invalid::request("ids", "a frame has either id or ids, not both")),
        (Some(raw), None) => field::id(raw, "id").map(Ids::One).map(Some),
        (None, Some(raw)) => {
            let ids = field::list(Some(raw), "ids", limits::MAX_BATCH, field::id)?;
            if ids.is_empty() {
                return Err(Invalid::request("ids", "must have at least one entry"));
            }
            Ok(Some(Ids::Many(ids)))
        }
        (None, None) => Ok(None),
    }
}

fn lease(fields: &FrameFields<'_>) -> Result<Option<u64>, Invalid> {
    field::present(fields.lease).map(|raw| field::number(raw, "lease")).transpose()
}

fn ack<'a>(fields: &FrameFields<'a>) -> Result<Ack<'a>, Invalid> {
    let of = acked(fields)?;
    let settled = match (ids(fields)?, field::present(fields.up_to)) {
        (Some(_), Some(_)) => return Err(Invalid::request("upTo", "a frame has id, ids or upTo, only one of them")),
        (Some(ids), None) => Settled::Ids(ids),
        (None, Some(raw)) => Settled::UpTo(field::id(raw, "upTo")?),
        (None, None) => return Err(Invalid::request("id", "is missing: one of id, ids or upTo")),
    };
    Ok(Ack { of, settled, lease: lease(fields)? })
}

fn nack<'a>(fields: &FrameFields<'a>) -> Result<Nack<'a>, Invalid> {
    let of = acked(fields)?;
    let ids = ids(fields)?.ok_or_else(|| Invalid::request("id", "is missing: one of id or ids"))?;
    let reason = field::present(fields.reason).map(|raw| field::text(raw, "reason")).transpose()?.map(cut);
    let delay = field::present(fields.delay_ms).map(|raw| field::number(raw, "delay_ms")).transpose()?;
    let delay = delay.map(Duration::from_millis);
    if delay.is_some_and(|delay| delay > limits::MAX_LEASE) {
        let message = format!("must be at most {} (12 h)", limits::MAX_LEASE.as_millis());
        return Err(Invalid::request("delay_ms", message));
    }
    let release = field::flag(fields.release, "release")?.unwrap_or(false);
    Ok(Nack { of, ids, lease: lease(fields)?, reason, delay, release })
}

fn cut(reason: Cow<'_, str>) -> Cow<'_, str> {
    if reason.len() <= MAX_REASON {
        return reason;
    }
    let mut end = MAX_REASON;
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    Cow::Owned(reason.get(..end).unwrap_or_default().to_owned())
}

fn modack<'a>(fields: &FrameFields<'a>) -> Result<Modack<'a>, Invalid> {
    let of = acked(fields)?;
    let ids = ids(fields)?.ok_or_else(|| Invalid::request("id", "is missing: one of id or ids"))?;
    let extend = field::number(field::required(fields.extend_ms, "extend_ms")?, "extend_ms")?;
    let extend = Duration::from_millis(extend).clamp(limits::MIN_EXTENSION, limits::MAX_LEASE);
    Ok(Modack { of, ids, lease: lease(fields)?, extend })
}

#[cfg(test)]
#[path = "decode_tests.rs"]
mod tests;
