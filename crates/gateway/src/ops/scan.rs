//! Turns for reads whose cost depends on the data: [`AT_ONCE`] at a time over all routes, in small steps, and each rests as
//! long as it has worked, so that publishes keep most of the machine.

use std::time::{Duration, Instant};

use promethean_store::ReadMax;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::Hub;
use crate::rejection::Rejection;

/// Reads at a time; further ones wait.
const AT_ONCE: usize = 2;
static TURNS: Semaphore = Semaphore::const_new(AT_ONCE);
/// Events and bytes of one step.
pub(super) const STEP: ReadMax = ReadMax { events: 256, bytes: 512 * 1024 };
/// Work between two rests: timers are no finer.
const SPELL: Duration = Duration::from_millis(1);
/// Longest rest: a step that waited for the disk has cost no one anything.
const LONGEST_REST: Duration = Duration::from_millis(20);

/// A turn. Dropping it lets the next one begin.
pub(super) struct Scan {
    _turn: Option<SemaphorePermit<'static>>,
    rested: Instant,
}

impl Scan {
    /// Waits for a turn.
    pub(super) async fn begin() -> Self {
        // Never closed; without a permit the work is the same.
        let turn = TURNS.acquire().await.ok();
        Self { _turn: turn, rested: Instant::now() }
    }

    /// Gives way to others after a step.
    ///
    /// # Errors
    /// `shutting_down`: the hub drains.
    pub(super) async fn rest(&mut self, hub: &Hub) -> Result<(), Rejection> {
        if hub.drain.has_begun() {
            return Err(Rejection::shutting_down());
        }
        let worked = self.rested.elapsed();
        if worked < SPELL {
            // A read from memory never waits.
            tokio::task::yield_now().await;
        } else {
            tokio::time::sleep(worked.min(LONGEST_REST)).await;
            self.rested = Instant::now();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures_util::FutureExt as _;
    use promethean_bus::Bus;
    use promethean_store::memory::Memory;

    use super::*;
    use crate::EdgeConfig;
    use crate::auth::{AuthConfig, Authenticator};
    use crate::limits::Quotas;

    #[tokio::test]
    async fn two_read_at_a_time_and_give_way_after_each_step() {
        let auth = Authenticator::new(&AuthConfig::default()).expect("a configuration");
        let bus = Bus::new(Arc::new(Memory::new()), Default::default());
        let hub = Hub::new(bus, auth, Quotas::default(), EdgeConfig::default());
        let (one, mut two) = (Scan::begin().await, Scan::begin().await);
        let mut third = Box::pin(Scan::begin());
        assert!((&mut third).now_or_never().is_none());
        let mut rest = Box::pin(two.rest(&hub));
        assert!((&mut rest).now_or_never().is_none(), "others have a turn");
        rest.await.expect("no drain");
        assert!((&mut third).now_or_never().is_none(), "a rest does not end a turn");
        drop(one);
        third.await;
        hub.drain.begin();
        assert_eq!(two.rest(&hub).await, Err(Rejection::shutting_down()));
    }
}
