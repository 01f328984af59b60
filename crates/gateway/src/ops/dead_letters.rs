//! `GET /dlq` and `POST /dlq/redrive`: dead letters of a topic, and redriving them.
//!
//! `topic` is always the original's name. A letter is redriven when it lies at or below the place of the hub's own group
//! on the dead-letter topic, or is done above it. Somebody else's event on a dead-letter topic is shown as what it is.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use promethean_bus::{Envelope, Letters, REDRIVE_GROUP, RedriveTo};
use promethean_event::{Code, Event, EventId, Group, Millis, Seq, Topic};
use promethean_store::{GroupState, ReadMax, TopicInfo};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::dead_counts::{Tally, counted};
use super::scan::Scan;
use crate::Hub;
use crate::auth::Action;
use crate::http::{Caller, Changer, Query, SMALL, json_body, parse_json, read_body, unreadable};
use crate::rejection::Rejection;

const DEFAULT: usize = 100;
const MOST: usize = 1_000;
/// Groups, and reasons, that are listed; the others together as [`OTHER`].
const KINDS: usize = 100;
const OTHER: &str = "_other";

#[derive(Serialize)]
struct TopicRow {
    topic: Topic,
    letters: u64,
    #[serde(rename = "lastTs", skip_serializing_if = "Option::is_none")]
    last_ts: Option<Millis>,
    #[serde(flatten)]
    groups: Option<ByGroup>,
}

/// Letters by group.
#[derive(Serialize)]
struct ByGroup {
    groups: Vec<GroupRow>,
    /// How many of the letters are no dead letters.
    #[serde(skip_serializing_if = "is_zero")]
    foreign: u64,
    /// How many letters were counted, where not all were.
    #[serde(skip_serializing_if = "Option::is_none")]
    counted: Option<u64>,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

#[derive(Serialize)]
struct GroupRow {
    group: String,
    letters: u64,
}

#[derive(Serialize)]
struct TopicRows {
    topics: Vec<TopicRow>,
}

#[derive(Serialize)]
struct Entry {
    id: EventId,
    seq: Seq,
    ts: Millis,
    group: String,
    err: String,
    attempts: u64,
    redriven: bool,
    /// No dead letter: `original` is the event itself.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    foreign: bool,
    original: Box<RawValue>,
}

#[derive(Serialize)]
struct Reason {
    err: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<String>,
    count: u64,
}

#[derive(Serialize)]
struct Listed {
    topic: Topic,
    letters: u64,
    #[serde(flatten)]
    groups: ByGroup,
    reasons: Vec<Reason>,
    entries: Vec<Entry>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<EventId>,
}

/// A dead-letter topic and what of it was sent back.
pub(super) struct Dead {
    pub(super) info: TopicInfo,
    pub(super) state: GroupState,
}

impl Dead {
    async fn load(hub: &Hub, letters: &Topic) -> Result<Option<Self>, Rejection> {
        let store = hub.bus.store();
        let Some(info) = store.info(letters).await.map_err(unreadable)? else { return Ok(None) };
        let state = store.load(letters, &Group::parse(REDRIVE_GROUP)?).await.map_err(unreadable)?;
        Ok(Some(Self { info, state: state.map(|(state, _)| state).unwrap_or_default() }))
    }

    /// Letters that are there and were not sent back.
    fn left(&self) -> u64 {
        self.state.lag(&self.info)
    }

