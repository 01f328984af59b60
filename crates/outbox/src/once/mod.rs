//! Consumers whose effect happens once.
//!
//! A group redelivers: after a crash, a lost lease, a lost ack. [`exactly_once`] remembers what was done and passes over
//! it the next time. Between the effect and the mark there is still a moment in which a crash makes the effect happen
//! again; the `transactional` forms ([`SqliteDedupe::transactional`](crate::SqliteDedupe::transactional),
//! [`MongoDedupe::transactional`](crate::MongoDedupe::transactional)) have no such moment: effect and mark commit
//! together.
//!
//! This lives here, not in the bus: it goes by [`Identified`] alone, so that it wraps the handler of a bus and of a
//! client alike.

mod memory;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use promethean_event::{EventId, Identified};

use crate::{Error, Pending};

pub use memory::MemoryDedupe;

/// How long a mark is kept unless said: longer than any event is redelivered.
pub const DEFAULT_TTL: Duration = Duration::from_secs(7 * 24 * 3_600);

/// Remembers which events a consumer has done. One store may serve many consumers; each has marks of its own.
pub trait DedupeStore: Send + Sync + 'static {
    /// True if the event was marked, and the mark has not run out.
    fn seen(&self, id: EventId) -> Pending<'_, bool>;

    /// Marks the event for `ttl`. **Returned ⇒ as durable as the store is.**
    fn mark(&self, id: EventId, ttl: Duration) -> Pending<'_, ()>;

    /// For how long [`exactly_once`] has it keep its marks: longer than an event may be redelivered.
    fn keeps(&self) -> Duration {
        DEFAULT_TTL
    }
}

/// Why a wrapped handler failed. Its words are the nack's reason.
#[derive(Debug)]
pub enum Once<E> {
    /// The handler itself: its effect has not happened, or it says so.
    Handler(E),
    /// The store of marks. After the effect this means that the event comes again and happens again.
    Store(Error),
}

impl<E: fmt::Display> fmt::Display for Once<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Once::Handler(error) => error.fmt(f),
            Once::Store(error) => write!(f, "the store of marks failed: {error}"),
        }
    }
}

impl<E: fmt::Debug + fmt::Display> std::error::Error for Once<E> {}

/// What a wrapped handler gives back.
pub type Handled<E> = Pin<Box<dyn Future<Output = Result<(), Once<E>>> + Send>>;

/// Wraps `handler` so that an event it has done is passed over: `Ok`, and so acked, without being called again. Marks
/// are kept for as long as the store [keeps](DedupeStore::keeps) them.
///
/// Exactly once but for a crash between the handler's end and the mark; see the `transactional` forms for none.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(async {
/// use std::sync::Arc;
/// use promethean_outbox::{EventId, MemoryDedupe, exactly_once};
///
/// let charge = exactly_once(|id: EventId| async move { println!("charged for {id}"); Ok::<(), String>(()) }, Arc::new(MemoryDedupe::new(10_000)));
/// let id = EventId::parse("0199d1c0-7d3b-7cc2-8b1a-3f0e2c9a4b5d").expect("an id");
/// charge(id).await.expect("charged");
/// charge(id).await.expect("passed over");
/// # });
/// ```
pub fn exactly_once<D, F, Fut, E>(
    handler: F,
    store: Arc<dyn DedupeStore>,
) -> impl Fn(D) -> Handled<E> + Send + Sync + 'static
where
    D: Identified + Send + 'static,
    F: Fn(D) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), E>> + Send + 'static,
    E: Send + 'static,
{
    let handler = Arc::new(handler);
    move |delivery: D| {
        let (handler, store, id) = (Arc::clone(&handler), Arc::clone(&store), delivery.event_id());
        Box::pin(async move {
            if store.seen(id).await.map_err(Once::Store)? {
                return Ok(());
            }
            handler(delivery).await.map_err(Once::Handler)?;
            store.mark(id, store.keeps()).await.map_err(Once::Store)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use super::*;

    fn id(n: u8) -> EventId {
        EventId::from_bytes([n; 16])
    }

    #[tokio::test]
    async fn an_event_that_was_done_is_passed_over_and_one_that_failed_is_not() {
        let (calls, fail) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(1)));
        let (called, failing) = (Arc::clone(&calls), Arc::clone(&fail));
        let handler = exactly_once(
            move |_: EventId| {
                called.fetch_add(1, Relaxed);
                let fails = failing.load(Relaxed) == 1;
                async move { if fails { Err("no") } else { Ok(()) } }
            },
            Arc::new(MemoryDedupe::new(10)),
        );
        assert_eq!(handler(id(1)).await.expect_err("fails").to_string(), "no");
        fail.store(0, Relaxed);
        handler(id(1)).await.expect("done");
        handler(id(1)).await.expect("passed over");
        handler(id(2)).await.expect("done");
        assert_eq!(calls.load(Relaxed), 3, "failed once, done once each");
    }

    #[tokio::test]
    async fn without_the_store_nothing_is_done() {
        struct Broken;
        impl DedupeStore for Broken {
            fn seen(&self, _: EventId) -> Pending<'_, bool> {
                Box::pin(async { Err(Error::Aborted("gone".into())) })
            }
            fn mark(&self, _: EventId, _: Duration) -> Pending<'_, ()> {
                Box::pin(async { Err(Error::Aborted("gone".into())) })
            }
        }
        let calls = Arc::new(AtomicU32::new(0));
        let called = Arc::clone(&calls);
        let handler = exactly_once(
            move |_: EventId| {
                called.fetch_add(1, Relaxed);
                async { Ok::<(), String>(()) }
            },
            Arc::new(Broken),
        );
        assert!(handler(id(1)).await.expect_err("fails").to_string().contains("gone"));
        assert_eq!(calls.load(Relaxed), 0);
    }
}
