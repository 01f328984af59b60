//! `GET /explain`: why does this group not move?
//!
//! What is known is gathered first; [`reasons`] then decides without asking anybody, heaviest first.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use promethean_bus::{FOREIGN, GroupStatus, Holding, HoldingState};
use promethean_event::{EventId, Group, Millis, Topic};
use serde::Serialize;

use super::{holders, inflight};
use crate::Hub;
use crate::http::{Caller, Query, json_body};
use crate::rejection::Rejection;

/// An event that is held for longer than this without an ack of any is worth a word.
const LONG: Duration = Duration::from_secs(5);

#[derive(Debug, Serialize, Default, PartialEq, Eq)]
struct Reason {
    code: &'static str,
    text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    connection: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<EventId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<Millis>,
}

#[derive(Serialize)]
struct Explanation {
    topic: Topic,
    group: Group,
    moving: bool,
    lag: u64,
    inflight: usize,
    reasons: Vec<Reason>,
}

/// What is known when reasons are looked for.
struct Known<'a> {
    status: &'a GroupStatus,
    now: Millis,
    /// Events acked within the last seconds.
    acked_lately: u64,
    /// A member's connection and subject, for people.
    name: &'a dyn Fn(u64) -> (Option<String>, String),
    /// The key of the first unfinished event.
    first_key: Option<String>,
}

pub(super) async fn explain(State(hub): State<Arc<Hub>>, caller: Caller, query: Query) -> Result<Response, Rejection> {
    let (topic, group) = query.topic_and_group()?;
    caller.must_see_group(&topic, &group)?;
    let mut found = Vec::new();
    if let Err(error) = hub.bus.store().ready() {
        let text = format!("The store takes no writes: {error}.");
        found.push(Reason { code: "store_error", text, ..Reason::default() });
    }
    let status = match hub.bus.group_status(&topic, &group).await {
        Ok(status) => status,
        Err(error) => {
            let text = format!("The group's state cannot be read: {}.", error.message);
            found.push(Reason { code: "store_error", text, ..Reason::default() });
            return Ok(json_body(&Explanation { topic, group, moving: false, lag: 0, inflight: 0, reasons: found }));
        }
    };
    let Some(status) = status else {
        let text = format!("There is no group {group} on {topic}: its first SUBSCRIBE, or PUT /cursors, makes it.");
        found.push(Reason { code: "unknown_group", text, ..Reason::default() });
        return Ok(json_body(&Explanation { topic, group, moving: false, lag: 0, inflight: 0, reasons: found }));
    };
    let first_key = match status.unfinished.first() {
        Some(first) => inflight::key(&hub, &topic, first.seq).await?,
        None => None,
    };
    let all = holders::all(&hub);
    let name = |member: u64| match all.get(&member) {
        None if member & FOREIGN != 0 => (None, "a subscriber on another hub".to_owned()),
        None => (None, format!("subscriber {member} inside the hub")),
        Some(holder) => {
            let sub = holder.sub.as_ref().map(|sub| format!(" ({sub})")).unwrap_or_default();
            (Some(holder.connection.clone()), format!("{}{sub}", holder.connection))
        }
    };
    let acked_lately = hub.samples.acked_lately(&topic, &group);
    found.extend(reasons(&Known { status: &status, now: hub.bus.now(), acked_lately, name: &name, first_key }));
    let moving = found.iter().all(|reason| matches!(reason.code, "moving" | "caught_up" | "filtered"));
    Ok(json_body(&Explanation { topic, group, moving, lag: status.lag, inflight: status.in_flight, reasons: found }))
}

