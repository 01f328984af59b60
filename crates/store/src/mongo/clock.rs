//! The server's clock, as this hub knows it. Times of appends, retention and tombstones go by it, so that a hub whose own
//! clock is wrong neither removes what others have appended nor appends what others remove.

use std::sync::atomic::{AtomicI64, Ordering};

use mongodb::bson::{Document, doc};
use promethean_event::Millis;

use super::Shared;

/// A smaller difference may be the network's, and changes nothing.
const SMALL: i64 = 1_000;

/// By how many milliseconds the server's clock is ahead of the hub's.
#[derive(Debug, Default)]
pub(super) struct Clock(AtomicI64);

impl Clock {
    /// Returns the server's time.
    pub(super) fn now(&self) -> Millis {
        self.at(Millis::now())
    }

    /// Returns the server's time at this time of the hub.
    pub(super) fn at(&self, here: Millis) -> Millis {
        Millis(here.0.saturating_add_signed(self.0.load(Ordering::Relaxed)))
    }

    /// Learns from the server's time, which it said between two times of the hub.
    fn learn(&self, there: i64, asked: Millis, answered: Millis) {
        let here = i64::try_from(asked.0.midpoint(answered.0)).unwrap_or(i64::MAX);
        let ahead = there.saturating_sub(here);
        let waited = i64::try_from(answered.since(asked).as_millis()).unwrap_or(i64::MAX);
        if waited > SMALL {
            return;
        }
        let ahead = if ahead.abs() < SMALL { 0 } else { ahead };
        let before = self.0.swap(ahead, Ordering::Relaxed);
        if before.abs_diff(ahead) > 10 * SMALL.unsigned_abs() {
            tracing::warn!(ahead_ms = ahead, "MongoDB's clock is not this hub's; upkeep goes by MongoDB's");
        }
    }
}

/// Asks the server whether it is there, and for its time.
pub(super) async fn ask(shared: &Shared) -> mongodb::error::Result<()> {
    let asked = Millis::now();
    let hello: Document = shared.database.run_command(doc! { "hello": 1 }).await?;
    if let Ok(time) = hello.get_datetime("localTime") {
        shared.clock.learn(time.timestamp_millis(), asked, Millis::now());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hub_goes_by_the_servers_clock_whether_its_own_is_ahead_or_behind() {
        let clock = Clock::default();
        for here in [1_700_000_000_000_u64, 1_700_086_400_000] {
            for there in [1_700_000_000_000_i64, 1_699_900_000_000, 1_700_000_000_900] {
                clock.learn(there, Millis(here), Millis(here + 20));
                let known = clock.at(Millis(here + 10));
                assert!(known.0.abs_diff(there.unsigned_abs()) < 1_000, "{here} {there}: {known:?}");
            }
        }
    }

    #[test]
    fn small_differences_and_slow_answers_say_nothing() {
        let clock = Clock::default();
        clock.learn(1_700_000_000_500, Millis(1_700_000_000_000), Millis(1_700_000_000_002));
        assert_eq!(clock.at(Millis(7_000)), Millis(7_000), "that may be the network");
        clock.learn(1_700_000_090_000, Millis(1_700_000_000_000), Millis(1_700_000_060_000));
        assert_eq!(clock.at(Millis(7_000)), Millis(7_000), "it was said at any time of that minute");
    }
}
