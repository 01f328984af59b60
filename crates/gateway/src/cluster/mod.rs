//! What hubs of a cluster ask each other, beside the frames of every client.
//!
//! A hub that has a subscriber of a group which another one owns connects there as a client would, with the cluster's
//! secret and a header that names the subscriber, and subscribes for it. Two frames are for hubs only: `GROUP` (how does
//! a group stand) and `SEEK` (move its place). They are answered by the owner alone, never passed on.

mod status;

use std::time::Duration;

use promethean_bus::{Bus, Cursor, Error, EventId, From, Group, GroupStatus, Redrive, SeekTo, Topic};
use promethean_event::{Code, Millis};
use serde::{Deserialize, Serialize};
use serde_json::json;

/// How often a hub sends a `PING` over a connection to another one.
pub const PING: Duration = Duration::from_millis(1_500);
/// How long after it sent the last `PING` that was answered a hub may pass on what it was given.
pub const TRUST: Duration = Duration::from_secs(5);

/// A question of another hub.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op")]
pub enum Asked {
    /// How a group stands.
    #[serde(rename = "GROUP")]
    Status {
        /// Comes back with the answer.
        corr: u64,
        /// The topic.
        topic: Topic,
        /// The group.
        group: Group,
        /// With what is unfinished.
        unfinished: bool,
    },
    /// To move a group's place.
    #[serde(rename = "SEEK")]
    Seek {
        /// Comes back with the answer.
        corr: u64,
        /// The topic.
        topic: Topic,
        /// The group.
        group: Group,
        /// `earliest`, `latest`, `ts`, `afterId`, `snapshot` or `seq`.
        from: String,
        /// With `ts`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ts: Option<Millis>,
        /// With `afterId`.
        #[serde(rename = "afterId", default, skip_serializing_if = "Option::is_none")]
        after_id: Option<EventId>,
        /// With `seq`: the last one that counts as done.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        seq: Option<u64>,
    },
    /// To take dead-lettered events in again.
    #[serde(rename = "REDRIVE")]
    Redrive {
        /// Comes back with the answer.
        corr: u64,
        /// The topic.
        topic: Topic,
        /// The group.
        group: Group,
        /// The events.
        letters: Vec<Redrive>,
    },
}

impl Asked {
    /// A question about a group's place.
    pub fn seek(corr: u64, topic: Topic, group: &Group, to: SeekTo) -> Self {
        let to = match to {
            SeekTo::Place(to) => to,
            SeekTo::Seq(seq) => {
                let (group, from) = (group.clone(), "seq".to_owned());
                return Self::Seek { corr, topic, group, from, ts: None, after_id: None, seq: Some(seq) };
            }
        };
        let (from, ts, after_id) = match to {
            From::Latest => ("latest", None, None),
            From::Earliest => ("earliest", None, None),
            From::Snapshot => ("snapshot", None, None),
            From::Ts(ts) => ("ts", Some(ts), None),
            From::AfterId(id) => ("afterId", None, Some(id)),
        };
        Self::Seek { corr, topic, group: group.clone(), from: from.to_owned(), ts, after_id, seq: None }
    }