/// Why, heaviest first; at least one.
fn reasons(known: &Known<'_>) -> Vec<Reason> {
    let status = known.status;
    let mut found = Vec::new();
    let plain = |code, text| Reason { code, text, ..Reason::default() };
    if let Some(owner) = &status.owner_silent {
        let text = format!(
            "The hub {owner} owns the group and does not tell how it stands; this is what was saved. If it hangs or has died, \
             another hub takes the group over within 10 s: ask again then."
        );
        found.push(plain("owner_silent", text));
    }
    if let Some(why) = &status.letters_failing {
        let text = format!("Dead letters cannot be written, and are tried again until they can: {why}.");
        found.push(plain("dead_letters_failing", text));
    }
    if status.lag == 0 {
        found.push(plain("caught_up", "Every event is done.".to_owned()));
    } else if status.owner_silent.is_some() {
        // Who else is subscribed, and what they hold, only the owner knows.
    } else if status.members.is_empty() {
        let text = format!("{} and nobody is subscribed: start a consumer.", waiting(status.lag));
        found.push(plain("no_members", text));
    } else {
        let open: Vec<_> = status.members.iter().filter(|member| !member.paused).collect();
        let room = open.iter().any(|member| member.in_flight < member.max_in_flight);
        if open.is_empty() {
            let text = format!("All {} members are paused: send RESUME.", status.members.len());
            found.push(Reason { connection: (known.name)(status.members[0].id).0, ..plain("paused", text) });
        } else if !room {
            found.push(all_in_flight(known, open.iter().map(|member| member.max_in_flight).sum()));
        }
        found.extend(blocked(known));
        found.extend(backoff(known));
        if found.is_empty() {
            found.extend(unanswered(known));
        }
        if found.is_empty() {
            let text = match known.acked_lately {
                0 => {
                    format!("{} in flight; nothing was acked within the last seconds.", events(status.in_flight as u64))
                }
                acked => format!("{} acked within the last seconds.", events(acked)),
            };
            found.push(plain("moving", text));
        }
    }
    if status.filtered && status.counts.skipped > 0 {
        let text = format!("The filter has passed over {}.", events(status.counts.skipped));
        found.push(plain("filtered", text));
    }
    found
}

/// Who holds what, for people: ` c7 (worker) holds 10, the oldest for 41 s.`
struct Held<'a> {
    text: String,
    members: usize,
    connection: Option<String>,
    oldest: Option<&'a Holding>,
    /// How long the oldest is held.
    age: Duration,
}

fn held<'a>(known: &Known<'a>) -> Held<'a> {
    let held = || known.status.unfinished.iter().filter(|one| one.state == HoldingState::Held);
    let mut by_member: BTreeMap<u64, usize> = BTreeMap::new();
    for one in held() {
        *by_member.entry(one.member.unwrap_or(0)).or_default() += 1;
    }
    let oldest = held().min_by_key(|one| one.since);
    let age = oldest.and_then(|one| one.since).map_or(Duration::ZERO, |since| known.now.since(since));
    let most = by_member.iter().max_by_key(|(_, count)| **count).map(|(member, count)| (*member, *count));
    let text = most.map(|(member, count)| {
        let (_, name) = (known.name)(member);
        format!(" {name} holds {count}, the oldest for {}.", seconds(age))
    });
    let connection = most.and_then(|(member, _)| (known.name)(member).0);
    Held { text: text.unwrap_or_default(), members: by_member.len(), connection, oldest, age }
}

impl Held<'_> {
    fn reason(self, text: String) -> Reason {
        Reason {
            code: "all_in_flight",
            text,
            connection: self.connection,
            id: self.oldest.map(|one| one.id),
            until: self.oldest.and_then(|one| one.until),
            ..Reason::default()
        }
    }
}

/// No member has room for one more.
fn all_in_flight(known: &Known<'_>, places: usize) -> Reason {
    let held = held(known);
    let text = format!(
        "All {places} places are taken by events that {} not acked.{} Ack faster, add members, or raise maxInFlight.",
        if held.members == 1 { "1 member has".to_owned() } else { format!("{} members have", held.members) },
        held.text,
    );
    held.reason(text)
}

