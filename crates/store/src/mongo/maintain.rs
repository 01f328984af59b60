//! Retention, compaction and trims: removing events in pieces, each a transaction that also counts what went.
//!
//! What was removed is counted in `trims`, not in `counters`: a removal never gets in the way of an append. Events go
//! in seq order, the oldest first, so that of a key no earlier event is ever left without its later ones. Any number of
//! hubs may do this at once: a piece that another hub has taken away meanwhile is looked at anew, and so is one that was
//! chosen by a count that is no longer true.

use std::collections::HashMap;

use mongodb::bson::{Bson, Document, RawDocumentBuf, doc};
use promethean_event::{Millis, Seq, Topic};

use super::document::{signed, unsigned};
use super::fault::{is_away, limited, pause, words};
use super::keys::by_key;
use super::lives::sweep_all;
use super::read::{count, info_and_removed};
use super::{EVENTS, Shared, TRIMS, pins, transaction};
use crate::{Compaction, Error, Ranges, Result, Retention};

/// Events removed in one transaction.
const PIECE: usize = 1_000;
/// Attempts at one piece.
const ATTEMPTS: u32 = 10;

/// What is known of an event that may go.
struct Entry {
    seq: Seq,
    appended: Millis,
    bytes: u64,
}

fn entry(document: &RawDocumentBuf) -> Option<Entry> {
    let number = |name| unsigned(document.get(name).ok().flatten());
    let appended = Millis(number("appended").or_else(|| number("ts")).unwrap_or(0));
    Some(Entry { seq: number("seq")?, appended, bytes: number("size").unwrap_or(0) })
}

fn fields() -> Document {
    doc! { "_id": 0, "seq": 1, "appended": 1, "ts": 1, "size": 1 }
}

/// Removes events with `seq < before`.
pub(super) async fn trim(shared: &Shared, topic: &Topic, before: Seq) -> Result<()> {
    shared.open()?;
    loop {
        let filter = doc! { "topic": topic.as_str(), "seq": { "$gte": 0_i64, "$lt": signed(before) } };
        let found = shared.find(filter, doc! { "seq": 1 }, PIECE, Some(fields())).await?;
        let entries: Vec<_> = found.iter().filter_map(entry).collect();
        if entries.is_empty() {
            return Ok(());
        }
        remove(shared, topic, &entries, Why::Trim).await?;
    }
}

/// Removes the events at these seqs.
pub(super) async fn remove_seqs(shared: &Shared, topic: &Topic, seqs: &Ranges<()>) -> Result<()> {
    shared.open()?;
    for (first, last, ()) in seqs.iter() {
        loop {
            let filter = doc! { "topic": topic.as_str(), "seq": { "$gte": signed(first), "$lte": signed(last) } };
            let found = shared.find(filter, doc! { "seq": 1 }, PIECE, Some(fields())).await?;
            let entries: Vec<_> = found.iter().filter_map(entry).collect();
            if entries.is_empty() {
                break;
            }
            remove(shared, topic, &entries, Why::Trim).await?;
        }
    }
    Ok(())
}

/// Why events are removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    Trim,
    /// So many were known to be removed before.
    Retention(u64),
    /// Only while no reader holds a pin.
    Compaction,
}

/// Removes these events, all or none; `false`: some of them were gone, or others than retention knew of.
async fn remove(shared: &Shared, topic: &Topic, entries: &[Entry], why: Why) -> Result<bool> {
    for round in 0..ATTEMPTS {
        match removed(shared, topic, entries, why).await {
            Ok(whole) => return Ok(whole),
            Err(fault) if is_away(&fault) => {}
            Err(fault) => return Err(Error::Refused(format!("removing events: MongoDB says: {}", words(&fault)))),
        }
        pause(round).await;
    }
    // Whether the last attempt was committed does not matter: what is left is found by the next look.
    Err(Error::Refused("removing events: MongoDB does not take it now; it will be tried again".to_owned()))
}

async fn removed(shared: &Shared, topic: &Topic, entries: &[Entry], why: Why) -> mongodb::error::Result<bool> {
    let mut session = transaction::begin(shared).await?;
    if why == Why::Compaction && pins::any_in(shared, &mut session).await? {
        limited(session.abort_transaction()).await?;
        return Err(mongodb::error::Error::custom("a reader has pinned the topics"));
    }
    let seqs: Vec<Bson> = entries.iter().map(|entry| Bson::Int64(signed(entry.seq))).collect();
    let bytes: u64 = entries.iter().map(|entry| entry.bytes).sum();
    let events = shared.database.collection::<Document>(EVENTS);
    let filter = doc! { "topic": topic.as_str(), "seq": { "$in": seqs } };
    let gone = limited(events.delete_many(filter).session(&mut session)).await?;
    let trims = shared.database.collection::<Document>(TRIMS);
    let mut whole = gone.deleted_count == entries.len() as u64;
    // Whoever removes something after this look gets in the way of the count below, and one of the two begins anew.
    if let (true, Why::Retention(before)) = (whole, why) {
        let counted = limited(trims.find_one(doc! { "_id": topic.as_str() }).session(&mut session)).await?;
        whole = counted.map_or(0, |trims| count(&trims, "events")) == before;
    }
    if !whole {
        limited(session.abort_transaction()).await?;
        return Ok(false);
    }
    let more = doc! { "$inc": { "events": signed(entries.len() as u64), "bytes": signed(bytes) } };
    let counted = trims.update_one(doc! { "_id": topic.as_str() }, more).upsert(true).session(&mut session);
    limited(counted).await?;
    limited(session.commit_transaction()).await?;
    Ok(true)
}

