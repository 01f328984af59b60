//! The time that retention goes by: the system's, unless it has just jumped ahead.
//!
//! A clock that is a day ahead for a minute would take all events that have a `max_age`. So a jump ahead is believed only
//! after the clock has kept it for [`BELIEVED`]; meanwhile time goes on from before the jump. A machine that slept, and a
//! clock that was behind and is set, look the same: retention is late there, by that long.

use std::time::Duration;

use promethean_event::Millis;

/// How far the clock may be ahead of the time that has passed.
const AHEAD: Duration = Duration::from_secs(5 * 60);
/// How long a jump ahead must last.
const BELIEVED: Duration = Duration::from_secs(60 * 60);

/// What was last known of the time.
#[derive(Debug)]
pub(super) struct Clock {
    /// The time, and what the monotonic clock said then.
    known: (Millis, Duration),
    /// Since when the system's clock is ahead.
    ahead: Option<Duration>,
}

impl Clock {
    pub(super) fn new(system: Millis, monotonic: Duration) -> Self {
        Self { known: (system, monotonic), ahead: None }
    }

    /// The time to go by, and whether a jump ahead was seen just now.
    pub(super) fn now(&mut self, system: Millis, monotonic: Duration) -> (Millis, bool) {
        let passed = monotonic.saturating_sub(self.known.1);
        let expected = Millis(self.known.0.0.saturating_add(u64::try_from(passed.as_millis()).unwrap_or(u64::MAX)));
        let first = self.ahead.is_none();
        let since = *self.ahead.get_or_insert(monotonic);
        if system.since(expected) <= AHEAD || monotonic.saturating_sub(since) >= BELIEVED {
            (self.known, self.ahead) = ((system, monotonic), None);
            return (system, false);
        }
        (expected, first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 86_400_000;

    fn at(clock: &mut Clock, system: u64, seconds: u64) -> (u64, bool) {
        let (now, jumped) = clock.now(Millis(system), Duration::from_secs(seconds));
        (now.0, jumped)
    }

    #[test]
    fn a_clock_that_is_a_day_ahead_for_a_minute_changes_nothing() {
        let mut clock = Clock::new(Millis(DAY), Duration::from_secs(100));
        assert_eq!(at(&mut clock, DAY + 60_000, 160), (DAY + 60_000, false));
        assert_eq!(at(&mut clock, 2 * DAY, 220), (DAY + 120_000, true));
        assert_eq!(at(&mut clock, 2 * DAY + 60_000, 280), (DAY + 180_000, false), "said once");
        assert_eq!(at(&mut clock, DAY + 240_000, 340), (DAY + 240_000, false));
        assert_eq!(at(&mut clock, 2 * DAY, 400).0, DAY + 300_000, "another jump is another hour");
    }

    #[test]
    fn a_jump_that_lasts_is_believed_after_an_hour() {
        let mut clock = Clock::new(Millis(DAY), Duration::ZERO);
        for minute in 1..=60 {
            assert_eq!(at(&mut clock, 9 * DAY + minute * 60_000, minute * 60).0, DAY + minute * 60_000);
        }
        assert_eq!(at(&mut clock, 9 * DAY + 61 * 60_000, 61 * 60), (9 * DAY + 61 * 60_000, false));
        assert_eq!(at(&mut clock, 9 * DAY + 62 * 60_000, 62 * 60).0, 9 * DAY + 62 * 60_000);
    }

    #[test]
    fn a_clock_that_goes_back_is_followed() {
        let mut clock = Clock::new(Millis(9 * DAY), Duration::ZERO);
        assert_eq!(at(&mut clock, DAY, 60), (DAY, false));
        assert_eq!(at(&mut clock, DAY + 60_000, 120), (DAY + 60_000, false));
    }
}