/// Members have room, but what they hold they do not answer.
fn unanswered(known: &Known<'_>) -> Option<Reason> {
    let held = held(known);
    if known.acked_lately > 0 || held.age < LONG {
        return None;
    }
    let text = format!(
        "{} delivered and nothing was acked within the last seconds.{} Look at that consumer.",
        match known.status.in_flight {
            1 => "1 event is".to_owned(),
            many => format!("{many} events are"),
        },
        held.text
    );
    Some(held.reason(text))
}

/// Events that wait for an earlier one of their key.
fn blocked(known: &Known<'_>) -> Option<Reason> {
    let unfinished = &known.status.unfinished;
    let count = unfinished.iter().filter(|one| one.state == HoldingState::BehindKey).count();
    let first = unfinished.iter().find(|one| one.state != HoldingState::BehindKey).filter(|_| count > 0)?;
    let what = match first.state {
        HoldingState::Held => "is in flight",
        HoldingState::Backoff => "waits to be delivered again",
        _ => "is not done",
    };
    Some(Reason {
        code: "blocked_key",
        text: format!("{} for an earlier one with the same key: event {} {what}.", waiting(count as u64), first.id),
        connection: first.member.and_then(|member| (known.name)(member).0),
        id: Some(first.id),
        key: known.first_key.clone().filter(|_| unfinished.first().is_some_and(|one| one.id == first.id)),
        until: first.until,
    })
}

/// Nacked events whose time has not come, where nothing else is under way.
fn backoff(known: &Known<'_>) -> Option<Reason> {
    let later = known.status.unfinished.iter().filter(|one| one.state == HoldingState::Backoff);
    let next = later.min_by_key(|one| one.until).filter(|_| known.status.in_flight == 0)?;
    let left = next.until.map_or(Duration::ZERO, |until| until.since(known.now));
    let text = format!(
        "{} to be delivered again, the next in {} (attempt {}).",
        match known.status.waiting {
            1 => "1 nacked event waits".to_owned(),
            many => format!("{many} nacked events wait"),
        },
        seconds(left),
        next.attempts + 1,
    );
    Some(Reason { code: "backoff", text, id: Some(next.id), until: next.until, ..Reason::default() })
}

fn waiting(count: u64) -> String {
    if count == 1 { "1 event waits".to_owned() } else { format!("{count} events wait") }
}

fn events(count: u64) -> String {
    if count == 1 { "1 event".to_owned() } else { format!("{count} events") }
}

fn seconds(duration: Duration) -> String {
    if duration < Duration::from_secs(10) {
        format!("{:.1} s", duration.as_secs_f64())
    } else {
        format!("{} s", duration.as_secs())
    }
}

#[cfg(test)]
mod tests {
    use promethean_bus::group::Counts;
    use promethean_bus::{Cursor, MemberStatus};

    use super::*;

    fn status() -> GroupStatus {
        let topic = Topic::parse("t").expect("a topic");
        GroupStatus {
            cursor: Cursor { topic: topic.clone(), last_id: None, last_ts: None, seq: 0 },
            topic,
            group: Group::parse("g").expect("a group"),
            lag: 3,
            tail: 3,
            lag_age: Duration::from_secs(60),
            members: vec![MemberStatus { id: 7, in_flight: 1, max_in_flight: 100, paused: false, origin: None }],
            in_flight: 1,
            waiting: 0,
            max_attempts: 5,
            filtered: false,
            unfinished: vec![holding(HoldingState::Held)],
            counts: Counts::default(),
            owner_silent: None,
            letters_failing: None,
        }
    }

    fn holding(state: HoldingState) -> Holding {
        let (member, since) = (Some(7), Some(Millis(100_000)));
        let id = EventId::from_bytes([1; 16]);
        Holding {
            seq: 1,
            id,
            attempts: 1,
            reason: None,
            state,
            member,
            lease: Some(1),
            since,
            until: Some(Millis(130_000)),
        }
    }

