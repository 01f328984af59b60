//! Appending: group commit by topic, one transaction a batch.
//!
//! ```text
//!   append a ─┐
//!   append a ─┼─► queue of a ──► transaction: insert at N+1 … N+k, then counters {a, next: N} → N+k, commit
//!   append a ─┘       everything that waits goes in one; the next batch gathers meanwhile
//! ```
//!
//! The counter is written in every transaction of its topic, so that two hubs' transactions conflict: commit order is
//! seq order, readers see a prefix. A conflict, or a seq that another hub was faster with: number anew and retry.
//!
//! Ids that are there already are found by the unique index, not by a question before: only then is it looked where.
//!
//! An answer is given only when the outcome is known. A commit whose answer was lost is asked for again; then the
//! events are looked for by id and batch. Ids are unique, so that an attempt that did commit after all makes the next
//! one fail and be found. What is not known when the time is over is said to be unknown.
//!
//! A call over several topics is a part in the queue of each, and each part has an answer of its own.
//!
//! The time is one for everything, from the call on: waiting in the queue, attempts, questions in between.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use foldhash::fast::RandomState;
use mongodb::ClientSession;
use mongodb::bson::{Document, RawDocumentBuf, doc};
use mongodb::error::{Error as Fault, TRANSIENT_TRANSACTION_ERROR, UNKNOWN_TRANSACTION_COMMIT_RESULT};
use mongodb::options::ReadConcern;
use parking_lot::Mutex;
use promethean_event::{EventId, IdOrigin, NewEvent, Seq, Topic};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::document::{encode, number, signed, unsigned, wire_bytes};
use super::fault::{OPERATION, REQUEST, before, code, is_away, is_duplicate, left, nonce, pause, within, words};
use super::plan::{Item, Plan, Taken};
use super::{COUNTERS, EVENTS, Shared, transaction};
use crate::{Error, Outcome, Result};

/// Most events and bytes in one transaction.
const BATCH_EVENTS: usize = 5_000;
const BATCH_BYTES: usize = 8 << 20;
/// Bytes that may wait, in KiB; over it, publishers wait.
const QUEUE_KIB: usize = 64 << 10;
/// Transactions at once, over all topics.
const PARALLEL: usize = 8;

/// What one call of `append` brought for one transaction.
struct Part {
    /// `None`: topics that belong together.
    topic: Option<Topic>,
    items: Vec<Item>,
    documents: Vec<RawDocumentBuf>,
    bytes: usize,
}

/// A part that waits.
struct Job {
    part: Part,
    /// Waiting counts: of several batches in a row none waits anew for a MongoDB that is away.
    since: Instant,
    reply: oneshot::Sender<Result<Vec<Outcome>>>,
    /// The whole call's, given back with the last of its parts.
    _room: Arc<OwnedSemaphorePermit>,
}

/// What waits for a topic's next transaction. `None`: calls whose topics belong together.
type Queues = HashMap<Option<Topic>, VecDeque<Job>, RandomState>;

pub(super) struct Appends {
    /// A queue is there as long as its worker runs.
    queues: Mutex<Queues>,
    room: Arc<Semaphore>,
    parallel: Semaphore,
}

impl Appends {
    pub(super) fn new() -> Self {
        Self { queues: Mutex::default(), room: Arc::new(Semaphore::new(QUEUE_KIB)), parallel: Semaphore::new(PARALLEL) }
    }

    /// Waits until everything that was accepted is answered.
    pub(super) async fn drained(&self) {
        let all = u32::try_from(QUEUE_KIB).unwrap_or(u32::MAX);
        let _ = self.room.acquire_many(all).await;
    }
}

/// Appends events of any topics, and answers for each in the same order.
pub(super) async fn append(shared: &Arc<Shared>, mut events: Vec<NewEvent>) -> Result<Vec<Outcome>> {
    shared.open()?;
    for event in &mut events {
        event.appended = shared.clock.at(event.appended);
    }
    if events.is_empty() {
        return Ok(Vec::new());
    }
    let single = events.iter().all(|event| event.topic == events[0].topic);
    if single || is_one(&events) {
        let topic = single.then(|| events[0].topic.clone());
        let waiting = enqueue(shared, vec![Part::new(topic, events)?]).await?.pop();
        return answer(waiting).await;
    }
    append_by_topic(shared, events).await
}

