//! `SUBSCRIBE`: topic, group and options, with the gateway's defaults.

use std::borrow::Cow;
use std::time::Duration;

use super::split::{FrameFields, SubscribeFields};
use crate::cursor::Start;
use crate::frame::shape::{Field, Part};
use crate::wire::{Fields, List, Members, Name, Number, Object, OrDefault, Text, Whole, asked};
use crate::{EventId, Filter, From, Group, Invalid, Millis, Ordered, Selector, SubscribeOptions, limits};

/// A `SUBSCRIBE`.
#[derive(Debug)]
pub struct Subscribe<'a> {
    /// The topic or pattern, which names the subscription in later frames.
    pub topic: Cow<'a, str>,
    /// The same, checked.
    pub selector: Selector,
    /// The group; none for an ephemeral tail.
    pub group: Option<Group>,
    /// The options. Lease and in-flight may be above the hub's caps.
    pub options: SubscribeOptions,
    /// True if deliveries come as `EVENTS`.
    pub batch: bool,
    /// The options that the hub treats otherwise where the client named them.
    pub named: NamedOptions,
}

/// The options that a client named itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NamedOptions {
    /// `batchSize`: it bounds the `EVENTS` frames too.
    pub batch_size: Option<usize>,
    /// `ackTimeoutMs`; else the hub's default counts.
    pub ack_timeout: Option<Duration>,
    /// `maxInFlight`.
    pub max_in_flight: Option<usize>,
}

asked! {
    /// A `SUBSCRIBE` as it stands on the wire.
    struct OnWire<'a> from FrameFields {
        /// The subscription's topic or pattern.
        topic: Cow<'a, str> as Name<Selector>,
        /// The group; without one it is an ephemeral tail.
        group: Option<Group>,
        /// Everything optional.
        opts: Options<'a> as OrDefault<Options<'a>>,
    }
}

const MAX_IN_FLIGHT: u64 = limits::MAX_IN_FLIGHT as u64;
const MIN_LEASE: u64 = limits::MIN_LEASE.as_millis() as u64;

asked! {
    /// `opts` of a `SUBSCRIBE` as it stands on the wire.
    #[derive(Default)]
    pub(super) struct Options<'a> from SubscribeFields named "SubscribeOptions" needs NEEDS {
        /// Where a group without a cursor starts; latest if left out.
        from: Option<Start>,
        /// For from=ts: epoch milliseconds.
        ts: Option<Millis> as Option<Whole>,
        /// For from=afterId: an event of the topic.
        after_id: Option<EventId>,
        /// Further topics or patterns.
        topics: Vec<Selector> as List<Selector, 0, { limits::MAX_SELECTORS }>,
        /// Most events held without an ack; 100 if left out. Lowered to the hub's max_in_flight.
        max_in_flight: Option<usize> as Option<Number<1, { limits::MAX_SAFE_INTEGER }>>,
        /// How many events are read at a time, and the most that an EVENTS frame has.
        batch_size: Option<usize> as Option<Number<1, MAX_IN_FLIGHT>>,
        /// How long a delivery is leased; the hub's ack_timeout if left out. Lowered to its max_ack_timeout.
        ack_timeout: Option<Duration> as Option<Number<MIN_LEASE, { limits::MAX_SAFE_INTEGER }>>,
        /// Deliveries before a dead letter; 0: no limit.
        max_attempts: Option<u32> as Option<Number<0, { u32::MAX as u64 }>>,
        /// Which events the group wants; the kinds combine with AND.
        filter: Filter as OrDefault<Filter>,
        /// In which order; none if left out.
        ordered: Option<Ordered>,
        /// Without a group: a resume that the hub gave out; it replaces from.
        resume: Option<Cow<'a, str>> as Option<Text<{ limits::MAX_RESUME }>>,
        /// True if deliveries come as EVENTS.
        batch: bool as Option<bool>,
    }
}

/// Where `from` is the one word, the other field is needed.
const NEEDS: &[(&str, &str)] =
    &[(Start::Ts.as_str(), SubscribeFields::NAMES.ts), (Start::AfterId.as_str(), SubscribeFields::NAMES.after_id)];

/// The objects of a `SUBSCRIBE`.
pub(super) static PARTS: &[&Part] = &[Options::PART, Filter::PART];

impl Fields for Subscribe<'_> {
    const OWN: &'static [Field] = OnWire::OWN;
}

impl<'a> Members<'a> for Subscribe<'a> {
    type Split = FrameFields<'a>;
    fn read(split: &mut FrameFields<'a>) -> Result<Self, Invalid> {
        let OnWire { topic, group, opts } = OnWire::read(split)?;
        let selector = Selector::parse(&topic)?;
        let Options { batch_size, ack_timeout, max_in_flight, .. } = opts;
        let named = NamedOptions { batch_size, ack_timeout, max_in_flight };
        let (options, batch) = opts.checked().map_err(|refused| refused.within("opts."))?;
        Ok(Self { topic, selector, group, options, batch, named })
    }
}

impl Options<'_> {
    fn checked(self) -> Result<(SubscribeOptions, bool), Invalid> {
        let missing = |name: &str| Invalid::request(name, "is missing");
        let from = match self.from.unwrap_or(Start::Latest) {
            Start::Latest => From::Latest,
            Start::Earliest => From::Earliest,
            Start::Snapshot => From::Snapshot,
            Start::Ts => From::Ts(self.ts.ok_or_else(|| missing(SubscribeFields::NAMES.ts))?),
            Start::AfterId => From::AfterId(self.after_id.ok_or_else(|| missing(SubscribeFields::NAMES.after_id))?),
        };
        let defaults = SubscribeOptions::default();
        let options = SubscribeOptions {
            from,
            topics: self.topics,
            batch_size: self.batch_size.unwrap_or(defaults.batch_size),
            max_in_flight: self.max_in_flight.unwrap_or(SubscribeOptions::GATEWAY_IN_FLIGHT),
            ack_timeout: self.ack_timeout.unwrap_or(defaults.ack_timeout),
            max_attempts: self.max_attempts.unwrap_or(defaults.max_attempts),
            filter: self.filter,
            ordered: self.ordered.unwrap_or_default(),
            resume: self.resume.map(|resume| resume.into()),
        };
        Ok((options, self.batch))
    }
}