    fn explained(status: &GroupStatus, now: u64, acked_lately: u64) -> Vec<Reason> {
        let name = |member| (Some(format!("c{member}")), format!("c{member} (worker)"));
        reasons(&Known { status, now: Millis(now), acked_lately, name: &name, first_key: Some("k".to_owned()) })
    }

    #[test]
    fn a_consumer_that_holds_an_event_for_long_is_named_though_it_has_room() {
        let found = explained(&status(), 141_000, 0);
        assert_eq!((found.len(), found[0].code, found[0].connection.as_deref()), (1, "all_in_flight", Some("c7")));
        assert_eq!(
            found[0].text,
            "1 event is delivered and nothing was acked within the last seconds. c7 (worker) holds 1, the oldest for 41 s. \
             Look at that consumer."
        );
        assert_eq!(explained(&status(), 141_000, 5)[0].code, "moving", "others are acked");
        assert_eq!(explained(&status(), 101_000, 0)[0].code, "moving", "it has only just begun");
    }

    #[test]
    fn without_room_the_remedy_is_named() {
        let mut full = status();
        full.members[0].max_in_flight = 1;
        let found = explained(&full, 141_000, 5);
        assert_eq!(
            found[0].text,
            "All 1 places are taken by events that 1 member has not acked. c7 (worker) holds 1, the oldest for 41 s. \
             Ack faster, add members, or raise maxInFlight."
        );
        full.members.push(MemberStatus { id: 8, in_flight: 0, max_in_flight: 1, paused: true, origin: None });
        assert_eq!(explained(&full, 101_000, 0)[0].code, "all_in_flight", "a paused member's room is none");
        full.members[0].paused = true;
        assert_eq!(explained(&full, 101_000, 0)[0].code, "paused");
    }

    #[test]
    fn a_group_without_members_is_told_to_have_one() {
        let mut alone = GroupStatus { lag: 1, members: Vec::new(), ..status() };
        assert_eq!(explained(&alone, 101_000, 0)[0].text, "1 event waits and nobody is subscribed: start a consumer.");
        alone.lag = 3;
        assert_eq!(explained(&alone, 101_000, 0)[0].text, "3 events wait and nobody is subscribed: start a consumer.");
    }

    #[test]
    fn of_an_owner_that_hangs_nothing_is_said_but_that_it_hangs() {
        let owner_silent = Some("ws://10.0.0.5:8090 (no answer within 2s)".into());
        let mut silent = GroupStatus { members: Vec::new(), unfinished: Vec::new(), owner_silent, ..status() };
        let found = explained(&silent, 101_000, 0);
        assert_eq!(found.iter().map(|one| one.code).collect::<Vec<_>>(), ["owner_silent"]);
        assert_eq!(
            found[0].text,
            "The hub ws://10.0.0.5:8090 (no answer within 2s) owns the group and does not tell how it stands; this is what \
             was saved. If it hangs or has died, another hub takes the group over within 10 s: ask again then."
        );
        silent.lag = 0;
        let codes: Vec<_> = explained(&silent, 101_000, 0).iter().map(|one| one.code).collect();
        assert_eq!(codes, ["owner_silent", "caught_up"]);
    }

    #[test]
    fn what_waits_behind_a_key_and_for_its_time_is_told_with_the_event() {
        let mut blocked = status();
        blocked.unfinished =
            vec![holding(HoldingState::Backoff), holding(HoldingState::BehindKey), holding(HoldingState::BehindKey)];
        (blocked.in_flight, blocked.waiting) = (0, 1);
        let found = explained(&blocked, 121_000, 0);
        assert_eq!(found.iter().map(|one| one.code).collect::<Vec<_>>(), ["blocked_key", "backoff"]);
        assert_eq!(found[0].key.as_deref(), Some("k"));
        assert_eq!(found[1].text, "1 nacked event waits to be delivered again, the next in 9.0 s (attempt 2).");
    }
}
