//! Where a group stands in a topic, and where one may start.

use serde::{Deserialize, Serialize};

use crate::wire::{Whole, said, words};
use crate::{EventId, Millis, Seq, Topic};

said! {
    /// Where a group stands: the last event below which all are done.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
    pub struct Cursor<> named "Cursor" {
        /// The topic.
        pub topic: Topic = "topic",
        /// The last event below which all are done; left out before the first.
        #[serde(rename = "lastId", skip_serializing_if = "Option::is_none")]
        pub last_id: Option<EventId> = "lastId",
        /// That event's time.
        #[serde(rename = "lastTs", skip_serializing_if = "Option::is_none")]
        pub last_ts: Option<Millis> as Option<Whole> = "lastTs",
        /// That event's seq; 0 before the first.
        pub seq: Seq as Whole = "seq",
    }
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
    pub const WORDS: &'static [&'static str] = Start::WORDS;

    /// The word on the wire.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            From::Latest => Start::Latest,
            From::Earliest => Start::Earliest,
            From::Ts(_) => Start::Ts,
            From::AfterId(_) => Start::AfterId,
            From::Snapshot => Start::Snapshot,
        }
        .as_str()
    }
}

words! {
    /// `from` as it stands on the wire, where a time and an id have fields of their own.
    #[derive(Debug, Clone, Copy)]
    pub(crate) enum Start {
        Latest = "latest",
        Earliest = "earliest",
        Ts = "ts",
        AfterId = "afterId",
        Snapshot = "snapshot",
    }
}
