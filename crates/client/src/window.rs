//! The bound on publishes without an answer: their number, and the bytes of their payloads.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Payload bytes of all unconfirmed publishes, in KiB. A larger one goes alone.
const KIB: u32 = 64 * 1024;

/// Room for unconfirmed publishes, given in the order of asking.
#[derive(Clone)]
pub(crate) struct Window {
    publishes: Arc<Semaphore>,
    kib: Arc<Semaphore>,
}

/// A publish's room, free again when it is dropped.
pub(crate) struct Room {
    _publish: Option<OwnedSemaphorePermit>,
    _kib: Option<OwnedSemaphorePermit>,
}

impl Window {
    pub(crate) fn new(publishes: usize) -> Self {
        let semaphore = |permits| Arc::new(Semaphore::new(permits));
        Self { publishes: semaphore(publishes), kib: semaphore(KIB as usize) }
    }

    /// Waits until a publish of so many payload bytes has room.
    pub(crate) async fn room(&self, bytes: usize) -> Room {
        let kib = u32::try_from(bytes / 1_024 + 1).unwrap_or(KIB).min(KIB);
        // Neither is ever closed.
        Room {
            _publish: Arc::clone(&self.publishes).acquire_owned().await.ok(),
            _kib: Arc::clone(&self.kib).acquire_many_owned(kib).await.ok(),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn a_window_is_bounded_in_publishes_and_in_bytes() {
        let window = Window::new(2);
        let first = window.room(40 << 20).await;
        assert!(window.room(40 << 20).now_or_never().is_none(), "80 MiB");
        let second = window.room(1).await;
        assert!(window.room(1).now_or_never().is_none(), "three publishes");
        drop((first, second));
        assert!(window.room(1 << 30).now_or_never().is_some(), "a large one goes alone");
    }
}
