//! To a hub over WebSocket.
//!
//! A batch goes out in waves ([`crate::plan::waves`]): the topics of a wave at once, the frames of a topic one after
//! another. A frame is all or none. One that the hub refuses because of one of its rows is halved until that row is
//! alone, so that it takes no other with it; so is one that is over the hub's `max_frame_bytes`, which the client tells
//! from the way the hub hangs up, and one with more events than the topic's quota ever lets through at once. While the hub is away the client waits for it, and so does this.

use std::collections::{HashSet, VecDeque};

use futures_util::future::join_all;
use promethean_client::{Client, Error, Publish};
use promethean_event::limits::MAX_BATCH;
use promethean_event::{Code, Draft, PublishOptions, Topic};

use super::draft_key;
use crate::plan::waves;
use crate::{Answer, Answers, Publisher};

/// Most bytes of events in a frame that has more than one: well below any `max_frame_bytes` that an operator is likely
/// to set.
const FRAME_BYTES: usize = 256 * 1024;
/// What the hub says with `rate_limited` where waiting does not help: a quota's bucket never holds that many.
const TOO_MANY: &str = "send smaller batches";
/// What the id, the time and the names of an event's fields take in a frame.
const NAMES_BYTES: usize = 200;

/// Publishes to a hub over WebSocket.
#[derive(Debug, Clone)]
pub struct ClientPublisher {
    client: Client,
    largest: usize,
}

impl ClientPublisher {
    /// Over `client`.
    pub fn new(client: Client) -> Self {
        Self { client, largest: usize::MAX }
    }

    /// Payloads over `bytes` are refused here, and not sent at all. Not needed: whatever is over the hub's
    /// `max_event_bytes` or `max_frame_bytes` the hub refuses. But for the second it closes the connection, which the
    /// other users of the client notice.
    #[must_use]
    pub fn largest(mut self, bytes: usize) -> Self {
        self.largest = bytes;
        self
    }

    async fn send(&self, topic: &Topic, drafts: &[&Draft<'_>]) -> Result<(), Error> {
        let events = drafts.iter().map(|draft| Publish::raw(draft.payload.clone().into_owned()).options(owned(draft)));
        self.client.publish_batch(topic.as_str(), events.collect()).await.map(drop)
    }

    /// Publishes rows of one topic, in order. `failed` are keys of earlier waves that have to wait.
    async fn topic<'d>(
        &self,
        topic: &Topic,
        rows: Vec<usize>,
        drafts: &'d [Draft<'d>],
        failed: &HashSet<&'d str>,
    ) -> Vec<(usize, Answer)> {
        let mut answers = Vec::with_capacity(rows.len());
        let mut failed = failed.clone();
        let mut frames = frames(self.largest, rows, drafts, &mut answers);
        while let Some(mut rows) = frames.pop_front() {
            rows.retain(|&row| match draft_key(&drafts[row]) {
                Some(key) if failed.contains(key) => {
                    answers.push((row, Answer::Held));
                    false
                }
                _ => true,
            });
            let of: Vec<&Draft<'_>> = rows.iter().map(|&row| &drafts[row]).collect();
            if of.is_empty() {
                continue;
            }
            let mut too_many = false;
            let sent = self.send(topic, &of).await;
            let answer = match sent.as_ref().map_err(Error::cause) {
                Ok(()) => Answer::Stored,
                Err(Error::Closed) => Answer::Closed("the client was closed".to_owned()),
                Err(Error::Refused { code, message, retry_after }) => match Code::parse(code) {
                    None => Answer::Failed(format!("{code}: {message}")),
                    known => {
                        too_many = known == Some(Code::RateLimited) && message.contains(TOO_MANY);
                        Answer::refusal(known, message.clone(), *retry_after)
                    }
                },
                Err(Error::Invalid(invalid)) => invalid.clone().into(),
                Err(lost) => Answer::Unavailable { reason: lost.to_string(), retry_after: None },
            };
            if rows.len() > 1 && (too_many || matches!(answer, Answer::Refused(_))) {
                let second = rows.split_off(rows.len() / 2);
                frames.push_front(second);
                frames.push_front(rows);
                continue;
            }
            if answer.holds_its_key() {
                failed.extend(of.iter().filter_map(|draft| draft_key(draft)));
            }
            answers.extend(rows.into_iter().map(|row| (row, answer.clone())));
        }
        answers
    }
}

