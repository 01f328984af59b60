//! Shards: a small number of tasks that drive all groups, each group by the hash of its name.
//!
//! All topics of a group are in one shard. A pass of a shard polls each group that is due once, then saves the states of
//! all that changed with one call of the store. Invariants: a group polls again only after all others that were due; a
//! group that waits, for the store or for news, holds up no other; a panic ends its group and no other.

mod saves;

use std::future::{Future, poll_fn};
use std::hash::BuildHasher;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use foldhash::fast::FixedState;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use parking_lot::Mutex;
use promethean_event::{Group, panic_text};
use promethean_store::Store;
use tokio::sync::mpsc;

pub(crate) use saves::{PendingSave, Saves};

/// A group on a topic, from its first input to its end.
type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Passes of a shard in a row, where saves that returned at once let groups move on.
const PASSES: usize = 4;

/// All shards of a bus.
pub(crate) struct Shards(Box<[Shard]>);

struct Shard {
    saves: Arc<Saves>,
    /// The way to its task. Closed: there is none yet, or its runtime has ended.
    groups: Mutex<mpsc::UnboundedSender<Work>>,
}

impl Shards {
    pub(crate) fn new() -> Self {
        let count = std::thread::available_parallelism().map_or(1, usize::from);
        let shard = || Shard { saves: Arc::default(), groups: Mutex::new(mpsc::unbounded_channel().0) };
        Self((0..count).map(|_| shard()).collect())
    }

    /// Drives a group that `start` makes, which saves through what it gets.
    pub(crate) fn drive<F>(&self, store: &Arc<dyn Store>, group: &Group, start: impl FnOnce(Arc<Saves>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let hash = FixedState::default().hash_one(group.as_str());
        let shard = &self.0[usize::try_from(hash % self.0.len() as u64).unwrap_or(0)];
        let work = AssertUnwindSafe(start(Arc::clone(&shard.saves))).catch_unwind().map(|ended| {
            if let Err(panic) = ended {
                tracing::error!(panic = panic_text(&*panic), "a group has ended by a panic");
            }
        });
        let mut groups = shard.groups.lock();
        if groups.is_closed() {
            let (sender, receiver) = mpsc::unbounded_channel();
            shard.saves.clear();
            tokio::spawn(Task::new(Arc::downgrade(store), receiver, Arc::clone(&shard.saves)).run());
            *groups = sender;
        }
        // A task whose runtime ends just now drops the group: whoever asked finds its answer dropped, and asks again.
        let _ = groups.send(Box::pin(work));
    }
}

/// The task of a shard.
struct Task {
    store: Weak<dyn Store>,
    new: mpsc::UnboundedReceiver<Work>,
    groups: FuturesUnordered<Work>,
    saves: Arc<Saves>,
    under_way: FuturesUnordered<Work>,
}

impl Task {
    fn new(store: Weak<dyn Store>, new: mpsc::UnboundedReceiver<Work>, saves: Arc<Saves>) -> Self {
        Self { store, new, groups: FuturesUnordered::new(), saves, under_way: FuturesUnordered::new() }
    }

    /// Runs until the bus is gone and all groups have ended.
    async fn run(mut self) {
        poll_fn(|cx| self.poll(cx)).await;
    }

    /// One pass, or some more. Tokio's budget bounds it: groups beyond that are due in the next.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        for _ in 0..PASSES {
            let mut gone = false;
            while let Poll::Ready(new) = self.new.poll_recv(cx) {
                match new {
                    Some(group) => self.groups.push(group),
                    None => {
                        gone = true;
                        break;
                    }
                }
            }
            while let Poll::Ready(Some(())) = self.groups.poll_next_unpin(cx) {}
            self.saves.start(&self.store, &self.under_way);
            let mut saved = false;
            while let Poll::Ready(Some(())) = self.under_way.poll_next_unpin(cx) {
                saved = true;
            }
            if gone && self.groups.is_empty() && self.under_way.is_empty() {
                return Poll::Ready(());
            }
            if !saved {
                break;
            }
        }
        // What was woken since has woken this task too.
        Poll::Pending
    }
}

#[cfg(test)]
mod tests;
