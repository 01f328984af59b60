//! Handlers: a function for each event, acked when it succeeds, nacked when it does not, its lease kept while it runs.
//!
//! Invariants: at most `max_in_flight` handlers run at a time, and an event is in one of them at most, also when the hub
//! gives it out again meanwhile (after a reconnect it does not know what runs here); an answer that does not get through
//! leaves the lease to run out, and the event comes again.

use std::collections::HashSet;
use std::fmt::Display;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use promethean_event::{EventId, SubscribeOptions};
use tokio::sync::watch;

use crate::{Client, Delivery, Error, GiveBack, Subscription};

/// A handler that runs. Dropping it ends the subscription at once: what was being handled comes again.
#[derive(Debug)]
pub struct Handling {
    task: tokio::task::JoinHandle<Result<(), Error>>,
    stop: watch::Sender<bool>,
}

impl Handling {
    /// Takes no more events, gives back those that wait, waits for those that are being handled and their answers, then
    /// unsubscribes.
    ///
    /// # Errors
    /// Why the hub had ended the subscription before.
    pub async fn stop(self) -> Result<(), Error> {
        self.stop.send_replace(true);
        self.ended().await
    }

    /// Resolves when the subscription has ended.
    ///
    /// # Errors
    /// Why the hub ended it; `Ok` when the client was closed.
    pub async fn ended(mut self) -> Result<(), Error> {
        (&mut self.task).await.unwrap_or(Err(Error::Closed))
    }
}

impl Drop for Handling {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Client {
    /// Calls `handler` for each event, up to `max_in_flight` at a time, started in the order of delivery. `Ok` is an
    /// ack, `Err` a nack with its words as the reason. The lease is extended for as long as the handler runs.
    ///
    /// # Errors
    /// As [`Client::subscribe`].
    pub async fn handle<H, Fut, E>(
        &self,
        topic: &str,
        group: &str,
        options: SubscribeOptions,
        handler: H,
    ) -> Result<Handling, Error>
    where
        H: Fn(Arc<Delivery>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Display + Send + 'static,
    {
        let most = options.max_in_flight;
        let events = self.subscribe(topic, Some(group), options).await?;
        let (stop, stopping) = watch::channel(false);
        Ok(Handling { task: tokio::spawn(run(events, most, handler, stopping)), stop })
    }
}

async fn run<H, Fut, E>(
    mut events: Subscription,
    most: usize,
    handler: H,
    mut stopping: watch::Receiver<bool>,
) -> Result<(), Error>
where
    H: Fn(Arc<Delivery>) -> Fut,
    Fut: Future<Output = Result<(), E>>,
    E: Display,
{
    let (mut running, mut answering) = (FuturesUnordered::new(), FuturesUnordered::new());
    // Of those that run or are being acked: at most `most`.
    let mut ids = HashSet::new();
    let ended = loop {
        tokio::select! {
            biased;
            _ = stopping.wait_for(|stop| *stop) => break Ok(()),
            Some(acked) = answering.next() => {
                if let Some(id) = acked {
                    ids.remove(&id);
                }
            }
            Some(handled) = running.next() => {
                let (delivery, result): Handled<E> = handled;
                if result.is_err() {
                    // Given back, it may come before the answer to that.
                    ids.remove(&delivery.event.id);
                }
                answering.push(answer(delivery, result));
            }
            next = events.next(), if running.len() + answering.len() < most => match next {
                // Given out again while it runs: extensions and the ack name the event, so they hold for this lease too.
                Ok(Some(delivery)) if !ids.insert(delivery.event.id) => {}
                Ok(Some(delivery)) => {
                    let delivery = Arc::new(delivery);
                    running.push(one(handler(Arc::clone(&delivery)), delivery));
                }
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            },
        }
    };
    // Nothing new; what waits goes to others now, not when the last handler is through.
    let finished = async {
        loop {
            tokio::select! {
                Some((delivery, result)) = running.next() => answering.push(answer(delivery, result)),
                Some(_) = answering.next() => {}
                else => break,
            }
        }
    };
    if let (Err(error), ()) = tokio::join!(events.halt(), finished) {
        tracing::debug!(%error, "what waits was not given back");
    }
    ended
}

/// An event whose handler is through.
type Handled<E> = (Arc<Delivery>, Result<(), E>);

/// One event: its handler beside the extensions of its lease.
async fn one<E>(work: impl Future<Output = Result<(), E>>, delivery: Arc<Delivery>) -> Handled<E> {
    let lease = Duration::from_millis(delivery.context().ack_deadline_ms);
    let keep = async {
        loop {
            tokio::time::sleep(lease / 3).await;
            if let Err(error) = delivery.extend(lease).await {
                tracing::debug!(id = %delivery.event().id, %error, "a lease was not extended");
            }
        }
    };
    let result = tokio::select! {
        biased;
        result = work => result,
        result = keep, if !lease.is_zero() => result,
    };
    (delivery, result)
}

/// What its handler says; the id of an event that was acked.
async fn answer<E: Display>(delivery: Arc<Delivery>, result: Result<(), E>) -> Option<EventId> {
    let id = delivery.event.id;
    let (done, answered) = match result {
        Ok(()) => (Some(id), delivery.ack().await),
        Err(error) => {
            let reason = Some(error.to_string());
            (None, delivery.nack(GiveBack { reason, ..GiveBack::default() }).await)
        }
    };
    if let Err(error) = answered {
        tracing::warn!(%id, %error, "the answer to an event did not count");
    }
    done
}
