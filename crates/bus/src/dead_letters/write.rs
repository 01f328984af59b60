//! Appending dead letters: many at once, in the order of their events, without holding up the group.
//!
//! A letter's id follows from the event, the group and how often its cursor was moved: one that is written twice, by a
//! retry or by the next owner, is one letter.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use promethean_event::{Draft, Event, EventId, Group, Seq, Topic};
use promethean_store::{Outcome, ReadMax};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::Envelope;
use crate::bus::Core;
use crate::group::DeadLetter;
use crate::{Burst, burst};

/// Most letters of one append, and about how many bytes of their events.
const AT_ONCE: usize = 500;
const BYTES: usize = 4 * 1024 * 1024;
/// The waits after failures.
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(30);

/// The outcome of a batch: the events whose letter is written, and the others with the reason.
pub(crate) struct Written {
    /// Their events are dead-lettered.
    pub(crate) done: Vec<Seq>,
    failed: Vec<DeadLetter>,
    why: Option<String>,
}

/// The letters of a group on a topic. Bounded by the group's unfinished events.
#[derive(Default)]
pub(crate) struct Writer {
    waiting: Vec<DeadLetter>,
    under_way: Option<JoinHandle<Written>>,
    /// When the next append is tried after a failure, and how long the wait was.
    again: Option<(Instant, Duration)>,
    why: Option<String>,
}

impl Writer {
    /// Adds letters to write.
    pub(crate) fn add(&mut self, letters: impl IntoIterator<Item = DeadLetter>) {
        self.waiting.extend(letters);
    }

    /// Forgets what waits: the cursor was moved. What is under way is written.
    pub(crate) fn clear(&mut self) {
        self.waiting.clear();
        (self.again, self.why) = (None, None);
    }

    /// Why letters cannot be written at the moment.
    pub(crate) fn failing(&self) -> Option<&str> {
        self.why.as_deref()
    }

    /// True if nothing is under way or about to be. Letters that fail wait for the group's next members.
    pub(crate) fn is_idle(&self) -> bool {
        self.under_way.is_none() && (self.waiting.is_empty() || self.why.is_some())
    }

    /// Starts an append where there are letters and none is under way.
    pub(crate) fn start(&mut self, core: &Arc<Core>, topic: &Topic, group: &Group, generation: u64) {
        let waits = self.again.is_some_and(|(at, _)| at > Instant::now());
        if self.waiting.is_empty() || self.under_way.is_some() || waits {
            return;
        }
        self.waiting.sort_by_key(|letter| letter.seq);
        let letters: Vec<DeadLetter> = self.waiting.drain(..AT_ONCE.min(self.waiting.len())).collect();
        let (core, topic, group) = (Arc::clone(core), topic.clone(), group.clone());
        self.under_way = Some(tokio::spawn(async move { write(&core, &topic, &group, generation, letters).await }));
    }

    /// Resolves when an append has returned, or when a failed one may be tried again. Cancel-safe.
    pub(crate) async fn done(&mut self) -> Vec<Seq> {
        match (&mut self.under_way, self.again) {
            (Some(under_way), _) => {
                let written = under_way.await;
                self.under_way = None;
                // A task that panicked has lost its letters: the group reads their events again when it is loaded.
                written.map(|written| self.on_written(written)).unwrap_or_default()
            }
            (None, Some((at, _))) if !self.waiting.is_empty() => {
                tokio::time::sleep_until(at).await;
                Vec::new()
            }
            _ => std::future::pending().await,
        }
    }

    fn on_written(&mut self, Written { done, failed, why }: Written) -> Vec<Seq> {
        self.again = why.as_ref().map(|_| {
            let wait = self.again.map_or(SHORTEST, |(_, wait)| (2 * wait).min(LONGEST));
            (Instant::now() + wait, wait)
        });
        self.why = why;
        self.waiting.extend(failed);
        done
    }
}

