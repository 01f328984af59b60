//! Everything that is published together: sealed at once, appended as one batch, answered one by one.

use std::borrow::Cow;

use promethean_event::{
    Draft, EventId, IdMaker, Invalid, Limits, Millis, NewEvent, PublishOptions, Sealer, Seq, Topic,
};
use promethean_store::{Appended, Error as StoreError, EventLog, EventSettings, Outcome};

use crate::Error;
use crate::bus::Core;

/// Where a published event is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Published {
    /// Its id.
    pub id: EventId,
    /// Its place in the topic.
    pub seq: Seq,
    /// The id was on the topic already; this is where.
    pub duplicate: bool,
}

impl From<Appended> for Published {
    fn from(appended: Appended) -> Self {
        Self { id: appended.id, seq: appended.seq, duplicate: appended.duplicate }
    }
}

/// Events to be published with one append. Each `add` is a unit of its own: stored all or none, answered by itself.
#[derive(Debug)]
pub struct Burst<'a> {
    ids: &'a IdMaker,
    log: &'a dyn EventLogSettings,
    sealer: Sealer,
    limits: Limits,
    now: Millis,
    units: u32,
    /// The topic sealed last and its settings: a burst is of one topic nearly always.
    known: Option<(Topic, EventSettings)>,
    /// Refuses topics that were not created; none: publishing creates them.
    gate: Option<&'a Core>,
}

/// The part of the store that a burst asks.
pub(crate) trait EventLogSettings: Send + Sync {
    fn of(&self, topic: &Topic) -> EventSettings;
}

impl<T: EventLog + ?Sized> EventLogSettings for std::sync::Arc<T> {
    fn of(&self, topic: &Topic) -> EventSettings {
        self.event_settings(topic)
    }
}

/// No limit at all: for what the hub itself has to write, which must not fail for its size.
pub(crate) const UNLIMITED: Limits = Limits { max_event_bytes: usize::MAX };

/// The stricter of the hub's limit and the topic's.
fn stricter(hub: Limits, topic: Option<u64>) -> Limits {
    match topic.and_then(|most| usize::try_from(most).ok()) {
        Some(most) if hub != UNLIMITED => Limits { max_event_bytes: hub.max_event_bytes.min(most) },
        _ => hub,
    }
}

impl std::fmt::Debug for dyn EventLogSettings + '_ {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("EventLogSettings")
    }
}

impl<'a> Burst<'a> {
    pub(crate) fn new(ids: &'a IdMaker, log: &'a dyn EventLogSettings, limits: Limits, now: Millis) -> Self {
        Self { ids, log, sealer: Sealer::new(limits), limits, now, units: 0, known: None, gate: None }
    }

    /// Refuses topics that the gate does not know.
    pub(crate) fn within(self, gate: Option<&'a Core>) -> Self {
        Self { gate, ..self }
    }

    /// Makes room for about that many events and bytes at once.
    pub fn reserve(&mut self, events: usize, bytes: usize) {
        self.sealer.reserve(events, bytes);
    }

    /// How many units were added.
    pub fn len(&self) -> usize {
        self.units as usize
    }

    /// True if nothing was added.
    pub fn is_empty(&self) -> bool {
        self.units == 0
    }

    /// Adds one event.
    ///
    /// # Errors
    /// What the contract refuses, with the field; nothing is added.
    pub fn add(&mut self, draft: &Draft<'_>) -> Result<(), Invalid> {
        self.seal(draft)?;
        self.units += 1;
        Ok(())
    }