/// Cuts rows into frames. A row that is larger than that is alone in its frame: the hub knows how large it may be.
fn frames(
    largest: usize,
    rows: Vec<usize>,
    drafts: &[Draft<'_>],
    answers: &mut Vec<(usize, Answer)>,
) -> VecDeque<Vec<usize>> {
    let mut frames: VecDeque<Vec<usize>> = VecDeque::new();
    let mut bytes = usize::MAX;
    for row in rows {
        let (payload, size) = (drafts[row].payload.get().len(), size(&drafts[row]));
        if payload > largest {
            let message = format!("the payload has {payload} bytes, at most {largest} are sent");
            answers.push((row, Answer::refusal(Some(Code::TooLarge), message, None)));
            continue;
        }
        let full = frames.back().is_none_or(|frame| frame.len() >= MAX_BATCH);
        if full || bytes.saturating_add(size) > FRAME_BYTES {
            frames.push_back(Vec::new());
            bytes = 0;
        }
        bytes += size;
        if let Some(frame) = frames.back_mut() {
            frame.push(row);
        }
    }
    frames
}

/// About how many bytes an event takes in a frame.
fn size(draft: &Draft<'_>) -> usize {
    let PublishOptions { id: _, ts: _, key, headers, tags, caused_by, sid } = &draft.options;
    // Each text with its quotes and a comma; an id has 36 characters.
    let text = |text: &str| text.len() + 3;
    let headers: usize = headers.iter().map(|(name, value)| text(name) + text(value)).sum();
    let tags: usize = tags.iter().map(|tag| text(tag)).sum();
    let words = key.as_deref().map_or(0, text) + sid.as_deref().map_or(0, text);
    draft.payload.get().len() + headers + tags + words + caused_by.len() * 39 + NAMES_BYTES
}

fn owned(draft: &Draft<'_>) -> PublishOptions<'static> {
    let options = &draft.options;
    let own = |text: &std::borrow::Cow<'_, str>| text.clone().into_owned().into();
    PublishOptions {
        id: options.id,
        ts: options.ts,
        key: options.key.as_ref().map(own),
        headers: options.headers.iter().map(|(name, value)| (own(name), own(value))).collect(),
        tags: options.tags.iter().map(own).collect(),
        caused_by: options.caused_by.clone(),
        sid: options.sid.as_ref().map(own),
    }
}

impl Publisher for ClientPublisher {
    fn publish<'a>(&'a self, drafts: &'a [Draft<'a>]) -> Answers<'a> {
        Box::pin(async move {
            let mut answers = vec![Answer::Held; drafts.len()];
            let mut failed: HashSet<&str> = HashSet::new();
            for wave in waves(drafts) {
                let sent = wave.into_iter().map(|(topic, rows)| {
                    let failed = &failed;
                    async move { self.topic(&topic, rows, drafts, failed).await }
                });
                let sent: Vec<_> = join_all(sent).await.into_iter().flatten().collect();
                for (row, answer) in sent {
                    if answer.holds_its_key() {
                        failed.extend(draft_key(&drafts[row]));
                    }
                    answers[row] = answer;
                }
            }
            answers
        })
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use promethean_event::frame::ask;
    use serde_json::value::RawValue;

    use super::*;

    #[test]
    fn a_frame_is_cut_by_all_that_its_events_have() {
        let words = |count: usize, bytes: usize| (0..count).map(move |n| format!("{n:03}{}", "w".repeat(bytes)));
        let draft = |options| Draft {
            topic: Topic::parse("t").expect("a topic"),
            payload: Cow::Owned(RawValue::from_string("1".into()).expect("JSON")),
            options,
        };
        let some: [PublishOptions<'static>; 4] = [
            PublishOptions { tags: words(64, 1_000).map(Cow::Owned).collect(), ..Default::default() },
            PublishOptions {
                headers: words(60, 250).map(|word| (word.clone().into(), word.into())).collect(),
                ..Default::default()
            },
            PublishOptions {
                caused_by: vec![promethean_event::EventId::from_bytes([7; 16]); 256],
                ..Default::default()
            },
            PublishOptions {
                key: Some("k".repeat(1_000).into()),
                sid: Some("s".repeat(1_000).into()),
                ..Default::default()
            },
        ];
        for options in some {
            let drafts: Vec<Draft<'_>> = (0..500).map(|_| draft(options.clone())).collect();
            let mut refused = Vec::new();
            let frames = frames(usize::MAX, (0..500).collect(), &drafts, &mut refused);
            assert_eq!((frames.iter().flatten().count(), refused.len()), (500, 0));
            for frame in &frames {
                let events = frame.iter().map(|&row| (&*drafts[row].payload, &drafts[row].options));
                let mut out = Vec::new();
                ask::publish_batch(&mut out, 1, "t", events);
                assert!(frame.len() > 1 && out.len() < FRAME_BYTES + FRAME_BYTES / 8, "{} bytes", out.len());
            }
        }
    }
}
