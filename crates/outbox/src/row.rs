//! A row: what a service adds, and what a drainer finds.
//!
//! A [`NewRow`] is valid. A [`Row`] need not be: anybody may have written it, in any language. [`Row::draft`] is where
//! it becomes an event or is refused with the reason.

use std::borrow::Cow;
use std::fmt;

use promethean_event::{Code, Draft, EventId, Invalid, Millis, PublishOptions, Topic, json, payload_of};
use serde::Serialize;
use serde_json::value::RawValue;

/// Why a column or field with a time cannot be read.
#[cfg(any(feature = "sqlite", feature = "mongo"))]
pub(crate) const NO_TIME: &str = "is no whole number of milliseconds";
/// Why one with a count cannot be read.
#[cfg(any(feature = "sqlite", feature = "mongo"))]
pub(crate) const NO_NUMBER: &str = "is no whole number";

/// An event to be published once the transaction that adds it has committed.
///
/// ```
/// use promethean_outbox::NewRow;
///
/// let row = NewRow::new("orders.created", &serde_json::json!({"order": 42}))?.key("42").header("x-trace", "t-1");
/// assert!(NewRow::new("orders created", &1).is_err(), "a topic has no spaces");
/// # Ok::<(), promethean_outbox::Invalid>(())
/// ```
#[derive(Debug, Clone)]
pub struct NewRow {
    pub(crate) topic: Topic,
    pub(crate) payload: Box<RawValue>,
    pub(crate) options: PublishOptions<'static>,
}

impl NewRow {
    /// `payload` for `topic`.
    ///
    /// # Errors
    /// `bad_topic`, or `bad_json` where the value does not serialise.
    pub fn new<T: Serialize + ?Sized>(topic: &str, payload: &T) -> Result<Self, Invalid> {
        Ok(Self::raw(Topic::parse(topic)?, payload_of(payload)?))
    }

    /// These bytes for `topic`, kept as they are.
    pub fn raw(topic: Topic, payload: Box<RawValue>) -> Self {
        Self { topic, payload, options: PublishOptions::default() }
    }

    /// The same with a key: rows of one key are published in the order they were added.
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.options.key = Some(key.into().into());
        self
    }

    /// The same with an id of its own; a UUIDv7 is made where none is said.
    #[must_use]
    pub fn id(mut self, id: EventId) -> Self {
        self.options.id = Some(id);
        self
    }

    /// The same with one more header.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.options.headers.push((name.into().into(), value.into().into()));
        self
    }

    /// The same with everything else that an event may carry: tags, `caused_by`, `sid`, `ts`.
    #[must_use]
    pub fn options(mut self, options: PublishOptions<'static>) -> Self {
        self.options = options;
        self
    }
}

/// Where a row stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Status {
    /// It waits to be published.
    Pending,
    /// A drainer has it, until its lease runs out.
    Claimed,
    /// It is in the log.
    Sent,
    /// It was given up: `last_err` says why.
    Error,
}

impl Status {
    /// All there are.
    pub const ALL: [Status; 4] = [Status::Pending, Status::Claimed, Status::Sent, Status::Error];

    /// The word in the table.
    pub const fn as_str(self) -> &'static str {
        match self {
            Status::Pending => "pending",
            Status::Claimed => "claimed",
            Status::Sent => "sent",
            Status::Error => "error",
        }
    }

    /// The status with this word.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == text)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A row as it stands in the table, whoever wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// The event's id, a UUID.
    pub id: String,
    /// The topic.
    pub topic: String,
    /// The payload's JSON.
    pub payload: String,
    /// What order goes by.
    pub key: Option<String>,
    /// Names and values.
    pub headers: Vec<(String, String)>,
    /// Free words.
    pub tags: Vec<String>,
    /// The events this one follows from.
    pub caused_by: Vec<String>,
    /// The publisher's session.
    pub sid: Option<String>,
    /// The event's time.
    pub ts: Millis,
    /// Where it stands.
    pub status: Status,
    /// Which drainer has it.
    pub claimed_by: Option<String>,
    /// A claimed row: when its lease runs out. A pending one: when it is tried again.
    pub lease_until: Option<Millis>,
    /// How often it was claimed to be published, without those that were given back.
    pub attempts: u32,
    /// Why it was not published, the last time.
    pub last_err: Option<String>,
    /// What of the row could not be read.
    pub unreadable: Option<String>,
}

