//! How fast a client may send pings and pongs, and, before `AUTH`, anything. Pure: the time is an argument.
//!
//! Over the rate of pings and pongs the connection ends. Over the other two its frames wait: each gets its answer later.

use std::time::Duration;

use tokio::time::Instant;

use crate::ws::codec::Allowance;

/// Largest frame before `AUTH`: a token of 64 KiB fits, escaped as JSON too.
const FRAME: usize = 128 * 1024;
/// Most bytes of one read before `AUTH`, unless one frame is larger.
const BURST: usize = 16 * 1024;
/// Answers that may wait to be written before `AUTH`.
pub(super) const ANSWERS: usize = 16 * 1024;

/// A refilling count.
#[derive(Debug)]
struct Bucket {
    left: u64,
    most: u64,
    per_second: u64,
    filled: Instant,
}

impl Bucket {
    fn new(most: u64, per_second: u64, now: Instant) -> Self {
        Self { left: most, most, per_second, filled: now }
    }

    /// The time in which one is refilled.
    fn interval(&self) -> Duration {
        Duration::from_nanos(1_000_000_000 / self.per_second)
    }

    fn refill(&mut self, now: Instant) {
        let interval = self.interval();
        let more = u64::try_from(now.saturating_duration_since(self.filled).as_nanos() / interval.as_nanos().max(1))
            .unwrap_or(u64::MAX);
        if self.left.saturating_add(more) >= self.most {
            (self.left, self.filled) = (self.most, now);
        } else {
            self.left += more;
            self.filled += interval * u32::try_from(more).unwrap_or(u32::MAX);
        }
    }

    /// Takes one; `false` if none is left.
    fn take(&mut self, now: Instant) -> bool {
        self.refill(now);
        let taken = self.left > 0;
        self.left -= u64::from(taken);
        taken
    }

    /// When there is one again; `None` if there is one.
    fn ready_at(&mut self, now: Instant) -> Option<Instant> {
        self.refill(now);
        (self.left == 0).then(|| self.filled + self.interval())
    }
}

/// The rates of one connection.
#[derive(Debug)]
pub(super) struct Pace {
    /// Pings and pongs.
    control: Bucket,
    /// Before `AUTH`: frames, and KiB read.
    stranger: Option<(Bucket, Bucket)>,
}

impl Pace {
    /// The rates before `AUTH`.
    pub(super) fn before_auth(now: Instant) -> Self {
        let stranger = (Bucket::new(64, 16, now), Bucket::new(512, 64, now));
        Self { control: Bucket::new(20, 2, now), stranger: Some(stranger) }
    }

    /// The rates of a client that has proved its identity.
    pub(super) fn after_auth(now: Instant) -> Self {
        Self { control: Bucket::new(1_000, 100, now), stranger: None }
    }

    /// How much its decoder takes in at a time. `most` is the setting for messages after `AUTH`.
    pub(super) fn allowance(&self, most: usize) -> Allowance {
        match self.stranger {
            None => Allowance::of(most),
            Some(_) => Allowance { message: most.min(FRAME), burst: BURST },
        }
    }

    /// Counts a ping or pong; `false`: there are too many.
    pub(super) fn on_control(&mut self, now: Instant) -> bool {
        self.control.take(now)
    }

    /// Counts a frame; `false`: it has to wait.
    pub(super) fn on_frame(&mut self, now: Instant) -> bool {
        self.stranger.as_mut().is_none_or(|(frames, _)| frames.take(now))
    }

    /// Counts what was read.
    pub(super) fn on_read(&mut self, bytes: usize, now: Instant) {
        if let Some((_, kib)) = &mut self.stranger {
            kib.refill(now);
            kib.left = kib.left.saturating_sub((bytes as u64).div_ceil(1024));
        }
    }

    /// True if the client may be read.
    pub(super) fn may_read(&mut self, now: Instant) -> bool {
        self.stranger.as_mut().is_none_or(|(_, kib)| {
            kib.refill(now);
            kib.left > 0
        })
    }

    /// When something that may have to wait goes on; always later than `now`.
    pub(super) fn resumes(&mut self, now: Instant) -> Option<Instant> {
        let (frames, kib) = self.stranger.as_mut()?;
        [frames.ready_at(now), kib.ready_at(now)].into_iter().flatten().min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pings_have_a_burst_and_a_rate() {
        let start = Instant::now();
        let mut pace = Pace::before_auth(start);
        assert_eq!((0..30).filter(|_| pace.on_control(start)).count(), 20);
        let later = start + Duration::from_secs(2);
        assert_eq!((0..30).filter(|_| pace.on_control(later)).count(), 4);
        let mut pace = Pace::after_auth(start);
        assert_eq!((0..2_000).filter(|_| pace.on_control(start)).count(), 1_000);
        assert_eq!((0..200).filter(|_| pace.on_control(later)).count(), 200);
    }

    #[test]
    fn before_auth_frames_wait_for_their_rate() {
        let start = Instant::now();
        let mut pace = Pace::before_auth(start);
        assert_eq!((0..100).filter(|_| pace.on_frame(start)).count(), 64);
        let resumes = pace.resumes(start).expect("a frame waits");
        assert!(!pace.on_frame(resumes - Duration::from_millis(1)) && pace.on_frame(resumes));
        let mut pace = Pace::after_auth(start);
        assert!((0..10_000).all(|_| pace.on_frame(start)) && pace.resumes(start).is_none());
    }

    #[test]
    fn before_auth_bytes_wait_for_their_rate() {
        let start = Instant::now();
        let mut pace = Pace::before_auth(start);
        pace.on_read(512 * 1024, start);
        assert!(!pace.may_read(start));
        assert!(pace.resumes(start).is_some_and(|resumes| pace.may_read(resumes)));
    }

    #[test]
    fn a_frame_of_128_kib_is_taken_before_auth_and_the_setting_after_it() {
        let now = Instant::now();
        assert_eq!(Pace::before_auth(now).allowance(16 << 20).message, 128 * 1024);
        assert_eq!(Pace::before_auth(now).allowance(1024).message, 1024);
        assert_eq!(Pace::after_auth(now).allowance(16 << 20).message, 16 << 20);
    }
}
