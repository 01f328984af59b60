//! `GET /event` and `GET /causality`: one event, what led to it, and what followed from it.
//!
//! Upwards goes by id. Downwards, the events appended after it are read, at most [`SCANNED`] steps and [`SCANNED_BYTES`] over
//! all topics, and only the causes that they name are kept. Both go by turns ([`Scan`]). An event that the caller may not see is as good as not there; one that it may see and
//! not read (its rule names groups) is `forbidden` by its own id, and left out elsewhere.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use promethean_event::{Code, Event, EventId, Millis, Seq, Topic};
use promethean_store::{Place, ReadMax};
use serde::Serialize;

use super::scan::{STEP, Scan};
use super::topics;
use crate::Hub;
use crate::http::{Caller, Query, event_at, json_body, unreadable};
use crate::rejection::Rejection;

/// Most steps downwards: an event that is read, a cause that is noted and a look at a topic are one each.
const SCANNED: usize = 100_000;
/// Most bytes of events that are read downwards.
const SCANNED_BYTES: usize = 256 * 1024 * 1024;

#[derive(Serialize)]
struct Causality {
    id: EventId,
    events: Vec<Event>,
    missing: Vec<EventId>,
    complete: bool,
}

pub(super) async fn event(State(hub): State<Arc<Hub>>, caller: Caller, query: Query) -> Result<Response, Rejection> {
    let id = required_id(&query)?;
    required(&hub, &caller, id).await.map(|event| json_body(&event))
}

fn required_id(query: &Query) -> Result<EventId, Rejection> {
    query.id("id")?.ok_or_else(|| Rejection::new(Code::BadRequest, "id required"))
}

fn unknown() -> Rejection {
    Rejection::new(Code::UnknownId, "no event has this id")
}

/// The event that the request is about.
async fn required(hub: &Hub, caller: &Caller, id: EventId) -> Result<Event, Rejection> {
    let place = locate(hub, id).await?.filter(|place| caller.sees(&place.topic)).ok_or_else(unknown)?;
    caller.must_read(&place.topic)?;
    event_at(hub, &place.topic, place.seq).await?.ok_or_else(unknown)
}

/// An event beside it; `None` also if its payload may not be shown.
async fn find(hub: &Hub, caller: &Caller, id: EventId) -> Result<Option<Event>, Rejection> {
    match locate(hub, id).await?.filter(|place| caller.reads(&place.topic)) {
        None => Ok(None),
        Some(place) => event_at(hub, &place.topic, place.seq).await,
    }
}

async fn locate(hub: &Hub, id: EventId) -> Result<Option<Place>, Rejection> {
    Ok(hub.bus.store().locate(&[id]).await.map_err(unreadable)?.pop().flatten())
}

pub(super) async fn causality(
    State(hub): State<Arc<Hub>>,
    caller: Caller,
    query: Query,
) -> Result<Response, Rejection> {
    let id = required_id(&query)?;
    let limit = query.limit(200, 1_000)?;
    let root = required(&hub, &caller, id).await?;
    let mut scan = Scan::begin().await;
    let room = hub.config.max_frame_bytes.saturating_sub(root.wire_len());
    let mut found = Found { limit, room, events: vec![root.clone()], missing: Vec::new(), complete: true };
    up(&hub, &caller, &root, &mut found, &mut scan).await?;
    down(&hub, &caller, &root, &mut found, &mut scan).await?;
    let Found { mut events, missing, complete, .. } = found;
    events.sort_by(|one, two| (one.appended, &one.topic, one.seq).cmp(&(two.appended, &two.topic, two.seq)));
    Ok(json_body(&Causality { id, events, missing, complete }))
}

struct Found {
    limit: usize,
    /// Bytes that the events may still have.
    room: usize,
    events: Vec<Event>,
    missing: Vec<EventId>,
    complete: bool,
}

impl Found {
    /// Adds an event; false: it is one too many.
    fn add(&mut self, event: Event) -> bool {
        let fits = self.events.len() < self.limit && event.wire_len() <= self.room;
        self.complete &= fits;
        if fits {
            self.room -= event.wire_len();
            self.events.push(event);
        }
        fits
    }
}

