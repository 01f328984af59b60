//! The latest event of each key, by the index `{topic, key, seq: -1}`: never a scan of the topic.
//!
//! The first entry of a key in that index is its latest event. Entries are taken in pieces, and after each piece the
//! next one begins behind the last key: a key with many versions costs one piece, not all of its versions.

use std::collections::HashMap;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use mongodb::bson::{Bson, Document, doc};
use promethean_event::{Event, Seq, Topic};

use super::document::{signed, unsigned};
use super::read::event;
use super::{Mongo, Shared};
use crate::{KeySnapshot, Page, Pending, Result};

/// Index entries taken at once.
const PIECE: usize = 1_000;
/// Lookups at once.
const PARALLEL: usize = 16;

/// The index of keys.
pub(super) fn by_key() -> Option<Document> {
    Some(doc! { "topic": 1, "key": 1, "seq": -1 })
}

pub(super) async fn latest(shared: &Shared, topic: &Topic, keys: &[String]) -> Result<Vec<Option<Event>>> {
    shared.open()?;
    let one = |key: &String| {
        let above = signed(shared.tails.deleted(topic));
        let filter = doc! { "topic": topic.as_str(), "key": key, "seq": { "$gt": above } };
        async move {
            let found = shared.find_by(by_key(), filter, doc! { "seq": -1 }, 1, None).await?;
            found.first().map(event).transpose()
        }
    };
    let asked: Vec<_> = keys.iter().map(one).collect();
    stream::iter(asked).buffered(PARALLEL).try_collect().await
}

/// The seqs of the latest events of the keys after `after`, by key, up to the point `cut`: at least one key where there
/// is one. With whether there may be more, and the last key looked at.
async fn latest_seqs(
    shared: &Shared,
    topic: &Topic,
    after: Option<&str>,
    cut: Seq,
) -> Result<Option<(Vec<Seq>, String)>> {
    let from = after.map_or(doc! { "$gte": "" }, |after| doc! { "$gt": after });
    let filter = doc! { "topic": topic.as_str(), "key": from, "seq": { "$lte": signed(cut), "$gt": signed(shared.tails.deleted(topic)) } };
    let fields = doc! { "_id": 0, "key": 1, "seq": 1 };
    let sort = doc! { "topic": 1, "key": 1, "seq": -1 };
    let entries = shared.find_by(by_key(), filter, sort, PIECE, Some(fields)).await?;
    let (mut seqs, mut last) = (Vec::new(), None);
    for entry in &entries {
        let key = entry.get_str("key").unwrap_or_default();
        if last != Some(key) {
            seqs.extend(unsigned(entry.get("seq").ok().flatten()));
            last = Some(key);
        }
    }
    Ok(last.map(|last| (seqs, last.to_owned())))
}

/// The events with these seqs, in that order, without those that are gone and without tombstones.
async fn live(shared: &Shared, topic: &Topic, seqs: &[Seq]) -> Result<Vec<Event>> {
    if seqs.is_empty() {
        return Ok(Vec::new());
    }
    let numbers: Vec<Bson> = seqs.iter().map(|seq| Bson::Int64(signed(*seq))).collect();
    let filter = doc! { "topic": topic.as_str(), "seq": { "$in": numbers } };
    let found = shared.find(filter, Document::new(), seqs.len(), None).await?;
    let mut events = HashMap::with_capacity(found.len());
    for document in &found {
        let event = event(document)?;
        events.insert(event.seq, event);
    }
    Ok(seqs.iter().filter_map(|seq| events.remove(seq)).filter(|event| !event.is_tombstone()).collect())
}

pub(super) async fn page(shared: &Shared, topic: &Topic, after: Option<&str>, limit: usize) -> Result<Page<Event>> {
    shared.open()?;
    let (mut items, mut after) = (Vec::new(), after.map(str::to_owned));
    let cut = shared.end(topic).await?;
    // One more than asked for tells whether there are more.
    while items.len() <= limit {
        let Some((seqs, last)) = latest_seqs(shared, topic, after.as_deref(), cut).await? else {
            return Ok(Page { items, more: false });
        };
        for seqs in seqs.chunks(limit.saturating_add(1).min(PIECE)) {
            items.extend(live(shared, topic, seqs).await?);
            if items.len() > limit {
                break;
            }
        }
        after = Some(last);
    }
    items.truncate(limit);
    Ok(Page { items, more: true })
}

/// A view of all live keys as of one point.
pub(super) struct Snapshot {
    mongo: Mongo,
    topic: Topic,
    cut: Seq,
    after: Option<String>,
    /// What was found and is not given out, last first.
    seqs: Vec<Seq>,
}

pub(super) async fn snapshot(mongo: Mongo, topic: &Topic) -> Result<Box<dyn KeySnapshot>> {
    mongo.shared.open()?;
    let cut = mongo.shared.end(topic).await?;
    Ok(Box::new(Snapshot { mongo, topic: topic.clone(), cut, after: None, seqs: Vec::new() }))
}

impl KeySnapshot for Snapshot {
    fn cut(&self) -> Seq {
        self.cut
    }

    fn begin_after(&mut self, key: &str) {
        self.after = Some(key.to_owned());
        self.seqs.clear();
    }

    fn left(&mut self) -> Pending<'_, u64> {
        Box::pin(async move {
            let shared = self.mongo.shared.clone();
            let (mut count, mut after) = (self.seqs.len() as u64, self.after.clone());
            while let Some((seqs, last)) = latest_seqs(&shared, &self.topic, after.as_deref(), self.cut).await? {
                count += seqs.len() as u64;
                after = Some(last);
            }
            Ok(count)
        })
    }

    fn next(&mut self, max: usize) -> Pending<'_, Vec<Event>> {
        Box::pin(async move {
            let shared = self.mongo.shared.clone();
            let mut events = Vec::new();
            while events.len() < max {
                if self.seqs.is_empty() {
                    let found = latest_seqs(&shared, &self.topic, self.after.as_deref(), self.cut).await?;
                    let Some((mut seqs, last)) = found else { break };
                    seqs.reverse();
                    (self.seqs, self.after) = (seqs, Some(last));
                }
                let left = max - events.len();
                let part: Vec<Seq> = (0..left).map_while(|_| self.seqs.pop()).collect();
                events.extend(live(&shared, &self.topic, &part).await?);
            }
            Ok(events)
        })
    }
}
