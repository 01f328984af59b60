//! `GET /event` and `GET /causality`: one event, what led to it, and what followed from it.
//!
//! Upwards goes by id. Downwards, the events appended after it are read, at most [`SCANNED`] over all topics, and only
//! those that name a cause are kept. An event that the caller may not see is as good as not there; one that it may see and
//! not read (its rule names groups) is `forbidden` by its own id, and left out elsewhere.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use promethean_event::{Code, Event, EventId, Millis, Seq, Topic};
use promethean_store::{Place, ReadMax};
use serde::Serialize;

use super::topics;
use crate::Hub;
use crate::http::{Caller, Query, event_at, json_body, unreadable};
use crate::rejection::Rejection;

/// Most events looked at for what followed.
const SCANNED: usize = 100_000;

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
    let mut found = Found { limit, events: vec![root.clone()], missing: Vec::new(), complete: true };
    up(&hub, &caller, &root, &mut found).await?;
    down(&hub, &caller, &root, &mut found).await?;
    let Found { mut events, missing, complete, .. } = found;
    events.sort_by(|one, two| (one.appended, &one.topic, one.seq).cmp(&(two.appended, &two.topic, two.seq)));
    Ok(json_body(&Causality { id, events, missing, complete }))
}

struct Found {
    limit: usize,
    events: Vec<Event>,
    missing: Vec<EventId>,
    complete: bool,
}

impl Found {
    /// True if there is room for one more.
    fn room(&mut self) -> bool {
        self.complete &= self.events.len() < self.limit;
        self.events.len() < self.limit
    }
}

async fn up(hub: &Hub, caller: &Caller, root: &Event, found: &mut Found) -> Result<(), Rejection> {
    let mut seen = HashSet::from([root.id]);
    let mut queue: VecDeque<EventId> = root.fields().caused_by.into();
    while let Some(id) = queue.pop_front() {
        if !seen.insert(id) {
            continue;
        }
        if found.missing.len() + found.events.len() > 2 * found.limit || !found.room() {
            found.complete = false;
            break;
        }
        match find(hub, caller, id).await? {
            None => found.missing.push(id),
            Some(event) => {
                queue.extend(event.fields().caused_by);
                found.events.push(event);
            }
        }
    }
    Ok(())
}

async fn down(hub: &Hub, caller: &Caller, root: &Event, found: &mut Found) -> Result<(), Rejection> {
    let mut effects: HashMap<EventId, Vec<(Topic, Seq)>> = HashMap::new();
    let mut left = SCANNED;
    for topic in topics::visible(hub, caller).await?.into_iter().filter(|topic| caller.reads(topic)) {
        let mut next = if topic == root.topic { root.seq + 1 } else { first_since(hub, &topic, root.appended).await? };
        while left > 0 {
            let read = hub.bus.store().read(&topic, next, ReadMax::events(left.min(1_000))).await;
            let read = read.map_err(unreadable)?;
            let Some(last) = read.last() else { break };
            next = last.seq + 1;
            left -= read.len().min(left);
            for event in read.iter().filter(|event| contains(&event.body, b"\"caused_by\"")) {
                for cause in event.fields().caused_by {
                    effects.entry(cause).or_default().push((topic.clone(), event.seq));
                }
            }
        }
    }
    found.complete &= left > 0;
    let mut seen: HashSet<EventId> = found.events.iter().map(|event| event.id).collect();
    let mut queue = VecDeque::from([root.id]);
    while let Some(id) = queue.pop_front() {
        for (topic, seq) in effects.remove(&id).unwrap_or_default() {
            let Some(event) = event_at(hub, &topic, seq).await? else { continue };
            if !seen.insert(event.id) {
                continue;
            }
            if !found.room() {
                return Ok(());
            }
            queue.push_back(event.id);
            found.events.push(event);
        }
    }
    Ok(())
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

fn contains(bytes: &[u8], wanted: &[u8]) -> bool {
    bytes.windows(wanted.len()).any(|window| window == wanted)
}