/// True if a call's topics have to go in one transaction: a unit spans them, or an id comes on two of them and the
/// first has to win.
fn is_one(events: &[NewEvent]) -> bool {
    let spans = |unit: &[NewEvent]| unit.iter().any(|event| event.topic != unit[0].topic);
    if events.chunk_by(|one, next| one.unit == next.unit).any(spans) {
        return true;
    }
    let mut topics = HashMap::new();
    let mut brought = events.iter().filter(|event| event.origin == IdOrigin::Client);
    brought.any(|event| *topics.entry(event.id).or_insert(&event.topic) != &event.topic)
}

/// Several topics, each in a transaction of its own and with an answer of its own.
async fn append_by_topic(shared: &Arc<Shared>, events: Vec<NewEvent>) -> Result<Vec<Outcome>> {
    let count = events.len();
    let mut topics: HashMap<Topic, (Vec<usize>, Vec<NewEvent>), RandomState> = HashMap::default();
    for (index, event) in events.into_iter().enumerate() {
        let (places, part) = topics.entry(event.topic.clone()).or_default();
        places.push(index);
        part.push(event);
    }
    let mut outcomes = vec![None; count];
    let mut tell = |places: Vec<usize>, told: Result<Vec<Outcome>>| {
        let told = told.unwrap_or_else(|error| vec![Outcome::Failed(error); places.len()]);
        places.into_iter().zip(told).for_each(|(place, outcome)| outcomes[place] = Some(outcome));
    };
    let (mut asked, mut parts) = (Vec::with_capacity(topics.len()), Vec::with_capacity(topics.len()));
    for (topic, (places, part)) in topics {
        match Part::new(Some(topic), part) {
            Ok(part) => {
                asked.push(places);
                parts.push(part);
            }
            Err(error) => tell(places, Err(error)),
        }
    }
    for (places, waiting) in asked.into_iter().zip(enqueue(shared, parts).await?) {
        tell(places, answer(Some(waiting)).await);
    }
    Ok(outcomes.into_iter().flatten().collect())
}

type Waiting = oneshot::Receiver<Result<Vec<Outcome>>>;

async fn answer(waiting: Option<Waiting>) -> Result<Vec<Outcome>> {
    let ended = || Error::Unknown("the hub ended before MongoDB had answered".to_owned());
    waiting.ok_or_else(ended)?.await.unwrap_or_else(|_| Err(ended()))
}

impl Part {
    fn new(topic: Option<Topic>, events: Vec<NewEvent>) -> Result<Self> {
        let mut documents = Vec::with_capacity(events.len());
        for event in &events {
            let too_large =
                || Error::Refused(format!("the event {} is larger than a document of MongoDB may be", event.id));
            documents.push(encode(event).ok_or_else(too_large)?);
        }
        let bytes = documents.iter().map(|document| document.as_bytes().len()).sum();
        Ok(Self { topic, items: events.into_iter().map(item).collect(), documents, bytes })
    }
}

/// Puts the parts of a call into their queues, and starts the worker of a queue where none runs.
///
/// The room is taken once and for all of them, and then nothing is waited for: of two calls, the one that came first is
/// first in every queue.
async fn enqueue(shared: &Arc<Shared>, parts: Vec<Part>) -> Result<Vec<Waiting>> {
    let since = Instant::now();
    let bytes = parts.iter().map(|part| part.bytes).sum::<usize>();
    let kib = u32::try_from((bytes >> 10) + parts.len()).unwrap_or(u32::MAX).min(QUEUE_KIB as u32);
    let room = Arc::clone(&shared.appends.room).acquire_many_owned(kib).await;
    let room = Arc::new(room.map_err(|_| Error::Closed("the hub is shutting down".to_owned()))?);
    shared.open()?;
    let mut queues = shared.appends.queues.lock();
    let enqueue = |part: Part| {
        let (reply, waiting) = oneshot::channel();
        let topic = part.topic.clone();
        let job = Job { part, since, reply, _room: Arc::clone(&room) };
        match queues.get_mut(&topic) {
            Some(queue) => queue.push_back(job),
            None => {
                queues.insert(topic.clone(), VecDeque::from([job]));
                tokio::spawn(work(Arc::clone(shared), topic));
            }
        }
        waiting
    };
    Ok(parts.into_iter().map(enqueue).collect())
}