impl Row {
    /// The event that this row is, with the row's id as its id.
    ///
    /// # Errors
    /// What the contract refuses, with the field.
    pub fn draft(&self) -> Result<Draft<'_>, Invalid> {
        if let Some(why) = &self.unreadable {
            return Err(Invalid::new(Code::BadRequest, "row", why.clone()));
        }
        let payload = json::value(&self.payload)
            .map_err(|reason| Invalid::new(Code::BadJson, "payload", format!("is no JSON: {reason}")))?;
        let caused_by = self.caused_by.iter().map(|id| EventId::parse(id)).collect::<Result<_, _>>();
        let options = PublishOptions {
            id: Some(EventId::parse(&self.id)?),
            ts: Some(self.ts),
            key: self.key.as_deref().map(Cow::Borrowed),
            headers: self.headers.iter().map(|(name, value)| (name.as_str().into(), value.as_str().into())).collect(),
            tags: self.tags.iter().map(|tag| tag.as_str().into()).collect(),
            caused_by: caused_by.map_err(|invalid: Invalid| Invalid { field: "caused_by".into(), ..invalid })?,
            sid: self.sid.as_deref().map(Cow::Borrowed),
        };
        options.check()?;
        Ok(Draft { topic: Topic::parse(&self.topic)?, payload: Cow::Borrowed(payload), options })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A good row with this id.
    pub(crate) fn row(id: &str) -> Row {
        Row {
            id: id.to_owned(),
            topic: "orders.created".into(),
            payload: r#"{"a": 1.0}"#.into(),
            key: None,
            headers: Vec::new(),
            tags: Vec::new(),
            caused_by: Vec::new(),
            sid: None,
            ts: Millis(5),
            status: Status::Claimed,
            claimed_by: Some("w".into()),
            lease_until: None,
            attempts: 1,
            last_err: None,
            unreadable: None,
        }
    }

    #[test]
    fn a_good_row_is_an_event_with_its_id_time_and_bytes() {
        let good = row("0199d1c0-7d3b-7cc2-8b1a-3f0e2c9a4b5d");
        let draft = good.draft().expect("good");
        assert_eq!(draft.payload.get(), r#"{"a": 1.0}"#);
        assert_eq!(draft.options.id.map(|id| id.to_string()).as_deref(), Some(good.id.as_str()));
        assert_eq!(draft.options.ts, Some(Millis(5)));
    }

    #[test]
    fn a_bad_row_is_refused_with_its_code_and_field() {
        let good = row("0199d1c0-7d3b-7cc2-8b1a-3f0e2c9a4b5d");
        let with = |change: fn(&mut Row)| {
            let mut bad = good.clone();
            change(&mut bad);
            let refused = bad.draft().expect_err("refused");
            (refused.code, refused.field)
        };
        assert_eq!(with(|row| row.id = "7".into()), (Code::BadId, "id".into()));
        assert_eq!(with(|row| row.topic = "a b".into()), (Code::BadTopic, "topic".into()));
        assert_eq!(with(|row| row.payload = "{".into()), (Code::BadJson, "payload".into()));
        assert_eq!(with(|row| row.payload = "[".repeat(200) + &"]".repeat(200)), (Code::BadJson, "payload".into()));
        assert_eq!(with(|row| row.caused_by = vec!["x".into()]), (Code::BadId, "caused_by".into()));
        assert_eq!(with(|row| row.key = Some("k".repeat(2_000))), (Code::BadRequest, "key".into()));
        let reserved = |row: &mut Row| row.headers = vec![("promethean-x".into(), "1".into())];
        assert_eq!(with(reserved), (Code::BadRequest, "headers".into()));
        assert_eq!(with(|row| row.unreadable = Some("tags: no list".into())), (Code::BadRequest, "row".into()));
    }
}
