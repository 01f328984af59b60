//! How a group stands, between hubs.

use std::time::Duration;

use promethean_bus::dispatcher::Counts;
use promethean_bus::{EventId, FOREIGN, Group, GroupStatus, Holding, MemberStatus, Origin, Topic};
use promethean_event::{Millis, Seq};
use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Shown {
    seq: Seq,
    last_id: Option<EventId>,
    last_ts: Option<Millis>,
    lag: u64,
    tail: Seq,
    lag_ms: u64,
    members: Vec<Member>,
    in_flight: usize,
    waiting: usize,
    max_attempts: u32,
    filtered: bool,
    unfinished: Vec<Held>,
    counts: [u64; 6],
}

#[derive(Debug, Serialize, Deserialize)]
struct Member {
    id: u64,
    in_flight: usize,
    max_in_flight: usize,
    paused: bool,
    /// The subscriber of another hub that it stands for.
    origin: Option<(String, u64)>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Held {
    seq: Seq,
    id: EventId,
    attempts: u32,
    reason: Option<Box<str>>,
    state: String,
    member: Option<u64>,
    lease: Option<u64>,
    since: Option<Millis>,
    until: Option<Millis>,
}

impl From<GroupStatus> for Shown {
    fn from(status: GroupStatus) -> Self {
        let Counts { delivered, redelivered, acked, nacked, dead_lettered, skipped } = status.counts;
        let member = |member: MemberStatus| Member {
            id: member.id,
            in_flight: member.in_flight,
            max_in_flight: member.max_in_flight,
            paused: member.paused,
            origin: member.origin.map(|Origin { hub, subscription }| (hub.to_string(), subscription)),
        };
        let held = |one: Holding| Held {
            seq: one.seq,
            id: one.id,
            attempts: one.attempts,
            reason: one.reason,
            state: one.state.to_owned(),
            member: one.member,
            lease: one.lease,
            since: one.since,
            until: one.until,
        };
        Self {
            seq: status.cursor.seq,
            last_id: status.cursor.last_id,
            last_ts: status.cursor.last_ts,
            lag: status.lag,
            tail: status.tail,
            lag_ms: u64::try_from(status.lag_age.as_millis()).unwrap_or(u64::MAX),
            members: status.members.into_iter().map(member).collect(),
            in_flight: status.in_flight,
            waiting: status.waiting,
            max_attempts: status.max_attempts,
            filtered: status.filtered,
            unfinished: status.unfinished.into_iter().map(held).collect(),
            counts: [delivered, redelivered, acked, nacked, dead_lettered, skipped],
        }
    }
}

impl Shown {
    /// As the hub `me` shows it: its own subscribers under their own numbers, others under numbers that are nobody's.
    pub(super) fn into_status(self, topic: &Topic, group: &Group, me: &str) -> GroupStatus {
        let number = |id: u64, origin: Option<&(String, u64)>| match origin {
            Some((hub, subscription)) if hub == me => *subscription,
            _ => FOREIGN | id,
        };
        let here =
            |id: u64| number(id, self.members.iter().find(|one| one.id == id).and_then(|one| one.origin.as_ref()));
        let member = |member: &Member| MemberStatus {
            id: here(member.id),
            in_flight: member.in_flight,
            max_in_flight: member.max_in_flight,
            paused: member.paused,
            origin: None,
        };
        let held = |one: &Held| Holding {
            seq: one.seq,
            id: one.id,
            attempts: one.attempts,
            reason: one.reason.clone(),
            state: STATES.into_iter().find(|state| *state == one.state).unwrap_or("ready"),
            member: one.member.map(here),
            lease: one.lease,
            since: one.since,
            until: one.until,
        };
        let [delivered, redelivered, acked, nacked, dead_lettered, skipped] = self.counts;
        let (last_id, last_ts) = (self.last_id, self.last_ts);
        GroupStatus {
            topic: topic.clone(),
            group: group.clone(),
            cursor: promethean_bus::Cursor { topic: topic.clone(), last_id, last_ts, seq: self.seq },
            lag: self.lag,
            tail: self.tail,
            lag_age: Duration::from_millis(self.lag_ms),
            members: self.members.iter().map(member).collect(),
            in_flight: self.in_flight,
            waiting: self.waiting,
            max_attempts: self.max_attempts,
            filtered: self.filtered,
            unfinished: self.unfinished.iter().map(held).collect(),
            counts: Counts { delivered, redelivered, acked, nacked, dead_lettered, skipped },
        }
    }
}

/// What [`Holding::state`] may be.
const STATES: [&str; 5] = ["held", "ready", "backoff", "behind_key", "dying"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_reads_back_and_members_of_this_hub_have_its_numbers() {
        let (topic, group) = (Topic::parse("t").expect("a topic"), Group::parse("g").expect("a group"));
        let member = |id, hub: Option<&str>| MemberStatus {
            id,
            in_flight: 1,
            max_in_flight: 2,
            paused: false,
            origin: hub.map(|hub| Origin { hub: hub.into(), subscription: 70 + id }),
        };
        let holding = |member| Holding {
            seq: 3,
            id: EventId::from_bytes([3; 16]),
            attempts: 2,
            reason: Some("no".into()),
            state: "held",
            member: Some(member),
            lease: Some(9),
            since: Some(Millis(1)),
            until: None,
        };
        let status = GroupStatus {
            cursor: promethean_bus::Cursor { topic: topic.clone(), last_id: None, last_ts: Some(Millis(4)), seq: 2 },
            topic: topic.clone(),
            group: group.clone(),
            lag: 5,
            tail: 7,
            lag_age: Duration::from_millis(77),
            members: vec![member(1, None), member(2, Some("me")), member(3, Some("other"))],
            in_flight: 3,
            waiting: 1,
            max_attempts: 5,
            filtered: true,
            unfinished: vec![holding(2), holding(3)],
            counts: Counts { delivered: 1, redelivered: 2, acked: 3, nacked: 4, dead_lettered: 5, skipped: 6 },
        };
        let text = serde_json::to_string(&Shown::from(status.clone())).expect("JSON");
        let read = serde_json::from_str::<Shown>(&text).expect("reads back").into_status(&topic, &group, "me");
        let numbers: Vec<u64> = read.members.iter().map(|member| member.id).collect();
        assert_eq!(numbers, [FOREIGN | 1, 72, FOREIGN | 3]);
        assert_eq!(read.unfinished.iter().map(|one| one.member).collect::<Vec<_>>(), [Some(72), Some(FOREIGN | 3)]);
        let plain = |mut status: GroupStatus| {
            status.members.clear();
            status.unfinished.iter_mut().for_each(|one| one.member = None);
            status
        };
        assert_eq!(plain(read), plain(status));
    }
}
