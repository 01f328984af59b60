//! Redriving dead letters, each once, oldest first: the event goes to the group that it failed in, or a copy to its topic.
//! A letter that cannot go stays where it is and holds up no other.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use promethean_event::limits::MAX_HEADERS;
use promethean_event::{Code, Draft, Event, EventId, Group, Headers, Millis, PublishOptions, Seq, Topic};
use promethean_store::{GroupState, ReadMax, Saved};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::Envelope;
use crate::bus::Core;
use crate::relay::Redrive;
use crate::runner::Input;
use crate::{Bus, Error};

/// Groups whose names begin so are the hub's own: their cursors say what it has done.
pub const OWN_GROUPS: &str = "promethean:";
/// The group whose cursor on a dead-letter topic says what has been sent back.
pub const REDRIVE_GROUP: &str = "promethean:redrive";
/// Letters sent back with one append.
const AT_ONCE: usize = 500;
/// Refused letters that are named.
const NAMED: usize = 10;

/// Outcome of a redrive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Redriven {
    /// Letters that were redriven.
    pub redriven: u64,
    /// Letters that are left, those that are gone or refused among them.
    pub remaining: u64,
    /// Letters that cannot go to their group, because their event has left the log.
    pub gone: u64,
    /// Letters that the group or the topic does not take.
    pub refused: u64,
    /// The first ten of them, and why.
    pub refusals: Vec<(EventId, Error)>,
}

/// Receiver of redriven events.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RedriveTo {
    /// The group that failed: the event itself, and to no other group.
    #[default]
    Group,
    /// The topic: a copy, for every group.
    Topic,
}

/// Letters to redrive, those that fit everything that is given, and where to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Letters {
    /// Receiver of the events.
    pub to: RedriveTo,
    /// True: nothing is changed, only counted.
    pub dry_run: bool,
    /// Of this group.
    pub group: Option<String>,
    /// With this error.
    pub err: Option<String>,
    /// With this somewhere in the error.
    pub err_contains: Option<String>,
    /// Whose event had this key.
    pub key: Option<String>,
    /// Written at this time or later.
    pub since: Option<Millis>,
    /// Written at this time or earlier.
    pub until: Option<Millis>,
    /// With one of these ids of the letters; empty: any.
    pub ids: Vec<EventId>,
}

impl Letters {
    fn fit(&self, event: &Event, letter: &Envelope<'_>, original: &Original<'_>) -> bool {
        let err = letter.err.as_deref();
        (self.ids.is_empty() || self.ids.contains(&event.id))
            && self.group.as_deref().is_none_or(|group| letter.group.as_deref() == Some(group))
            && self.err.as_deref().is_none_or(|wanted| err == Some(wanted))
            && self.err_contains.as_deref().is_none_or(|part| err.is_some_and(|err| err.contains(part)))
            && self.key.as_deref().is_none_or(|key| original.key.as_deref() == Some(key))
            && self.since.is_none_or(|since| event.ts >= since)
            && self.until.is_none_or(|until| event.ts <= until)
    }
}

/// The parts of the event in a dead letter that a redrive reads.
#[derive(Deserialize)]
struct Original<'a> {
    #[serde(borrow, default)]
    id: Option<Cow<'a, str>>,
    #[serde(default)]
    seq: Option<Seq>,
    #[serde(borrow)]
    payload: &'a RawValue,
    #[serde(borrow, default)]
    key: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    sid: Option<Cow<'a, str>>,
    #[serde(default, deserialize_with = "in_order")]
    headers: Headers<'a>,
    #[serde(default)]
    tags: Vec<String>,
}

impl Original<'_> {
    /// The event's id; `None` if the letter is of another program and has no id of the hub.
    fn event_id(&self) -> Option<EventId> {
        self.id.as_deref().and_then(|id| EventId::parse(id).ok())
    }
}

/// Headers in the order they were sent; of a name that comes twice, the last.
fn in_order<'de, 'a, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Headers<'a>, D::Error> {
    struct Pairs;
    impl<'de> serde::de::Visitor<'de> for Pairs {
        type Value = Vec<(String, String)>;
        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("an object of strings")
        }
        fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut pairs = Self::Value::new();
            while let Some((name, value)) = map.next_entry::<String, String>()? {
                match pairs.iter().position(|(this, _)| *this == name) {
                    Some(there) => pairs[there].1 = value,
                    // One over the limit is enough for the topic not to take it.
                    None if pairs.len() > MAX_HEADERS => {}
                    None => pairs.push((name, value)),
                }
            }
            Ok(pairs)
        }
    }
    let pairs = deserializer.deserialize_map(Pairs)?.into_iter();
    Ok(pairs.map(|(name, value)| (Cow::Owned(name), Cow::Owned(value))).collect())
}

