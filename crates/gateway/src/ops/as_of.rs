//! The state of a keyed topic as of a time: `GET /latest-by-key?…&at=`.
//!
//! As of a time T a key's event is the one with the highest `seq` among the events of the key whose `ts` is ≤ T. A
//! client's `ts` never reorders the log, so this is what `/latest-by-key` itself would say if only those events had ever
//! been published. There is no index of the past: where a key's latest event is younger than T the topic is read once
//! from its first event to where it ended when the question came, and of that only the places of the wanted keys are
//! kept. So memory is bounded by the keys of a page, not by the topic; questions are answered by turns ([`Scan`]).

use std::collections::{BTreeMap, BTreeSet};

use promethean_event::{Millis, Seq, Topic};
use promethean_store::TopicInfo;

use super::keys::FEW;
use super::scan::{STEP, Scan};
use crate::Hub;
use crate::http::unreadable;
use crate::rejection::Rejection;

/// The places of the latest events of the wanted keys; never more than `most`, the first ones in the order of keys.
#[derive(Debug, Default, PartialEq, Eq)]
struct Newest {
    places: BTreeMap<String, Place>,
    /// There are wanted keys after the last one here.
    more: bool,
}

/// Where a key's latest event is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    seq: Seq,
    tombstone: bool,
}

impl Newest {
    /// Takes an event in; events come in the order of `seq`.
    fn see(&mut self, key: &str, place: Place, most: usize) {
        if let Some(known) = self.places.get_mut(key) {
            *known = place;
            return;
        }
        if self.places.len() >= most {
            self.more = true;
            if self.places.last_key_value().is_some_and(|(last, _)| last.as_str() < key) {
                return;
            }
            self.places.pop_last();
        }
        self.places.insert(key.to_owned(), place);
    }
}

/// True if every event that the topic ever had is still there: only then is the past whole.
pub(super) fn is_complete(info: Option<&TopicInfo>) -> bool {
    info.is_none_or(|info| info.events == info.last_seq)
}

/// Where the latest event of each of `keys` as of `at` is, in the same order, tombstones included.
pub(super) async fn of_keys(
    hub: &Hub,
    topic: &Topic,
    keys: &[String],
    at: Millis,
) -> Result<Vec<Option<Seq>>, Rejection> {
    let (mut seqs, mut young) = (Vec::with_capacity(keys.len()), BTreeSet::new());
    for some in keys.chunks(FEW) {
        let latest = hub.bus.store().latest_by_key(topic, some).await.map_err(unreadable)?;
        for (key, event) in some.iter().zip(latest) {
            // The latest of all is the latest of those that are old enough, where it is one of them.
            if event.as_ref().is_some_and(|event| event.ts > at) {
                young.insert(key.as_str());
            }
            seqs.push(event.map(|event| event.seq));
        }
    }
    if young.is_empty() {
        return Ok(seqs);
    }
    let newest = scan(hub, topic, at, young.len(), |key| young.contains(key)).await?;
    for (key, seq) in keys.iter().zip(&mut seqs).filter(|(key, _)| young.contains(key.as_str())) {
        *seq = newest.places.get(key).map(|place| place.seq);
    }
    Ok(seqs)
}

/// A page of live keys as of a time.
pub(super) struct Page {
    /// Where the events of live keys are, in the order of the keys.
    pub(super) seqs: Vec<(String, Seq)>,
    /// The last key that was looked at, where there are more after it.
    pub(super) next: Option<String>,
}

/// The live keys after `after` as of `at`, of at most `limit` keys.
pub(super) async fn page(
    hub: &Hub,
    topic: &Topic,
    after: Option<&str>,
    limit: usize,
    at: Millis,
) -> Result<Page, Rejection> {
    let newest = scan(hub, topic, at, limit, |key| after.is_none_or(|after| key > after)).await?;
    let next = newest.places.last_key_value().filter(|_| newest.more).map(|(key, _)| key.clone());
    let live = newest.places.into_iter().filter(|(_, place)| !place.tombstone);
    Ok(Page { seqs: live.map(|(key, place)| (key, place.seq)).collect(), next })
}

async fn scan(
    hub: &Hub,
    topic: &Topic,
    at: Millis,
    most: usize,
    wanted: impl Fn(&str) -> bool,
) -> Result<Newest, Rejection> {
    let mut turn = Scan::begin().await;
    let store = hub.bus.store();
    let mut newest = Newest::default();
    let Some(info) = store.info(topic).await.map_err(unreadable)? else { return Ok(newest) };
    let mut next = info.first_seq;
    while next <= info.last_seq {
        let events = store.read(topic, next, STEP).await.map_err(unreadable)?;
        let Some(last) = events.last() else { break };
        next = last.seq + 1;
        for event in events.iter().filter(|event| event.seq <= info.last_seq && event.ts <= at) {
            if let Some(key) = event.key().filter(|key| wanted(key)) {
                newest.see(&key, Place { seq: event.seq, tombstone: event.is_tombstone() }, most);
            }
        }
        turn.rest(hub).await?;
    }
    Ok(newest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(seq: Seq) -> Place {
        Place { seq, tombstone: seq == 5 }
    }

    #[test]
    fn the_first_keys_are_kept_with_their_latest_events_whatever_the_order() {
        let keys = ["d", "a", "c", "b", "a", "e", "d", "b", "a"];
        for most in 1..=6 {
            let mut newest = Newest::default();
            for (seq, key) in (1..).zip(keys) {
                newest.see(key, place(seq), most);
            }
            let all = [("a", 9), ("b", 8), ("c", 3), ("d", 7), ("e", 6)];
            let kept: Vec<_> = newest.places.iter().map(|(key, place)| (key.as_str(), place.seq)).collect();
            assert_eq!(kept, all[..most.min(5)], "{most}");
            assert_eq!(newest.more, most < 5, "{most}");
        }
    }
}
