//! A stream of deliveries.

use promethean_event::EventId;

use crate::driver::Command;
use crate::mailbox::Mailbox;
use crate::pending::Reply;
use crate::queue::Reader;
use crate::{Delivery, Error};

/// Waiting deliveries at which the hub is asked to pause an ephemeral tail.
pub(crate) const PAUSE_AT: usize = 1_000;

/// A stream of deliveries. It survives reconnects; dropping it unsubscribes, and what nobody has read goes back to the
/// group without counting as an attempt.
#[derive(Debug)]
pub struct Subscription {
    pub(crate) number: u64,
    /// What waits here is bounded: a group's by `maxInFlight` (what is over goes first), a tail's by pausing, both in bytes.
    pub(crate) deliveries: Reader,
    pub(crate) mailbox: Mailbox,
}

impl Subscription {
    /// The next delivery; `None` after the client was closed. Cancel-safe.
    ///
    /// # Errors
    /// Why the hub ended the subscription; there are no more deliveries then.
    pub async fn next(&mut self) -> Result<Option<Delivery>, Error> {
        let Some((delivery, caught_up)) = self.deliveries.next().await? else { return Ok(None) };
        if caught_up {
            // Without room in the queue the driver has commands to look at anyway, and looks at this too.
            self.mailbox.tell(Command::Resume);
        }
        Ok(Some(delivery))
    }
}

impl Subscription {
    /// Stops the deliveries to this subscriber; what it has stays with it. Holds over reconnects.
    ///
    /// # Errors
    /// The subscription has ended.
    pub async fn pause(&self) -> Result<(), Error> {
        self.ask(|subscription, reply| Command::Hold { subscription, held: true, reply }).await
    }

    /// Goes on with the deliveries.
    ///
    /// # Errors
    /// The subscription has ended.
    pub async fn resume(&self) -> Result<(), Error> {
        self.ask(|subscription, reply| Command::Hold { subscription, held: false, reply }).await
    }

    /// Ends it as dropping does, gives `unhandled` back too, without counting an attempt, and waits for that.
    ///
    /// # Errors
    /// The hub refused to take them back, or the client is closed: they come again, and count as tried.
    pub async fn end(self, unhandled: Vec<Delivery>) -> Result<(), Error> {
        let unhandled: Vec<EventId> = unhandled.iter().map(|delivery| delivery.event.id).collect();
        self.ask(|subscription, reply| Command::Unsubscribe { subscription, unhandled, reply: Some(reply) }).await
    }

    /// Takes no more deliveries, and gives back what waits here.
    pub(crate) async fn halt(&self) -> Result<(), Error> {
        self.ask(|subscription, reply| Command::Halt { subscription, reply }).await
    }

    async fn ask(&self, command: impl FnOnce(u64, Reply<()>) -> Command) -> Result<(), Error> {
        self.mailbox.ask(|reply| command(self.number, reply)).await
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        // A full queue: the driver finds that nobody reads when it takes the next command.
        self.mailbox.tell(Command::Unsubscribe { subscription: self.number, unhandled: Vec::new(), reply: None });
    }
}
