//! A row as SQLite has it. SQLite lets anybody write anything into a column: what cannot be read makes the row bad, not
//! the drainer.

use promethean_event::{Fields, Millis, json};
use rusqlite::types::ValueRef;

use crate::row::{NO_NUMBER, NO_TIME};
use crate::{NewRow, Row, Status};

/// A row as it was read.
pub(super) struct Read {
    /// Its place.
    pub(super) seq: i64,
    /// True if a mark can name it: its id is text.
    pub(super) named: bool,
    /// True if it has a time of its own.
    pub(super) timed: bool,
    pub(super) row: Row,
}

/// Reads the columns of `schema::READ`.
pub(super) fn read(row: &rusqlite::Row<'_>) -> rusqlite::Result<Read> {
    let mut unreadable = None;
    let mut wrong = |column: &str, why: &str| {
        unreadable.get_or_insert_with(|| format!("the column {column} {why}"));
    };
    let mut text = |index: usize, column: &str| -> rusqlite::Result<Option<String>> {
        Ok(match row.get_ref(index)? {
            ValueRef::Null => None,
            ValueRef::Integer(number) => Some(number.to_string()),
            ValueRef::Real(number) => Some(number.to_string()),
            ValueRef::Text(bytes) | ValueRef::Blob(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) => Some(text.to_owned()),
                Err(_) => {
                    wrong(column, "is not UTF-8");
                    Some(String::from_utf8_lossy(bytes).into_owned())
                }
            },
        })
    };
    let (id, topic, key) = (text(1, "id")?, text(2, "topic")?, text(3, "key")?);
    let (payload, sid, last_err) = (text(4, "payload")?, text(8, "sid")?, text(14, "last_err")?);
    let (headers, tags, caused_by) = (text(5, "headers")?, text(6, "tags")?, text(7, "caused_by")?);
    let (status, claimed_by) = (text(10, "status")?, text(11, "claimed_by")?);
    let mut number = |index: usize, column: &str, why: &str| -> rusqlite::Result<Option<u64>> {
        Ok(match row.get_ref(index)? {
            ValueRef::Null => None,
            ValueRef::Integer(number) if number >= 0 => Some(number.unsigned_abs()),
            _ => {
                wrong(column, why);
                Some(0)
            }
        })
    };
    let (ts, lease_until) = (number(9, "ts", NO_TIME)?, number(12, "lease_until", NO_TIME)?);
    let attempts = number(13, "attempts", NO_NUMBER)?.unwrap_or(0);
    let headers = object(headers.as_deref()).unwrap_or_else(|| {
        wrong("headers", "is no JSON object of strings");
        Vec::new()
    });
    let mut strings = |text: Option<String>, column: &str| -> Vec<String> {
        let parsed = text.map_or_else(|| Ok(Vec::new()), |text| serde_json::from_str(&text));
        parsed.unwrap_or_else(|_| {
            wrong(column, "is no JSON array of strings");
            Vec::new()
        })
    };
    let (tags, caused_by) = (strings(tags, "tags"), strings(caused_by, "caused_by"));
    let read = Row {
        id: id.unwrap_or_default(),
        topic: topic.unwrap_or_default(),
        payload: payload.unwrap_or_default(),
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
    };
    let named = row.get_ref(1)?.as_str().is_ok();
    Ok(Read { seq: row.get(0)?, named, timed: ts.is_some(), row: read })
}

fn object(text: Option<&str>) -> Option<Vec<(String, String)>> {
    let Some(text) = text else { return Some(Vec::new()) };
    // One value and nothing behind it, before it stands among other fields.
    json::value(text).ok()?;
    let fields = format!(r#"{{"headers":{text}}}"#);
    let fields: Fields<'_> = serde_json::from_str(&fields).ok()?;
    Some(fields.headers.into_iter().map(|(name, value)| (name.into_owned(), value.into_owned())).collect())
}

/// The headers, tags and `caused_by` of a new row as their columns have them.
pub(super) fn columns(row: &NewRow) -> [Option<String>; 3] {
    let options = &row.options;
    let headers = (!options.headers.is_empty()).then(|| {
        let mut out = vec![b'{'];
        for (index, (name, value)) in options.headers.iter().enumerate() {
            if index > 0 {
                out.push(b',');
            }
            json::write_string(&mut out, name);
            out.push(b':');
            json::write_string(&mut out, value);
        }
        out.push(b'}');
        String::from_utf8_lossy(&out).into_owned()
    });
    let tags = (!options.tags.is_empty()).then(|| list(&options.tags));
    let caused_by = (!options.caused_by.is_empty()).then(|| list(&options.caused_by));
    [headers, tags, caused_by]
}

/// A JSON array.
pub(super) fn list<T: serde::Serialize>(items: &[T]) -> String {
    serde_json::to_string(items).unwrap_or_default()
}
