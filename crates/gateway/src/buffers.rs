//! The account of buffered bytes: half-read frames and bodies, and answers that their peers have not read.
//!
//! One account for WebSocket and HTTP, at most `max_buffered_bytes`:
//!
//! - Frames and bodies have all of it. A reader for which there is no room waits while the largest reader ends, or is
//!   that one.
//! - Answers have half of it, so that they never keep readers out. Over it a connection with more than [`FREE`] bytes
//!   of its own gets no further ones until its peer has read some.
//! - [`FREE`] bytes of a connection count for nothing: small frames and bodies go on whatever others do.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use hyper::body::{Body, Frame, SizeHint};
use parking_lot::Mutex;

/// Bytes of a connection, in each direction, that are not counted.
pub(crate) const FREE: usize = 16 * 1024;

/// The account. Cheap to clone; clones share it.
#[derive(Debug, Clone)]
pub struct Buffers(Arc<Account>);

#[derive(Debug)]
struct Account {
    most: usize,
    reading: AtomicUsize,
    answers: AtomicUsize,
    /// Readers that wait for room.
    waiting: AtomicUsize,
    next: AtomicU64,
    holders: Mutex<HashMap<u64, Arc<Entry>>>,
}

/// What one connection holds.
#[derive(Debug, Default)]
struct Entry {
    reading: AtomicUsize,
    answers: AtomicUsize,
    evicted: AtomicBool,
    waiting: AtomicBool,
    waker: AtomicWaker,
}

/// The largest reader, when there is no room for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the hub buffers max_buffered_bytes already, and this is the largest part of it; send less at once, or try again"
)]
pub(crate) struct Full;

/// A connection's part of the account; given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Holder {
    account: Arc<Account>,
    entry: Arc<Entry>,
    id: u64,
}

impl Buffers {
    /// An account of `most` bytes.
    pub fn new(most: usize) -> Self {
        Self(Arc::new(Account {
            most,
            reading: AtomicUsize::new(0),
            answers: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            next: AtomicU64::new(0),
            holders: Mutex::default(),
        }))
    }

    /// Bytes that are buffered now.
    pub fn bytes(&self) -> usize {
        self.0.reading.load(Relaxed) + self.0.answers.load(Relaxed)
    }

    /// The part of a new connection.
    pub(crate) fn open(&self) -> Holder {
        let (id, entry) = (self.0.next.fetch_add(1, Relaxed), Arc::<Entry>::default());
        self.0.holders.lock().insert(id, Arc::clone(&entry));
        Holder { account: Arc::clone(&self.0), entry, id }
    }
}

impl Holder {
    /// Bytes of a half-read frame or body.
    pub(crate) fn reading(&self) -> usize {
        self.entry.reading.load(Relaxed)
    }

    /// Sets how much of a frame or body is held, once there is room for it. To be polled by the connection's task.
    ///
    /// # Errors
    /// There is no room, and this reader is the largest.
    pub(crate) fn poll_reading(&self, bytes: usize, cx: &mut Context<'_>) -> Poll<Result<(), Full>> {
        let (account, entry) = (&*self.account, &*self.entry);
        let held = entry.reading.load(Relaxed);
        let wanted = if bytes > FREE { bytes } else { 0 };
        if held == 0 && wanted == 0 {
            return Poll::Ready(Ok(()));
        }
        entry.waker.register(cx.waker());
        if entry.evicted.swap(false, Relaxed) {
            return Poll::Ready(Err(Full));
        }
        if wanted <= held {
            self.stop_waiting();
            entry.reading.store(wanted, Relaxed);
            account.reading.fetch_sub(held - wanted, Relaxed);
            account.wake_readers();
            return Poll::Ready(Ok(()));
        }
        let more = wanted - held;
        if account.take(more) {
            self.stop_waiting();
            entry.reading.store(wanted, Relaxed);
            return Poll::Ready(Ok(()));
        }
        // Before it looks for one to end, so that no wake is missed.
        if !entry.waiting.swap(true, Relaxed) {
            account.waiting.fetch_add(1, Relaxed);
        }
        match account.evict(held) {
            true => Poll::Pending,
            // Another one may have left meanwhile.
            false if account.take(more) => {
                self.stop_waiting();
                entry.reading.store(wanted, Relaxed);
                Poll::Ready(Ok(()))
            }
            false => {
                self.stop_waiting();
                Poll::Ready(Err(Full))
            }
        }
    }