fn item(event: NewEvent) -> Item {
    let bytes = wire_bytes(&event);
    Item { id: event.id, origin: event.origin, topic: event.topic, unit: event.unit, ts: event.ts, bytes }
}

/// Takes what waits, batch by batch, until nothing does.
async fn work(shared: Arc<Shared>, topic: Option<Topic>) {
    loop {
        let Ok(_turn) = shared.appends.parallel.acquire().await else { return };
        let Some(batch) = take(&mut shared.appends.queues.lock(), &topic) else { return };
        commit(&shared, batch).await;
    }
}

/// Whole calls, as many as fit; the queue goes when it is empty.
fn take(queues: &mut Queues, topic: &Option<Topic>) -> Option<Vec<Job>> {
    let queue = queues.get_mut(topic)?;
    let (mut events, mut bytes, mut batch) = (0, 0, Vec::new());
    while let Some(job) = queue.front() {
        events += job.part.items.len();
        bytes += job.part.bytes;
        if !batch.is_empty() && (events > BATCH_EVENTS || bytes > BATCH_BYTES) {
            break;
        }
        batch.extend(queue.pop_front());
    }
    if batch.is_empty() {
        queues.remove(topic);
        return None;
    }
    Some(batch)
}

async fn commit(shared: &Arc<Shared>, jobs: Vec<Job>) {
    let (mut calls, mut documents, mut replies) = (Vec::new(), Vec::new(), Vec::new());
    let since = jobs.first().map_or_else(Instant::now, |job| job.since);
    for job in jobs {
        calls.push(job.part.items);
        documents.push(job.part.documents.into_iter().map(Some).collect::<Vec<_>>());
        replies.push((job.reply, job._room));
    }
    let ended = Batch::new(shared, calls, documents, since).run().await;
    match ended {
        Ok(plan) => {
            for growth in &plan.growth {
                shared.tails.announce(&growth.topic, growth.to);
            }
            replies.into_iter().zip(plan.outcomes).for_each(|((reply, _), outcomes)| drop(reply.send(Ok(outcomes))));
        }
        Err(error) => replies.into_iter().for_each(|(reply, _)| drop(reply.send(Err(error.clone())))),
    }
}

/// One batch on its way.
struct Batch<'a> {
    shared: &'a Shared,
    id: [u8; 16],
    calls: Vec<Vec<Item>>,
    documents: Vec<Vec<Option<RawDocumentBuf>>>,
    taken: HashMap<EventId, Taken>,
    /// Where topics end, as last heard.
    ends: HashMap<Topic, Seq>,
    /// Attempts that may have been committed.
    open: Vec<Plan>,
    /// When the time of the first call of it is over.
    end: Instant,
}

/// How an attempt ended.
enum Attempt {
    Committed,
    /// Nothing was stored: somebody else was faster, or the moment was bad.
    Again(Fault),
    /// Nothing was stored: an id is there already.
    Taken(Fault),
    /// The commit was sent, and there is no answer.
    Open(Fault),
    /// Nothing was stored, and no attempt will fare better.
    Never(Fault),
}

impl<'a> Batch<'a> {
    fn new(
        shared: &'a Shared,
        calls: Vec<Vec<Item>>,
        documents: Vec<Vec<Option<RawDocumentBuf>>>,
        began: Instant,
    ) -> Self {
        let mut ends = HashMap::new();
        for item in calls.iter().flatten() {
            if !ends.contains_key(&item.topic) {
                ends.insert(item.topic.clone(), shared.tails.end(&item.topic));
            }
        }
        let (taken, open) = (HashMap::new(), Vec::new());
        Self { shared, id: nonce(), calls, documents, taken, ends, open, end: began + OPERATION }
    }

