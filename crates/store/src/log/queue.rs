//! What waits for the writer: requests with a place for the answer, bounded by their bytes.
//!
//! A permit stands for 1 KiB and is given back with the answer: when the bound is reached, publishers wait.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};
use promethean_event::{Group, NewEvent, Seq, Topic};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::{Error, Outcome, Result, Saved, TopicSettings, Version};

/// Something for the writer to do.
#[derive(Debug)]
pub(super) enum Request {
    Append {
        events: Vec<NewEvent>,
        reply: oneshot::Sender<Result<Vec<Outcome>>>,
    },
    Save {
        topic: Topic,
        group: Group,
        expected: Version,
        state: Vec<u8>,
        reply: oneshot::Sender<Result<Saved>>,
    },
    Forget {
        topic: Topic,
        group: Group,
        reply: oneshot::Sender<Result<bool>>,
    },
    Settings {
        topic: Topic,
        settings: TopicSettings,
        reply: oneshot::Sender<Result<()>>,
    },
    Trim {
        topic: Topic,
        before: Seq,
        reply: oneshot::Sender<Result<()>>,
    },
    /// Ends the journal file, so that it gets settled.
    Rotate {
        reply: oneshot::Sender<Result<()>>,
    },
}

impl Request {
    /// Bytes it takes in a frame, at most.
    pub(super) fn bound(&self) -> u64 {
        match self {
            // An event's numbers take less than 96 bytes; a topic's name may come along.
            Self::Append { events, .. } => {
                let of = |event: &NewEvent| event.body.len() as u64 + 112 + event.topic.as_str().len() as u64;
                events.iter().map(of).sum()
            }
            Self::Save { state, .. } => state.len() as u64 + 512,
            Self::Settings { .. } => 4096,
            Self::Forget { .. } | Self::Trim { .. } => 512,
            Self::Rotate { .. } => 0,
        }
    }

    pub(super) fn refuse(self, error: Error) {
        match self {
            Self::Append { reply, .. } => drop(reply.send(Err(error))),
            Self::Save { reply, .. } => drop(reply.send(Err(error))),
            Self::Forget { reply, .. } => drop(reply.send(Err(error))),
            Self::Settings { reply, .. } | Self::Trim { reply, .. } | Self::Rotate { reply } => {
                drop(reply.send(Err(error)));
            }
        }
    }
}

/// What waits for the writer.
#[derive(Debug)]
pub(super) struct Queue {
    waiting: Mutex<Waiting>,
    arrived: Condvar,
    room: Arc<Semaphore>,
    permits: u32,
}

#[derive(Debug, Default)]
struct Waiting {
    requests: Vec<(Request, OwnedSemaphorePermit)>,
    closed: bool,
    /// The writer sleeps.
    idle: bool,
}

impl Queue {
    pub(super) fn new(bytes: u64) -> Self {
        let permits = u32::try_from(bytes / 1024).unwrap_or(u32::MAX).clamp(1, 1 << 28);
        let room = Arc::new(Semaphore::new(permits as usize));
        Self { waiting: Mutex::default(), arrived: Condvar::new(), room, permits }
    }

    /// Waits for room and leaves a request.
    pub(super) async fn push(&self, request: Request) -> Result<()> {
        let size = u32::try_from(request.bound() / 1024 + 1).unwrap_or(u32::MAX).min(self.permits);
        let closed = || Error::Closed("the hub is shutting down".to_owned());
        let permit = match self.room.clone().try_acquire_many_owned(size) {
            Ok(permit) => permit,
            Err(_) => self.room.clone().acquire_many_owned(size).await.map_err(|_| closed())?,
        };
        let mut waiting = self.waiting.lock();
        if waiting.closed {
            return Err(closed());
        }
        waiting.requests.push((request, permit));
        if waiting.idle {
            self.arrived.notify_one();
        }
        Ok(())
    }

    /// Leaves a request if there is room; it is made again another time.
    pub(super) fn push_now(&self, request: Request) {
        let Ok(permit) = self.room.clone().try_acquire_owned() else { return };
        let mut waiting = self.waiting.lock();
        if !waiting.closed {
            waiting.requests.push((request, permit));
            self.arrived.notify_one();
        }
    }

    /// Takes everything; waits for something until `until`. `None`: closed and empty.
    pub(super) fn take(&self, until: Option<Instant>) -> Option<Vec<(Request, OwnedSemaphorePermit)>> {
        let mut waiting = self.waiting.lock();
        while waiting.requests.is_empty() && !waiting.closed {
            waiting.idle = true;
            let timed_out = match until {
                None => {
                    self.arrived.wait(&mut waiting);
                    false
                }
                Some(until) => self.arrived.wait_until(&mut waiting, until).timed_out(),
            };
            waiting.idle = false;
            if timed_out {
                return Some(Vec::new());
            }
        }
        if waiting.requests.is_empty() {
            return None;
        }
        Some(std::mem::take(&mut waiting.requests))
    }

    /// Whether nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.lock().requests.is_empty()
    }

    /// Lets nothing more in.
    pub(super) fn close(&self) {
        self.waiting.lock().closed = true;
        self.arrived.notify_all();
    }
}
