//! Reads of a group: started in a turn, looked at once, and taken up in a later turn where the store needs longer.

use std::collections::{HashMap, VecDeque};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use promethean_event::{Event, Seq, Topic};
use promethean_store::{Error as StoreError, KeySnapshot, ReadMax, Result as StoreResult, Store};

use super::Runner;
use crate::group::{Deliver, Dispatcher, MemberId};

/// A read that has returned.
pub(super) enum Read {
    /// New events, from a seq on.
    Events { from: Seq, most: ReadMax, events: StoreResult<Vec<Event>> },
    /// Events of a snapshot start, which goes back with them.
    Snapshot { snapshot: Option<Box<dyn KeySnapshot>>, max: usize, events: StoreResult<Vec<Event>> },
    /// Events of a snapshot that were read before the group was loaded.
    Left { left: Vec<Seq>, events: StoreResult<Vec<Event>> },
    /// Events to deliver that were read before, as far as they could be read.
    Again { delivers: Vec<Deliver>, found: HashMap<Seq, Event>, unreadable: Option<StoreError> },
}

/// A read under way, and whose deliveries it is for.
struct UnderWay {
    members: Vec<MemberId>,
    read: Pin<Box<dyn Future<Output = Read> + Send>>,
}

/// The reads of a group: one of new events at most, and those of deliveries, bounded by the events in flight.
#[derive(Default)]
pub(super) struct Reads {
    under_way: Vec<UnderWay>,
    returned: VecDeque<Read>,
    /// The members that deliveries in `returned` are for.
    members: Vec<MemberId>,
}

impl Reads {
    /// Starts a read. An embedded store may have done it at once.
    fn start(&mut self, members: Vec<MemberId>, read: impl Future<Output = Read> + Send + 'static) {
        let mut read = UnderWay { members, read: Box::pin(read) };
        // Its task is woken by `arrive`, which looks again.
        match read.read.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(returned) => self.returned.push_back(returned),
            Poll::Pending => self.under_way.push(read),
        }
    }

    /// The next read that has returned.
    pub(super) fn next(&mut self) -> Option<Read> {
        let next = self.returned.pop_front();
        if next.is_none() {
            self.members.clear();
        }
        next
    }

    /// Resolves when a read has returned. Cancel-safe.
    pub(super) async fn arrive(&mut self) {
        poll_fn(|cx| {
            let mut at = 0;
            while at < self.under_way.len() {
                match self.under_way[at].read.as_mut().poll(cx) {
                    Poll::Pending => at += 1,
                    Poll::Ready(returned) => {
                        self.returned.push_back(returned);
                        self.members.append(&mut self.under_way.swap_remove(at).members);
                    }
                }
            }
            if self.returned.is_empty() { Poll::Pending } else { Poll::Ready(()) }
        })
        .await;
    }

    /// True if deliveries to a member have arrived.
    pub(super) fn is_for(&self, member: MemberId) -> bool {
        self.members.contains(&member)
    }

    /// Forgets all reads: the place was moved.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

impl Runner {
    /// Reads new events from `from` on.
    pub(super) fn read(&mut self, from: Seq, most: ReadMax, behind: bool) {
        if let Some(events) = self.ahead.take(from, most, self.core.clock.now()) {
            return self.reads.returned.push_back(Read::Events { from, most, events: Ok(events) });
        }
        let at_once = if behind { self.core.ahead.read(most) } else { most };
        let (core, topic, metrics) = (Arc::clone(&self.core), self.topic.clone(), self.metrics.of_group());
        self.reads.start(Vec::new(), async move {
            let started = std::time::Instant::now();
            let events = core.store.read(&topic, from, at_once).await;
            metrics.polled(started.elapsed());
            Read::Events { from, most, events }
        });
    }

    /// Reads the next events of a snapshot start, which is opened where it is not.
    pub(super) fn read_snapshot(&mut self, dispatcher: &Dispatcher, max: usize) {
        let (store, topic, snapshot) = (Arc::clone(&self.core.store), self.topic.clone(), self.snapshot.take());
        let after = dispatcher.snapshot_after().map(str::to_owned);
        self.reads.start(Vec::new(), async move {
            let opened = match snapshot {
                Some(snapshot) => Ok(snapshot),
                None => store.key_snapshot(&topic).await.map(|mut snapshot| {
                    after.iter().for_each(|after| snapshot.begin_after(after));
                    snapshot
                }),
            };
            // One that cannot be opened is not an empty one: that would end it.
            match opened {
                Ok(mut snapshot) => {
                    let events = snapshot.next(max).await;
                    Read::Snapshot { snapshot: Some(snapshot), max, events }
                }
                Err(error) => Read::Snapshot { snapshot: None, max, events: Err(error) },
            }
        });
    }

    /// Reads events of a snapshot one by one, as far as they are in the log.
    pub(super) fn read_left(&mut self, left: Vec<Seq>) {
        let (store, topic) = (Arc::clone(&self.core.store), self.topic.clone());
        self.reads.start(Vec::new(), async move {
            let events = read_each(&*store, &topic, &left).await;
            Read::Left { left, events }
        });
    }

    /// Reads the events of deliveries that were read before.
    pub(super) fn redeliver(&mut self, delivers: Vec<Deliver>) {
        if delivers.is_empty() {
            return;
        }
        let (store, topic) = (Arc::clone(&self.core.store), self.topic.clone());
        let mut members: Vec<MemberId> = delivers.iter().map(|deliver| deliver.member).collect();
        members.dedup();
        self.reads.start(members, async move {
            let (found, unreadable) = read_runs(&*store, &topic, &delivers).await;
            Read::Again { delivers, found, unreadable }
        });
    }
}

/// Reads the events of deliveries, run by run, until one cannot be read.
async fn read_runs(
    store: &dyn Store,
    topic: &Topic,
    delivers: &[Deliver],
) -> (HashMap<Seq, Event>, Option<StoreError>) {
    let mut seqs: Vec<Seq> = delivers.iter().map(|deliver| deliver.seq).collect();
    seqs.sort_unstable();
    let mut found = HashMap::new();
    for run in seqs.chunk_by(|one, next| one + 1 == *next) {
        let (mut from, last) = (run[0], run[run.len() - 1]);
        while from <= last {
            let left = usize::try_from(last - from + 1).unwrap_or(usize::MAX);
            match store.read(topic, from, ReadMax::events(left)).await {
                Ok(events) => {
                    let Some(end) = events.last().map(|event| event.seq) else { break };
                    from = end + 1;
                    found.extend(events.into_iter().map(|event| (event.seq, event)));
                }
                Err(error) => return (found, Some(error)),
            }
        }
    }
    (found, None)
}

/// The events at these places, as far as they are there.
async fn read_each(store: &dyn Store, topic: &Topic, seqs: &[Seq]) -> StoreResult<Vec<Event>> {
    let mut events = Vec::with_capacity(seqs.len());
    for &seq in seqs {
        let read = store.read(topic, seq, ReadMax::events(1)).await?;
        events.extend(read.into_iter().filter(|event| event.seq == seq));
    }
    Ok(events)
}
