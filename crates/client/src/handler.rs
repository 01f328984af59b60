//! Handlers: a function for each event, acked when it succeeds, nacked when it does not, its lease kept while it runs.
//!
//! Invariants: at most `max_in_flight` handlers run at a time, since the hub gives out no more; an answer that does not
//! get through leaves the lease to run out, and the event comes again.

use std::fmt::Display;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use promethean_event::SubscribeOptions;
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
        let events = self.subscribe(topic, Some(group), options).await?;
        let (stop, stopping) = watch::channel(false);
        Ok(Handling { task: tokio::spawn(run(events, handler, stopping)), stop })
    }
}

async fn run<H, Fut, E>(mut events: Subscription, handler: H, mut stopping: watch::Receiver<bool>) -> Result<(), Error>
where
    H: Fn(Arc<Delivery>) -> Fut,
    Fut: Future<Output = Result<(), E>>,
    E: Display,
{
    let mut running = FuturesUnordered::new();
    let ended = loop {
        tokio::select! {
            biased;
            _ = stopping.wait_for(|stop| *stop) => break Ok(()),
            Some(()) = running.next() => {}
            next = events.next() => match next {
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
    let running = async { while running.next().await.is_some() {} };
    if let (Err(error), ()) = tokio::join!(events.halt(), running) {
        tracing::debug!(%error, "what waits was not given back");
    }
    ended
}

/// One event: its handler beside the extensions of its lease, then the answer.
async fn one<E: Display>(work: impl Future<Output = Result<(), E>>, delivery: Arc<Delivery>) {
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
        () = keep, if !lease.is_zero() => return,
    };
    let answered = match result {
        Ok(()) => delivery.ack().await,
        Err(error) => delivery.nack(GiveBack { reason: Some(error.to_string()), ..GiveBack::default() }).await,
    };
    if let Err(error) = answered {
        tracing::warn!(id = %delivery.event().id, %error, "the answer to an event did not count");
    }
}
