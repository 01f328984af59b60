//! Handlers: a function for each event, acked when it succeeds and nacked when it does not.

use std::fmt::Display;
use std::future::Future;
use std::sync::Arc;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use promethean_event::{Group, SubscribeOptions};

use crate::{Bus, Delivery, Error};

/// Who answers for an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Handling {
    /// The bus: `Ok` is an ack, `Err` a nack with its words as the reason.
    #[default]
    AutoAck,
    /// The handler itself, through the [`Delivery`]; an `Err` is still a nack.
    ManualAck,
}

/// A handler that runs. Dropping it ends the subscription and gives its leases back.
#[derive(Debug)]
pub struct Running {
    task: tokio::task::JoinHandle<Error>,
}

impl Running {
    /// Resolves when the bus ended the subscription, with the reason.
    pub async fn ended(mut self) -> Error {
        (&mut self.task).await.unwrap_or_else(|_| Error::shutting_down())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Bus {
    /// Calls `handler` for each event, up to `max_in_flight` at a time, started in the order of delivery.
    ///
    /// # Errors
    /// As [`Bus::subscribe`].
    pub async fn subscribe_with<F, Fut, E>(
        &self,
        topic: &str,
        group: Group,
        options: SubscribeOptions,
        handling: Handling,
        handler: F,
    ) -> Result<Running, Error>
    where
        F: Fn(Arc<Delivery>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Display + Send + 'static,
    {
        let mut events = self.subscribe(topic, Some(group), options).await?;
        let task = tokio::spawn(async move {
            let mut running = FuturesUnordered::new();
            loop {
                tokio::select! {
                    delivery = events.next() => match delivery {
                        Ok(delivery) => {
                            let delivery = Arc::new(delivery);
                            let work = handler(Arc::clone(&delivery));
                            running.push(async move { (work.await, delivery) });
                        }
                        Err(error) => return error,
                    },
                    Some((result, delivery)) = running.next() => {
                        // An answer that fails leaves the lease to run out: the event comes again.
                        let answered = match result {
                            Err(error) => delivery.nack(error.to_string()).await,
                            Ok(()) if handling == Handling::AutoAck => delivery.ack().await,
                            Ok(()) => Ok(()),
                        };
                        if let Err(error) = answered {
                            tracing::warn!(id = %delivery.event().id, %error, "the answer to an event did not count");
                        }
                    }
                }
            }
        });
        Ok(Running { task })
    }
}