    async fn run(mut self) -> Result<Plan> {
        for round in 0.. {
            let plan = Plan::new(&self.calls, &self.taken, |topic| self.ends.get(topic).copied().unwrap_or(0));
            if plan.inserts.is_empty() {
                return Ok(plan);
            }
            let fault = match self.attempt(&plan).await {
                Attempt::Committed => return Ok(plan),
                Attempt::Never(fault) => return Err(self.given_up(&fault)),
                Attempt::Taken(fault) => {
                    let known = self.taken.len();
                    match self.look_up().await {
                        Ok(Some(found)) => return Ok(found),
                        Ok(None) => {}
                        Err(fault) => return Err(self.given_up(&fault)),
                    }
                    if self.taken.len() > known {
                        continue;
                    }
                    fault
                }
                Attempt::Open(fault) => {
                    self.open.push(plan);
                    if let Ok(Some(found)) = self.look_up().await {
                        return Ok(found);
                    }
                    fault
                }
                Attempt::Again(fault) => fault,
            };
            if self.is_late() {
                return Err(self.given_up(&fault));
            }
            pause(round).await;
            if let Err(fault) = self.refresh().await {
                return Err(self.given_up(&fault));
            }
        }
        unreachable!("the loop ends by an answer or the time limit")
    }

    fn is_late(&self) -> bool {
        left(self.end).is_zero()
    }

    fn given_up(&self, fault: &Fault) -> Error {
        let why = words(fault);
        if self.open.is_empty() {
            Error::Refused(format!("MongoDB did not take it, nothing was stored: {why}"))
        } else {
            let limit = OPERATION.as_secs();
            Error::Unknown(format!("MongoDB did not say within {limit} s whether it was stored: {why}"))
        }
    }

    async fn attempt(&mut self, plan: &Plan) -> Attempt {
        for (call, index, seq) in &plan.inserts {
            let place = &mut self.documents[*call][*index];
            *place = place.take().and_then(|document| number(document, *seq, &self.id));
        }
        let documents = plan.inserts.iter().filter_map(|(call, index, _)| self.documents[*call][*index].as_ref());
        let documents: Vec<_> = documents.collect();
        if documents.len() != plan.inserts.len() {
            return Attempt::Never(Fault::custom("an event could not be numbered: this is a bug".to_owned()));
        }
        if self.is_late() {
            return Attempt::Again(Fault::custom(format!("it waited {} s for its turn", OPERATION.as_secs())));
        }
        // Given up before its commit, a transaction is ended by the driver.
        match within(left(self.end), transaction::write(self.shared, documents, &plan.growth)).await {
            Ok(Some(_)) if self.is_late() => {
                Attempt::Again(Fault::custom("the time was over before the commit".to_owned()))
            }
            Ok(Some(mut session)) => self.finish(&mut session).await,
            Ok(None) => Attempt::Again(Fault::custom("another hub appends to the topic at the same time".to_owned())),
            Err(fault) => sort(fault),
        }
    }

    async fn finish(&self, session: &mut ClientSession) -> Attempt {
        for round in 0.. {
            match within(left(self.end).min(REQUEST), session.commit_transaction()).await {
                Ok(()) => {
                    self.shared.heard(session);
                    return Attempt::Committed;
                }
                // The first answer to a commit is the truth; a later one speaks of a commit whose answer was lost.
                Err(fault) if fault.contains_label(TRANSIENT_TRANSACTION_ERROR) => {
                    return if round == 0 { Attempt::Again(fault) } else { Attempt::Open(fault) };
                }
                Err(fault) => {
                    let ask_again = fault.contains_label(UNKNOWN_TRANSACTION_COMMIT_RESULT) || is_away(&fault);
                    if !ask_again || round >= 8 || self.is_late() {
                        return Attempt::Open(fault);
                    }
                }
            }
            pause(round + 3).await;
        }
        unreachable!("the loop ends by an answer or the rounds")
    }

