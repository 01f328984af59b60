//! What a publisher and a subscriber may say beyond topic and payload, with the defaults and ranges of the contract.

use std::borrow::Cow;
use std::time::Duration;

use crate::cursor::From;
use crate::frame::split::{EventFields, FilterFields};
use crate::record::Headers;
use crate::wire::{List, OwnHeaders, Pairs, Text, Whole, asked, words};
use crate::{Code, Event, EventId, Invalid, Millis, Selector, limits};

asked! {
    /// Everything optional of an event.
    #[derive(Debug, Clone, Default, PartialEq, Eq)]
    pub struct PublishOptions<'a> from EventFields named "PublishOptions" {
        /// The event's id, any UUID; the hub makes one where it is left out.
        pub id: Option<EventId>,
        /// The event's time, epoch milliseconds; else the hub's clock.
        pub ts: Option<Millis> as Option<Whole>,
        /// What compaction, order and latest-by-key go by.
        pub key: Option<Cow<'a, str>> as Option<Text<{ limits::MAX_KEY_BYTES }>>,
        /// Names and values, at most 16 KiB together.
        pub headers: Headers<'a> as OwnHeaders,
        /// Words to filter by.
        pub tags: Vec<Cow<'a, str>> as List<Text<{ limits::MAX_TAG_BYTES }>, 0, { limits::MAX_LIST }>,
        /// The events that this one follows from.
        pub caused_by: Vec<EventId> as List<EventId, 0, { limits::MAX_LIST }>,
        /// The publisher's session.
        pub sid: Option<Cow<'a, str>> as Option<Text<{ limits::MAX_TAG_BYTES }>>,
    }
}

impl PublishOptions<'_> {
    /// Checks the limits of the contract.
    ///
    /// # Errors
    /// `bad_request` or `too_large`, with the field.
    pub fn check(&self) -> Result<(), Invalid> {
        if let Some(ts) = self.ts.filter(|ts| ts.0 > limits::MAX_SAFE_INTEGER) {
            return Err(Invalid::request("ts", format!("must be epoch milliseconds below 2^53, is {ts}")));
        }
        at_most("key", self.key.as_deref().map_or(0, str::len), limits::MAX_KEY_BYTES, "bytes")?;
        at_most("sid", self.sid.as_deref().map_or(0, str::len), limits::MAX_TAG_BYTES, "bytes")?;
        at_most("tags", self.tags.len(), limits::MAX_LIST, "entries")?;
        at_most("caused_by", self.caused_by.len(), limits::MAX_LIST, "entries")?;
        at_most("headers", self.headers.len(), limits::MAX_HEADERS, "entries")?;
        for tag in &self.tags {
            at_most("tags", tag.len(), limits::MAX_TAG_BYTES, "bytes each")?;
        }
        let mut bytes = 0;
        for (name, value) in &self.headers {
            bytes += name.len() + value.len();
            let own = name.get(..limits::RESERVED_HEADER.len());
            if own.is_some_and(|start| start.eq_ignore_ascii_case(limits::RESERVED_HEADER)) {
                let message = format!("names beginning {} are the hub's own; rename {name:?}", limits::RESERVED_HEADER);
                return Err(Invalid::request("headers", message));
            }
        }
        at_most("headers", bytes, limits::MAX_HEADER_BYTES, "bytes")
    }
}

fn at_most(field: &str, has: usize, most: usize, what: &str) -> Result<(), Invalid> {
    if has > most {
        return Err(Invalid::request(field, format!("may have at most {most} {what}, has {has}")));
    }
    Ok(())
}

words! {
    /// In which order a group hands out events.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
    pub enum Ordered {
        /// First deliveries in `seq` order, no waiting.
        #[default]
        None = "none",
        /// An event waits while an earlier one with its key is unfinished.
        Key = "key",
        /// Strictly one after another.
        Topic = "topic",
    }
}

impl Ordered {
    /// Checks the word.
    ///
    /// # Errors
    /// `bad_request` that names `ordered`.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        Self::of(text, "ordered")
    }
}

