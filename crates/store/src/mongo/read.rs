//! Reading, seeking, finding: every question by an index, at majority, and not older than what was heard of (`seen.rs`).

use std::collections::HashMap;

use mongodb::bson::{Document, RawDocumentBuf, doc};
use mongodb::options::Hint;
use promethean_event::{Event, EventId, Millis, Seq, Topic};

use super::document::{decode, signed, unsigned};
use super::fault::patiently;
use super::indexes::{by_seq, by_ts};
use super::lives::History;
use super::{COUNTERS, EVENTS, Shared, TRIMS};
use crate::{Error, Place, ReadMax, Result, Seek, Start, TopicInfo};

/// Documents in one answer of the server.
const PIECE: usize = 1_000;
/// Seqs that one request looks through for a time.
const WINDOW: u64 = 100_000;

impl Shared {
    /// The documents of `events` that match, at most `limit`.
    pub(super) async fn find(
        &self,
        filter: Document,
        sort: Document,
        limit: usize,
        fields: Option<Document>,
    ) -> Result<Vec<RawDocumentBuf>> {
        self.find_by(None, filter, sort, limit, fields).await
    }

    /// The same by the index that is named: the server's own choice goes by what it saw of other values.
    pub(super) async fn find_by(
        &self,
        index: Option<Document>,
        filter: Document,
        sort: Document,
        limit: usize,
        fields: Option<Document>,
    ) -> Result<Vec<RawDocumentBuf>> {
        let events = self.database.collection::<RawDocumentBuf>(EVENTS);
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        patiently("reading events", || async {
            let mut asked = events.find(filter.clone()).sort(sort.clone()).limit(limit);
            if let Some(fields) = &fields {
                asked = asked.projection(fields.clone());
            }
            if let Some(index) = &index {
                asked = asked.hint(Hint::Keys(index.clone()));
            }
            let mut session = self.session().await?;
            let mut cursor = asked.session(&mut session).await?;
            let mut found = Vec::new();
            while cursor.advance(&mut session).await? {
                found.push(cursor.current().to_owned());
            }
            self.heard(&session);
            Ok(found)
        })
        .await
    }

    async fn first(&self, filter: Document, sort: Document) -> Result<Option<Event>> {
        self.find(filter, sort, 1, None).await?.first().map(event).transpose()
    }

    pub(super) async fn at(&self, topic: &Topic, seq: Seq) -> Result<Option<Event>> {
        if seq <= self.tails.deleted(topic) {
            return Ok(None);
        }
        self.first(doc! { "topic": topic.as_str(), "seq": signed(seq) }, doc! {}).await
    }

    /// The first seq there is, where there is one.
    pub(super) async fn first_seq(&self, topic: &Topic) -> Result<Option<Seq>> {
        self.seq_from(topic, 0).await
    }

    /// The first seq there is from this one on.
    async fn seq_from(&self, topic: &Topic, first: Seq) -> Result<Option<Seq>> {
        let fields = doc! { "_id": 0, "seq": 1 };
        let found = self.find(self.from(topic, first), doc! { "seq": 1 }, 1, Some(fields)).await?;
        Ok(found.first().and_then(|document| unsigned(document.get("seq").ok().flatten())))
    }

    /// Events of the topic with `seq ≥ first` that were not deleted with an earlier topic of that name.
    pub(super) fn from(&self, topic: &Topic, first: Seq) -> Document {
        let first = first.max(self.tails.deleted(topic) + 1);
        doc! { "topic": topic.as_str(), "seq": { "$gte": signed(first) } }
    }

    /// A document by its `_id`.
    pub(super) async fn by_id(&self, collection: &str, id: &str) -> Result<Option<Document>> {
        let collection = self.database.collection::<Document>(collection);
        patiently("reading", || async {
            let mut session = self.session().await?;
            let found = collection.find_one(doc! { "_id": id }).session(&mut session).await?;
            self.heard(&session);
            Ok(found)
        })
        .await
    }