    /// Looks where the ids are, as a majority has it; what of them is this batch's own is an attempt that was committed.
    async fn look_up(&mut self) -> mongodb::error::Result<Option<Plan>> {
        let ids: Vec<String> = self.calls.iter().flatten().map(|item| item.id.to_string()).collect();
        let mut ours = None;
        for ids in ids.chunks(10_000) {
            let found = find_ids(self.shared, ids, self.end).await?;
            for (id, taken, batch) in found {
                // Its topic was deleted since, by a hub that died before it had removed the events: the id is free.
                if taken.seq <= self.shared.tails.deleted(&taken.topic) {
                    let events = self.shared.database.collection::<Document>(EVENTS);
                    let gone = doc! { "topic": taken.topic.as_str(), "seq": signed(taken.seq) };
                    before(self.end, || async { events.delete_one(gone.clone()).await }).await?;
                    continue;
                }
                if batch == self.id {
                    ours = Some((id, taken.seq));
                } else {
                    self.taken.insert(id, taken);
                }
            }
        }
        let Some((id, seq)) = ours else { return Ok(None) };
        let has =
            |plan: &Plan| plan.inserts.iter().any(|(call, index, at)| *at == seq && self.calls[*call][*index].id == id);
        Ok(self.open.iter().find(|plan| has(plan)).cloned())
    }

    /// Where the topics end now, as the primary has it.
    async fn refresh(&mut self) -> mongodb::error::Result<()> {
        let names: Vec<&str> = self.ends.keys().map(Topic::as_str).collect();
        let counters = self.shared.database.collection::<Document>(COUNTERS);
        let found = before(self.end, || async {
            let local = counters.find(doc! { "_id": { "$in": &names } }).read_concern(ReadConcern::local());
            let mut cursor = local.await?;
            let mut found = Vec::new();
            while cursor.advance().await? {
                let end = unsigned(cursor.current().get("next").ok().flatten());
                found.push((cursor.current().get_str("_id").unwrap_or_default().to_owned(), end.unwrap_or(0)));
            }
            Ok(found)
        });
        for (name, end) in found.await? {
            if let Some(known) = self.ends.iter_mut().find(|(topic, _)| topic.as_str() == name) {
                *known.1 = end;
            }
        }
        Ok(())
    }
}

/// What a failed step before the commit means.
fn sort(fault: Fault) -> Attempt {
    if is_duplicate(&fault) {
        let seq = words(&fault).contains("topic_1_seq_1");
        return if seq { Attempt::Again(fault) } else { Attempt::Taken(fault) };
    }
    // 251, 246: the transaction was ended by the server meanwhile.
    if is_away(&fault) || matches!(code(&fault), Some(251 | 246)) {
        Attempt::Again(fault)
    } else {
        Attempt::Never(fault)
    }
}

/// The events with these ids: where they are, and of which append.
async fn find_ids(
    shared: &Shared,
    ids: &[String],
    end: Instant,
) -> mongodb::error::Result<Vec<(EventId, Taken, [u8; 16])>> {
    let events = shared.database.collection::<RawDocumentBuf>(EVENTS);
    let fields = doc! { "_id": 0, "id": 1, "topic": 1, "seq": 1, "batch": 1 };
    before(end, || async {
        let mut session = shared.session().await?;
        let asked = events.find(doc! { "id": { "$in": ids } }).projection(fields.clone());
        let mut cursor = asked.session(&mut session).await?;
        let mut found = Vec::new();
        while cursor.advance(&mut session).await? {
            let document = cursor.current();
            let id = document.get_str("id").ok().and_then(|id| EventId::parse(id).ok());
            let topic = document.get_str("topic").ok().and_then(|name| Topic::parse(name).ok());
            let batch = document.get_binary("batch").ok().and_then(|batch| batch.bytes.try_into().ok());
            if let (Some(id), Some(topic)) = (id, topic) {
                let seq = unsigned(document.get("seq").ok().flatten()).unwrap_or(0);
                found.push((id, Taken { topic, seq }, batch.unwrap_or_default()));
            }
        }
        shared.heard(&session);
        Ok(found)
    })
    .await
}
