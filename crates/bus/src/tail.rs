//! An ephemeral tail: no group, no cursor, no acks, gone with its connection.
//!
//! It reads the log at the subscriber's pace: a slow one falls behind by itself and costs no memory. The last event of a
//! snapshot says at which event that was taken. Each delivery says where another connection may resume (`crate::resume`).

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

use promethean_event::{Code, Event, EventId, From, Millis, Seq, Topic};
use promethean_store::{KeySnapshot, ReadMax};
use tokio::time::Instant;

use crate::lane::Lane;
use crate::resume::Resume;
use crate::subscription::Inner;
use crate::{Error, Given};

/// Most events and bytes read at once.
const READ: usize = 500;
const READ_BYTES: usize = 1024 * 1024;

/// Where a tail starts.
pub(crate) struct TailStart {
    next: Seq,
    snapshot: Option<Box<dyn KeySnapshot>>,
    /// The event at which the snapshot was taken, if it is still there.
    cut: Option<EventId>,
}

pub(crate) async fn start(inner: &Inner, topic: &Topic, from: From) -> Result<TailStart, Error> {
    let from = inner.resume.as_ref().and_then(Resume::from).unwrap_or(from);
    if from == From::Snapshot {
        let snapshot = inner.core.store.key_snapshot(topic).await.map_err(|error| Error::group(&error))?;
        let at = snapshot.cut();
        let read = inner.core.store.read(topic, at, ReadMax::events(1)).await.map_err(|error| Error::group(&error))?;
        let cut = read.first().filter(|event| event.seq == at).map(|event| event.id);
        return Ok(TailStart { next: at + 1, snapshot: Some(snapshot), cut });
    }
    let done = match &inner.resume {
        Some(resume) => resume.done(&inner.core, topic).await?,
        None => inner.core.seek(topic, from).await?.done,
    };
    Ok(TailStart { next: done + 1, snapshot: None, cut: None })
}

/// The lane of a tail on a topic, which the subscriber's places know from now on.
pub(crate) fn lane(inner: &Inner, topic: &Topic, start: &TailStart) -> Arc<Lane> {
    let lane = Lane::new(Arc::clone(&inner.subscriber), Arc::default());
    let since = inner.resume.as_ref().map_or(Millis(0), Resume::since);
    lane.place.begin(start.next - 1, start.snapshot.is_some(), since);
    if let Some(places) = &inner.subscriber.places {
        places.add(topic, &lane.place);
    }
    lane
}

/// Reads on until the subscription is gone.
pub(crate) async fn run(inner: Weak<Inner>, topic: Topic, lane: Arc<Lane>, start: TailStart) {
    let Some(mut watch) = inner.upgrade().map(|inner| inner.core.store.watch(&topic)) else { return };
    let deletions = watch.borrow().deletions;
    let TailStart { mut next, mut snapshot, cut } = start;
    // An event of the snapshot waits until it is known whether it is the last one.
    let mut waiting: Option<Given> = None;
    loop {
        let Some(inner) = inner.upgrade() else { return };
        // A tail of several topics stays: it resumes above the last seq.
        if !inner.subscriber.shared && watch.borrow().deletions != deletions {
            inner.subscriber.end(Error::topic_deleted(&topic));
            return;
        }
        let Some(mut credit) = Credit::take(&lane).await else { return };
        next = lane.place.take_again().unwrap_or(next);
        let read = match &mut snapshot {
            Some(reader) => reader.next(credit.events).await,
            None => {
                let most = ReadMax { events: credit.events, bytes: credit.bytes };
                inner.core.store.read(&topic, next, most).await
            }
        };
        match read {
            Err(error) => {
                inner.subscriber.end(Error::group(&error));
                return;
            }
            Ok(events) if events.is_empty() => {
                let given = match waiting.take() {
                    Some(last) => credit.give(&lane, VecDeque::from([Given { cut, ..last }])).await,
                    None if snapshot.is_some() => {
                        lane.place.end_snapshot();
                        true
                    }
                    None => true,
                };
                if !given {
                    return;
                }
                credit.give_back(&lane);
                drop(inner);
                if snapshot.take().is_none() {
                    let mut resumed = std::pin::pin!(lane.subscriber.resume_signal());
                    resumed.as_mut().enable();
                    if lane.reads_again() {
                        continue;
                    }
                    tokio::select! {
                        changed = watch.changed() => if changed.is_err() { return },
                        () = resumed => {}
                    }
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
                if !credit.give(&lane, batch).await {
                    return;
                }
                if snapshot.is_none() {
                    lane.place.read(next - 1);
                }
                credit.give_back(&lane);
            }
        }
    }
}

/// What a tail may put into the inbox.
struct Credit {
    events: usize,
    bytes: usize,
}

impl Credit {
    /// Waits until there is some and the tail is not paused; `None`: it has ended.
    async fn take(lane: &Arc<Lane>) -> Option<Self> {
        loop {
            lane.subscriber.resumed().await;
            let events = lane.reserve(READ);
            if events == 0 {
                lane.called().await;
                continue;
            }
            let bytes = lane.reserve_bytes(READ_BYTES);
            if bytes > 0 {
                return Some(Self { events, bytes });
            }
            lane.give_room_back(events);
            if !Self::called(lane).await {
                return None;
            }
        }
    }

    /// Waits for bytes; `false`: for too long, and the subscription has ended.
    async fn called(lane: &Arc<Lane>) -> bool {
        while let Some(at) = lane.subscriber.inbox.stuck_at() {
            tokio::select! {
                () = lane.called() => return true,
                () = tokio::time::sleep_until(at) => {
                    if lane.subscriber.inbox.stuck_at().is_some_and(|at| at <= Instant::now()) {
                        lane.subscriber.close();
                        let message = "the client reads too slowly: too much waited for it for too long";
                        lane.subscriber.end(Error::new(Code::RateLimited, message));
                        return false;
                    }
                }
            }
        }
        lane.called().await;
        true
    }

    /// Puts deliveries into the inbox, those that there are no bytes for when there are; `false`: the tail has ended.
    async fn give(&mut self, lane: &Arc<Lane>, batch: VecDeque<Given>) -> bool {
        let mut fitting = VecDeque::with_capacity(batch.len());
        for one in batch {
            let short = one.size().saturating_sub(self.bytes);
            if short > 0 && !lane.stretch(short) {
                lane.give(std::mem::take(&mut fitting));
                self.bytes = 0;
                while !lane.stretch(one.size()) {
                    lane.wait_for_bytes();
                    if !Self::called(lane).await {
                        return false;
                    }
                }
            }
            self.bytes = self.bytes.saturating_sub(one.size());
            self.events = self.events.saturating_sub(1);
            fitting.push_back(one);
        }
        if !fitting.is_empty() {
            lane.give(fitting);
        }
        true
    }

    /// Gives back what was not used.
    fn give_back(self, lane: &Arc<Lane>) {
        lane.give_room_back(self.events);
        lane.return_bytes(self.bytes, false);
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
        lease_for: Duration::ZERO,
        snapshot,
        redriven: false,
        cut: None,
        resume: None,
        fence: None,
    }
}