    /// The frame.
    pub fn frame(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Reads a frame that is one; others are for everybody.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        // The hub writes `op` first.
        let mine = text.starts_with(r#"{"op":"GROUP""#)
            || text.starts_with(r#"{"op":"SEEK""#)
            || text.starts_with(r#"{"op":"REDRIVE""#);
        mine.then(|| serde_json::from_str(text).ok()).flatten()
    }

    /// The frame with the answer.
    pub(crate) async fn answer(self, bus: &Bus) -> Vec<u8> {
        let (corr, answer) = match self {
            Self::Status { corr, topic, group, unfinished } => (corr, status_of(bus, &topic, &group, unfinished).await),
            Self::Redrive { corr, topic, group, letters } => {
                let there = bus.redrive_here(&topic, &group, &letters).await;
                (corr, there.map(|there| json!({ "there": there })))
            }
            Self::Seek { corr, topic, group, seq: Some(done), .. } => {
                (corr, seek(bus, &topic, &group, SeekTo::Seq(done)).await)
            }
            Self::Seek { corr, topic, group, from, ts, after_id, seq: None } => {
                let to = match (from.as_str(), ts, after_id) {
                    ("earliest", ..) => From::Earliest,
                    ("snapshot", ..) => From::Snapshot,
                    ("ts", Some(ts), _) => From::Ts(ts),
                    ("afterId", _, Some(id)) => From::AfterId(id),
                    _ => From::Latest,
                };
                (corr, seek(bus, &topic, &group, SeekTo::Place(to)).await)
            }
        };
        let frame = match answer {
            Ok(mut answer) => {
                answer["op"] = json!("OK");
                answer["corr"] = json!(corr);
                answer
            }
            Err(Error { code, message }) => json!({ "op": "ERR", "corr": corr, "code": code.as_str(), "msg": message }),
        };
        serde_json::to_vec(&frame).unwrap_or_default()
    }
}

async fn status_of(bus: &Bus, topic: &Topic, group: &Group, unfinished: bool) -> Result<serde_json::Value, Error> {
    let status = bus.status_here(topic, group, unfinished).await?;
    Ok(json!({ "status": status }))
}

async fn seek(bus: &Bus, topic: &Topic, group: &Group, to: SeekTo) -> Result<serde_json::Value, Error> {
    let cursor = bus.set_cursor_here(topic, group, to).await?;
    Ok(json!({ "cursor": cursor }))
}

/// What another hub has answered.
#[derive(Deserialize)]
struct Answer {
    op: String,
    #[serde(default)]
    code: String,
    #[serde(default)]
    msg: String,
    status: Option<GroupStatus>,
    cursor: Option<Cursor>,
    #[serde(default)]
    there: Vec<bool>,
}

fn answer_of(text: &str) -> Result<Answer, Error> {
    let odd = |why: String| Error::new(Code::AckFailed, format!("the other hub's answer is not understood: {why}"));
    let answer: Answer = serde_json::from_str(text).map_err(|error| odd(error.to_string()))?;
    match (answer.op.as_str(), Code::parse(&answer.code)) {
        ("OK", _) => Ok(answer),
        (_, Some(code)) => Err(Error::new(code, answer.msg)),
        (_, None) => Err(odd(answer.msg)),
    }
}

/// Reads the answer to a [`Asked::Status`]. Members that stand for subscribers of the hub `me` get their numbers there.
///
/// # Errors
/// What the other hub says.
pub fn read_status(text: &str, me: &str) -> Result<Option<GroupStatus>, Error> {
    Ok(answer_of(text)?.status.map(|status| status::seen_from(me, status)))
}

/// Reads the answer to a [`Asked::Redrive`].
///
/// # Errors
/// As the other hub says.
pub fn read_redrive(text: &str) -> Result<Vec<bool>, Error> {
    Ok(answer_of(text)?.there)
}

/// Reads the answer to a [`Asked::Seek`].
///
/// # Errors
/// What the other hub says.
pub fn read_seek(text: &str) -> Result<Cursor, Error> {
    let missing = || Error::new(Code::AckFailed, "the other hub's answer has no cursor");
    answer_of(text)?.cursor.ok_or_else(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_reads_back_and_nothing_else_is_one() {
        let (topic, group) = (Topic::parse("a.b").expect("a topic"), Group::parse("g").expect("a group"));
        let id = EventId::from_bytes([7; 16]);
        for to in [From::Latest, From::Earliest, From::Snapshot, From::Ts(Millis(5)), From::AfterId(id)] {
            let asked = Asked::seek(3, topic.clone(), &group, SeekTo::Place(to));
            let text = String::from_utf8(asked.frame()).expect("text");
            assert_eq!(Asked::parse(&text), Some(asked), "{text}");
        }
        let asked = Asked::seek(4, topic.clone(), &group, SeekTo::Seq(9));
        assert_eq!(Asked::parse(&String::from_utf8(asked.frame()).expect("text")), Some(asked));
        let asked = Asked::Status { corr: 1, topic, group, unfinished: true };
        assert_eq!(Asked::parse(&String::from_utf8(asked.frame()).expect("text")), Some(asked));
        for other in [r#"{"op":"PING"}"#, r#"{"op":"GROUP"}"#, "{}", ""] {
            assert_eq!(Asked::parse(other), None, "{other}");
        }
    }
}