    /// Forgets what was half read: it is whole, or was given up.
    pub(crate) fn end_reading(&self) {
        self.stop_waiting();
        self.entry.evicted.store(false, Relaxed);
        let held = self.entry.reading.swap(0, Relaxed);
        if held > 0 {
            self.account.reading.fetch_sub(held, Relaxed);
            self.account.wake_readers();
        }
    }

    fn stop_waiting(&self) {
        if self.entry.waiting.swap(false, Relaxed) {
            self.account.waiting.fetch_sub(1, Relaxed);
        }
    }

    /// Sets how many bytes of answers wait for the peer.
    pub(crate) fn set_answers(&self, bytes: usize) {
        let before = self.entry.answers.swap(bytes, Relaxed);
        if bytes > before {
            self.account.answers.fetch_add(bytes - before, Relaxed);
        } else if bytes < before {
            self.account.answers.fetch_sub(before - bytes, Relaxed);
            self.account.wake_readers();
        }
    }

    /// True if more may be put into the answers of this connection.
    pub(crate) fn may_answer(&self) -> bool {
        self.entry.answers.load(Relaxed) <= FREE || self.account.answers.load(Relaxed) < self.account.most / 2
    }

    /// The same for a task that is to be woken when its peer has read some.
    pub(crate) fn poll_answer(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.may_answer() {
            return Poll::Ready(());
        }
        self.entry.waker.register(cx.waker());
        if self.may_answer() { Poll::Ready(()) } else { Poll::Pending }
    }

    /// `bytes`, counted as an answer until they are dropped: when the peer has them.
    pub(crate) fn answer(self: &Arc<Self>, bytes: Bytes) -> Bytes {
        self.entry.answers.fetch_add(bytes.len(), Relaxed);
        self.account.answers.fetch_add(bytes.len(), Relaxed);
        Bytes::from_owner(Answer { bytes, holder: Arc::clone(self) })
    }
}

/// Bytes of an answer that wait for the peer.
struct Answer {
    bytes: Bytes,
    holder: Arc<Holder>,
}

impl AsRef<[u8]> for Answer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.holder.entry.answers.fetch_sub(self.bytes.len(), Relaxed);
        self.holder.account.answers.fetch_sub(self.bytes.len(), Relaxed);
        self.holder.entry.waker.wake();
        self.holder.account.wake_readers();
    }
}

/// The body of an HTTP answer: its pieces count until the peer has them.
pub(crate) struct CountedAnswer {
    pub(crate) body: axum::body::Body,
    pub(crate) holder: Arc<Holder>,
}