/// Reads the events of letters, and appends the letters.
async fn write(core: &Core, topic: &Topic, group: &Group, generation: u64, letters: Vec<DeadLetter>) -> Written {
    let mut written = Written { done: Vec::with_capacity(letters.len()), failed: Vec::new(), why: None };
    let mut rest = letters.as_slice();
    while let Some(first) = rest.first() {
        let run = rest.iter().zip(first.seq..).take_while(|(letter, seq)| letter.seq == *seq).count();
        let most = ReadMax { events: run, bytes: BYTES };
        let events = match core.store.read(topic, first.seq, most).await {
            Ok(events) => events,
            Err(error) => {
                tracing::error!(%topic, %group, seq = first.seq, %error, "cannot read the event of a dead letter");
                written.failed.extend(rest.iter().cloned());
                written.why = Some(error.to_string());
                break;
            }
        };
        // A read that returned less than the run was cut by its bytes; events before its end that are not in it are gone.
        let end = events.last().map_or(first.seq + run as u64, |event| event.seq + 1);
        let (these, others) = rest.split_at(rest[..run].partition_point(|letter| letter.seq < end));
        rest = others;
        append(core, topic, group, generation, these, &events, &mut written).await;
    }
    written
}

/// Appends the letters of these events.
async fn append(
    core: &Core,
    topic: &Topic,
    group: &Group,
    generation: u64,
    letters: &[DeadLetter],
    events: &[Event],
    written: &mut Written,
) {
    let mut burst = Burst::new(&core.ids, &core.store, burst::UNLIMITED, core.wall());
    let mut added = Vec::with_capacity(letters.len());
    let mut fail = |letter: &DeadLetter, reason: String| {
        tracing::error!(%topic, %group, seq = letter.seq, reason, "cannot write the dead letter");
        written.failed.push(letter.clone());
        written.why = Some(reason);
    };
    for letter in letters {
        let Some(event) = events.iter().find(|event| event.seq == letter.seq) else {
            written.done.push(letter.seq);
            continue;
        };
        match add(&mut burst, core, topic, group, generation, letter, event) {
            Ok(()) => added.push(letter),
            Err(reason) => fail(letter, reason),
        }
    }
    let (sealed, _) = burst.finish();
    match core.append(sealed).await {
        Ok(outcomes) => {
            for (letter, outcome) in added.into_iter().zip(outcomes) {
                match outcome {
                    Outcome::Stored(_) => written.done.push(letter.seq),
                    Outcome::DuplicateId { topic, .. } => fail(letter, format!("its id is taken on {topic}")),
                    Outcome::Failed(error) => fail(letter, error.to_string()),
                }
            }
        }
        Err(error) => added.into_iter().for_each(|letter| fail(letter, error.to_string())),
    }
}

fn add(
    burst: &mut Burst<'_>,
    core: &Core,
    topic: &Topic,
    group: &Group,
    generation: u64,
    letter: &DeadLetter,
    event: &Event,
) -> Result<(), String> {
    let original = serde_json::value::RawValue::from_string(event.to_json()).map_err(|error| error.to_string())?;
    let envelope = Envelope {
        attempts: letter.attempts.into(),
        err: Some(letter.reason.as_str().into()),
        group: Some(group.as_str().into()),
        original: &original,
        topic: Some(topic.as_str().into()),
        ts: Some(core.wall()),
    };
    let payload = serde_json::value::to_raw_value(&envelope).map_err(|error| error.to_string())?;
    let mut draft = Draft::new(topic.dead_letter(), Cow::Owned(payload));
    let (generation, redriven) = (generation.to_le_bytes(), letter.redriven.to_le_bytes());
    let parts = [topic.as_str().as_bytes(), group.as_str().as_bytes(), event.id.as_bytes(), &generation, &redriven];
    // An event that fails again after a redrive has another letter.
    let of = if letter.redriven == 0 { &parts[..4] } else { &parts };
    draft.options.id = Some(EventId::derived(of));
    draft.options.key = event.key().map(|key| Cow::Owned(key.into_owned()));
    draft.options.caused_by = vec![event.id];
    burst.add(&draft).map_err(|error| error.to_string())
}