async fn up(hub: &Hub, caller: &Caller, root: &Event, found: &mut Found, scan: &mut Scan) -> Result<(), Rejection> {
    let mut seen = HashSet::from([root.id]);
    let mut queue: VecDeque<EventId> = root.fields().caused_by.into();
    while let Some(id) = queue.pop_front() {
        if !seen.insert(id) {
            continue;
        }
        if found.missing.len() + found.events.len() > 2 * found.limit {
            found.complete = false;
            break;
        }
        match find(hub, caller, id).await? {
            None => found.missing.push(id),
            Some(event) => {
                queue.extend(event.fields().caused_by);
                if !found.add(event) {
                    break;
                }
            }
        }
        scan.rest(hub).await?;
    }
    Ok(())
}

async fn down(hub: &Hub, caller: &Caller, root: &Event, found: &mut Found, scan: &mut Scan) -> Result<(), Rejection> {
    let mut effects = Effects { of: HashMap::new(), left: SCANNED, bytes: SCANNED_BYTES };
    for topic in topics::visible(hub, caller).await?.into_iter().filter(|topic| caller.reads(topic)) {
        let next = if topic == root.topic { root.seq + 1 } else { first_since(hub, &topic, root.appended).await? };
        effects.note(hub, &topic, next, scan).await?;
        if effects.is_spent() {
            found.complete = false;
            break;
        }
    }
    let mut seen: HashSet<EventId> = found.events.iter().map(|event| event.id).collect();
    let mut queue = VecDeque::from([root.id]);
    while let Some(id) = queue.pop_front() {
        for (topic, seq) in effects.of.remove(&id).unwrap_or_default() {
            scan.rest(hub).await?;
            let Some(event) = event_at(hub, &topic, seq).await? else { continue };
            if !seen.insert(event.id) {
                continue;
            }
            queue.push_back(event.id);
            if !found.add(event) {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// The places of events by the causes that they name.
struct Effects {
    of: HashMap<EventId, Vec<(Topic, Seq)>>,
    /// Steps and bytes that may still be read.
    left: usize,
    bytes: usize,
}

impl Effects {
    fn is_spent(&self) -> bool {
        self.left == 0 || self.bytes == 0
    }

    /// Notes the causes of the topic's events from `next` on.
    async fn note(&mut self, hub: &Hub, topic: &Topic, mut next: Seq, scan: &mut Scan) -> Result<(), Rejection> {
        self.left = self.left.saturating_sub(1);
        while !self.is_spent() {
            let most = ReadMax { events: self.left.min(STEP.events), ..STEP };
            let read = hub.bus.store().read(topic, next, most).await.map_err(unreadable)?;
            let Some(last) = read.last() else { break };
            next = last.seq + 1;
            for event in &read {
                self.left = self.left.saturating_sub(1);
                self.bytes = self.bytes.saturating_sub(event.body.len());
                if names_a_cause(event) {
                    self.note_causes(event);
                }
            }
            scan.rest(hub).await?;
        }
        scan.rest(hub).await
    }

    fn note_causes(&mut self, event: &Event) {
        for cause in event.fields().caused_by {
            self.left = self.left.saturating_sub(1);
            self.of.entry(cause).or_default().push((event.topic.clone(), event.seq));
        }
    }
}

/// The first seq of `topic` that was appended at `since` or later. Seqs are in the order of their append.
async fn first_since(hub: &Hub, topic: &Topic, since: Millis) -> Result<Seq, Rejection> {
    let store = hub.bus.store();
    let Some(info) = store.info(topic).await.map_err(unreadable)? else { return Ok(1) };
    let (mut low, mut high) = (info.first_seq, info.last_seq + 1);
    while low < high {
        let middle = low + (high - low) / 2;
        let read = store.read(topic, middle, ReadMax::events(1)).await.map_err(unreadable)?;
        match read.first() {
            Some(event) if event.appended < since => low = event.seq + 1,
            _ => high = middle,
        }
    }
    Ok(low)
}

/// True if the event may have causes. The payload is the last member, and is not looked at.
fn names_a_cause(event: &Event) -> bool {
    const NAME: &[u8] = br#""caused_by""#;
    let head = &event.body[..event.body.len().saturating_sub(event.payload().len())];
    head.windows(NAME.len()).any(|window| window == NAME)
}
