//! The end of the hub: everybody is told at once, and the hub knows when the last one has gone.
//!
//! Whoever must be waited for holds a [`Draining`]; [`Drain::drained`] resolves when all of them are dropped.

use std::sync::Arc;

use tokio::sync::watch;

/// The side that says when. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Drain(Arc<watch::Sender<bool>>);

/// The side that is told. Dropping it says: done.
#[derive(Debug, Clone)]
pub struct Draining(watch::Receiver<bool>);

impl Drain {
    /// Nobody has been told yet.
    pub fn new() -> Self {
        Self(Arc::new(watch::Sender::new(false)))
    }

    /// Tells everybody to come to an end.
    pub fn begin(&self) {
        self.0.send_replace(true);
    }

    /// True if the end has begun.
    pub fn has_begun(&self) -> bool {
        *self.0.borrow()
    }

    /// For one that is to be told and waited for.
    pub fn watch(&self) -> Draining {
        Draining(self.0.subscribe())
    }

    /// Resolves when nobody holds a [`Draining`] any more.
    pub async fn drained(&self) {
        self.0.closed().await;
    }
}

impl Default for Drain {
    fn default() -> Self {
        Self::new()
    }
}

impl Draining {
    /// True if the end has begun.
    pub fn has_begun(&self) -> bool {
        *self.0.borrow()
    }

    /// Resolves when the end has begun. Cancel-safe.
    pub async fn begun(&mut self) {
        if self.0.wait_for(|begun| *begun).await.is_err() {
            // Nobody is left to say when: then it never begins.
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Drain;

    #[tokio::test]
    async fn the_hub_waits_for_everybody_who_was_told() {
        let drain = Drain::new();
        let mut one = drain.watch();
        let two = one.clone();
        assert!(!one.has_begun());
        drain.begin();
        one.begun().await;
        assert!(two.has_begun() && drain.watch().has_begun());
        let waiting = tokio::spawn({
            let drain = drain.clone();
            async move { drain.drained().await }
        });
        drop(one);
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(two);
        waiting.await.expect("drained");
    }
}
