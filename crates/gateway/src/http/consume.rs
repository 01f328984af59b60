//! `POST /consume`, `/ack`, `/nack` and `/extend` `/{topic}/{group}`: consuming without a connection.
//!
//! The request is a member of the group while it waits; the leases outlive it ([`promethean_bus::Bus::pull`]). Options are
//! read as those of a `SUBSCRIBE`, so that bounds and messages are the same.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::response::Response;
use promethean_bus::{Answer, Given, Receipt, Request, TopicGate};
use promethean_event::frame::{self, NamedOptions, write};
use promethean_event::{Code, EventId, Group, Selector, SubscribeOptions, limits};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::body::SMALL;
use super::{Caller, Query, json_body, json_text, parse_json, read_body};
use crate::Hub;
use crate::auth::Action;
use crate::rejection::{Rejection, not_the_hubs_own};
use crate::ws::context;

/// Events of a request that names no number, and the most of any.
const MAX: u64 = 100;
const MOST: u64 = 1_000;
/// Longest wait for the first event.
const LONGEST_WAIT: u64 = 60_000;

type Names = Result<Path<(String, String)>, PathRejection>;

/// Fields of a `/consume`, of the body or of the query.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Consume {
    max: Option<u64>,
    wait_ms: Option<u64>,
    #[serde(default)]
    auto_ack: bool,
    from: Option<Value>,
    ts: Option<Value>,
    after_id: Option<Value>,
    ack_timeout_ms: Option<Value>,
    max_attempts: Option<Value>,
    ordered: Option<Value>,
    filter: Option<Value>,
}

/// The topic or pattern and the group of the path, which the caller may consume.
fn named(caller: &Caller, path: Names) -> Result<(Selector, Group), Rejection> {
    let Path((topic, group)) = path.map_err(|error| Rejection::new(Code::BadRequest, error.body_text()))?;
    let (selector, group) = (Selector::parse(&topic)?, Group::parse(&group)?);
    not_the_hubs_own(&group)?;
    if !caller.identity.policy.allows_selector(Action::Subscribe, &selector, Some(&group)) {
        return Err(Rejection::forbidden(Action::Subscribe, selector.as_str()));
    }
    Ok((selector, group))
}

/// Leases events to the caller and returns them.
pub(super) async fn consume(
    State(hub): State<Arc<Hub>>,
    caller: Caller,
    path: Names,
    query: Query,
    body: Body,
) -> Result<Response, Rejection> {
    let (selector, group) = named(&caller, path)?;
    let body = read_body(body, SMALL).await?;
    let asked: Consume = if body.trim_ascii().is_empty() { of_query(&query)? } else { parse_json(&body)? };
    let max = within("max", asked.max.unwrap_or(MAX), 1, MOST)?;
    let wait = Duration::from_millis(within("waitMs", asked.wait_ms.unwrap_or(0), 0, LONGEST_WAIT)?);
    let auto_ack = asked.auto_ack;
    let (mut options, named) = options(&selector, &group, asked)?;
    let warnings = hub.config.caps.apply(named, &mut options);
    let gate: TopicGate = {
        let (policy, group) = (Arc::clone(&caller.identity.policy), group.clone());
        Arc::new(move |topic| policy.allows(Action::Subscribe, topic, Some(&group)))
    };
    let gate = matches!(selector, Selector::Pattern(_)).then_some(gate);
    let request = Request { topic: selector.clone(), group: Some(group.clone()), options, gate, relayed: None };
    let max = usize::try_from(max).unwrap_or(usize::MAX);
    let mut draining = hub.drain.watch();
    let given = tokio::select! {
        given = hub.bus.pull(request, max, wait) => given?,
        () = draining.begun() => return Err(Rejection::shutting_down()),
    };
    if auto_ack {
        let ids: Vec<_> = given.iter().map(|given| (given.event.id, Some(given.lease))).collect();
        hub.bus.answer(&selector, &group, &ids, Answer::Ack).await?;
    }
    Ok(json_text(events_body(&given, &warnings, &hub)?))
}

