//! A stream of deliveries.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{mpsc, oneshot};

use crate::driver::Command;
use crate::{Delivery, Error};

/// At how many waiting deliveries of an ephemeral tail the hub is asked to pause, and at how few to go on.
pub(crate) const PAUSE_AT: usize = 1_000;
const RESUME_AT: usize = 100;

/// A stream of deliveries. It survives reconnects; dropping it unsubscribes.
#[derive(Debug)]
pub struct Subscription {
    pub(crate) number: u64,
    pub(crate) deliveries: mpsc::UnboundedReceiver<Result<Delivery, Error>>,
    /// How many wait here. Bounded: `maxInFlight` bounds a group's, pausing a tail's.
    pub(crate) waiting: Arc<AtomicUsize>,
    pub(crate) commands: mpsc::Sender<Command>,
}

impl Subscription {
    /// The next delivery; `None` after the client was closed. Cancel-safe.
    ///
    /// # Errors
    /// Why the hub ended the subscription; there are no more deliveries then.
    pub async fn next(&mut self) -> Result<Option<Delivery>, Error> {
        let Some(next) = self.deliveries.recv().await else { return Ok(None) };
        if self.waiting.fetch_sub(1, Ordering::AcqRel) == RESUME_AT {
            // Without room in the queue the driver has commands to look at anyway, and looks at this too.
            let _ = self.commands.try_send(Command::Resume);
        }
        next.map(Some)
    }
}

impl Subscription {
    /// Stops the deliveries to this subscriber; what it has stays with it. Holds over reconnects.
    ///
    /// # Errors
    /// The subscription has ended.
    pub async fn pause(&self) -> Result<(), Error> {
        self.hold(true).await
    }

    /// Goes on with the deliveries.
    ///
    /// # Errors
    /// The subscription has ended.
    pub async fn resume(&self) -> Result<(), Error> {
        self.hold(false).await
    }

    async fn hold(&self, held: bool) -> Result<(), Error> {
        let (reply, answer) = oneshot::channel();
        let command = Command::Hold { subscription: self.number, held, reply };
        self.commands.send(command).await.map_err(|_| Error::Closed)?;
        answer.await.unwrap_or(Err(Error::Closed))
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        // A full queue: the driver finds the receiver gone at the next delivery.
        let _ = self.commands.try_send(Command::Unsubscribe(self.number));
    }
}
