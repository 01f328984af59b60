//! When a failed event comes back.

use std::time::Duration;

/// The longest wait between deliveries.
pub(super) const LONGEST: Duration = Duration::from_secs(30);

/// The wait after the `attempts`-th delivery was nacked: none after the first, then 100 ms, 200 ms … 30 s.
pub(super) fn backoff(attempts: u32) -> Duration {
    match attempts {
        0 | 1 => Duration::ZERO,
        more => {
            let doublings = (more - 2).min(16);
            Duration::from_millis(100 << doublings).min(LONGEST)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::backoff;

    #[test]
    fn the_first_nack_comes_back_at_once_and_later_ones_wait_twice_as_long_each() {
        let waits: Vec<_> = (1..=12).map(|attempt| backoff(attempt).as_millis()).collect();
        assert_eq!(waits, [0, 100, 200, 400, 800, 1_600, 3_200, 6_400, 12_800, 25_600, 30_000, 30_000]);
        assert_eq!(backoff(u32::MAX).as_millis(), 30_000);
    }
}