/// The only redrive of a topic on this hub, until it is dropped.
struct Alone<'c> {
    core: &'c Core,
    topic: Topic,
}

impl<'c> Alone<'c> {
    fn begin(core: &'c Core, topic: &Topic) -> Result<Self, Error> {
        if core.redriving.lock().insert(topic.clone()) {
            Ok(Self { core, topic: topic.clone() })
        } else {
            Err(busy(topic))
        }
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.core.redriving.lock().remove(&self.topic);
    }
}

fn busy(topic: &Topic) -> Error {
    let message =
        format!("another redrive of {topic} is under way; run this one again when it is done, for what is left");
    Error::new(Code::Conflict, message)
}

impl Core {
    /// The event of a dead letter, if it is still in the log.
    pub(crate) async fn original(&self, topic: &Topic, letter: &Redrive) -> Result<Option<Event>, Error> {
        let read =
            self.store.read(topic, letter.seq, ReadMax::events(1)).await.map_err(|error| Error::group(&error))?;
        Ok(read.into_iter().next().filter(|event| event.seq == letter.seq && event.id == letter.id))
    }
}

impl Bus {
    /// Redrives up to `limit` dead letters of `topic` that fit `wanted`, oldest first. A letter is redriven once.
    ///
    /// # Errors
    /// `publish_failed` or `ack_failed`: what was redriven stays so, the rest can be asked for again. `conflict`: another
    /// redrive of the topic runs.
    pub async fn redrive(&self, topic: &Topic, limit: u64, wanted: &Letters) -> Result<Redriven, Error> {
        let _alone = if wanted.dry_run { None } else { Some(Alone::begin(&self.core, topic)?) };
        let (letters, group) = (topic.dead_letter(), Group::parse(REDRIVE_GROUP)?);
        let store = Arc::clone(self.store());
        let loaded = store.load(&letters, &group).await.map_err(|error| Error::group(&error))?;
        let (mut state, mut version) = loaded.unwrap_or((GroupState::default(), 0));
        let mut told = Redriven { redriven: 0, remaining: 0, gone: 0, refused: 0, refusals: Vec::new() };
        let mut next = state.floor + 1;
        while told.redriven < limit {
            let most = usize::try_from(limit - told.redriven).unwrap_or(usize::MAX).min(AT_ONCE);
            let batch = store.read(&letters, next, ReadMax::events(most)).await;
            let batch = batch.map_err(|error| Error::group(&error))?;
            if batch.is_empty() {
                break;
            }
            let before = state.clone();
            let fates = self.send_back(topic, &batch, &state, wanted).await?;
            for (letter, fate) in batch.iter().zip(fates) {
                // What lies before it and after the one before is gone from the log.
                match fate {
                    Fate::Before => {}
                    Fate::Sent | Fate::Foreign => state.done.insert(next, letter.seq, Some((letter.id, letter.ts))),
                    Fate::Stays | Fate::Gone | Fate::Refused(_) => state.done.insert(next, letter.seq - 1, None),
                }
                next = letter.seq + 1;
                match fate {
                    Fate::Sent => told.redriven += 1,
                    Fate::Gone => told.gone += 1,
                    Fate::Refused(error) => {
                        told.refused += 1;
                        if told.refusals.len() < NAMED {
                            told.refusals.push((letter.id, error));
                        }
                    }
                    Fate::Before | Fate::Stays | Fate::Foreign => {}
                }
            }
            while let Some((last, mark)) = state.done.take_at(state.floor + 1) {
                (state.floor, state.last) = (last, mark.or(state.last));
            }
            // What an earlier one sent back further on is below the floor now, and in `done` no more.
            next = next.max(state.floor + 1);
            if state == before || wanted.dry_run {
                continue;
            }
            match store.compare_and_set(&letters, &group, version, state.clone()).await {
                Ok(Saved::Yes(now)) => version = now,
                Ok(Saved::Conflict) => return Err(busy(topic)),
                Err(error) => return Err(Error::group(&error)),
            }
        }
        let info = store.info(&letters).await.map_err(|error| Error::group(&error))?;
        // A dry run's state is as it would be.
        told.remaining = info.map_or(0, |info| state.lag(&info));
        Ok(told)
    }