    /// The last seq given out, as a majority has it.
    pub(super) async fn end(&self, topic: &Topic) -> Result<Seq> {
        let counter = self.by_id(COUNTERS, topic.as_str()).await?;
        Ok(counter.as_ref().map_or(0, |counter| count(counter, "next")))
    }
}

/// A number in a document; 0 where there is none.
pub(super) fn count(document: &Document, name: &str) -> u64 {
    document.get_i64(name).ok().and_then(|number| u64::try_from(number).ok()).unwrap_or(0)
}

pub(super) fn event(document: &RawDocumentBuf) -> Result<Event> {
    decode(document).map_err(Error::Damaged)
}

/// What is announced is there, or was removed: whoever was told where the topic ends may take what is missing for gone.
pub(super) async fn read(shared: &Shared, topic: &Topic, first: Seq, max: ReadMax) -> Result<Vec<Event>> {
    shared.open()?;
    if i64::try_from(first).is_err() || max.events == 0 {
        return Ok(Vec::new());
    }
    let events = shared.database.collection::<RawDocumentBuf>(EVENTS);
    let limit = i64::try_from(max.events).unwrap_or(i64::MAX);
    let piece = u32::try_from(max.events.min(PIECE)).unwrap_or(u32::MAX);
    let read = patiently("reading events", || async {
        let asked = events.find(shared.from(topic, first)).sort(doc! { "seq": 1 }).limit(limit).batch_size(piece);
        let mut session = shared.session().await?;
        let mut cursor = asked.session(&mut session).await?;
        let (mut found, mut bytes) = (Vec::new(), 0);
        while cursor.advance(&mut session).await? {
            let event = match decode(cursor.current()) {
                Ok(event) => event,
                Err(why) => return Ok(Err(Error::Damaged(why))),
            };
            bytes += event.body.len();
            if !found.is_empty() && bytes > max.bytes {
                break;
            }
            found.push(event);
        }
        shared.heard(&session);
        Ok(Ok(found))
    });
    read.await?
}

pub(super) async fn seek(shared: &Shared, topic: &Topic, to: Seek) -> Result<Option<Start>> {
    shared.open()?;
    // The end first: what is appended while the beginning is looked for lies after it, and is not passed over.
    let end = shared.end(topic).await?;
    let done = match to {
        Seek::Earliest => shared.first_seq(topic).await?.map_or(end, |first| first - 1),
        Seek::Latest => end,
        Seek::Ts(ts) => first_at(shared, topic, ts, end).await?.map_or(end, |seq| seq - 1),
        Seek::AfterId(id) => {
            let found = shared.first(doc! { "id": id.to_string() }, doc! {}).await?;
            return Ok(found
                .filter(|event| event.topic == *topic && event.seq > shared.tails.deleted(topic))
                .map(|event| Start { done: event.seq, last: Some((event.id, event.ts)) }));
        }
    };
    let last = if done == 0 { None } else { shared.at(topic, done).await?.map(|event| (event.id, event.ts)) };
    Ok(Some(Start { done, last }))
}

/// The first event of that time or a later one. Clocks differ: the first by seq need not be the first by time, so all
/// before it are looked at, in windows that each end well within a request's time, however long the topic is. What
/// retention and compaction have taken is passed over.
async fn first_at(shared: &Shared, topic: &Topic, ts: Millis, end: Seq) -> Result<Option<Seq>> {
    let mut end = end;
    let at_or_after = doc! { "topic": topic.as_str(), "ts": { "$gte": signed(ts.0) } };
    let fields = || Some(doc! { "_id": 0, "seq": 1 });
    let number = |document: &RawDocumentBuf| unsigned(document.get("seq").ok().flatten());
    // The usual time is a recent one: what is at it or after it is little, and the first of that by seq is the answer.
    let late = shared.find_by(Some(by_ts()), at_or_after, doc! { "ts": 1, "id": 1 }, PIECE, fields()).await?;
    let first = late.iter().filter_map(number).min();
    if late.len() < PIECE {
        return Ok(first.filter(|first| *first <= end));
    }
    // Of an early time, one of the first by time says up to where to look.
    end = first.map_or(end, |first| first.min(end));
    let mut next = 0;
    while let Some(first) = shared.seq_from(topic, next).await?.filter(|first| *first <= end) {
        next = first + WINDOW.min(end - first + 1);
        let filter = doc! {
            "topic": topic.as_str(), "seq": { "$gte": signed(first), "$lt": signed(next) }, "ts": { "$gte": signed(ts.0) },
        };
        let found = shared.find_by(Some(by_seq()), filter, doc! { "seq": 1 }, 1, fields()).await?;
        if let Some(seq) = found.first().and_then(number) {
            return Ok(Some(seq));
        }
    }
    Ok(None)
}

