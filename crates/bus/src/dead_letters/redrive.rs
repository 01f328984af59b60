//! Sending dead letters back to their topic: each once, whoever asks and however often. One that the topic does not take
//! stays where it is and holds up no other.

use std::borrow::Cow;
use std::sync::Arc;

use promethean_event::limits::MAX_HEADERS;
use promethean_event::{Code, Draft, Event, EventId, Group, Headers, Millis, PublishOptions, Topic};
use promethean_store::{GroupState, ReadMax, Saved};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::Envelope;
use crate::{Bus, Error};

/// Groups whose names begin so are the hub's own: their cursors say what it has done.
pub const OWN_GROUPS: &str = "promethean:";
/// The group whose cursor on a dead-letter topic says what has been sent back.
pub const REDRIVE_GROUP: &str = "promethean:redrive";
/// Letters sent back with one append.
const AT_ONCE: usize = 500;
/// Refused letters that are named.
const NAMED: usize = 10;

/// What a redrive did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Redriven {
    /// Letters sent back.
    pub redriven: u64,
    /// Letters that are left, the refused ones among them.
    pub remaining: u64,
    /// Letters that the topic does not take.
    pub refused: u64,
    /// The first ten of them, and why.
    pub refusals: Vec<(EventId, Error)>,
}

/// Which letters to send back: those that fit everything that is given.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Letters {
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

/// What goes back of the event in a dead letter.
#[derive(Deserialize)]
struct Original<'a> {
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

impl Bus {
    /// Sends up to `limit` dead letters of `topic` back to it, oldest first, with `caused_by` the dead letter.
    /// A letter that was sent back is not sent again; one that the topic does not take is named, and stays.
    ///
    /// # Errors
    /// `publish_failed` or `ack_failed`: what was sent back stays so, the rest can be asked for again. `lease_lost`:
    /// somebody else redrives the same topic.
    pub async fn redrive(&self, topic: &Topic, limit: u64) -> Result<Redriven, Error> {
        self.redrive_only(topic, limit, &Letters::default()).await
    }

    /// As [`Bus::redrive`], but only letters that fit `wanted`; the others stay.
    ///
    /// # Errors
    /// As [`Bus::redrive`].
    pub async fn redrive_only(&self, topic: &Topic, limit: u64, wanted: &Letters) -> Result<Redriven, Error> {
        let (letters, group) = (topic.dead_letter(), Group::parse(REDRIVE_GROUP)?);
        let store = Arc::clone(self.store());
        let loaded = store.load(&letters, &group).await.map_err(|error| Error::group(&error))?;
        let (mut state, mut version) = loaded.unwrap_or((GroupState::default(), 0));
        let mut told = Redriven { redriven: 0, remaining: 0, refused: 0, refusals: Vec::new() };
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
                    Fate::Stays | Fate::Refused(_) => state.done.insert(next, letter.seq - 1, None),
                }
                next = letter.seq + 1;
                match fate {
                    Fate::Sent => told.redriven += 1,
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
            if state == before {
                continue;
            }
            match store.compare_and_set(&letters, &group, version, state.clone()).await {
                Ok(Saved::Yes(now)) => version = now,
                Ok(Saved::Conflict) => {
                    let message = format!(
                        "another redrive of {topic} is under way and sends these letters back, each once; run this one \
                         again when it is done, for what is left"
                    );
                    return Err(Error::new(Code::Conflict, message));
                }
                Err(error) => return Err(Error::group(&error)),
            }
        }
        let info = store.info(&letters).await.map_err(|error| Error::group(&error))?;
        told.remaining = info.map_or(0, |info| state.lag(&info));
        Ok(told)
    }

    /// Sends those of `batch` back that fit and were not before; says of each what became of it.
    async fn send_back(
        &self,
        topic: &Topic,
        batch: &[Event],
        state: &GroupState,
        wanted: &Letters,
    ) -> Result<Vec<Fate>, Error> {
        let (mut burst, mut fates) = (self.burst(), Vec::with_capacity(batch.len()));
        for letter in batch {
            fates.push(match read(letter) {
                _ if state.done.contains(letter.seq) => Fate::Before,
                Ok((envelope, original)) if !wanted.fit(letter, &envelope, &original) => Fate::Stays,
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
}

/// What becomes of a letter.
enum Fate {
    /// It was sent back before.
    Before,
    /// It is not asked for.
    Stays,
    Sent,
    /// The topic does not take it.
    Refused(Error),
    /// It is no dead letter.
    Foreign,
}

impl Bus {
    /// How many dead letters of `topic` that were not sent back fit `wanted`; at most `limit` are counted.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn redrivable(&self, topic: &Topic, limit: u64, wanted: &Letters) -> Result<u64, Error> {
        let (letters, group) = (topic.dead_letter(), Group::parse(REDRIVE_GROUP)?);
        let store = self.store();
        let unreadable = |error| Error::group(&error);
        let state = store.load(&letters, &group).await.map_err(unreadable)?;
        let state = state.map(|(state, _)| state).unwrap_or_default();
        let (mut count, mut next) = (0, state.floor + 1);
        while count < limit {
            let batch = store.read(&letters, next, ReadMax::events(AT_ONCE)).await.map_err(unreadable)?;
            let Some(last) = batch.last() else { break };
            next = last.seq + 1;
            let fits = |letter: &&Event| {
                let fits = |(envelope, original)| wanted.fit(letter, &envelope, &original);
                !state.done.contains(letter.seq) && read(letter).is_ok_and(fits)
            };
            count += batch.iter().filter(fits).count() as u64;
        }
        Ok(count.min(limit))
    }
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