    /// Redrives those of `batch` that fit and were not redriven before; says of each what became of it.
    async fn send_back(
        &self,
        topic: &Topic,
        batch: &[Event],
        state: &GroupState,
        wanted: &Letters,
    ) -> Result<Vec<Fate>, Error> {
        let (mut burst, mut fates) = (self.burst(), Vec::with_capacity(batch.len()));
        let mut groups: BTreeMap<Box<str>, Vec<(usize, Redrive)>> = BTreeMap::new();
        for letter in batch {
            fates.push(match read(letter) {
                _ if state.done.contains(letter.seq) => Fate::Before,
                Ok((envelope, original)) if !wanted.fit(letter, &envelope, &original) => Fate::Stays,
                Ok((envelope, original)) if wanted.to == RedriveTo::Group => {
                    match (original.event_id(), original.seq) {
                        (Some(id), Some(seq)) => {
                            let letters = groups.entry(envelope.group.unwrap_or_default().into()).or_default();
                            letters.push((fates.len(), Redrive { id, seq, letter: letter.seq }));
                            Fate::Sent
                        }
                        _ => Fate::Gone,
                    }
                }
                Ok((_, original)) => match burst.add(&draft(topic, letter, original)) {
                    Ok(()) => Fate::Sent,
                    Err(invalid) => Fate::Refused(invalid.into()),
                },
                // A foreign event on the dead-letter topic has no topic to go back to.
                Err(error) => {
                    tracing::warn!(topic = %letter.topic, id = %letter.id, %error, "not a dead letter, left");
                    Fate::Foreign
                }
            });
        }
        for (group, letters) in groups {
            self.to_group(topic, &group, &letters, wanted.dry_run, &mut fates).await?;
        }
        if wanted.dry_run || wanted.to == RedriveTo::Group {
            return Ok(fates);
        }
        let sent = fates.iter_mut().filter(|fate| matches!(fate, Fate::Sent));
        for (fate, answer) in sent.zip(self.commit(burst).await) {
            match answer {
                Ok(_) => {}
                Err(taken) if taken.code == Code::DuplicateId => *fate = Fate::Refused(taken),
                Err(failed) => return Err(failed),
            }
        }
        Ok(fates)
    }

    /// Gives events to the group that they failed in, each with its index in `fates`.
    async fn to_group(
        &self,
        topic: &Topic,
        group: &str,
        letters: &[(usize, Redrive)],
        dry_run: bool,
        fates: &mut [Fate],
    ) -> Result<(), Error> {
        let there = match Group::parse(group) {
            Err(invalid) => Err(invalid.into()),
            Ok(_) if dry_run => {
                let mut there = Vec::with_capacity(letters.len());
                for (_, letter) in letters {
                    there.push(self.core.original(topic, letter).await?.is_some());
                }
                Ok(there)
            }
            Ok(group) => {
                let ask = |reply| {
                    let letters = letters.iter().map(|(_, letter)| *letter).collect();
                    Input::Redrive { letters, relayed: false, reply }
                };
                self.core.ask(topic, &group, ask).await
            }
        };
        match there {
            Ok(there) => {
                let gone = letters.iter().zip(there).filter(|(_, there)| !there);
                gone.for_each(|((index, _), _)| fates[*index] = Fate::Gone);
            }
            Err(error) if matches!(error.code, Code::AckFailed | Code::ShuttingDown) => return Err(error),
            Err(error) => letters.iter().for_each(|(index, _)| fates[*index] = Fate::Refused(error.clone())),
        }
        Ok(())
    }
}

/// Fate of a letter.
enum Fate {
    /// It was redriven before.
    Before,
    /// It is not asked for.
    Stays,
    Sent,
    /// Its event has left the log.
    Gone,
    /// The group or the topic does not take it.
    Refused(Error),
    /// It is no dead letter.
    Foreign,
}

fn read(letter: &Event) -> serde_json::Result<(Envelope<'_>, Original<'_>)> {
    let envelope = letter.payload_as::<Envelope<'_>>()?;
    let original = serde_json::from_str(envelope.original.get())?;
    Ok((envelope, original))
}

fn draft<'a>(topic: &Topic, letter: &Event, original: Original<'a>) -> Draft<'a> {
    let options = PublishOptions {
        // The same letter sent back twice is one event.
        id: Some(EventId::derived(&[b"redrive", letter.id.as_bytes()])),
        key: original.key,
        sid: original.sid,
        headers: original.headers,
        tags: original.tags.into_iter().map(Cow::Owned).collect(),
        caused_by: vec![letter.id],
        ts: None,
    };
    Draft { topic: topic.clone(), payload: Cow::Borrowed(original.payload), options }
}
