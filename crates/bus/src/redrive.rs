//! Sending dead letters back to their topic: each once, whoever asks and however often.

use std::borrow::Cow;
use std::sync::Arc;

use promethean_event::{Code, Draft, Event, EventId, Group, PublishOptions, Topic};
use promethean_store::{GroupState, ReadMax, Saved};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::status::lag_of;
use crate::{Bus, Error};

/// The group whose cursor on a dead-letter topic says what has been sent back.
const GROUP: &str = "promethean:redrive";
/// Letters sent back with one append.
const AT_ONCE: usize = 500;

/// What a redrive did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Redriven {
    /// Letters sent back.
    pub redriven: u64,
    /// Letters that are left.
    pub remaining: u64,
}

/// Of a dead letter's payload, what goes back.
#[derive(Deserialize)]
struct Letter<'a> {
    #[serde(borrow)]
    original: Original<'a>,
}

#[derive(Deserialize)]
struct Original<'a> {
    #[serde(borrow)]
    payload: &'a RawValue,
    #[serde(borrow, default)]
    key: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    sid: Option<Cow<'a, str>>,
    #[serde(default)]
    headers: std::collections::BTreeMap<String, String>,
    #[serde(default)]
    tags: Vec<String>,
}

impl Bus {
    /// Sends up to `limit` dead letters of `topic` back to it, oldest first, with `caused_by` the dead letter.
    /// A letter that was sent back is not sent again.
    ///
    /// # Errors
    /// `publish_failed` or `ack_failed`: what was sent back stays so, the rest can be asked for again.
    pub async fn redrive(&self, topic: &Topic, limit: u64) -> Result<Redriven, Error> {
        let (letters, group) = (topic.dead_letter(), Group::parse(GROUP)?);
        let store = Arc::clone(self.store());
        let loaded = store.load(&letters, &group).await.map_err(|error| Error::group(&error))?;
        let (mut state, mut version) = loaded.unwrap_or((GroupState::default(), 0));
        let mut redriven = 0;
        while redriven < limit {
            let most = usize::try_from(limit - redriven).unwrap_or(usize::MAX).min(AT_ONCE);
            let batch = store.read(&letters, state.floor + 1, ReadMax::events(most)).await;
            let batch = batch.map_err(|error| Error::group(&error))?;
            let Some(last) = batch.last() else { break };
            let mut burst = self.burst();
            for letter in &batch {
                match letter.payload_as::<Letter<'_>>() {
                    Ok(parsed) => burst.add(&draft(topic, letter, parsed.original))?,
                    // Somebody else's event on the dead-letter topic: not ours to send anywhere.
                    Err(error) => tracing::warn!(topic = %letters, id = %letter.id, %error, "not a dead letter, left"),
                }
            }
            for answer in self.commit(burst).await {
                redriven += answer?.len() as u64;
            }
            state = GroupState { floor: last.seq, last: Some((last.id, last.ts)), ..state };
            match store.compare_and_set(&letters, &group, version, state.clone()).await {
                Ok(Saved::Yes(now)) => version = now,
                Ok(Saved::Conflict) => {
                    return Err(Error::new(
                        Code::AckFailed,
                        "another redrive of this topic is under way; ask again when it is done",
                    ));
                }
                Err(error) => return Err(Error::group(&error)),
            }
        }
        let info = store.info(&letters).await.map_err(|error| Error::group(&error))?;
        Ok(Redriven { redriven, remaining: lag_of(&state, info.map_or(0, |info| info.last_seq)) })
    }
}

fn draft<'a>(topic: &Topic, letter: &Event, original: Original<'a>) -> Draft<'a> {
    let headers = original.headers.into_iter().map(|(name, value)| (Cow::Owned(name), Cow::Owned(value)));
    let options = PublishOptions {
        // The same letter sent back twice is one event.
        id: Some(EventId::derived(&[b"redrive", letter.id.as_bytes()])),
        key: original.key,
        sid: original.sid,
        headers: headers.collect(),
        tags: original.tags.into_iter().map(Cow::Owned).collect(),
        caused_by: vec![letter.id],
        ts: None,
    };
    Draft { topic: topic.clone(), payload: Cow::Borrowed(original.payload), options }
}
