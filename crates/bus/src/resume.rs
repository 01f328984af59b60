//! Resuming a live tail: a short text says up to where its events were handed over.
//!
//! ```text
//!   kind · since · (hash of a topic · seq)…       as base64url
//! ```
//! A topic that is named was handed over up to that seq. On all others everything that was appended before `since` was. A
//! text names every topic where they are few, else those that are furthest behind. So resuming repeats events at most, and
//! skips none, also on topics that were created meanwhile.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use parking_lot::Mutex;
use promethean_event::{From, Invalid, Millis, Seq, Topic};
use promethean_store::{ReadMax, TopicInfo};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::Error;
use crate::bus::Core;
use crate::inbox::Given;

/// Most topics of a text, where all of them are named, and where only those that are behind are.
const FEW: usize = 16;
const BEHIND: usize = 48;

/// Shortest time between two looks at all topics of a tail.
const RENEWED: Duration = Duration::from_millis(100);

/// The field of the contract.
const FIELD: &str = "opts.resume";

/// The beginning of a text: what kind of place it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Live = 1,
    /// A snapshot was handed over in part: it begins again.
    Snapshot = 2,
    /// As `Live`, of a tail that began with a snapshot. Where the event of a place has gone, tombstones may be gone too.
    State = 3,
}

/// A place to resume at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Resume {
    kind: Kind,
    since: Millis,
    places: Vec<(u64, Seq)>,
}

impl Resume {
    pub(crate) fn parse(text: &str) -> Result<Self, Error> {
        let invalid = || Invalid::request(FIELD, "must be a resume that the hub has sent; subscribe without it");
        let bytes = BASE64.decode(text).map_err(|_| invalid())?;
        Ok(Self::read(&bytes).ok_or_else(invalid)?)
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let (&kind, mut rest) = bytes.split_first()?;
        let kind = [Kind::Live, Kind::Snapshot, Kind::State].into_iter().find(|one| *one as u8 == kind)?;
        let since = Millis(number(&mut rest)?);
        let mut places = Vec::new();
        while !rest.is_empty() {
            let (hash, after) = rest.split_first_chunk()?;
            rest = after;
            places.push((u64::from_le_bytes(*hash), number(&mut rest)?));
        }
        Some(Self { kind, since, places })
    }

    fn text(&self) -> Box<str> {
        let mut bytes = Vec::with_capacity(16 * (self.places.len() + 1));
        bytes.push(self.kind as u8);
        put(&mut bytes, self.since.0);
        for (hash, seq) in &self.places {
            bytes.extend_from_slice(&hash.to_le_bytes());
            put(&mut bytes, *seq);
        }
        BASE64.encode(bytes).into()
    }

    /// Replaces the `from` of a subscription, if there is more than a place to say.
    pub(crate) fn from(&self) -> Option<From> {
        (self.kind == Kind::Snapshot).then_some(From::Snapshot)
    }

    /// Time from which topics that it does not name may have events to come.
    pub(crate) fn since(&self) -> Millis {
        self.since
    }

    /// True for a tail that began with a snapshot.
    pub(crate) fn is_state(&self) -> bool {
        self.kind != Kind::Live
    }

    /// The last seq of a topic that was handed over, or a lower one.
    pub(crate) async fn done(&self, core: &Core, topic: &Topic) -> Result<Seq, Error> {
        let info = core.store.info(topic).await.map_err(|error| Error::group(&error))?;
        let Some(info) = info else { return Ok(0) };
        let hash = hash(topic);
        let Some(&(_, done)) = self.places.iter().find(|(of, _)| *of == hash) else {
            return self.search(core, &info).await;
        };
        let gone =
            self.kind == Kind::State && done > 0 && at(core, topic, done).await?.is_none_or(|(seq, _)| seq > done);
        if done > info.last_seq || gone {
            let message = format!("{FIELD}: its place has gone from {topic}; subscribe without it");
            return Err(Error::new(promethean_event::Code::UnknownId, message));
        }
        Ok(done)
    }

