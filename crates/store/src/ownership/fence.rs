//! Until when a hub may act, by its own monotonic clock. A process that was stopped finds it passed when it goes on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// Until when a hub may act. Clones share one end; it can be prolonged while it holds, and never again after it has
/// been [ended](Fence::end).
#[derive(Debug, Clone)]
pub struct Fence(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    start: Instant,
    /// Microseconds after `start`; 0: ended.
    until: AtomicU64,
    changed: Notify,
}

impl Fence {
    /// A fence that holds until `until`.
    pub fn new(until: Instant) -> Self {
        let start = Instant::now();
        let until = AtomicU64::new(micros(until.saturating_duration_since(start)).max(1));
        Self(Arc::new(Inner { start, until, changed: Notify::new() }))
    }

    /// True if it holds now.
    pub fn holds(&self) -> bool {
        micros(self.0.start.elapsed()) < self.0.until.load(Ordering::Acquire)
    }

    /// Prolongs it to `until`; never shortens it, never brings an ended one back.
    pub fn extend(&self, until: Instant) {
        let until = micros(until.saturating_duration_since(self.0.start));
        let longer = |now: u64| (now != 0 && until > now).then_some(until);
        let _ = self.0.until.fetch_update(Ordering::AcqRel, Ordering::Acquire, longer);
    }

    /// Ends it for good.
    pub fn end(&self) {
        self.0.until.store(0, Ordering::Release);
        self.0.changed.notify_waiters();
    }

    /// Resolves when it no longer holds. Cancel-safe.
    pub async fn lost(&self) {
        loop {
            let changed = self.0.changed.notified();
            tokio::pin!(changed);
            // From here on an end is noticed.
            changed.as_mut().enable();
            if !self.holds() {
                return;
            }
            let until = self.0.start + Duration::from_micros(self.0.until.load(Ordering::Acquire));
            tokio::select! {
                () = tokio::time::sleep_until(until) => {}
                () = changed => {}
            }
        }
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn it_holds_until_its_time_and_can_be_prolonged_while_it_holds() {
        let start = Instant::now();
        let fence = Fence::new(start + 5 * SECOND);
        assert!(fence.holds());
        fence.extend(start + 8 * SECOND);
        fence.extend(start + 2 * SECOND);
        tokio::time::advance(7 * SECOND).await;
        assert!(fence.holds(), "it is never shortened");
        fence.lost().await;
        assert!(start.elapsed() >= 8 * SECOND && start.elapsed() < 9 * SECOND);
        assert!(!fence.holds());
    }

    #[tokio::test(start_paused = true)]
    async fn an_ended_one_stays_ended_and_wakes_whoever_waits() {
        let start = Instant::now();
        let fence = Fence::new(start + 5 * SECOND);
        let waiting = fence.clone();
        let waiter = tokio::spawn(async move { waiting.lost().await });
        tokio::task::yield_now().await;
        fence.end();
        waiter.await.expect("woken");
        assert_eq!(start.elapsed(), Duration::ZERO);
        fence.extend(start + 60 * SECOND);
        assert!(!fence.holds());
    }
}