fn events_body(given: &[Given], warnings: &[String], hub: &Hub) -> Result<Vec<u8>, Rejection> {
    let now = hub.bus.now();
    let mut out = br#"{"events":["#.to_vec();
    given.iter().for_each(|one| write::next_event(&mut out, &one.event, context(one, now)));
    out.push(b']');
    if !warnings.is_empty() {
        out.extend_from_slice(br#","warnings":"#);
        serde_json::to_writer(&mut out, warnings)
            .map_err(|error| Rejection::new(Code::BadRequest, format!("warnings: {error}")))?;
    }
    out.push(b'}');
    Ok(out)
}

fn of_query(query: &Query) -> Result<Consume, Rejection> {
    let text = |name| query.one(name).map(|text| text.map(Value::from));
    let number = |name| query.number(name).map(|number| number.map(Value::from));
    let filter = query.one("filter")?.map(serde_json::from_str).transpose();
    Ok(Consume {
        max: query.number("max")?,
        wait_ms: query.number("waitMs")?,
        auto_ack: query.flag("autoAck", false)?,
        from: text("from")?,
        ts: number("ts")?,
        after_id: text("afterId")?,
        ack_timeout_ms: number("ackTimeoutMs")?,
        max_attempts: number("maxAttempts")?,
        ordered: text("ordered")?,
        filter: filter.map_err(|error| Rejection::new(Code::BadRequest, format!("filter: is not JSON: {error}")))?,
    })
}

/// Reads the options as those of a `SUBSCRIBE` frame, and those that the client named.
fn options(selector: &Selector, group: &Group, asked: Consume) -> Result<(SubscribeOptions, NamedOptions), Rejection> {
    let opts: Map<String, Value> = [
        ("from", asked.from),
        ("ts", asked.ts),
        ("afterId", asked.after_id),
        ("ackTimeoutMs", asked.ack_timeout_ms),
        ("maxAttempts", asked.max_attempts),
        ("ordered", asked.ordered),
        ("filter", asked.filter),
    ]
    .into_iter()
    .filter_map(|(name, value)| Some((name.to_owned(), value?)))
    .collect();
    let frame = json!({"op": "SUBSCRIBE", "topic": selector.as_str(), "group": group.as_str(), "opts": opts});
    let text = frame.to_string();
    match frame::decode(&text).request {
        Ok(frame::Request::Subscribe(subscribe)) => Ok((subscribe.options, subscribe.named)),
        Ok(_) => Err(Rejection::new(Code::BadRequest, "the options are not those of a subscription")),
        Err(invalid) => {
            let Rejection { code, msg, .. } = invalid.into();
            Err(Rejection::new(code, msg.strip_prefix("opts.").map_or(msg.clone(), str::to_owned)))
        }
    }
}

fn within(name: &str, value: u64, least: u64, most: u64) -> Result<u64, Rejection> {
    if (least..=most).contains(&value) {
        return Ok(value);
    }
    Err(Rejection::new(Code::BadRequest, format!("{name}: must be {least} to {most}, is {value}")))
}

/// The deliveries that an answer is about.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Acked {
    ids: Option<Vec<EventId>>,
    up_to: Option<EventId>,
    #[serde(default)]
    leases: Leases,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Nacked {
    ids: Vec<EventId>,
    reason: Option<String>,
    delay_ms: Option<u64>,
    #[serde(default)]
    release: bool,
    #[serde(default)]
    leases: Leases,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Extended {
    ids: Vec<EventId>,
    extend_ms: Option<u64>,
    #[serde(default)]
    leases: Leases,
}

type Leases = HashMap<EventId, u64>;

/// What became of an answer: how many count, and which do not.
#[derive(Serialize, Default)]
struct Answered {
    done: u64,
    lost: Vec<EventId>,
    unknown: Vec<EventId>,
}

/// Acks events, or one and all before it.
pub(super) async fn ack(
    State(hub): State<Arc<Hub>>,
    caller: Caller,
    path: Names,
    body: Body,
) -> Result<Response, Rejection> {
    let (selector, group) = named(&caller, path)?;
    let Acked { ids, up_to, leases } = parse_json(&read_body(body, hub.config.max_frame_bytes).await?)?;
    let answered = match (ids, up_to) {
        (Some(ids), None) => answer(&hub, &selector, &group, ids, &leases, Answer::Ack).await?,
        (None, Some(id)) => {
            let lease = leases.get(&id).copied();
            match hub.bus.ack_up_to(&selector, &group, id, lease).await {
                Ok(done) => Answered { done, ..Answered::default() },
                Err(error) if error.code == Code::LeaseLost => Answered { lost: vec![id], ..Answered::default() },
                Err(error) => return Err(error.into()),
            }
        }
        _ => return Err(Rejection::new(Code::BadRequest, "ids, upTo: exactly one of the two is needed")),
    };
    Ok(json_body(&answered))
}

/// Gives events back: they come again.
pub(super) async fn nack(
    State(hub): State<Arc<Hub>>,
    caller: Caller,
    path: Names,
    body: Body,
) -> Result<Response, Rejection> {
    let (selector, group) = named(&caller, path)?;
    let Nacked { ids, reason, delay_ms, release, leases } =
        parse_json(&read_body(body, hub.config.max_frame_bytes).await?)?;
    let most = u64::try_from(limits::MAX_LEASE.as_millis()).unwrap_or(u64::MAX);
    let delay = delay_ms.map(|delay| within("delayMs", delay, 0, most).map(Duration::from_millis)).transpose()?;
    let reason = reason.map(|mut reason| {
        reason.truncate(reason.floor_char_boundary(limits::MAX_REASON));
        reason
    });
    let nack = Answer::Nack { reason, delay, release };
    Ok(json_body(&answer(&hub, &selector, &group, ids, &leases, nack).await?))
}

/// Makes leases longer.
pub(super) async fn extend(
    State(hub): State<Arc<Hub>>,
    caller: Caller,
    path: Names,
    body: Body,
) -> Result<Response, Rejection> {
    let (selector, group) = named(&caller, path)?;
    let Extended { ids, extend_ms, leases } = parse_json(&read_body(body, hub.config.max_frame_bytes).await?)?;
    let by = hub.config.caps.extension(extend_ms.map(Duration::from_millis));
    Ok(json_body(&answer(&hub, &selector, &group, ids, &leases, Answer::Extend { by }).await?))
}

async fn answer(
    hub: &Hub,
    selector: &Selector,
    group: &Group,
    ids: Vec<EventId>,
    leases: &Leases,
    answer: Answer,
) -> Result<Answered, Rejection> {
    if ids.is_empty() || ids.len() > limits::MAX_BATCH {
        let message = format!("ids: must be 1 to {} ids, are {}", limits::MAX_BATCH, ids.len());
        return Err(Rejection::new(Code::BadRequest, message));
    }
    let strict = matches!(answer, Answer::Extend { .. });
    let ids: Vec<_> = ids.into_iter().map(|id| (id, leases.get(&id).copied())).collect();
    let receipts = hub.bus.answer(selector, group, &ids, answer).await?;
    let mut answered = Answered::default();
    for ((id, _), receipt) in ids.into_iter().zip(receipts) {
        match receipt {
            Receipt::LeaseLost => answered.lost.push(id),
            Receipt::NotInFlight | Receipt::Forbidden if strict => answered.unknown.push(id),
            Receipt::Done | Receipt::NotInFlight | Receipt::Forbidden => answered.done += 1,
        }
    }
    Ok(answered)
}
