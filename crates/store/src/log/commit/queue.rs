//! What waits for the writer: requests with a place for the answer, bounded by their bytes.
//!
//! A permit stands for 1 KiB and is given back with the answer: when the bound is reached, publishers wait.
//!
//! Where appends follow each other closely, a save waits for the next one, which takes it along.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use promethean_event::{Group, IdOrigin, NewEvent, Seq, Topic};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::log::closed;
use crate::{Error, Outcome, Result, Saved, TopicSettings, Version};

/// Appends that follow each other within this time take along the saves that come between them. One sync less for an
/// event, and no append that finds the disk busy with a save.
const SOON: Duration = Duration::from_millis(1);

/// Something for the writer to do.
#[derive(Debug)]
pub(in crate::log) enum Request {
    Append {
        events: Vec<NewEvent>,
        reply: oneshot::Sender<Result<Vec<Outcome>>>,
    },
    Save {
        saves: Vec<EncodedSave>,
        reply: oneshot::Sender<Result<Vec<Result<Saved>>>>,
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
    Create {
        topic: Topic,
        reply: oneshot::Sender<Result<()>>,
    },
    /// All of them or none: they are in one frame.
    Delete {
        topics: Vec<Topic>,
        reply: oneshot::Sender<Result<()>>,
    },
    /// Ends the journal file, so that it gets flushed.
    Rotate {
        reply: oneshot::Sender<Result<()>>,
    },
}

/// A state of a group on its way into a frame.
#[derive(Debug)]
pub(in crate::log) struct EncodedSave {
    pub(in crate::log) topic: Topic,
    pub(in crate::log) group: Group,
    pub(in crate::log) expected: Version,
    pub(in crate::log) state: Vec<u8>,
}

impl EncodedSave {
    /// Bytes it takes in a frame, at most.
    pub(in crate::log) fn bound(&self) -> usize {
        self.state.len() + 512
    }
}

impl Request {
    /// Bytes it takes in a frame, at most.
    pub(in crate::log) fn bound(&self) -> u64 {
        match self {
            // An event's numbers take less than 96 bytes; a topic's name may come along.
            Self::Append { events, .. } => {
                let of = |event: &NewEvent| event.body.len() as u64 + 112 + event.topic.as_str().len() as u64;
                events.iter().map(of).sum()
            }
            Self::Save { saves, .. } => saves.iter().map(|save| save.bound() as u64).sum(),
            Self::Settings { .. } => 4096,
            Self::Forget { .. } | Self::Trim { .. } | Self::Create { .. } => 512,
            Self::Delete { topics, .. } => 512 * topics.len() as u64,
            Self::Rotate { .. } => 0,
        }
    }

    /// True if nothing has to be read from the disk, nor awaited, to do it.
    pub(in crate::log) fn is_plain(&self) -> bool {
        match self {
            Self::Append { events, .. } => events.iter().all(|event| event.origin == IdOrigin::Hub),
            Self::Save { .. } => true,
            Self::Forget { .. } | Self::Settings { .. } | Self::Trim { .. } => false,
            Self::Create { .. } | Self::Delete { .. } | Self::Rotate { .. } => false,
        }
    }

    pub(in crate::log) fn refuse(self, error: Error) {
        match self {
            Self::Append { reply, .. } => drop(reply.send(Err(error))),
            Self::Save { reply, .. } => drop(reply.send(Err(error))),
            Self::Forget { reply, .. } => drop(reply.send(Err(error))),
            Self::Settings { reply, .. }
            | Self::Trim { reply, .. }
            | Self::Create { reply, .. }
            | Self::Delete { reply, .. }
            | Self::Rotate { reply } => drop(reply.send(Err(error))),
        }
    }
}

/// What waits for the writer.
#[derive(Debug)]
pub(in crate::log) struct Queue {
    waiting: Mutex<Waiting>,
    room: Arc<Semaphore>,
    permits: u32,
}

/// A request that waits.
#[derive(Debug)]
pub(in crate::log) struct Queued {
    pub(in crate::log) request: Request,
    /// Bytes it takes in a frame, at most.
    pub(in crate::log) bound: u64,
    /// Its part of the bound of all that waits.
    pub(in crate::log) permit: OwnedSemaphorePermit,
}

/// When appends came, and so when the next one will.
#[derive(Debug, Default)]
struct Appends {
    last: Option<Instant>,
    /// From the one before to the last.
    gap: Option<Duration>,
}

impl Appends {
    fn came(&mut self, now: Instant) {
        self.gap = self.last.map(|last| now.duration_since(last));
        self.last = Some(now);
    }

