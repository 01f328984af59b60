//! `GET /explain`: why does this group not move?
//!
//! What is known is gathered first; [`reasons`] then decides without asking anybody, heaviest first.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use promethean_bus::{GroupStatus, Holding};
use promethean_event::{EventId, Group, Millis, Topic};
use serde::Serialize;

use super::{holders, inflight};
use crate::Hub;
use crate::http::{Caller, Query, json_body};
use crate::rejection::Rejection;

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
    if status.lag == 0 {
        found.push(plain("caught_up", "Every event is done.".to_owned()));
    } else if status.members.is_empty() {
        let text = format!("{} wait and nobody is subscribed: start a consumer.", events(status.lag));
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

fn all_in_flight(known: &Known<'_>, places: usize) -> Reason {
    let held: Vec<&Holding> = known.status.unfinished.iter().filter(|one| one.state == "held").collect();
    let mut by_member: BTreeMap<u64, usize> = BTreeMap::new();
    for one in &held {
        *by_member.entry(one.member.unwrap_or(0)).or_default() += 1;
    }
    let oldest = held.iter().min_by_key(|one| one.since);
    let most = by_member.iter().max_by_key(|(_, count)| **count).map(|(member, count)| (*member, *count));
    let age = oldest.and_then(|one| one.since).map_or(Duration::ZERO, |since| known.now.since(since));
    let holder = most.map(|(member, count)| {
        let (_, name) = (known.name)(member);
        format!(" {name} holds {count}, the oldest for {}.", seconds(age))
    });
    let text = format!(
        "All {places} places are taken by events that {} not acked.{} Ack faster, add members, or raise maxInFlight.",
        if by_member.len() == 1 { "1 member has".to_owned() } else { format!("{} members have", by_member.len()) },
        holder.unwrap_or_default(),
    );
    Reason {
        code: "all_in_flight",
        text,
        connection: most.and_then(|(member, _)| (known.name)(member).0),
        id: oldest.map(|one| one.id),
        until: oldest.and_then(|one| one.until),
        ..Reason::default()
    }
}

/// Events that wait for an earlier one of their key.
fn blocked(known: &Known<'_>) -> Option<Reason> {
    let unfinished = &known.status.unfinished;
    let count = unfinished.iter().filter(|one| one.state == "behind_key").count();
    let first = unfinished.iter().find(|one| one.state != "behind_key").filter(|_| count > 0)?;
    let what = match first.state {
        "held" => "is in flight",
        "backoff" => "waits to be delivered again",
        _ => "is not done",
    };
    Some(Reason {
        code: "blocked_key",
        text: format!("{} wait for an earlier one with the same key: event {} {what}.", events(count as u64), first.id),
        connection: first.member.and_then(|member| (known.name)(member).0),
        id: Some(first.id),
        key: known.first_key.clone().filter(|_| unfinished.first().is_some_and(|one| one.id == first.id)),
        until: first.until,
    })
}

/// Nacked events whose time has not come, where nothing else is under way.
fn backoff(known: &Known<'_>) -> Option<Reason> {
    let waiting = known.status.unfinished.iter().filter(|one| one.state == "backoff");
    let next = waiting.min_by_key(|one| one.until).filter(|_| known.status.in_flight == 0)?;
    let left = next.until.map_or(Duration::ZERO, |until| until.since(known.now));
    let text = format!(
        "{} nacked and wait to be delivered again, the next in {} (attempt {}).",
        match known.status.waiting {
            1 => "1 event was".to_owned(),
            many => format!("{many} events were"),
        },
        seconds(left),
        next.attempts + 1,
    );
    Some(Reason { code: "backoff", text, id: Some(next.id), until: next.until, ..Reason::default() })
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