    /// The last event that was appended before `since`; events are in the order in which they were appended, about.
    async fn search(&self, core: &Core, info: &TopicInfo) -> Result<Seq, Error> {
        let (mut low, mut high) = (info.first_seq, info.last_seq + 1);
        let mut middle = info.last_seq;
        while low < high {
            match at(core, &info.topic, middle).await? {
                Some((seq, appended)) if appended < self.since => low = seq + 1,
                _ => high = middle,
            }
            middle = low + high.saturating_sub(low) / 2;
        }
        Ok(low - 1)
    }
}

/// The first event from `seq` on: its seq, and when it was appended.
async fn at(core: &Core, topic: &Topic, seq: Seq) -> Result<Option<(Seq, Millis)>, Error> {
    let read = core.store.read(topic, seq, ReadMax::events(1)).await.map_err(|error| Error::group(&error))?;
    Ok(read.first().map(|event| (event.seq, event.appended)))
}

fn hash(topic: &Topic) -> u64 {
    xxhash_rust::xxh3::xxh3_64(topic.as_str().as_bytes())
}

fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn number(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..63).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

/// Progress of a tail on one topic.
#[derive(Debug, Default)]
pub(crate) struct LanePlace {
    state: Mutex<LaneState>,
}

#[derive(Debug, Default)]
struct LaneState {
    /// Up to here everything was read: what the filter wants of it is in the inbox, or was taken out.
    read: Seq,
    /// The last event that was put into the inbox.
    pushed: Seq,
    /// The last event that was handed over, and when it was appended.
    taken: Seq,
    taken_at: Millis,
    /// Its snapshot is not handed over yet.
    snapshot: bool,
    /// First event that a tail reads again after a pause.
    again: Option<Seq>,
}

impl LaneState {
    fn done(&self) -> Seq {
        let waits = self.again.is_some() || self.taken < self.pushed;
        if waits { self.taken } else { self.taken.max(self.read) }
    }
}

impl LanePlace {
    /// Begins after `done`, with the snapshot before it if there is one. All appended before `since` was handed over.
    pub(crate) fn begin(&self, done: Seq, snapshot: bool, since: Millis) {
        *self.state.lock() =
            LaneState { read: done, pushed: done, taken: done, taken_at: since, snapshot, again: None };
    }

    /// Notes that the topic was read up to `seq`.
    pub(crate) fn read(&self, seq: Seq) {
        self.state.lock().read = seq;
    }

    /// Notes deliveries that go into the inbox.
    pub(crate) fn push<'g>(&self, given: impl Iterator<Item = &'g Given>) {
        let mut state = self.state.lock();
        if let Some(last) = given.filter(|given| !given.snapshot).last() {
            state.pushed = last.event.seq;
        }
    }

    /// Notes that a delivery was handed over.
    fn take(&self, given: &Given) {
        let mut state = self.state.lock();
        if !given.snapshot {
            (state.taken, state.taken_at) = (given.event.seq, given.event.appended);
        }
        state.snapshot &= given.snapshot && given.cut.is_none();
    }

    /// Notes that there was nothing in the snapshot.
    pub(crate) fn end_snapshot(&self) {
        self.state.lock().snapshot = false;
    }

    /// Notes deliveries that are read again later.
    pub(crate) fn reread<'g>(&self, given: impl Iterator<Item = &'g Given>) {
        let mut state = self.state.lock();
        state.again = given.map(|given| given.event.seq).chain(state.again).min();
    }

    /// True if earlier events are read again.
    pub(crate) fn reads_again(&self) -> bool {
        self.state.lock().again.is_some()
    }

    /// Takes the first event to read again.
    pub(crate) fn take_again(&self) -> Option<Seq> {
        let mut state = self.state.lock();
        let again = state.again.take()?;
        (state.read, state.pushed) = (again - 1, state.taken);
        Some(again)
    }
}

/// The places of a tail on all of its topics.
pub(crate) struct Places {
    core: Arc<Core>,
    /// Number of topics created, if topics may join.
    created: Option<watch::Receiver<u64>>,
    state: Mutex<State>,
}

struct State {
    /// It began with a snapshot.
    is_state: bool,
    lanes: Vec<Joined>,
    /// Number of topics created of which all are joined.
    joined: u64,
    /// When that was last the case.
    complete: Millis,
    since: Millis,
    /// Those that a text names, of `lanes`.
    named: Vec<usize>,
    renewed: Option<Instant>,
}

