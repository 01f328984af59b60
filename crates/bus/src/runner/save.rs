//! Saving what the dispatcher decided: one save at a time, and what happens meanwhile goes into the next.

use promethean_store::{Error as StoreError, Result as StoreResult, Save, Saved};
use tokio::sync::oneshot;

use super::{Fatal, Runner, TRY_AGAIN};
use crate::shard::PendingSave;
use crate::{Code, Error};

type Waiter = Box<dyn FnOnce(Result<(), Error>) + Send>;

/// The save under way and who waits for which.
#[derive(Default)]
pub(super) struct Saving {
    under_way: Option<PendingSave>,
    /// Answered when the save under way returns.
    covered: Vec<Waiter>,
    /// Answered when the next one returns.
    next: Vec<Waiter>,
    /// A refused save is tried again then.
    again: Option<tokio::time::Instant>,
    drained: Option<oneshot::Sender<()>>,
}

impl Saving {
    /// Calls `then` once everything decided so far is saved. `dirty`: there is something that no save covers yet.
    pub(super) fn after(&mut self, dirty: bool, then: impl FnOnce(Result<(), Error>) + Send + 'static) {
        if dirty {
            self.next.push(Box::new(then));
        } else if self.under_way.is_some() {
            self.covered.push(Box::new(then));
        } else {
            then(Ok(()));
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.under_way.is_none() && self.next.is_empty() && self.again.is_none()
    }

    /// Tells `done` when nothing is left to be saved.
    pub(super) fn when_idle(&mut self, done: oneshot::Sender<()>) {
        self.drained = Some(done);
    }

    /// Resolves when the save under way has returned, or when a refused one may be tried again.
    pub(super) async fn done(&mut self) -> Option<StoreResult<Saved>> {
        match (&mut self.under_way, self.again) {
            (Some(save), _) => {
                let saved = save.await;
                self.under_way = None;
                Some(saved)
            }
            (None, Some(at)) => {
                tokio::time::sleep_until(at).await;
                self.again = None;
                None
            }
            (None, None) => std::future::pending().await,
        }
    }

    pub(super) fn fail(&mut self, error: &Error) {
        for waiter in self.covered.drain(..).chain(self.next.drain(..)) {
            waiter(Err(error.clone()));
        }
    }
}

impl Runner {
    /// Starts a save if there is something to save and none is under way.
    pub(super) fn save(&mut self) {
        let Some(dispatcher) = &mut self.dispatcher else { return };
        if self.saving.under_way.is_none() && self.saving.again.is_none() {
            if dispatcher.take_dirty() {
                let (topic, group) = (self.topic.clone(), self.group.clone());
                let save = Save { topic, group, expected: self.version, state: dispatcher.state() };
                self.saving.under_way = Some(self.saves.save(save));
                self.saving.covered.append(&mut self.saving.next);
            } else if self.letters.is_idle()
                && let Some(done) = self.saving.drained.take()
            {
                let _ = done.send(());
            }
        }
    }

    pub(super) fn on_saved(&mut self, saved: Option<StoreResult<Saved>>) -> Result<(), Fatal> {
        match saved {
            None => Ok(()),
            Some(Ok(Saved::Yes(version))) => {
                self.version = version;
                for waiter in self.saving.covered.drain(..) {
                    waiter(Ok(()));
                }
                Ok(())
            }
            Some(Ok(Saved::Conflict)) => {
                self.on_deleted();
                if self.dispatcher.is_some() { Err(Fatal(super::taken_over())) } else { Ok(()) }
            }
            Some(Err(StoreError::Refused(reason))) => {
                // Nothing was saved and the store works on: say so to whoever waits, and try again by and by.
                let error = Error::new(Code::AckFailed, reason);
                for waiter in self.saving.covered.drain(..) {
                    waiter(Err(error.clone()));
                }
                if let Some(dispatcher) = &mut self.dispatcher {
                    dispatcher.set_dirty();
                }
                self.saving.again = Some(tokio::time::Instant::now() + TRY_AGAIN);
                Ok(())
            }
            Some(Err(error)) => Err(Fatal(Error::group(&error))),
        }
    }
}
