//! Handlers: a function for each event, acked when it succeeds and nacked when it does not.

use std::fmt::Display;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use promethean_event::{Event, Group, SubscribeOptions, panic_text};

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

/// Starts a handler. A panic is an error with its text: it disturbs no other handler.
fn caught<F, Fut, E>(handler: &F, delivery: &Arc<Delivery>) -> impl Future<Output = Result<(), String>> + use<F, Fut, E>
where
    F: Fn(Arc<Delivery>) -> Fut,
    Fut: Future<Output = Result<(), E>>,
    E: Display,
{
    let started = catch_unwind(AssertUnwindSafe(|| handler(Arc::clone(delivery))));
    async move {
        let ended = match started {
            Ok(work) => AssertUnwindSafe(work).catch_unwind().await,
            Err(panic) => Err(panic),
        };
        match ended {
            Ok(result) => result.map_err(|error| error.to_string()),
            Err(panic) => Err(panic_text(&*panic)),
        }
    }
}

/// Wraps a handler so that it is called only for events that `wanted` accepts; the others are acked.
pub fn only<W, F, Fut, E>(
    wanted: W,
    handler: F,
) -> impl Fn(Arc<Delivery>) -> BoxFuture<'static, Result<(), E>> + Send + 'static
where
    W: Fn(&Event) -> bool + Send + Sync + 'static,
    F: Fn(Arc<Delivery>) -> Fut + Send + 'static,
    Fut: Future<Output = Result<(), E>> + Send + 'static,
    E: Send + 'static,
{
    move |delivery| {
        if wanted(delivery.event()) {
            return Box::pin(handler(delivery));
        }
        Box::pin(async move {
            // Also where the handler answers for its events. One that fails leaves the lease to run out.
            let _ = delivery.ack().await;
            Ok(())
        })
    }
}

impl Bus {
    /// Calls `handler` for each event, up to `max_in_flight` at a time, started in the order of delivery. A handler that
    /// panics nacks its event with the text of the panic.
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
                            let work = caught(&handler, &delivery);
                            running.push(async move { (work.await, delivery) });
                        }
                        Err(error) => return error,
                    },
                    Some((result, delivery)) = running.next() => {
                        // An answer that fails leaves the lease to run out: the event comes again.
                        let answered = match result {
                            Err(reason) => delivery.nack(reason).await,
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