    pub(super) fn is_redriven(&self, seq: Seq) -> bool {
        seq <= self.state.floor || self.state.done.contains(seq)
    }
}

/// A dead-letter topic is named by its origin.
fn origin(topic: Topic) -> Result<Topic, Rejection> {
    match topic.as_str().strip_prefix("dlq.").filter(|_| topic.is_dead_letter()) {
        None => Ok(topic),
        Some(origin) => {
            let message = format!("topic: name the topic whose events they were, without dlq.: {origin}");
            Err(Rejection::new(Code::BadRequest, message))
        }
    }
}

/// True if the caller may see the letters of `topic`, which have its payloads.
fn sees(caller: &Caller, topic: &Topic) -> bool {
    caller.reads(&topic.dead_letter()) || caller.identity.policy.allows(Action::Admin, topic, None)
}

pub(super) async fn dead_letters(
    State(hub): State<Arc<Hub>>,
    caller: Caller,
    query: Query,
) -> Result<Response, Rejection> {
    let Some(text) = query.one("topic")? else { return topics(&hub, &caller, query.flag("groups", false)?).await };
    let topic = origin(Topic::parse(text)?)?;
    if !sees(&caller, &topic) {
        return Err(Rejection::forbidden(Action::Subscribe, topic.dead_letter().as_str()));
    }
    let (after, limit) = (query.id("after")?, query.limit(DEFAULT, MOST)?);
    let letters = topic.dead_letter();
    let Some(dead) = Dead::load(&hub, &letters).await? else {
        let (groups, reasons, entries) = (by_group(&Tally::default(), 0), Vec::new(), Vec::new());
        return Ok(json_body(&Listed { topic, letters: 0, groups, reasons, entries, next: None }));
    };
    let before = match after {
        None => dead.info.last_seq + 1,
        Some(id) => {
            let place = hub.bus.store().locate(&[id]).await.map_err(unreadable)?.pop().flatten();
            let place = place.filter(|place| place.topic == letters);
            place.ok_or_else(|| Rejection::new(Code::UnknownId, format!("after: no letter has the id {id}")))?.seq
        }
    };
    let (events, more) = newest(&hub, &letters, &dead, before, limit).await?;
    let next = events.last().filter(|_| more).map(|event| event.id);
    let entries = events.iter().map(|event| entry(event, &dead)).collect::<Result<_, _>>()?;
    let tally = counted(&hub, &letters, &dead).await?;
    let (groups, reasons) = (by_group(&tally, dead.left()), by_reason(&tally));
    Ok(json_body(&Listed { topic, letters: dead.left(), groups, reasons, entries, next }))
}

async fn topics(hub: &Hub, caller: &Caller, with_groups: bool) -> Result<Response, Rejection> {
    let mut topics = Vec::new();
    for letters in hub.bus.store().topics().await.map_err(unreadable)? {
        let original = letters.as_str().strip_prefix("dlq.").and_then(|name| Topic::parse(name).ok());
        let Some(topic) = original.filter(|topic| letters.is_dead_letter() && sees(caller, topic)) else { continue };
        let Some(dead) = Dead::load(hub, &letters).await? else { continue };
        if dead.left() > 0 {
            let groups = match with_groups {
                true => Some(by_group(&counted(hub, &letters, &dead).await?, dead.left())),
                false => None,
            };
            topics.push(TopicRow { topic, letters: dead.left(), last_ts: dead.info.last.map(|(_, ts)| ts), groups });
        }
    }
    Ok(json_body(&TopicRows { topics }))
}

/// The letters before the seq `before`, newest first, at most `limit`, about a frame's worth; and whether there are more.
async fn newest(
    hub: &Hub,
    letters: &Topic,
    dead: &Dead,
    before: Seq,
    limit: usize,
) -> Result<(Vec<Event>, bool), Rejection> {
    let (mut events, mut end, mut bytes) = (Vec::new(), before, 0);
    let mut turn = Scan::begin().await;
    while events.len() < limit && end > dead.info.first_seq && bytes < hub.config.max_frame_bytes {
        // A window at a time: the log is read upwards, the page goes downwards.
        let wanted = (limit - events.len()).min(50) as u64;
        let start = end.saturating_sub(wanted).max(dead.info.first_seq);
        let window = window(hub, letters, start, end).await?;
        bytes += window.iter().map(|event| event.body.len()).sum::<usize>();
        events.extend(window.into_iter().rev());
        end = start;
        turn.rest(hub).await?;
    }
    Ok((events, end > dead.info.first_seq))
}

/// All letters from `start` to before `end`.
async fn window(hub: &Hub, letters: &Topic, start: Seq, end: Seq) -> Result<Vec<Event>, Rejection> {
    let (mut events, mut next) = (Vec::new(), start);
    while next < end {
        let max = ReadMax::events(usize::try_from(end - next).unwrap_or(usize::MAX));
        let read = hub.bus.store().read(letters, next, max).await.map_err(unreadable)?;
        let Some(last) = read.last() else { break };
        next = last.seq + 1;
        events.extend(read.into_iter().filter(|event| event.seq < end));
    }
    Ok(events)
}

fn entry(event: &Event, dead: &Dead) -> Result<Entry, Rejection> {
    let (id, seq, ts, redriven) = (event.id, event.seq, event.ts, dead.is_redriven(event.seq));
    let letter = event.payload_as::<Envelope<'_>>().ok();
    Ok(match letter.filter(Envelope::has_event) {
        Some(letter) => Entry {
            id,
            seq,
            ts,
            group: letter.group.unwrap_or_default().into_owned(),
            err: letter.err.unwrap_or_default().into_owned(),
            attempts: letter.attempts,
            redriven,
            foreign: false,
            original: letter.original.to_owned(),
        },
        None => {
            let unreadable = |error: serde_json::Error| Rejection::new(Code::AckFailed, error.to_string());
            let err = format!("no dead letter: somebody published it to {}", event.topic);
            let original = RawValue::from_string(event.to_json()).map_err(unreadable)?;
            Entry { id, seq, ts, group: String::new(), err, attempts: 0, redriven, foreign: true, original }
        }
    })
}

fn by_group(tally: &Tally, letters: u64) -> ByGroup {
    let (rows, others) = tally.groups(KINDS);
    let others = (others > 0).then_some((OTHER, others));
    let row = |(group, letters): (&str, u64)| GroupRow { group: group.to_owned(), letters };
    ByGroup {
        groups: rows.into_iter().chain(others).map(row).collect(),
        foreign: tally.foreign,
        counted: (tally.counted < letters).then_some(tally.counted),
    }
}

fn by_reason(tally: &Tally) -> Vec<Reason> {
    let (rows, others) = tally.reasons(KINDS);
    let row = |((err, group), count): ((&str, &str), u64)| Reason {
        err: err.to_owned(),
        group: Some(group.to_owned()),
        count,
    };
    let others = (others > 0).then(|| Reason { err: OTHER.to_owned(), group: None, count: others });
    rows.into_iter().map(row).chain(others).collect()
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Asked {
    limit: Option<u64>,
    group: Option<String>,
    err: Option<String>,
    err_contains: Option<String>,
    key: Option<String>,
    since: Option<Millis>,
    until: Option<Millis>,
    ids: Option<Vec<String>>,
    to: Option<To>,
    #[serde(default)]
    dry_run: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
enum To {
    Group,
    Topic,
}

impl Asked {
    /// Reads a body. A selection that is `null` is none that was meant: it would select everything.
    fn parse(body: &[u8]) -> Result<Self, Rejection> {
        if body.is_empty() {
            return Ok(Self::default());
        }
        let fields: Map<String, Value> = parse_json(body)?;
        if let Some((name, _)) = fields.iter().find(|(name, value)| value.is_null() && *name != "limit") {
            return Err(Rejection::new(Code::BadRequest, format!("{name}: is null; {LEAVE_OUT}")));
        }
        let wrong = |error| Rejection::new(Code::BadRequest, format!("the body: {error}"));
        serde_json::from_value(Value::Object(fields)).map_err(wrong)
    }

    /// What is asked for; an empty selection, which is a mistake of whoever filled it in, is refused.
    fn wanted(self) -> Result<Letters, Rejection> {
        let texts =
            [("group", &self.group), ("err", &self.err), ("errContains", &self.err_contains), ("key", &self.key)];
        if let Some((name, _)) = texts.iter().find(|(_, text)| text.as_deref() == Some("")) {
            return Err(Rejection::new(Code::BadRequest, format!("{name}: is empty; {LEAVE_OUT}")));
        }
        if self.ids.as_ref().is_some_and(Vec::is_empty) {
            return Err(Rejection::new(Code::BadRequest, format!("ids: name at least one; {LEAVE_OUT}")));
        }
        let ids = self.ids.unwrap_or_default().iter().map(|text| EventId::parse(text)).collect::<Result<_, _>>();
        Ok(Letters {
            to: match self.to {
                None | Some(To::Group) => RedriveTo::Group,
                Some(To::Topic) => RedriveTo::Topic,
            },
            dry_run: self.dry_run,
            group: self.group,
            err: self.err,
            err_contains: self.err_contains,
            key: self.key,
            since: self.since,
            until: self.until,
            ids: ids.map_err(|invalid| promethean_event::Invalid { field: "ids".to_owned(), ..invalid })?,
        })
    }
}

const LEAVE_OUT: &str = "without any selection, all letters are redriven";

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Redriven {
    redriven: u64,
    remaining: u64,
    /// Letters whose event has left the log.
    gone: u64,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    dry_run: bool,
    /// Letters that the group or the topic does not take.
    #[serde(skip_serializing_if = "is_zero")]
    refused: u64,
    /// The first of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    refusals: Vec<Refusal>,
}

#[derive(Serialize)]
struct Refusal {
    id: EventId,
    code: &'static str,
    error: String,
}

pub(super) async fn redrive(
    State(hub): State<Arc<Hub>>,
    Changer { topic, caller }: Changer,
    query: Query,
    body: Body,
) -> Result<Response, Rejection> {
    let mut asked = Asked::parse(&read_body(body, SMALL).await?)?;
    if asked.limit == Some(0) {
        return Err(Rejection::new(Code::BadRequest, "limit: must be at least 1"));
    }
    asked.dry_run |= query.flag("dryRun", false)?;
    let topic = origin(topic)?;
    let (limit, dry_run) = (asked.limit.unwrap_or(u64::MAX), asked.dry_run);
    let done = hub.bus.redrive(&topic, limit, &asked.wanted()?).await?;
    if dry_run {
        caller.audit.changes_nothing();
    } else {
        tracing::info!(%topic, letters = done.redriven, refused = done.refused, sub = caller.identity.sub, "dead letters were redriven");
    }
    let refusal =
        |(id, error): (EventId, promethean_bus::Error)| Refusal { id, code: error.code.as_str(), error: error.message };
    let refusals = done.refusals.into_iter().map(refusal).collect();
    let promethean_bus::Redriven { redriven, remaining, gone, refused, .. } = done;
    Ok(json_body(&Redriven { redriven, remaining, gone, dry_run, refused, refusals }))
}
