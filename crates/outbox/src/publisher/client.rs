//! To a hub over WebSocket.
//!
//! A batch goes out in waves ([`crate::plan::waves`]): the topics of a wave at once, the frames of a topic one after
//! another. A frame is all or none. One that the hub refuses because of one of its rows is halved until that row is
//! alone, so that it takes no other with it. While the hub is away the client waits for it, and so does this.

use std::collections::{HashSet, VecDeque};

use futures_util::future::join_all;
use promethean_client::{Client, Error, Publish};
use promethean_event::limits::{DEFAULT_FRAME_BYTES, MAX_BATCH};
use promethean_event::{Code, Draft, PublishOptions, Topic};

use super::draft_key;
use crate::plan::waves;
use crate::{Answer, Answers, Publisher};

/// Most bytes of payload in a frame: well below any `max_frame_bytes` that an operator is likely to set.
const FRAME_BYTES: usize = 256 * 1024;
/// What an event's other fields may add to its payload in a frame.
const ENVELOPE_BYTES: usize = 128 * 1024;

/// Publishes to a hub over WebSocket.
#[derive(Debug, Clone)]
pub struct ClientPublisher {
    client: Client,
    largest: usize,
}

impl ClientPublisher {
    /// Over `client`.
    pub fn new(client: Client) -> Self {
        Self { client, largest: DEFAULT_FRAME_BYTES - ENVELOPE_BYTES }
    }

    /// Payloads over `bytes` are refused here. Whatever is over the hub's `max_event_bytes` the hub refuses; what is
    /// over its `max_frame_bytes` it cannot even answer, it closes the connection. So where that was set below its
    /// default of 16 MiB, say so here.
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
        let mut frames = self.frames(rows, drafts, &mut answers);
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
            let answer = match self.send(topic, &of).await {
                Ok(()) => Answer::Stored,
                Err(Error::Closed) => Answer::Closed("the client was closed".to_owned()),
                Err(Error::Refused { code, message, retry_after }) => match Code::parse(&code) {
                    None => Answer::Failed(format!("{code}: {message}")),
                    known => Answer::refusal(known, message, retry_after),
                },
                Err(Error::Invalid(invalid)) => invalid.into(),
                Err(lost) => Answer::Unavailable { reason: lost.to_string(), retry_after: None },
            };
            if matches!(answer, Answer::Refused(_)) && rows.len() > 1 {
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

    /// Cuts rows into frames; what is too large for any frame is refused.
    fn frames(
        &self,
        rows: Vec<usize>,
        drafts: &[Draft<'_>],
        answers: &mut Vec<(usize, Answer)>,
    ) -> VecDeque<Vec<usize>> {
        let mut frames: VecDeque<Vec<usize>> = VecDeque::new();
        let mut bytes = usize::MAX;
        for row in rows {
            let size = drafts[row].payload.get().len();
            if size > self.largest {
                let message = format!("the payload has {size} bytes, a frame holds {}", self.largest);
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
