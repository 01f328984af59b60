//! The time by which leases run: the wall clock at start, then only forwards.
//!
//! A wall clock that is set back or forth must not prolong or end leases, and tests pause the runtime's time.

use promethean_event::Millis;
use tokio::time::Instant;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    wall: Millis,
    start: Instant,
}

impl Clock {
    pub(crate) fn new() -> Self {
        Self { wall: Millis::now(), start: Instant::now() }
    }

    pub(crate) fn now(&self) -> Millis {
        self.wall + self.start.elapsed()
    }

    /// The instant at which [`Clock::now`] has reached `at`.
    pub(crate) fn instant(&self, at: Millis) -> Instant {
        // One more millisecond: `now` counts whole ones.
        self.start + at.since(self.wall) + std::time::Duration::from_millis(1)
    }
}