struct Joined {
    hash: u64,
    topic: watch::Receiver<promethean_store::Tail>,
    place: Arc<LanePlace>,
}

impl Places {
    pub(crate) fn new(core: &Arc<Core>, is_state: bool, grows: bool) -> Self {
        let state = State {
            is_state,
            lanes: Vec::new(),
            joined: 0,
            complete: Millis(0),
            since: Millis(0),
            named: Vec::new(),
            renewed: None,
        };
        let created = grows.then(|| core.store.watch_topics());
        Self { core: Arc::clone(core), created, state: Mutex::new(state) }
    }

    /// Adds a topic.
    pub(crate) fn add(&self, topic: &Topic, place: &Arc<LanePlace>) {
        let joined = Joined { hash: hash(topic), topic: self.core.store.watch(topic), place: Arc::clone(place) };
        let mut state = self.state.lock();
        state.lanes.push(joined);
        state.renewed = None;
    }

    /// Notes that all topics were joined that there were when that many had been created.
    pub(crate) fn complete(&self, created: u64) {
        let mut state = self.state.lock();
        state.joined = created;
        state.renewed = None;
    }

    /// The place after a delivery that is handed over.
    pub(crate) fn take(&self, place: &LanePlace, given: &Given) -> Box<str> {
        place.take(given);
        self.text()
    }

    /// The place now.
    pub(crate) fn text(&self) -> Box<str> {
        let mut state = self.state.lock();
        if state.renewed.is_none_or(|at| at.elapsed() >= RENEWED) {
            self.renew(&mut state);
        }
        let State { is_state, lanes, named, .. } = &*state;
        let since = state.since;
        let (mut kind, mut places) =
            (if *is_state { Kind::State } else { Kind::Live }, Vec::with_capacity(named.len()));
        for &index in named {
            let lane = lanes[index].place.state.lock();
            if lane.snapshot {
                kind = Kind::Snapshot;
            }
            places.push((lanes[index].hash, lane.done()));
        }
        drop(state);
        Resume { kind, since, places }.text()
    }

    /// Determines which topics a text names, and since when the others may have events that were not handed over.
    fn renew(&self, state: &mut State) {
        // First: what is appended from now on is not before it.
        let now = self.core.appended_before();
        if self.created.as_ref().is_none_or(|created| *created.borrow() == state.joined) {
            state.complete = now;
        }
        let mut behind: Vec<(bool, Millis, usize)> = Vec::with_capacity(state.lanes.len());
        for (index, joined) in state.lanes.iter().enumerate() {
            let lane = joined.place.state.lock();
            let caught_up = lane.done() >= joined.topic.borrow().seq;
            let since = if caught_up { now } else { lane.taken_at };
            // A snapshot that is under way has to be known.
            behind.push((!lane.snapshot, since, index));
        }
        state.since = state.complete;
        if behind.len() > FEW {
            behind.sort_unstable();
            let rest = behind.iter().skip(BEHIND).chain(behind.iter().take(BEHIND).filter(|one| one.1 >= now));
            state.since = rest.map(|one| one.1).fold(state.since, Millis::min);
            behind.truncate(BEHIND);
            behind.retain(|one| !one.0 || one.1 < now);
        }
        state.named = behind.into_iter().map(|one| one.2).collect();
        state.renewed = Some(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_read_as_it_was_written_and_stays_below_a_kibibyte() {
        for kind in [Kind::Live, Kind::Snapshot, Kind::State] {
            let places = (0..BEHIND as u64).map(|index| (u64::MAX - index, (1 << 34) + index)).collect();
            let resume = Resume { kind, since: Millis(1 << 41), places };
            let text = resume.text();
            assert!(text.len() <= promethean_event::limits::MAX_RESUME, "{}", text.len());
            assert_eq!(Resume::parse(&text).ok(), Some(resume));
        }
        for broken in ["", "!", "AA", "BAA", "AQ", "AYCAgICAgICAgICA", "AQEC"] {
            assert!(Resume::parse(broken).is_err(), "{broken}");
        }
    }
}
