//! `SUBSCRIBE`: topic, group and options, with the gateway's defaults.

use std::borrow::Cow;
use std::time::Duration;

use serde_json::value::RawValue;

use super::field;
use super::split::{FilterFields, FrameFields, SubscribeFields};
use crate::{Filter, From, Group, Invalid, Millis, Ordered, Selector, SubscribeOptions, limits};

/// A `SUBSCRIBE`.
#[derive(Debug)]
pub struct Subscribe<'a> {
    /// The topic or pattern, which names the subscription in later frames.
    pub topic: Cow<'a, str>,
    /// The same, checked.
    pub selector: Selector,
    /// The group; none for an ephemeral tail.
    pub group: Option<Group>,
    /// The options, in the contract's ranges.
    pub options: SubscribeOptions,
    /// Whether deliveries come as `EVENTS`.
    pub batch: bool,
}

pub(super) fn read<'a>(fields: &FrameFields<'a>) -> Result<Subscribe<'a>, Invalid> {
    let topic = field::text(field::required(fields.topic, "topic")?, "topic")?;
    let selector = Selector::parse(&topic)?;
    let group = field::present(fields.group).map(|raw| Group::parse(&field::text(raw, "group")?)).transpose()?;
    let opts = match field::present(fields.opts) {
        None => SubscribeFields::default(),
        Some(raw) => serde_json::from_str(raw.get()).map_err(|_| Invalid::request("opts", "must be an object"))?,
    };
    let (options, batch) = options(&opts).map_err(|refused| refused.within("opts."))?;
    Ok(Subscribe { topic, selector, group, options, batch })
}

fn options(opts: &SubscribeFields<'_>) -> Result<(SubscribeOptions, bool), Invalid> {
    let mut options =
        SubscribeOptions { max_in_flight: SubscribeOptions::GATEWAY_IN_FLIGHT, ..SubscribeOptions::default() };
    options.from = from(opts)?;
    options.topics = field::list(opts.topics, "topics", limits::MAX_SELECTORS, |raw, name| {
        Selector::parse(&field::text(raw, name)?)
    })?;
    if let Some(raw) = field::present(opts.max_in_flight) {
        options.max_in_flight = size(raw, "maxInFlight")?;
    }
    if let Some(raw) = field::present(opts.batch_size) {
        options.batch_size = size(raw, "batchSize")?;
    }
    if let Some(raw) = field::present(opts.ack_timeout) {
        options.ack_timeout = Duration::from_millis(field::number(raw, "ackTimeoutMs")?);
    }
    if let Some(raw) = field::present(opts.max_attempts) {
        let most = format!("must be at most {}", u32::MAX);
        options.max_attempts =
            u32::try_from(field::number(raw, "maxAttempts")?).map_err(|_| Invalid::request("maxAttempts", most))?;
    }
    if let Some(raw) = field::present(opts.ordered) {
        options.ordered = Ordered::parse(&field::text(raw, "ordered")?)?;
    }
    if let Some(raw) = field::present(opts.filter) {
        options.filter = filter(raw)?;
    }
    options.check()?;
    Ok((options, field::flag(opts.batch, "batch")?.unwrap_or(false)))
}

fn size(raw: &RawValue, name: &str) -> Result<usize, Invalid> {
    // What does not fit is out of range anyway, and the check says which range.
    field::number(raw, name).map(|number| usize::try_from(number).unwrap_or(usize::MAX))
}

fn from(opts: &SubscribeFields<'_>) -> Result<From, Invalid> {
    let Some(raw) = field::present(opts.from) else { return Ok(From::Latest) };
    match &*field::text(raw, "from")? {
        "latest" => Ok(From::Latest),
        "earliest" => Ok(From::Earliest),
        "snapshot" => Ok(From::Snapshot),
        "ts" => field::number(field::required(opts.ts, "ts")?, "ts").map(|ts| From::Ts(Millis(ts))),
        "afterId" => field::id(field::required(opts.after_id, "afterId")?, "afterId").map(From::AfterId),
        _ => Err(Invalid::request("from", "must be latest, earliest, ts, afterId or snapshot")),
    }
}

fn filter(raw: &RawValue) -> Result<Filter, Invalid> {
    let fields: FilterFields<'_> =
        serde_json::from_str(raw.get()).map_err(|_| Invalid::request("filter", "must be an object"))?;
    let words = |raw, name| {
        field::list(raw, name, limits::MAX_FILTER_VALUES, |raw, name| field::text(raw, name).map(Cow::into_owned))
    };
    let headers = field::pairs(fields.headers, "filter.headers")?;
    Ok(Filter {
        tags: words(fields.tags, "filter.tags")?,
        keys: words(fields.keys, "filter.keys")?,
        headers: headers.into_iter().map(|(name, value)| (name.into_owned(), value.into_owned())).collect(),
    })
}
