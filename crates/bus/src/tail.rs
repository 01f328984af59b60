//! An ephemeral tail: no group, no cursor, no acks, gone with its connection.
//!
//! It reads the log at the subscriber's pace: a slow one falls behind by itself and costs no memory.

use std::collections::VecDeque;
use std::sync::Weak;

use promethean_event::{Event, From, Millis, Seq, Topic};
use promethean_store::{KeySnapshot, ReadMax};

use crate::subscription::Inner;
use crate::{Error, Given};

/// Most events that wait in the inbox of a tail.
const QUEUED: usize = 1_000;
/// Most events read at once.
const READ: usize = 500;

/// Where a tail starts.
pub(crate) struct TailStart {
    next: Seq,
    snapshot: Option<Box<dyn KeySnapshot>>,
}

pub(crate) async fn start(inner: &Inner, topic: &Topic, from: From) -> Result<TailStart, Error> {
    if from == From::Snapshot {
        let snapshot = inner.core.store.key_snapshot(topic).await.map_err(|error| Error::group(&error))?;
        return Ok(TailStart { next: snapshot.cut() + 1, snapshot: Some(snapshot) });
    }
    Ok(TailStart { next: inner.core.seek(topic, from).await?.done + 1, snapshot: None })
}

/// Reads on until the subscription is gone.
pub(crate) async fn run(inner: Weak<Inner>, topic: Topic, start: TailStart) {
    let Some(mut watch) = inner.upgrade().map(|inner| inner.core.store.watch(&topic)) else { return };
    let TailStart { mut next, mut snapshot } = start;
    loop {
        let Some(inner) = inner.upgrade() else { return };
        inner.subscriber.space(QUEUED).await;
        let read = match &mut snapshot {
            Some(reader) => reader.next(READ).await,
            None => inner.core.store.read(&topic, next, ReadMax::events(READ)).await,
        };
        match read {
            Err(error) => {
                inner.subscriber.end(Error::group(&error));
                return;
            }
            Ok(events) if events.is_empty() => {
                drop(inner);
                if snapshot.take().is_none() && watch.changed().await.is_err() {
                    return;
                }
            }
            Ok(events) => {
                if snapshot.is_none() {
                    next = events.last().map_or(next, |event| event.seq + 1);
                }
                let wanted = events.into_iter().filter(|event| inner.options.filter.matches(event));
                let batch: VecDeque<Given> = wanted.map(|event| given(&inner, event, snapshot.is_some())).collect();
                if !batch.is_empty() {
                    inner.subscriber.give(batch, Millis(0));
                }
            }
        }
    }
}

fn given(inner: &Inner, event: Event, snapshot: bool) -> Given {
    let subscription = inner.subscriber.id;
    Given { subscription, event, attempt: 1, max_attempts: 0, lease: 0, deadline: Millis(0), snapshot, fence: None }
}