    /// Adds a batch: all or none.
    ///
    /// # Errors
    /// What the contract refuses, with the field and the event's index; nothing is added.
    pub fn add_batch<'d>(&mut self, drafts: impl IntoIterator<Item = Draft<'d>>) -> Result<(), Invalid> {
        let before = self.sealer.len();
        for (index, draft) in drafts.into_iter().enumerate() {
            if let Err(invalid) = self.seal(&draft) {
                self.sealer.truncate(before);
                return Err(invalid.within(&format!("events[{index}].")));
            }
        }
        self.units += 1;
        Ok(())
    }

    fn seal(&mut self, draft: &Draft<'_>) -> Result<(), Invalid> {
        if self.known.as_ref().is_none_or(|(topic, _)| *topic != draft.topic) {
            let refused = |error: Error| Invalid::new(error.code, "topic", error.message);
            self.gate.map_or(Ok(()), |gate| gate.must_know(&draft.topic)).map_err(refused)?;
            let settings = self.log.of(&draft.topic);
            self.sealer.limit(stricter(self.limits, settings.max_event_bytes));
            self.known = Some((draft.topic.clone(), settings));
        }
        let Some((_, settings)) = &self.known else { return Ok(()) };
        let id = draft.options.id.unwrap_or_else(|| self.ids.next(self.now));
        if let (Some(path), None) = (&settings.key_path, &draft.options.key)
            && let Some(key) = path.key_of(&draft.payload)
        {
            let options = PublishOptions { key: Some(key), ..draft.options.clone() };
            let keyed = Draft { topic: draft.topic.clone(), payload: Cow::Borrowed(&draft.payload), options };
            return self.sealer.seal(&keyed, id, self.now, settings.partitions, self.units);
        }
        self.sealer.seal(draft, id, self.now, settings.partitions, self.units)
    }

    /// The sealed events and how many units they are.
    pub(crate) fn finish(self) -> (Vec<NewEvent>, usize) {
        (self.sealer.finish(), self.units as usize)
    }
}

/// Where the events of a unit are: one, nearly always.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Placed {
    /// A single event.
    One([Published; 1]),
    /// A batch.
    Many(Vec<Published>),
}

impl std::ops::Deref for Placed {
    type Target = [Published];
    fn deref(&self) -> &[Published] {
        match self {
            Placed::One(one) => one,
            Placed::Many(many) => many,
        }
    }
}

/// Puts the outcomes of single events together into the answers of their units, which `of` numbers; `failed` has the words
/// for what the store could not do.
pub(crate) fn answers(
    units: usize,
    of: &[u32],
    outcomes: Vec<Outcome>,
    failed: impl Fn(&StoreError) -> Error,
) -> Vec<Result<Placed, Error>> {
    let mut answers = Vec::with_capacity(units);
    let mut outcomes = outcomes.into_iter();
    for unit in of.chunk_by(|one, next| one == next) {
        // An empty batch is a unit without events.
        while answers.len() < unit[0] as usize {
            answers.push(Ok(Placed::Many(Vec::new())));
        }
        answers.push(answer(outcomes.by_ref().take(unit.len()), &failed));
    }
    answers.resize(units, Ok(Placed::Many(Vec::new())));
    answers
}

fn answer(
    mut outcomes: impl ExactSizeIterator<Item = Outcome>,
    failed: impl Fn(&StoreError) -> Error,
) -> Result<Placed, Error> {
    let placed = |outcome| match outcome {
        Outcome::Stored(appended) => Ok(Published::from(appended)),
        Outcome::DuplicateId { id, .. } => Err(duplicate_id(id)),
        Outcome::Failed(error) => Err(failed(&error)),
    };
    if outcomes.len() == 1
        && let Some(outcome) = outcomes.next()
    {
        return placed(outcome).map(|one| Placed::One([one]));
    }
    // All of a unit are looked at, so that the next unit starts at its own outcomes.
    let all: Vec<_> = outcomes.map(placed).collect();
    all.into_iter().collect::<Result<_, _>>().map(Placed::Many)
}

/// Does not say which topic: whoever asks may not be allowed to know of it.
fn duplicate_id(id: EventId) -> Error {
    let message =
        format!("the id {id} belongs to an event of another topic; ids are unique across the hub, send a new one");
    Error::new(promethean_event::Code::DuplicateId, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_unit_is_told_what_became_of_it_and_not_of_another() {
        let id = EventId::from_bytes([7; 16]);
        let stored = || Outcome::Stored(Appended { id, seq: 3, duplicate: false });
        let refused = || Outcome::Failed(StoreError::Refused("nothing was stored".to_owned()));
        let unknown = || Outcome::Failed(StoreError::Unknown("no answer".to_owned()));
        // Two events of one unit, a unit without events, then one event a unit.
        let of = [0, 0, 2, 3, 4];
        let outcomes = vec![unknown(), unknown(), stored(), refused(), stored()];
        let answers = answers(5, &of, outcomes, Error::publish);
        let told: Vec<_> = answers.iter().map(|answer| answer.as_ref().map(|placed| placed.len())).collect();
        let failed = |message: &str| Error::new(promethean_event::Code::PublishFailed, message);
        let (unknown, refused) = (failed("the outcome is unknown: no answer"), failed("nothing was stored"));
        assert_eq!(told, [Err(&unknown), Ok(0), Ok(1), Err(&refused), Ok(1)]);
    }
}
