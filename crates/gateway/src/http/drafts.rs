//! From a publish request to drafts: which format the body has, which headers are kept, what the query adds.
//!
//! Of the request's headers only `x-*`, `traceparent`, `tracestate` and `content-type` are ever kept.

use std::borrow::Cow;

use http::{HeaderMap, header};
use promethean_event::{Code, Draft, EventId, Headers, Millis, PublishOptions, Topic, json, limits};
use serde_json::value::RawValue;

use super::query::parse_id;
use super::{Query, cloud_event};
use crate::rejection::Rejection;

/// What a body holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    /// One payload.
    Json,
    /// A payload a line.
    Ndjson,
    /// A CloudEvent whose attributes are headers.
    CloudEventBinary,
    /// A CloudEvent in JSON.
    CloudEventJson,
    /// A list of them.
    CloudEventBatch,
}

impl Format {
    /// By the content type; JSON is what is left, whatever the type says.
    pub(super) fn of(headers: &HeaderMap) -> Self {
        match media_type(headers).as_str() {
            "application/x-ndjson" | "application/ndjson" => Format::Ndjson,
            "application/cloudevents+json" => Format::CloudEventJson,
            "application/cloudevents-batch+json" => Format::CloudEventBatch,
            _ if headers.contains_key("ce-specversion") => Format::CloudEventBinary,
            _ => Format::Json,
        }
    }

    /// True if it may hold several events.
    pub(super) fn is_batch(self) -> bool {
        matches!(self, Format::Ndjson | Format::CloudEventBatch)
    }
}

/// The content type without its parameters, in lower case.
pub(super) fn media_type(headers: &HeaderMap) -> String {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// The events that a request wants to publish, at least one.
pub(super) fn read<'a>(
    format: Format,
    topic: &Topic,
    query: &'a Query,
    headers: &'a HeaderMap,
    body: &'a [u8],
) -> Result<Vec<Draft<'a>>, Rejection> {
    let options = options(format, query, headers)?;
    let with = |payload: &'a RawValue| Draft {
        topic: topic.clone(),
        payload: Cow::Borrowed(payload),
        options: options.clone(),
    };
    let value = |text: &'a str, what: &str| value(topic, text, what);
    match format {
        Format::Json => Ok(vec![with(value(text(body)?, "the body")?)]),
        Format::Ndjson => {
            let lines = text(body)?.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
            let drafts = lines.map(|(index, line)| Ok(with(value(line, &format!("line {}", index + 1))?)));
            sized(drafts.collect::<Result<_, Rejection>>()?)
        }
        Format::CloudEventBinary => Ok(vec![cloud_event::binary(headers, body)?.draft(topic, &options)]),
        Format::CloudEventJson => {
            Ok(vec![cloud_event::structured(value(text(body)?, "the body")?)?.draft(topic, &options)])
        }
        Format::CloudEventBatch => {
            let all = cloud_event::batch(value(text(body)?, "the body")?)?;
            sized(all.into_iter().map(|event| event.draft(topic, &options)).collect())
        }
    }
}

fn sized(drafts: Vec<Draft<'_>>) -> Result<Vec<Draft<'_>>, Rejection> {
    match drafts.len() {
        1..=limits::MAX_BATCH => Ok(drafts),
        len => {
            let message = format!("a batch has 1 to {} events, this one has {len}", limits::MAX_BATCH);
            Err(Rejection::new(Code::BadRequest, message))
        }
    }
}

pub(super) fn text(body: &[u8]) -> Result<&str, Rejection> {
    simdutf8::basic::from_utf8(body).map_err(|_| Rejection::new(Code::BadJson, "the body is not UTF-8"))
}

fn value<'a>(topic: &Topic, text: &'a str, what: &str) -> Result<&'a RawValue, Rejection> {
    json::value_on(topic.as_str(), text)
        .map_err(|error| Rejection::new(Code::BadJson, format!("{what} is not JSON: {error}")))
}

/// What the query and the headers say of every event of the body.
fn options<'a>(format: Format, query: &'a Query, headers: &'a HeaderMap) -> Result<PublishOptions<'a>, Rejection> {
    let id = id(query, headers)?;
    if id.is_some() && format.is_batch() {
        let message = "id: one id cannot stand for the events of a batch; leave it out, or send them one by one";
        return Err(Rejection::new(Code::BadRequest, message));
    }
    let caused_by = query.all("caused_by")?.into_iter().map(|text| parse_id("caused_by", text));
    Ok(PublishOptions {
        id,
        ts: query.number("ts")?.map(Millis),
        key: query.once("key")?.map(Cow::Borrowed),
        headers: kept(format, headers)?,
        tags: query.all("tag")?.into_iter().map(Cow::Borrowed).collect(),
        caused_by: caused_by.collect::<Result<_, _>>()?,
        sid: query.one("sid")?.map(Cow::Borrowed),
    })
}

/// `id` or `Idempotency-Key`, which are the same.
fn id(query: &Query, headers: &HeaderMap) -> Result<Option<EventId>, Rejection> {
    let named = query.id("id")?;
    let Some(value) = headers.get("idempotency-key") else { return Ok(named) };
    // The draft standard writes it as a quoted string.
    let text = value.to_str().unwrap_or_default().trim().trim_matches('"');
    let key = parse_id("Idempotency-Key", text)?;
    match named {
        Some(id) if id != key => {
            Err(Rejection::new(Code::BadRequest, "id and Idempotency-Key are the same thing, but differ here"))
        }
        _ => Ok(Some(key)),
    }
}

/// The request's headers that the event keeps; of a name that comes twice, both values.
fn kept(format: Format, headers: &HeaderMap) -> Result<Headers<'static>, Rejection> {
    let mut kept: Headers<'static> = Vec::new();
    for (name, value) in headers {
        let name = name.as_str();
        let wanted = match name {
            "traceparent" | "tracestate" => true,
            // Of a CloudEvent in JSON it is the envelope's; the data's is inside.
            "content-type" => !matches!(format, Format::CloudEventJson | Format::CloudEventBatch),
            _ => name.starts_with("x-"),
        };
        if !wanted {
            continue;
        }
        let Ok(value) = std::str::from_utf8(value.as_bytes()) else {
            return Err(Rejection::new(Code::BadRequest, format!("headers: the value of {name} is not UTF-8")));
        };
        match kept.iter_mut().find(|(this, _)| *this == name) {
            Some((_, before)) => *before = Cow::Owned(format!("{before}, {value}")),
            None => kept.push((Cow::Owned(name.to_owned()), Cow::Owned(value.to_owned()))),
        }
    }
    Ok(kept)
}
