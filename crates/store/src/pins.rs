//! Pins: readers that compaction waits for, kept in memory.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use promethean_event::{Seq, Topic};

use crate::{Error, Pin, Result};

/// How long a pin holds.
pub(crate) const LONGEST: Duration = Duration::from_secs(6 * 60 * 60);

/// The pins of a store.
#[derive(Debug, Default)]
pub(crate) struct Pins(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    last: u64,
    /// By number; each goes with its guard, or once its time is over.
    held: BTreeMap<u64, Pinned>,
}

#[derive(Debug)]
struct Pinned {
    /// Where each topic ended.
    ends: HashMap<Topic, Seq>,
    until: Instant,
}

impl Pins {
    /// Pins topics where `end` says that they end.
    pub(crate) fn hold(&self, topics: &[Topic], longest: Duration, end: impl Fn(&Topic) -> Seq) -> Box<dyn Pin> {
        let until = Instant::now() + longest;
        let mut state = self.0.lock();
        state.last += 1;
        let number = state.last;
        // Under the lock: a compaction either sees this pin, or has seen no event after these ends.
        let ends = topics.iter().map(|topic| (topic.clone(), end(topic))).collect();
        state.held.insert(number, Pinned { ends, until });
        Box::new(Guard { pins: self.0.clone(), number, until, longest })
    }

    /// The number of the last pin that was made.
    pub(crate) fn last(&self) -> u64 {
        self.0.lock().last
    }

    /// Where a topic is pinned by pins after the one with this number.
    pub(crate) fn of(&self, topic: &Topic, after: u64) -> Vec<Seq> {
        let mut state = self.0.lock();
        let now = Instant::now();
        state.held.retain(|_, pinned| pinned.until > now);
        let mut ends: Vec<Seq> =
            state.held.range(after + 1..).filter_map(|(_, pinned)| pinned.ends.get(topic).copied()).collect();
        ends.sort_unstable();
        ends.dedup();
        ends
    }
}

/// True if a pin keeps the event `seq`, the latest of whose key is `latest`.
pub(crate) fn keeps(pins: &[Seq], seq: Seq, latest: Seq) -> bool {
    pins.iter().any(|pin| seq <= *pin && latest > *pin)
}

struct Guard {
    pins: Arc<Mutex<State>>,
    number: u64,
    until: Instant,
    longest: Duration,
}

impl Pin for Guard {
    fn check(&self) -> Result<()> {
        if Instant::now() < self.until { Ok(()) } else { Err(too_slow(self.longest)) }
    }
}

/// The error of a reader whose pin is over.
pub(crate) fn too_slow(longest: Duration) -> Error {
    let seconds = longest.as_secs();
    Error::Refused(format!(
        "reading took longer than {seconds} s, and compaction waits no longer: start again, and read faster"
    ))
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.pins.lock().held.remove(&self.number);
    }
}
