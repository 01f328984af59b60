//! Groups' state in the seed's collection `cursors`: `lastId` and `lastTs` to be read by people and scripts, `state`
//! and `version` for the hub.
//!
//! A save is one update that matches the version alone, so a second saver matches nothing. A save whose answer was
//! lost is sent again; then the version tells whose it was: versions are not counted but grow by chance, no two savers
//! write the same one.

use std::time::Instant;

use futures_util::{StreamExt as _, stream};
use mongodb::bson::spec::BinarySubtype;
use mongodb::bson::{Binary, Bson, Document, doc};
use promethean_event::{EventId, Group, Millis, Topic};

use super::document::signed;
use super::fault::{
    LONGEST_PAUSE, OPERATION, REQUEST, is_away, is_duplicate, left, limited, patiently, pause, random, within, words,
};
use super::read::seek;
use super::{CURSORS, Shared};
use crate::{Error, GroupState, Result, Save, Saved, Seek, Version};

/// Most saves of one call that are under way.
const AT_ONCE: usize = 32;

/// The seed's id of a cursor.
pub(super) fn cursor_id(topic: &Topic, group: &Group) -> String {
    format!("{topic}::{group}")
}

impl Shared {
    pub(super) fn cursors(&self) -> mongodb::Collection<Document> {
        self.database.collection(CURSORS)
    }

    /// The state in a cursor; of one that the seed wrote, what its `lastId` says, else its `lastTs`: what has that very
    /// time comes too, because nothing tells which of it was acked.
    pub(super) async fn state_of(&self, topic: &Topic, cursor: &Document) -> Result<Option<(GroupState, Version)>> {
        let broken = || Error::Damaged(format!("the state of the cursor {:?} cannot be read", cursor.get_str("_id")));
        let version = cursor.get_i64("version").ok().and_then(|version| u64::try_from(version).ok()).unwrap_or(0);
        if let Ok(bytes) = cursor.get_binary_generic("state") {
            return Ok(Some((GroupState::decode(bytes).ok_or_else(broken)?, version)));
        }
        let to = cursor.get_str("lastId").ok().and_then(|id| EventId::parse(id).ok()).map(Seek::AfterId);
        for to in to.into_iter().chain(time(cursor).map(Seek::Ts)) {
            if let Some(start) = seek(self, topic, to).await? {
                let state = GroupState { floor: start.done, last: start.last, ..GroupState::default() };
                return Ok(Some((state, version)));
            }
        }
        Ok(None)
    }
}

/// The seed's `lastTs`, whatever type of number its driver has chosen.
fn time(cursor: &Document) -> Option<Millis> {
    let ms = match cursor.get("lastTs")? {
        Bson::Int32(ms) => u64::try_from(*ms).ok()?,
        Bson::Int64(ms) => u64::try_from(*ms).ok()?,
        Bson::Double(ms) if *ms >= 0.0 => *ms as u64,
        Bson::DateTime(time) => u64::try_from(time.timestamp_millis()).ok()?,
        _ => return None,
    };
    Some(Millis(ms))
}

pub(super) async fn load(shared: &Shared, topic: &Topic, group: &Group) -> Result<Option<(GroupState, Version)>> {
    shared.open()?;
    match shared.by_id(CURSORS, &cursor_id(topic, group)).await? {
        Some(cursor) => shared.state_of(topic, &cursor).await,
        None => Ok(None),
    }
}

/// Saves states, several at a time: a bulk write does not tell which of its updates matched.
pub(super) async fn save_many(shared: &Shared, saves: Vec<Save>) -> Result<Vec<Result<Saved>>> {
    shared.open()?;
    let saves = stream::iter(saves.into_iter().map(|save| compare_and_set(shared, save)));
    Ok(saves.buffered(AT_ONCE).collect().await)
}

async fn compare_and_set(shared: &Shared, Save { topic, group, expected, state }: Save) -> Result<Saved> {
    let id = cursor_id(&topic, &group);
    let new = next_version(expected);
    let mut set = doc! {
        "topic": topic.as_str(), "group": group.as_str(), "seq": signed(state.floor), "version": signed(new),
        "state": Binary { subtype: BinarySubtype::Generic, bytes: state.encode() },
    };
    let mut update = Document::new();
    match state.last {
        Some((last, Millis(ts))) => {
            set.insert("lastId", last.to_string());
            set.insert("lastTs", signed(ts));
        }
        None => {
            update.insert("$unset", doc! { "lastId": "", "lastTs": "" });
        }
    }
    update.insert("$set", set);
    let at = if expected == 0 { Bson::Null } else { Bson::Int64(signed(expected)) };
    let filter = doc! { "_id": &id, "version": at };
    update_until_known(shared, &id, new, filter, update, expected == 0).await
}

