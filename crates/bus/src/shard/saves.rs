//! Saves of a shard's groups: what all of them leave in a pass goes to the store in one call.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Weak;
use std::task::{Context, Poll};

use futures_util::FutureExt as _;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use promethean_store::{Error as StoreError, Result as StoreResult, Save, Saved, Store};
use tokio::sync::oneshot;

use super::Work;

/// Most calls under way. A slow one holds up its own groups, and no others.
const CALLS: usize = 16;
/// Most saves of one call.
const AT_ONCE: usize = 1_000;

type Outcome = StoreResult<Saved>;

/// States that wait to be saved. Bounded by the shard's groups: each saves once at a time.
#[derive(Default)]
pub(crate) struct Saves(Mutex<Vec<(Save, oneshot::Sender<Outcome>)>>);

/// A save that was asked for: resolves with its outcome.
pub(crate) struct PendingSave(oneshot::Receiver<Outcome>);

impl Future for PendingSave {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        let lost = || Err(StoreError::Unknown("the save has ended without an outcome".to_owned()));
        self.0.poll_unpin(cx).map(|outcome| outcome.unwrap_or_else(|_| lost()))
    }
}

impl Saves {
    /// Saves a state with the others of this pass. Called by the shard's groups alone: its task looks after each pass.
    pub(crate) fn save(&self, save: Save) -> PendingSave {
        let (reply, outcome) = oneshot::channel();
        self.0.lock().push((save, reply));
        PendingSave(outcome)
    }

    /// Forgets what waits: the groups that left it are gone.
    pub(super) fn clear(&self) {
        self.0.lock().clear();
    }

    /// Starts to save what waits.
    pub(super) fn start(&self, store: &Weak<dyn Store>, under_way: &FuturesUnordered<Work>) {
        while under_way.len() < CALLS {
            let mut waiting = self.0.lock();
            let count = waiting.len().min(AT_ONCE);
            let batch: Vec<_> = waiting.drain(..count).collect();
            drop(waiting);
            let Some(store) = store.upgrade().filter(|_| !batch.is_empty()) else { return };
            let (saves, replies): (Vec<_>, Vec<_>) = batch.into_iter().unzip();
            let call = async move {
                match store.save_many(saves).await {
                    Ok(outcomes) => {
                        replies.into_iter().zip(outcomes).for_each(|(reply, outcome)| drop(reply.send(outcome)))
                    }
                    Err(error) => replies.into_iter().for_each(|reply| drop(reply.send(Err(error.clone())))),
                }
            };
            // A store that panics drops the replies: an outcome that is not known.
            under_way.push(Box::pin(AssertUnwindSafe(call).catch_unwind().map(drop)));
        }
    }
}
