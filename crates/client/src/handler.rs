//! Handlers: a function for each event, acked when it succeeds, nacked when it does not, its lease kept while it runs.
//!
//! Invariants: at most `concurrency` handlers run at a time, and an event is in one of them at most, also when the hub
//! gives it out again meanwhile (after a reconnect it does not know what runs here); an answer that does not get through
//! leaves the lease to run out, and the event comes again.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt::Display;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use promethean_event::{EventId, panic_text};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::{Client, Delivery, Error, GiveBack, Report, SubscribeOptions, Subscription};

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
    /// Calls `handler` for each event, up to `concurrency` at a time, started in the order of delivery. `Ok` is an ack,
    /// `Err` a nack with its text as the reason, and so is a panic, which disturbs no other handler; both are reported
    /// ([`Builder::on_error`](crate::Builder::on_error)), and so is the end of the subscription by the hub. The lease is
    /// extended while the handler runs, for up to `max_extend`.
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
        let most = (options.handlers(), options.max_extend);
        let events = self.subscribe(topic, Some(group), options).await?;
        events.deliveries.has_handlers();
        let (stop, stopping) = watch::channel(false);
        let (mailbox, topic, group) = (self.mailbox().clone(), topic.to_owned(), group.to_owned());
        let task = tokio::spawn(async move {
            let ended = run(events, most, handler, stopping).await;
            if let Err(error) = &ended {
                mailbox.report(Report::Ended { topic: &topic, group: &group, error });
            }
            ended
        });
        Ok(Handling { task, stop })
    }
}

async fn run<H, Fut, E>(
    mut events: Subscription,
    (most, longest): (usize, Duration),
    handler: H,
    mut stopping: watch::Receiver<bool>,
) -> Result<(), Error>
where
    H: Fn(Arc<Delivery>) -> Fut,
    Fut: Future<Output = Result<(), E>>,
    E: Display,
{
    let (mut running, mut answering) = (FuturesUnordered::new(), FuturesUnordered::new());
    // Those that run or are being acked: at most `most`.
    let mut held: HashMap<EventId, Arc<Delivery>> = HashMap::new();
    let ended = loop {
        tokio::select! {
            biased;
            _ = stopping.wait_for(|stop| *stop) => break Ok(()),
            Some(acked) = answering.next() => {
                if let Some(id) = acked {
                    held.remove(&id);
                }
            }
            Some(handled) = running.next() => {
                let (delivery, result): Handled = handled;
                if result.is_err() {
                    // Given back, it may come before the answer to that.
                    held.remove(&delivery.event.id);
                }
                answering.push(answer(delivery, result));
            }
            next = events.next(), if running.len() + answering.len() < most => match next {
                Ok(Some(delivery)) => match held.entry(delivery.event.id) {
                    // Given out again while it runs: the ack names the event, so it counts for this lease too.
                    Entry::Occupied(running) => running.get().delivered_again(&delivery),
                    Entry::Vacant(entry) => {
                        let delivery = Arc::clone(entry.insert(Arc::new(delivery)));
                        let work = caught(&handler, &delivery);
                        running.push(one(work, delivery, longest));
                    }
                },
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

/// Starts a handler. A panic is an error with its text: it disturbs no other handler.
fn caught<H, Fut, E>(handler: &H, delivery: &Arc<Delivery>) -> impl Future<Output = Result<(), String>> + use<H, Fut, E>
where
    H: Fn(Arc<Delivery>) -> Fut,
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

/// An event whose handler is through.
type Handled = (Arc<Delivery>, Result<(), String>);

/// One event: its handler beside the extensions of its lease, for `longest`.
async fn one(work: impl Future<Output = Result<(), String>>, delivery: Arc<Delivery>, longest: Duration) -> Handled {
    let (lease, every) = (delivery.lease_time(), delivery.keep_in());
    let keep = async {
        let started = Instant::now();
        while started.elapsed() + every < longest {
            tokio::time::sleep(every).await;
            if let Err(error) = delivery.extend(lease).await {
                tracing::debug!(id = %delivery.event().id, %error, "a lease was not extended");
            }
        }
        std::future::pending().await
    };
    let result = tokio::select! {
        biased;
        result = work => result,
        result = keep, if !lease.is_zero() => result,
    };
    (delivery, result)
}

/// Sends the handler's answer; returns the id of an event that was acked.
async fn answer(delivery: Arc<Delivery>, result: Result<(), String>) -> Option<EventId> {
    let id = delivery.event.id;
    let (done, answered) = match result {
        Ok(()) => (Some(id), delivery.ack().await),
        Err(reason) => {
            let (topic, attempt) = (delivery.event.topic.as_str(), delivery.context.attempt);
            delivery.mailbox.report(Report::Handler { topic, id, attempt, reason: &reason });
            let reason = Some(reason);
            (None, delivery.nack(GiveBack { reason, ..GiveBack::default() }).await)
        }
    };
    if let Err(error) = answered {
        tracing::warn!(%id, %error, "the answer to an event did not count");
    }
    done
}
