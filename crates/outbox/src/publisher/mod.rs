//! Where rows go.

use std::future::Future;
use std::pin::Pin;

use promethean_event::Draft;

use crate::Answer;

#[cfg(feature = "bus")]
pub(crate) mod bus;
#[cfg(feature = "client")]
pub(crate) mod client;

/// What a publisher gives back: one answer for each draft, in order.
pub type Answers<'a> = Pin<Box<dyn Future<Output = Vec<Answer>> + Send + 'a>>;

/// Takes events to a log.
pub trait Publisher: Send + Sync + 'static {
    /// Publishes `drafts`, each with the id it brings. **[`Answer::Stored`] ⇒ durable.**
    ///
    /// Keeps the order of each key: a draft is not stored after an earlier one of its key got an answer that
    /// [holds the key](Answer::holds_its_key); it is [`Answer::Held`] instead. May take as long as it needs: the
    /// drainer prolongs the leases meanwhile. Dropping the future leaves the outcome unknown, which the ids make good.
    fn publish<'a>(&'a self, drafts: &'a [Draft<'a>]) -> Answers<'a>;
}

/// What order goes by.
#[cfg(any(feature = "bus", feature = "client"))]
fn draft_key<'d>(draft: &'d Draft<'d>) -> Option<&'d str> {
    draft.options.key.as_deref()
}
