//! A row as MongoDB has it. The payload is text where this crate wrote it, byte for byte (`encoding: "json"`), and any
//! BSON value where somebody else did.

use mongodb::bson::{Bson, Document, doc};
use promethean_event::{EventId, Millis};

use crate::row::{NO_NUMBER, NO_TIME};
use crate::{NewRow, Row, Status};

/// The document of a new row.
pub(super) fn document(row: &NewRow, id: EventId, ts: Millis, ord: i64) -> Document {
    let options = &row.options;
    let mut document = doc! {
        "_id": id.to_string(),
        "topic": row.topic.as_str(),
        "payload": row.payload.get(),
        "encoding": "json",
        "status": Status::Pending.as_str(),
        "ts": ts.0.cast_signed(),
        "attempts": 0,
        "ord": ord,
    };
    if let Some(key) = &options.key {
        document.insert("key", key.as_ref());
    }
    if !options.headers.is_empty() {
        let headers = options.headers.iter().map(|(name, value)| (name.to_string(), Bson::from(value.as_ref())));
        document.insert("headers", headers.collect::<Document>());
    }
    if !options.tags.is_empty() {
        document.insert("tags", options.tags.iter().map(AsRef::as_ref).collect::<Vec<&str>>());
    }
    if !options.caused_by.is_empty() {
        document.insert("caused_by", options.caused_by.iter().map(EventId::to_string).collect::<Vec<_>>());
    }
    if let Some(sid) = &options.sid {
        document.insert("sid", sid.as_ref());
    }
    document
}

/// A whole number, however it was written: JavaScript writes doubles.
pub(super) fn number(value: &Bson) -> Option<i64> {
    match value {
        Bson::Int32(number) => Some(i64::from(*number)),
        Bson::Int64(number) => Some(*number),
        Bson::Double(number) if number.fract() == 0.0 && number.abs() < 9e15 => Some(*number as i64),
        Bson::DateTime(time) => Some(time.timestamp_millis()),
        _ => None,
    }
}

/// Reads a document. What cannot be read makes the row bad, not the drainer.
pub(super) fn read(document: &Document) -> Row {
    let mut unreadable = None;
    let mut wrong = |field: &str, why: &str| {
        unreadable.get_or_insert_with(|| format!("the field {field} {why}"));
    };
    let present = |field: &str| document.get(field).filter(|value| !matches!(value, Bson::Null));
    let mut text = |field: &str| match present(field) {
        None => None,
        Some(Bson::String(text)) => Some(text.clone()),
        Some(other) => {
            wrong(field, "is no text");
            Some(other.to_string())
        }
    };
    let (id, topic, key) = (text("_id"), text("topic"), text("key"));
    let (sid, claimed_by, last_err, status) = (text("sid"), text("claimed_by"), text("last_err"), text("status"));
    let is_json = document.get_str("encoding").is_ok_and(|encoding| encoding == "json");
    let payload = match document.get("payload") {
        Some(Bson::String(text)) if is_json => text.clone(),
        // As JavaScript has it, a missing payload is none.
        other => serde_json::to_string(other.unwrap_or(&Bson::Null)).unwrap_or_default(),
    };
    let mut whole = |field: &str, why: &str| match present(field).map(number) {
        None => None,
        Some(Some(number @ 0..)) => Some(number.unsigned_abs()),
        Some(_) => {
            wrong(field, why);
            None
        }
    };
    let (ts, lease_until) = (whole("ts", NO_TIME), whole("lease_until", NO_TIME));
    let attempts = whole("attempts", NO_NUMBER).unwrap_or(0);
    let headers = match present("headers") {
        None => Some(Vec::new()),
        Some(Bson::Document(headers)) => {
            headers.iter().map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned()))).collect()
        }
        Some(_) => None,
    };
    let headers = headers.unwrap_or_else(|| {
        wrong("headers", "is no object of strings");
        Vec::new()
    });
    let mut strings = |field: &str| -> Vec<String> {
        let all = match present(field) {
            None => Some(Vec::new()),
            Some(Bson::Array(all)) => all.iter().map(|one| one.as_str().map(str::to_owned)).collect(),
            Some(_) => None,
        };
        all.unwrap_or_else(|| {
            wrong(field, "is no list of strings");
            Vec::new()
        })
    };
    let (tags, caused_by) = (strings("tags"), strings("caused_by"));
    Row {
        id: id.unwrap_or_default(),
        topic: topic.unwrap_or_default(),
        payload,
        key,
        headers,
        tags,
        caused_by,
        sid,
        ts: ts.map_or_else(Millis::now, Millis),
        status: status.as_deref().and_then(Status::parse).unwrap_or(Status::Pending),
        claimed_by,
        lease_until: lease_until.map(Millis),
        attempts: u32::try_from(attempts).unwrap_or(u32::MAX),
        last_err,
        unreadable,
    }
}
