//! An ephemeral tail: no group, no cursor, no acks, gone with its connection.
//!
//! It reads the log at the subscriber's pace: a slow one falls behind by itself and costs no memory. The last event of a
//! snapshot says at which event that was taken: whoever has it can go on from there on another connection.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use promethean_event::{Event, EventId, From, Millis, Seq, Topic};
use promethean_store::{KeySnapshot, ReadMax};

use crate::lane::Lane;
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
    /// The event at which the snapshot was taken, if it is still there.
    cut: Option<EventId>,
}

pub(crate) async fn start(inner: &Inner, topic: &Topic, from: From) -> Result<TailStart, Error> {
    if from == From::Snapshot {
        let snapshot = inner.core.store.key_snapshot(topic).await.map_err(|error| Error::group(&error))?;
        let at = snapshot.cut();
        let read = inner.core.store.read(topic, at, ReadMax::events(1)).await.map_err(|error| Error::group(&error))?;
        let cut = read.first().filter(|event| event.seq == at).map(|event| event.id);
        return Ok(TailStart { next: at + 1, snapshot: Some(snapshot), cut });
    }
    Ok(TailStart { next: inner.core.seek(topic, from).await?.done + 1, snapshot: None, cut: None })
}

/// Reads on until the subscription is gone.
pub(crate) async fn run(inner: Weak<Inner>, topic: Topic, start: TailStart) {
    let of =
        |inner: Arc<Inner>| (inner.core.store.watch(&topic), Lane::new(Arc::clone(&inner.subscriber), Arc::default()));
    let Some((mut watch, lane)) = inner.upgrade().map(of) else { return };
    let TailStart { mut next, mut snapshot, cut } = start;
    // An event of the snapshot waits until it is known whether it is the last one.
    let mut waiting: Option<Given> = None;
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
                if let Some(last) = waiting.take() {
                    lane.give(VecDeque::from([Given { cut, ..last }]), Millis(0));
                }
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
                let wanted = wanted.map(|event| given(&inner, event, snapshot.is_some()));
                let mut batch: VecDeque<Given> = waiting.take().into_iter().chain(wanted).collect();
                if snapshot.is_some() {
                    waiting = batch.pop_back();
                }
                if !batch.is_empty() {
                    lane.give(batch, Millis(0));
                }
            }
        }
    }
}

fn given(inner: &Inner, event: Event, snapshot: bool) -> Given {
    Given {
        subscription: inner.subscriber.id,
        event,
        attempt: 1,
        max_attempts: 0,
        lease: 0,
        deadline: Millis(0),
        snapshot,
        cut: None,
        fence: None,
    }
}