/// Applies every topic's settings.
pub(super) async fn maintain(shared: &Shared, now: Millis) -> Result<()> {
    shared.open()?;
    let (mut pinned, mut failed) = (None, sweep_all(shared).await);
    for (topic, settings) in shared.tails.maintained() {
        // A topic that fails holds up no other.
        failed = failed.and(retain(shared, &topic, settings.retention, now).await);
        if let Some(compaction) = settings.compaction {
            let waits = match pinned {
                Some(pinned) => pinned,
                None => *pinned.insert(pins::any(shared).await?),
            };
            if !waits {
                failed = failed.and(compact(shared, &topic, compaction, now).await);
            }
        }
    }
    failed
}

async fn retain(shared: &Shared, topic: &Topic, retention: Retention, now: Millis) -> Result<()> {
    if retention == Retention::default() {
        return Ok(());
    }
    // The first event alone tells whether there is anything to do, which mostly there is not.
    let mut piece = 1;
    loop {
        let Some((info, before)) = info_and_removed(shared, topic).await? else { return Ok(()) };
        let found = shared.find(shared.from(topic, 0), doc! { "seq": 1 }, piece, Some(fields())).await?;
        let (mut events, mut bytes, mut going) = (info.events, info.bytes, Vec::new());
        for entry in found.iter().filter_map(entry) {
            let old = retention.max_age.is_some_and(|age| now.since(entry.appended) > age);
            let many = retention.max_events.is_some_and(|most| events > most);
            let big = retention.max_bytes.is_some_and(|most| bytes > most);
            if !(old || many || big) {
                break;
            }
            events = events.saturating_sub(1);
            bytes = bytes.saturating_sub(entry.bytes);
            going.push(entry);
        }
        if going.is_empty() {
            return Ok(());
        }
        if piece < PIECE {
            piece = PIECE;
            continue;
        }
        let whole = remove(shared, topic, &going, Why::Retention(before)).await?;
        if whole && going.len() < PIECE {
            return Ok(());
        }
    }
}

/// Removes what a later event of the same key has superseded, and tombstones that were there for their grace.
///
/// `trims.compacted` says up to where that was done: only keys of later events are looked at.
async fn compact(shared: &Shared, topic: &Topic, compaction: Compaction, now: Millis) -> Result<()> {
    let done = shared.by_id(TRIMS, topic.as_str()).await?.map_or(0, |trims| count(&trims, "compacted"));
    let (mut from_seq, end) = (done + 1, shared.end(topic).await?);
    while from_seq <= end {
        let mut filter = shared.from(topic, from_seq);
        filter.insert("key", doc! { "$exists": true });
        let fields = doc! { "_id": 0, "key": 1, "seq": 1 };
        let found = shared.find(filter, doc! { "seq": 1 }, PIECE, Some(fields)).await?;
        let mut keys: Vec<&str> = found.iter().filter_map(|document| document.get_str("key").ok()).collect();
        keys.sort_unstable();
        keys.dedup();
        superseded_by(shared, topic, &keys).await?;
        let last = found.last().and_then(|document| unsigned(document.get("seq").ok().flatten()));
        let looked = if found.len() < PIECE { end } else { last.unwrap_or(end) };
        // After each piece, so that a round that is cut short need not begin anew.
        mark(shared, topic, looked).await?;
        from_seq = looked + 1;
    }
    expired(shared, topic, compaction, now).await
}

/// Remembers that a topic is compacted up to a seq.
async fn mark(shared: &Shared, topic: &Topic, compacted: Seq) -> Result<()> {
    let trims = shared.database.collection::<Document>(TRIMS);
    let mark = doc! { "$max": { "compacted": signed(compacted) } };
    let marked = trims.update_one(doc! { "_id": topic.as_str() }, mark).upsert(true);
    limited(marked).await.map(drop).map_err(|fault| Error::Refused(words(&fault)))
}

