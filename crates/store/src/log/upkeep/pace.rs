//! How fast work in the background goes: as fast as it can while nobody publishes, else a third of the time.

use std::time::{Duration, Instant};

/// Work is looked at in pieces of this length.
const PIECE: Duration = Duration::from_millis(5);
/// A pause is so many times as long as the work before it.
const TIMES: u32 = 2;
/// The longest pause: a piece of work may have had to wait itself, for the disk or for a core.
const LONGEST: Duration = Duration::from_millis(50);

/// The pace of one job.
#[derive(Debug)]
pub(in crate::log) struct Pace {
    since: Instant,
    /// Events that were appended by then.
    appended: u64,
}

impl Pace {
    pub(in crate::log) fn new(now: Instant, appended: u64) -> Self {
        Self { since: now, appended }
    }

    /// How long to pause now, if somebody published since the last look.
    pub(in crate::log) fn pause(&mut self, now: Instant, appended: u64) -> Option<Duration> {
        let worked = now.saturating_duration_since(self.since);
        if worked < PIECE {
            return None;
        }
        let pause = (worked * TIMES).min(LONGEST);
        let busy = std::mem::replace(&mut self.appended, appended) != appended;
        self.since = if busy { now + pause } else { now };
        busy.then_some(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_of_the_time_belongs_to_publishers_and_none_of_it_where_there_are_none() {
        let start = Instant::now();
        let mut pace = Pace::new(start, 10);
        assert_eq!(pace.pause(start + PIECE / 2, 11), None, "not yet");
        assert_eq!(pace.pause(start + PIECE, 11), Some(PIECE * TIMES));
        let resumed = start + PIECE + PIECE * TIMES;
        assert_eq!(pace.pause(resumed + PIECE, 11), None, "nobody published");
        assert_eq!(pace.pause(resumed + PIECE * 2, 12), Some(PIECE * TIMES), "counted from the last look");
        assert_eq!(pace.pause(resumed + Duration::from_secs(1), 13), Some(LONGEST));
    }
}