pub(super) async fn locate(shared: &Shared, ids: &[EventId]) -> Result<Vec<Option<Place>>> {
    shared.open()?;
    let mut places = HashMap::new();
    for ids in ids.chunks(PIECE) {
        let texts: Vec<String> = ids.iter().map(ToString::to_string).collect();
        let fields = doc! { "_id": 0, "id": 1, "topic": 1, "seq": 1, "ts": 1 };
        for document in shared.find(doc! { "id": { "$in": texts } }, doc! {}, PIECE, Some(fields)).await? {
            let number = |name| unsigned(document.get(name).ok().flatten());
            let id = document.get_str("id").ok().and_then(|id| EventId::parse(id).ok());
            let topic = document.get_str("topic").ok().and_then(|name| Topic::parse(name).ok());
            if let (Some(id), Some(topic), Some(seq), Some(ts)) = (id, topic, number("seq"), number("ts"))
                && seq > shared.tails.deleted(&topic)
            {
                places.insert(id, Place { topic, seq, ts: Millis(ts) });
            }
        }
    }
    Ok(ids.iter().map(|id| places.get(id).cloned()).collect())
}

pub(super) async fn topics(shared: &Shared) -> Result<Vec<Topic>> {
    shared.open()?;
    let counters = shared.database.collection::<RawDocumentBuf>(COUNTERS);
    let mut names = patiently("listing topics", || async {
        let mut session = shared.session().await?;
        let fields = doc! { "next": 1, "created": 1, "deleted": 1, "deletions": 1 };
        let asked = counters.find(doc! {}).projection(fields);
        let mut cursor = asked.session(&mut session).await?;
        let mut names = Vec::new();
        while cursor.advance(&mut session).await? {
            let counter = Document::try_from(cursor.current()).unwrap_or_default();
            if History::of(&counter).exists(count(&counter, "next")) {
                names.extend(counter.get_str("_id").ok().and_then(|name| Topic::parse(name).ok()));
            }
        }
        Ok(names)
    })
    .await?;
    names.sort();
    Ok(names)
}

pub(super) async fn info(shared: &Shared, topic: &Topic) -> Result<Option<TopicInfo>> {
    Ok(info_and_removed(shared, topic).await?.map(|(info, _)| info))
}

/// What is there, and how many events had been removed when that was counted.
pub(super) async fn info_and_removed(shared: &Shared, topic: &Topic) -> Result<Option<(TopicInfo, u64)>> {
    shared.open()?;
    // What was removed first: counted the other way round, a trim in between would show too little.
    let removed = shared.by_id(TRIMS, topic.as_str()).await?.unwrap_or_default();
    let Some(counter) = shared.by_id(COUNTERS, topic.as_str()).await? else { return Ok(None) };
    let last_seq = count(&counter, "next");
    if !History::of(&counter).exists(last_seq) {
        return Ok(None);
    }
    let last = counter.get_str("lastId").ok().and_then(|id| EventId::parse(id).ok());
    let left = |name| count(&counter, name).saturating_sub(count(&removed, name));
    let info = TopicInfo {
        topic: topic.clone(),
        events: left("events"),
        bytes: left("bytes"),
        first_seq: shared.first_seq(topic).await?.unwrap_or(last_seq + 1),
        last_seq,
        last: last.map(|id| (id, Millis(count(&counter, "lastTs")))),
    };
    Ok(Some((info, count(&removed, "events"))))
}