impl Body for CountedAnswer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        ready!(self.holder.poll_answer(cx));
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        Poll::Ready(frame.map(|frame| Ok(frame?.map_data(|bytes| self.holder.answer(bytes)))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Account {
    /// Takes `more` bytes for a reader, if there is room.
    fn take(&self, more: usize) -> bool {
        let answers = self.answers.load(Relaxed);
        let fits = |reading: usize| Some(reading + more).filter(|reading| reading + answers <= self.most);
        self.reading.fetch_update(Relaxed, Relaxed, fits).is_ok()
    }

    /// Ends the largest reader that holds more than `held` bytes; `false` if there is none.
    fn evict(&self, held: usize) -> bool {
        let holders = self.holders.lock();
        let read = |entry: &Arc<Entry>| entry.reading.load(Relaxed);
        if holders.values().any(|entry| entry.evicted.load(Relaxed) && read(entry) > 0) {
            return true;
        }
        let largest = holders.values().max_by_key(|entry| read(entry)).filter(|entry| read(entry) > held);
        largest.inspect(|entry| {
            entry.evicted.store(true, Relaxed);
            entry.waker.wake();
        });
        largest.is_some()
    }

    /// Lets readers that wait look again.
    fn wake_readers(&self) {
        if self.waiting.load(Relaxed) > 0 {
            let holders = self.holders.lock();
            holders.values().filter(|entry| entry.waiting.load(Relaxed)).for_each(|entry| entry.waker.wake());
        }
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.stop_waiting();
        self.account.holders.lock().remove(&self.id);
        self.account.reading.fetch_sub(self.entry.reading.load(Relaxed), Relaxed);
        self.account.answers.fetch_sub(self.entry.answers.load(Relaxed), Relaxed);
        self.account.wake_readers();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: usize = 1024;

    fn read(holder: &Holder, bytes: usize) -> Poll<Result<(), Full>> {
        holder.poll_reading(bytes, &mut Context::from_waker(std::task::Waker::noop()))
    }

    #[test]
    fn small_reads_are_free_and_large_ones_are_counted_until_they_are_whole() {
        let buffers = Buffers::new(100 * KIB);
        let holder = buffers.open();
        assert_eq!((read(&holder, FREE), buffers.bytes()), (Poll::Ready(Ok(())), 0));
        assert_eq!((read(&holder, 60 * KIB), buffers.bytes()), (Poll::Ready(Ok(())), 60 * KIB));
        assert_eq!((read(&holder, 100), buffers.bytes()), (Poll::Ready(Ok(())), 0));
        assert!(read(&holder, 100 * KIB).is_ready());
        drop(holder);
        assert_eq!(buffers.bytes(), 0);
    }

    #[test]
    fn over_the_bound_the_largest_reader_ends_and_others_go_on() {
        let buffers = Buffers::new(100 * KIB);
        let (large, small) = (buffers.open(), buffers.open());
        assert!(read(&large, 70 * KIB).is_ready() && read(&small, 20 * KIB).is_ready());
        assert_eq!(read(&small, 40 * KIB), Poll::Pending, "it waits for the larger one");
        assert_eq!(read(&small, 40 * KIB), Poll::Pending);
        assert_eq!(read(&large, 70 * KIB), Poll::Ready(Err(Full)), "which ends whatever it does");
        large.end_reading();
        assert_eq!(read(&small, 40 * KIB), Poll::Ready(Ok(())));
        assert_eq!(read(&small, 200 * KIB), Poll::Ready(Err(Full)), "the largest is the one that asks");
    }

    #[test]
    fn a_reader_that_waits_is_woken_by_room() {
        struct Woken(AtomicBool);
        impl std::task::Wake for Woken {
            fn wake(self: Arc<Self>) {
                self.0.store(true, Relaxed);
            }
        }
        let woken = Arc::new(Woken(AtomicBool::new(false)));
        let waker = Arc::clone(&woken).into();
        let buffers = Buffers::new(100 * KIB);
        let (large, small) = (buffers.open(), buffers.open());
        assert!(read(&large, 70 * KIB).is_ready() && read(&small, 20 * KIB).is_ready());
        assert!(small.poll_reading(40 * KIB, &mut Context::from_waker(&waker)).is_pending());
        drop(large);
        assert!(woken.0.load(Relaxed) && read(&small, 40 * KIB).is_ready());
    }

    #[test]
    fn answers_have_half_of_it_and_are_counted_until_they_are_dropped() {
        let buffers = Buffers::new(100 * KIB);
        let (one, other) = (Arc::new(buffers.open()), buffers.open());
        let answer = one.answer(vec![0; 60 * KIB].into());
        assert_eq!((answer.len(), buffers.bytes()), (60 * KIB, 60 * KIB));
        assert!(!one.may_answer() && other.may_answer(), "the other holds nothing");
        other.set_answers(20 * KIB);
        assert!(!other.may_answer());
        assert!(read(&other, 18 * KIB).is_ready(), "readers have what is left");
        drop(answer);
        assert!(one.may_answer() && other.may_answer());
    }
}