asked! {
    /// Which events a group wants; what does not match counts as done. The kinds combine with AND.
    #[derive(Debug, Clone, Default, PartialEq, Eq)]
    pub struct Filter from FilterFields named "Filter" {
        /// Any of these tags.
        pub tags: Vec<String> as List<Text<0>, 0, { limits::MAX_FILTER_VALUES }>,
        /// Any of these keys.
        pub keys: Vec<String> as List<Text<0>, 0, { limits::MAX_FILTER_VALUES }>,
        /// All of these headers.
        pub headers: Vec<(String, String)> as Pairs<{ limits::MAX_HEADERS }>,
    }
}

impl Filter {
    /// True if everything matches.
    pub fn is_empty(&self) -> bool {
        self.tags.is_empty() && self.keys.is_empty() && self.headers.is_empty()
    }

    /// True if `event` is wanted.
    pub fn matches(&self, event: &Event) -> bool {
        if !self.keys.is_empty() && !event.key().is_some_and(|key| self.keys.iter().any(|wanted| *wanted == key)) {
            return false;
        }
        if self.tags.is_empty() && self.headers.is_empty() {
            return true;
        }
        let fields = event.fields();
        (self.tags.is_empty() || fields.tags.iter().any(|tag| self.tags.iter().any(|wanted| wanted == tag)))
            && self.headers.iter().all(|(name, value)| fields.header(name) == Some(value))
    }
}

/// What a subscriber asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubscribeOptions {
    /// Where to start while the group has no cursor.
    pub from: From,
    /// Further topics or patterns of the same subscription.
    pub topics: Vec<Selector>,
    /// How many events to read at a time.
    pub batch_size: usize,
    /// Most events that this subscriber holds without having acked them.
    pub max_in_flight: usize,
    /// How long a delivered event is leased.
    pub ack_timeout: Duration,
    /// Deliveries before an event is dead-lettered; 0: no limit.
    pub max_attempts: u32,
    /// Which events the group wants.
    pub filter: Filter,
    /// In which order.
    pub ordered: Ordered,
    /// Of a subscription without a group: a `resume` that the hub gave out, which is resumed. It replaces `from`.
    pub resume: Option<Box<str>>,
}

impl SubscribeOptions {
    /// `maxInFlight` of a subscriber over the network that names none.
    pub const GATEWAY_IN_FLIGHT: usize = 100;
}

impl Default for SubscribeOptions {
    fn default() -> Self {
        Self {
            from: From::default(),
            topics: Vec::new(),
            batch_size: 100,
            max_in_flight: 1_000,
            ack_timeout: Duration::from_secs(30),
            max_attempts: 5,
            filter: Filter::default(),
            ordered: Ordered::default(),
            resume: None,
        }
    }
}

impl SubscribeOptions {
    /// Checks the ranges of the contract.
    ///
    /// # Errors
    /// `bad_request` that names the option as it is called on the wire.
    pub fn check(&self) -> Result<(), Invalid> {
        range("maxInFlight", self.max_in_flight, 1, limits::MAX_IN_FLIGHT)?;
        range("batchSize", self.batch_size, 1, limits::MAX_IN_FLIGHT)?;
        if self.ack_timeout < limits::MIN_LEASE {
            let least = limits::MIN_LEASE.as_millis();
            let message = format!("must be at least {least}, is {}", self.ack_timeout.as_millis());
            return Err(Invalid::request("ackTimeoutMs", message));
        }
        if self.ack_timeout > limits::MAX_LEASE {
            return Err(Invalid::request(
                "ackTimeoutMs",
                format!("must be at most {} (12 h)", limits::MAX_LEASE.as_millis()),
            ));
        }
        at_most("topics", self.topics.len(), limits::MAX_SELECTORS, "entries")?;
        at_most("filter.tags", self.filter.tags.len(), limits::MAX_FILTER_VALUES, "entries")?;
        at_most("filter.keys", self.filter.keys.len(), limits::MAX_FILTER_VALUES, "entries")?;
        at_most("filter.headers", self.filter.headers.len(), limits::MAX_HEADERS, "entries")?;
        if let From::Ts(ts) = self.from
            && ts.0 > limits::MAX_SAFE_INTEGER
        {
            return Err(Invalid::new(Code::BadRequest, "ts", "must be epoch milliseconds below 2^53"));
        }
        Ok(())
    }
}

fn range(field: &str, is: usize, least: usize, most: usize) -> Result<(), Invalid> {
    if !(least..=most).contains(&is) {
        return Err(Invalid::request(field, format!("must be {least} to {most}, is {is}")));
    }
    Ok(())
}