    /// By when the next one is to be expected, where they follow each other closely.
    fn next(&self) -> Option<Instant> {
        let gap = self.gap.filter(|gap| *gap <= SOON)?;
        self.last.map(|last| last + gap * 2)
    }
}

#[derive(Debug, Default)]
struct Waiting {
    requests: VecDeque<Queued>,
    appends: Appends,
    closed: bool,
    /// Threads that sleep. The one that fell asleep last is woken first: what the work needs is in its core's cache.
    asleep: Vec<Arc<Condvar>>,
    /// One is woken already.
    woken: bool,
    /// There is something to do that nobody waits for.
    nudged: bool,
}

impl Waiting {
    fn add(&mut self, queued: Queued) {
        if matches!(queued.request, Request::Append { .. }) {
            self.appends.came(Instant::now());
        }
        self.requests.push_back(queued);
        self.wake();
    }

    /// Until when all that waits can go on waiting: saves go along with the append that is about to come.
    fn patience(&self, now: Instant) -> Option<Instant> {
        let next = self.appends.next().filter(|next| now < *next)?;
        let saves = self.requests.iter().all(|queued| matches!(queued.request, Request::Save { .. }));
        (saves && !self.closed).then_some(next)
    }

    fn wake(&mut self) {
        if !self.woken
            && let Some(last) = self.asleep.pop()
        {
            self.woken = true;
            last.notify_one();
        }
    }
}

impl Queue {
    pub(in crate::log) fn new(bytes: u64) -> Self {
        let permits = u32::try_from(bytes / 1024).unwrap_or(u32::MAX).clamp(1, 1 << 28);
        let room = Arc::new(Semaphore::new(permits as usize));
        Self { waiting: Mutex::default(), room, permits }
    }

    /// Waits for room and leaves a request.
    pub(in crate::log) async fn push(&self, request: Request) -> Result<()> {
        let bound = request.bound();
        let size = u32::try_from(bound / 1024 + 1).unwrap_or(u32::MAX).min(self.permits);
        let permit = match self.room.clone().try_acquire_many_owned(size) {
            Ok(permit) => permit,
            Err(_) => self.room.clone().acquire_many_owned(size).await.map_err(|_| closed())?,
        };
        let mut waiting = self.waiting.lock();
        if waiting.closed {
            return Err(closed());
        }
        waiting.add(Queued { request, bound, permit });
        Ok(())
    }

    /// Leaves a request if there is room; it is made again another time.
    pub(in crate::log) fn push_now(&self, request: Request) {
        let Ok(permit) = self.room.clone().try_acquire_owned() else { return };
        let mut waiting = self.waiting.lock();
        if !waiting.closed {
            waiting.add(Queued { bound: request.bound(), request, permit });
        }
    }

    /// Waits until there is something to take, or to do after a nudge; false: closed and empty. `arrived`: the caller's
    /// own.
    pub(in crate::log) fn wait(&self, arrived: &Arc<Condvar>) -> bool {
        let mut waiting = self.waiting.lock();
        loop {
            let empty = waiting.requests.is_empty();
            let until = if empty { None } else { waiting.patience(Instant::now()) };
            if waiting.closed || !empty && until.is_none() {
                return !empty;
            }
            if std::mem::take(&mut waiting.nudged) {
                return true;
            }
            waiting.asleep.push(arrived.clone());
            match until {
                Some(until) => _ = arrived.wait_until(&mut waiting, until),
                None => arrived.wait(&mut waiting),
            }
            // Where it woke up by itself.
            waiting.asleep.retain(|one| !Arc::ptr_eq(one, arrived));
            waiting.woken = false;
        }
    }