/// One update, sent until its outcome is known.
async fn update_until_known(
    shared: &Shared,
    id: &str,
    new: Version,
    filter: Document,
    update: Document,
    first: bool,
) -> Result<Saved> {
    let (end, mut open) = (Instant::now() + OPERATION, false);
    for round in 0.. {
        let saved = within(left(end).min(REQUEST), async {
            let mut session = shared.session().await?;
            let cursors = shared.cursors();
            let saving = cursors.update_one(filter.clone(), update.clone()).upsert(first);
            let saved = saving.session(&mut session).await;
            shared.heard(&session);
            saved
        });
        match saved.await {
            Ok(done) if done.matched_count == 1 || done.upserted_id.is_some() => return Ok(Saved::Yes(new)),
            // Nothing matched: somebody else saved, or an attempt of ours did whose answer was lost.
            Ok(_) => return whose(shared, id, new, open).await,
            Err(fault) if is_duplicate(&fault) => return whose(shared, id, new, open).await,
            Err(fault) if is_away(&fault) => {
                open = true;
                // The next attempt would have no time after its pause.
                if left(end) <= LONGEST_PAUSE {
                    return Err(Error::Unknown(format!("MongoDB does not answer: {}", words(&fault))));
                }
            }
            Err(fault) => return Err(Error::Refused(format!("MongoDB refuses the group's state: {}", words(&fault)))),
        }
        pause(round + 2).await;
    }
    unreachable!("the loop ends by an answer or the time limit")
}

async fn whose(shared: &Shared, id: &str, new: Version, open: bool) -> Result<Saved> {
    if !open {
        return Ok(Saved::Conflict);
    }
    let now = shared.by_id(CURSORS, id).await.map_err(|error| Error::Unknown(error.to_string()))?;
    let version = now.and_then(|cursor| cursor.get_i64("version").ok());
    Ok(if version == Some(signed(new)) { Saved::Yes(new) } else { Saved::Conflict })
}

/// Greater than the one before, and nobody else's: of a forgotten group too, so the first is the time.
fn next_version(expected: Version) -> Version {
    let by_chance = 1 + random() % (1 << 24);
    if expected == 0 { Millis::now().0 * 1_000 + by_chance } else { expected + by_chance }
}

pub(super) async fn groups(shared: &Shared, topic: &Topic) -> Result<Vec<(Group, GroupState)>> {
    shared.open()?;
    // A topic's name has no colon: its cursors are those between these two.
    let range = doc! { "_id": { "$gte": format!("{topic}::"), "$lt": format!("{topic}:;") } };
    let cursors = shared.cursors();
    let found = patiently("listing groups", || async {
        let mut session = shared.session().await?;
        let mut cursor = cursors.find(range.clone()).sort(doc! { "_id": 1 }).session(&mut session).await?;
        let mut found = Vec::new();
        while cursor.advance(&mut session).await? {
            found.push(cursor.deserialize_current()?);
        }
        Ok(found)
    })
    .await?;
    let mut groups = Vec::with_capacity(found.len());
    for cursor in found {
        let name = cursor.get_str("_id").ok().and_then(|id| id.split_once("::")).map(|(_, group)| group.to_owned());
        let Some(group) = name.and_then(|name| Group::parse(&name).ok()) else { continue };
        if let Some((state, _)) = shared.state_of(topic, &cursor).await? {
            groups.push((group, state));
        }
    }
    Ok(groups)
}

/// The topics of all cursors, by their ids alone.
pub(super) async fn topics(shared: &Shared) -> Result<Vec<Topic>> {
    shared.open()?;
    let cursors = shared.cursors();
    patiently("listing the topics of groups", || async {
        let mut session = shared.session().await?;
        let asked = cursors.find(doc! {}).projection(doc! { "_id": 1 }).sort(doc! { "_id": 1 });
        let mut cursor = asked.session(&mut session).await?;
        let mut names: Vec<Topic> = Vec::new();
        while cursor.advance(&mut session).await? {
            let id = cursor.current().get_str("_id").unwrap_or_default();
            let name = id.split_once("::").map_or("", |(topic, _)| topic);
            if names.last().is_none_or(|last| last.as_str() != name) {
                names.extend(Topic::parse(name));
            }
        }
        names.sort();
        names.dedup();
        Ok(names)
    })
    .await
}

pub(super) async fn forget(shared: &Shared, topic: &Topic, group: &Group) -> Result<bool> {
    shared.open()?;
    let (id, cursors) = (cursor_id(topic, group), shared.cursors());
    let (began, mut open) = (Instant::now(), false);
    for round in 0.. {
        match limited(cursors.delete_one(doc! { "_id": &id })).await {
            Ok(done) => return Ok(done.deleted_count > 0 || open),
            Err(fault) if is_away(&fault) && began.elapsed() < OPERATION => open = true,
            Err(fault) if open => return Err(Error::Unknown(format!("MongoDB does not answer: {}", words(&fault)))),
            Err(fault) => return Err(Error::Refused(format!("MongoDB refuses to forget: {}", words(&fault)))),
        }
        pause(round + 2).await;
    }
    unreachable!("the loop ends by an answer or the time limit")
}
