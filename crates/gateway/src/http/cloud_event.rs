//! CloudEvents 1.0 as events: `data` is the payload, `id`, `time` and `partitionkey` are id, ts and key, and everything
//! else is kept as headers `ce-…`, so that the CloudEvent can be made again from the event.
//!
//! A CloudEvent's id need not be a UUID: another one becomes an id that follows from `source` and `id` (which together
//! are unique, says CloudEvents, so that sending it again is still once), and is kept as `ce-id`.

use std::borrow::Cow;
use std::collections::BTreeMap;

use http::HeaderMap;
use percent_encoding::percent_decode_str;
use promethean_event::{Code, Draft, EventId, Millis, PublishOptions, Topic, payload_of};
use serde_json::value::RawValue;

use super::drafts::{media_type, text};
use crate::rejection::Rejection;
use promethean_event::rfc3339;

/// A CloudEvent that was checked.
#[derive(Debug)]
pub(super) struct CloudEvent<'a> {
    id: EventId,
    time: Option<Millis>,
    key: Option<String>,
    /// Names without `ce-`.
    attributes: Vec<(String, String)>,
    content_type: Option<String>,
    data: Cow<'a, RawValue>,
}

impl<'a> CloudEvent<'a> {
    /// As a draft; what the request itself says of id, ts and key comes first.
    pub(super) fn draft(self, topic: &Topic, options: &PublishOptions<'a>) -> Draft<'a> {
        let mut options = options.clone();
        options.id = options.id.or(Some(self.id));
        options.ts = options.ts.or(self.time);
        options.key = options.key.or(self.key.map(Cow::Owned));
        if let Some(content_type) = self.content_type {
            options.headers.push((Cow::Borrowed("content-type"), Cow::Owned(content_type)));
        }
        let attributes = self.attributes.into_iter();
        options.headers.extend(attributes.map(|(name, value)| (Cow::Owned(format!("ce-{name}")), Cow::Owned(value))));
        Draft { topic: topic.clone(), payload: self.data, options }
    }
}

/// The attributes are headers, the body is the data.
pub(super) fn binary<'a>(headers: &HeaderMap, body: &'a [u8]) -> Result<CloudEvent<'a>, Rejection> {
    let mut attributes = BTreeMap::new();
    for (name, value) in headers {
        let Some(name) = name.as_str().strip_prefix("ce-") else { continue };
        let value = std::str::from_utf8(value.as_bytes()).ok();
        // Values beyond ASCII are percent-encoded in this binding.
        let value = value.and_then(|value| percent_decode_str(value).decode_utf8().ok());
        let Some(value) = value else { return Err(refused(name, "is not UTF-8")) };
        attributes.insert(name.to_owned(), value.into_owned());
    }
    let kind = media_type(headers);
    let is_json = kind.is_empty() || kind == "application/json" || kind == "text/json" || kind.ends_with("+json");
    let (data, encoding) = if body.is_empty() {
        (Cow::Borrowed(RawValue::NULL), None)
    } else if is_json {
        let value = promethean_event::json::value(text(body)?)
            .map_err(|error| Rejection::new(Code::BadJson, format!("the body is not JSON: {error}")))?;
        (Cow::Borrowed(value), None)
    } else if let Ok(text) = text(body) {
        (Cow::Owned(payload_of(text)?), None)
    } else {
        use base64::Engine as _;
        (Cow::Owned(payload_of(&base64::engine::general_purpose::STANDARD.encode(body))?), Some("base64"))
    };
    // The request's content type is the data's and is kept as it is.
    finish(attributes, None, data, encoding)
}

/// All of it is one JSON object.
pub(super) fn structured(json: &RawValue) -> Result<CloudEvent<'_>, Rejection> {
    let members: BTreeMap<Cow<'_, str>, &RawValue> = serde_json::from_str(json.get())
        .map_err(|_| Rejection::new(Code::BadRequest, "a CloudEvent in JSON is an object"))?;
    let (mut attributes, mut data, mut base64) = (BTreeMap::new(), None, None);
    for (name, value) in members {
        match &*name {
            "data" => data = Some(value),
            "data_base64" => base64 = Some(value),
            _ => {
                if let Some(text) = attribute(&name, value)? {
                    attributes.insert(name.into_owned(), text);
                }
            }
        }
    }
    let (data, encoding) = match (data, base64) {
        (Some(_), Some(_)) => return Err(refused("data_base64", "cannot stand beside data")),
        (Some(data), None) => (data, None),
        (None, Some(base64)) if base64.get().starts_with('"') => (base64, Some("base64")),
        (None, Some(_)) => return Err(refused("data_base64", "must be a string")),
        (None, None) => (RawValue::NULL, None),
    };
    let content_type = attributes.remove("datacontenttype");
    finish(attributes, content_type, Cow::Borrowed(data), encoding)
}

/// A JSON array of them.
pub(super) fn batch(json: &RawValue) -> Result<Vec<CloudEvent<'_>>, Rejection> {
    let all: Vec<&RawValue> = serde_json::from_str(json.get())
        .map_err(|_| Rejection::new(Code::BadRequest, "a batch of CloudEvents is an array"))?;
    let one = |(index, json)| {
        structured(json)
            .map_err(|rejection: Rejection| Rejection { msg: format!("[{index}]: {}", rejection.msg), ..rejection })
    };
    all.into_iter().enumerate().map(one).collect()
}

/// An attribute's value as a header's; `null` is left out.
fn attribute(name: &str, value: &RawValue) -> Result<Option<String>, Rejection> {
    let json = value.get();
    match json.as_bytes().first() {
        Some(b'"') => match serde_json::from_str(json) {
            Ok(text) => Ok(Some(text)),
            Err(_) => Err(refused(name, "holds an escape that is no Unicode character")),
        },
        Some(b'n') => Ok(None),
        Some(b'{' | b'[') => Err(refused(name, "must be a string, a number or a boolean")),
        _ => Ok(Some(json.to_owned())),
    }
}

fn finish<'a>(
    mut attributes: BTreeMap<String, String>,
    content_type: Option<String>,
    data: Cow<'a, RawValue>,
    encoding: Option<&str>,
) -> Result<CloudEvent<'a>, Rejection> {
    for name in ["specversion", "id", "source", "type"] {
        if attributes.get(name).is_none_or(String::is_empty) {
            return Err(refused(name, "is missing"));
        }
    }
    if attributes["specversion"] != "1.0" {
        return Err(refused("specversion", "must be 1.0"));
    }
    let name =
        attributes.keys().find(|name| !name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit()));
    if let Some(name) = name {
        return Err(refused(name, "attribute names have a-z and 0-9 only"));
    }
    let id = match EventId::parse(&attributes["id"]) {
        Ok(id) => {
            attributes.remove("id");
            id
        }
        Err(_) => EventId::derived(&[b"cloudevents", attributes["source"].as_bytes(), attributes["id"].as_bytes()]),
    };
    let time = attributes.remove("time").map(|time| {
        rfc3339::parse(&time).ok_or_else(|| refused("time", "must be a time since 1970 such as 2026-11-15T12:00:00Z"))
    });
    let key = attributes.remove("partitionkey");
    if let Some(encoding) = encoding {
        attributes.insert("datacontentencoding".to_owned(), encoding.to_owned());
    }
    let attributes = attributes.into_iter().collect();
    Ok(CloudEvent { id, time: time.transpose()?, key, attributes, content_type, data })
}

fn refused(attribute: &str, why: &str) -> Rejection {
    Rejection::new(Code::BadRequest, format!("CloudEvent {attribute}: {why}"))
}
