//! Where a group stands in a topic, and where one may start.

use serde::{Deserialize, Serialize};

use crate::{EventId, Millis, Seq, Topic};

/// Where a group stands: the last event below which all are done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursor {
    /// The topic.
    pub topic: Topic,
    /// The id of the last event that is done with all before it; none before the first.
    #[serde(rename = "lastId", skip_serializing_if = "Option::is_none")]
    pub last_id: Option<EventId>,
    /// That event's `ts`.
    #[serde(rename = "lastTs", skip_serializing_if = "Option::is_none")]
    pub last_ts: Option<Millis>,
    /// That event's `seq`; 0 before the first.
    pub seq: Seq,
}

/// Where a group without a cursor starts, and where a seek goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum From {
    /// Only what is appended from now on.
    #[default]
    Latest,
    /// Everything there is.
    Earliest,
    /// The first event with `ts` ≥ this, and everything after it.
    Ts(Millis),
    /// After the event with this id.
    AfterId(EventId),
    /// The latest event of every live key, then everything appended after that point.
    Snapshot,
}

impl From {
    /// The words on the wire.
    pub const WORDS: &'static [&'static str] = &["latest", "earliest", "ts", "afterId", "snapshot"];
}
