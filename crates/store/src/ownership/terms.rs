//! When a hub tells that it lives, and until when it may believe that the others believe it. Pure: time is an argument.
//!
//! The store counts the time to live from when it takes a heartbeat in; the hub counts from before it sent it, and stops
//! a margin earlier. So a hub has always stopped to act when the store's clock lets another one take over.

use std::time::Duration;

use tokio::time::Instant;

/// How long a hub lives without a heartbeat, and how often it sends one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// How long the store takes a hub for alive after its last heartbeat.
    pub ttl: Duration,
    /// How often it sends one.
    pub every: Duration,
    /// How much earlier it stops to act.
    pub margin: Duration,
}

impl Default for Terms {
    fn default() -> Self {
        Self { ttl: Duration::from_secs(6), every: Duration::from_millis(1_500), margin: Duration::from_secs(1) }
    }
}

impl Terms {
    /// Until when a heartbeat that was asked for at `asked`, and granted, lets the hub act.
    pub fn until(&self, asked: Instant) -> Instant {
        asked + self.ttl.saturating_sub(self.margin)
    }
}

/// What became of a heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beat {
    /// The store has prolonged the hub's life.
    Granted,
    /// The store does not know it as alive: it was declared dead, whatever it thinks itself.
    Refused,
    /// No answer, or an error: it may or may not have been prolonged.
    Failed,
}

/// What a hub has to do about its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Duty {
    /// Nothing until then.
    Wait(Instant),
    /// Send a heartbeat.
    Renew,
    /// Everything it owned is lost: register anew, under another name.
    Register,
}

/// A hub's life as it knows it.
#[derive(Debug)]
pub struct Heartbeat {
    terms: Terms,
    /// Until when it may act; none: it is not registered.
    until: Option<Instant>,
    next: Instant,
}

impl Heartbeat {
    /// Of a hub that is not registered yet.
    pub fn new(terms: Terms, now: Instant) -> Self {
        Self { terms, until: None, next: now }
    }

    /// What is to be done at `now`.
    pub fn duty(&self, now: Instant) -> Duty {
        match self.until {
            _ if now < self.next => Duty::Wait(self.next),
            Some(until) if now < until => Duty::Renew,
            _ => Duty::Register,
        }
    }

    /// A heartbeat or registration that was asked for at `asked` has come back at `now`. Returns until when the hub may
    /// act; none: it must not any more.
    pub fn on_beat(&mut self, beat: Beat, asked: Instant, now: Instant) -> Option<Instant> {
        match beat {
            Beat::Granted => {
                self.until =
                    Some(self.until.map_or(self.terms.until(asked), |until| until.max(self.terms.until(asked))));
                self.next = asked + self.terms.every;
            }
            Beat::Refused => {
                self.until = None;
                self.next = now;
            }
            // Soon again: one lost answer must not cost what is owned.
            Beat::Failed => self.next = now + self.terms.every / 5,
        }
        self.until = self.until.filter(|until| now < *until);
        self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn heartbeat() -> (Heartbeat, Instant) {
        let now = Instant::now();
        (Heartbeat::new(Terms { ttl: 6 * SECOND, every: 2 * SECOND, margin: SECOND }, now), now)
    }

    #[test]
    fn a_hub_may_act_from_before_the_request_and_a_margin_less_than_the_store_grants() {
        let (mut beat, start) = heartbeat();
        assert_eq!(beat.duty(start), Duty::Register);
        let until = beat.on_beat(Beat::Granted, start, start + 3 * SECOND);
        assert_eq!(until, Some(start + 5 * SECOND), "the answer took 3 s: they count");
        assert_eq!(beat.duty(start + SECOND), Duty::Wait(start + 2 * SECOND));
        assert_eq!(beat.duty(start + 2 * SECOND), Duty::Renew);
    }

    #[test]
    fn an_answer_that_comes_too_late_grants_nothing() {
        let (mut beat, start) = heartbeat();
        assert_eq!(beat.on_beat(Beat::Granted, start, start + 5 * SECOND), None);
        assert_eq!(beat.duty(start + 5 * SECOND), Duty::Register);
    }

    #[test]
    fn a_failed_heartbeat_is_tried_again_soon_and_costs_nothing_until_the_time_is_up() {
        let (mut beat, start) = heartbeat();
        beat.on_beat(Beat::Granted, start, start);
        let (asked, now) = (start + 2 * SECOND, start + 3 * SECOND);
        assert_eq!(beat.on_beat(Beat::Failed, asked, now), Some(start + 5 * SECOND));
        assert_eq!(beat.duty(now), Duty::Wait(now + Duration::from_millis(400)));
        assert_eq!(beat.duty(now + SECOND), Duty::Renew);
        assert_eq!(beat.on_beat(Beat::Failed, now + SECOND, start + 5 * SECOND), None);
        assert_eq!(beat.duty(start + 6 * SECOND), Duty::Register, "never renewed after it was lost");
    }

    #[test]
    fn a_hub_that_was_stopped_finds_its_time_passed_and_registers_anew() {
        let (mut beat, start) = heartbeat();
        beat.on_beat(Beat::Granted, start, start);
        assert_eq!(beat.duty(start + 60 * SECOND), Duty::Register);
        let asked = start + 60 * SECOND;
        assert_eq!(beat.on_beat(Beat::Granted, asked, asked), Some(asked + 5 * SECOND));
    }

    #[test]
    fn a_hub_that_was_declared_dead_owns_nothing_whatever_its_clock_says() {
        let (mut beat, start) = heartbeat();
        beat.on_beat(Beat::Granted, start, start);
        let asked = start + 2 * SECOND;
        assert_eq!(beat.on_beat(Beat::Refused, asked, asked), None);
        assert_eq!(beat.duty(asked), Duty::Register);
    }
}
