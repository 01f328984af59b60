//! The way from the handles to the driver, and what they share with it: why it has ended, and where it reports.

use std::sync::{Arc, OnceLock};

use tokio::sync::{Notify, mpsc, oneshot};

use crate::driver::Command;
use crate::pending::Reply;
use crate::report::Reporter;
use crate::{Error, Report};

/// Commands that wait for the driver, at most.
const COMMANDS: usize = 1_024;

/// What the handles and the driver share.
#[derive(Default)]
pub(crate) struct Shared {
    ended: OnceLock<Error>,
    abort: Notify,
    reporter: Reporter,
}

impl Shared {
    /// Keeps the first reason.
    pub(crate) fn end(&self, reason: &Error) {
        let _ = self.ended.set(reason.clone());
    }

    /// Resolves when the driver has to end at once.
    pub(crate) async fn aborted(&self) {
        self.abort.notified().await;
    }

    pub(crate) fn report(&self, report: Report<'_>) {
        self.reporter.report(report);
    }

    fn reason(&self) -> Error {
        self.ended.get().cloned().unwrap_or(Error::Closed)
    }
}

/// A handle's end of the way to the driver.
#[derive(Clone)]
pub(crate) struct Mailbox {
    commands: mpsc::Sender<Command>,
    shared: Arc<Shared>,
}

impl Mailbox {
    pub(crate) fn open(reporter: Reporter) -> (Self, mpsc::Receiver<Command>, Arc<Shared>) {
        let (commands, inbox) = mpsc::channel(COMMANDS);
        let shared = Arc::new(Shared { reporter, ..Shared::default() });
        (Self { commands, shared: Arc::clone(&shared) }, inbox, shared)
    }

    /// Asks the driver and waits for its answer.
    ///
    /// # Errors
    /// The answer's, or why the driver has ended.
    pub(crate) async fn ask<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, Error> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(command(reply)).await.map_err(|_| self.shared.reason())?;
        answer.await.unwrap_or_else(|_| Err(self.shared.reason()))
    }

    /// Tells the driver, if its queue has room.
    pub(crate) fn tell(&self, command: Command) {
        let _ = self.commands.try_send(command);
    }

    pub(crate) fn report(&self, report: Report<'_>) {
        self.shared.report(report);
    }

    /// Ends the driver when the guard is dropped, whatever it does then.
    pub(crate) fn end_with(&self) -> EndOnDrop<'_> {
        EndOnDrop(&self.shared)
    }
}

impl std::fmt::Debug for Mailbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mailbox").finish_non_exhaustive()
    }
}

/// Ends the driver when it is dropped.
pub(crate) struct EndOnDrop<'a>(&'a Shared);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.abort.notify_one();
    }
}