/// Removes all events of these keys, which ascend, but the last of each: those of many keys together.
async fn superseded_by(shared: &Shared, topic: &Topic, keys: &[&str]) -> Result<()> {
    let (most, mut rest) = (4 * PIECE, keys);
    while !rest.is_empty() {
        let filter = doc! { "topic": topic.as_str(), "key": { "$in": rest } };
        let mut wanted = fields();
        wanted.insert("key", 1);
        let sort = doc! { "topic": 1, "key": 1, "seq": -1 };
        let there = shared.find_by(by_key(), filter, sort, most, Some(wanted)).await?;
        let known = there.iter().filter_map(|document| Some((document.get_str("key").ok()?, entry(document)?)));
        // Of the last key there may be older events than these: it has a turn of its own.
        let cut =
            (there.len() == most).then(|| there.last().and_then(|document| document.get_str("key").ok())).flatten();
        let (mut latest, mut old) = (None, Vec::new());
        for (key, entry) in known.filter(|(key, _)| Some(*key) != cut) {
            if latest.replace(key) == Some(key) {
                old.push((key, entry));
            }
        }
        old.sort_unstable_by_key(|(_, entry)| entry.seq);
        let (names, old): (Vec<_>, Vec<_>) = old.into_iter().unzip();
        for (names, piece) in names.chunks(PIECE).zip(old.chunks(PIECE)) {
            // Another hub has removed some of them: then nothing was.
            if !remove(shared, topic, piece, Why::Compaction).await? {
                for key in names {
                    superseded(shared, topic, key).await?;
                }
            }
        }
        let Some(cut) = cut else { return Ok(()) };
        superseded(shared, topic, cut).await?;
        rest = &rest[rest.partition_point(|key| *key <= cut)..];
    }
    Ok(())
}

/// Removes all events of a key but the last.
async fn superseded(shared: &Shared, topic: &Topic, key: &str) -> Result<()> {
    let filter = || doc! { "topic": topic.as_str(), "key": key };
    let latest = shared.find_by(by_key(), filter(), doc! { "seq": -1 }, 1, Some(fields())).await?;
    let Some(latest) = latest.first().and_then(entry) else { return Ok(()) };
    remove_key(shared, topic, key, latest.seq).await
}

/// Removes the events of a key before a seq, the oldest first.
async fn remove_key(shared: &Shared, topic: &Topic, key: &str, before: Seq) -> Result<()> {
    loop {
        let filter = doc! { "topic": topic.as_str(), "key": key, "seq": { "$lt": signed(before) } };
        let found = shared.find_by(by_key(), filter, doc! { "seq": 1 }, PIECE, Some(fields())).await?;
        let entries: Vec<_> = found.iter().filter_map(entry).collect();
        if entries.is_empty() {
            return Ok(());
        }
        remove(shared, topic, &entries, Why::Compaction).await?;
    }
}

/// Tombstones that are old enough, and the latest of their keys: all of them, piece by piece.
async fn expired(shared: &Shared, topic: &Topic, compaction: Compaction, now: Millis) -> Result<()> {
    let grace = u64::try_from(compaction.tombstone_grace.as_millis()).unwrap_or(u64::MAX);
    let Some(before) = now.0.checked_sub(grace) else { return Ok(()) };
    let filter = doc! { "topic": topic.as_str(), "tombstone": true, "appended": { "$lt": signed(before) } };
    let mut wanted = fields();
    wanted.insert("key", 1);
    let index = doc! { "topic": 1, "appended": 1 };
    loop {
        let (index, sort) = (Some(index.clone()), doc! { "appended": 1 });
        let found = shared.find_by(index, filter.clone(), sort, PIECE, Some(wanted.clone())).await?;
        let known = found.iter().filter_map(|document| Some((document.get_str("key").ok()?, entry(document)?)));
        let known: Vec<(&str, Entry)> = known.collect();
        // Ones that cannot be read stay, and would be found again for ever.
        let nothing = known.is_empty();
        bury(shared, topic, known).await?;
        if nothing || found.len() < PIECE {
            return Ok(());
        }
    }
}

/// Removes these tombstones and what lies before them: together those that are all that is left of their keys, which
/// mostly all are; the others key by key.
async fn bury(shared: &Shared, topic: &Topic, tombstones: Vec<(&str, Entry)>) -> Result<()> {
    let keys: Vec<&str> = tombstones.iter().map(|(key, _)| *key).collect();
    let filter = doc! { "topic": topic.as_str(), "key": { "$in": keys } };
    let most = 2 * PIECE;
    let wanted = doc! { "_id": 0, "key": 1, "seq": 1 };
    let there = shared.find_by(by_key(), filter, doc! { "topic": 1, "key": 1, "seq": -1 }, most, Some(wanted)).await?;
    let mut count: HashMap<&str, usize> = HashMap::new();
    for key in there.iter().filter_map(|document| document.get_str("key").ok()) {
        *count.entry(key).or_default() += 1;
    }
    let is_alone = |key: &str| there.len() < most && count.get(key) == Some(&1);
    let (alone, others): (Vec<_>, Vec<_>) = tombstones.into_iter().partition(|(key, _)| is_alone(key));
    let (keys, alone): (Vec<_>, Vec<_>) = alone.into_iter().unzip();
    let together = alone.is_empty() || remove(shared, topic, &alone, Why::Compaction).await?;
    // Another hub has removed some of them: then nothing was.
    let again = if together { Vec::new() } else { keys.into_iter().zip(alone).collect() };
    for (key, tombstone) in others.into_iter().chain(again) {
        superseded(shared, topic, key).await?;
        // Gone already when a later event came; else the last of its key.
        remove(shared, topic, &[tombstone], Why::Compaction).await?;
    }
    Ok(())
}