    /// There is something to do that nobody waits for: one of the threads comes out of [`Self::wait`].
    pub(in crate::log) fn nudge(&self) {
        let mut waiting = self.waiting.lock();
        waiting.nudged = true;
        waiting.wake();
    }

    /// Takes, in order, what fits into `max` bytes of which `used` are used already; where none is, at least one.
    pub(in crate::log) fn take(&self, used: u64, max: u64) -> VecDeque<Queued> {
        let mut waiting = self.waiting.lock();
        let mut bytes = used;
        let over = |queued: &Queued| {
            let first = bytes == 0;
            bytes += queued.bound;
            bytes > max && !first
        };
        let fitting = waiting.requests.iter().position(over).unwrap_or(waiting.requests.len());
        let rest = waiting.requests.split_off(fitting);
        std::mem::replace(&mut waiting.requests, rest)
    }

    /// True if nothing waits.
    pub(in crate::log) fn is_empty(&self) -> bool {
        self.waiting.lock().requests.is_empty()
    }

    /// Lets nothing more in.
    pub(in crate::log) fn close(&self) {
        let mut waiting = self.waiting.lock();
        waiting.closed = true;
        waiting.asleep.drain(..).for_each(|one| _ = one.notify_one());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: Duration = Duration::from_micros(500);

    async fn push(queue: &Queue, request: Request) {
        queue.push(request).await.expect("open");
    }

    fn append() -> Request {
        Request::Append { events: Vec::new(), reply: oneshot::channel().0 }
    }

    fn save() -> Request {
        Request::Save { saves: Vec::new(), reply: oneshot::channel().0 }
    }

    /// A queue to which appends came at these times, and that has given them out.
    fn after(appends: &[Instant]) -> Queue {
        let queue = Queue::new(1 << 20);
        appends.iter().for_each(|at| queue.waiting.lock().appends.came(*at));
        queue
    }

    #[tokio::test]
    async fn a_save_waits_for_the_next_of_appends_that_follow_each_other_closely() {
        let start = Instant::now();
        let (last, next) = (start + TICK, start + 3 * TICK);
        let queue = after(&[start, last]);
        push(&queue, save()).await;
        assert_eq!(queue.waiting.lock().patience(last), Some(next));
        assert_eq!(queue.waiting.lock().patience(next), None, "it did not come");
        push(&queue, append()).await;
        assert_eq!(queue.waiting.lock().patience(last), None, "it came");
        assert_eq!(queue.take(0, u64::MAX).len(), 2, "and takes the save along");
    }

    #[tokio::test]
    async fn a_save_goes_at_once_where_no_append_is_about_to_come() {
        let start = Instant::now();
        for appends in [&[][..], &[start], &[start, start + 2 * SOON]] {
            let queue = after(appends);
            push(&queue, save()).await;
            assert_eq!(queue.waiting.lock().patience(start), None, "{appends:?}");
        }
        let queue = after(&[start, start + TICK]);
        push(&queue, save()).await;
        push(&queue, Request::Rotate { reply: oneshot::channel().0 }).await;
        assert_eq!(queue.waiting.lock().patience(start), None, "somebody else waits");
        let queue = after(&[start, start + TICK]);
        push(&queue, save()).await;
        queue.close();
        assert_eq!(queue.waiting.lock().patience(start), None, "nothing comes after the end");
    }

    #[tokio::test]
    async fn who_waits_for_an_append_that_does_not_come_gets_the_save() {
        let queue = after(&[Instant::now(), Instant::now() + SOON]);
        push(&queue, save()).await;
        assert!(queue.wait(&Arc::default()));
        assert_eq!(queue.take(0, u64::MAX).len(), 1);
    }
}
