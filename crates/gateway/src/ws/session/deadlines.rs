//! What has to happen by when on a connection. Pure: the time is an argument.

use std::time::Duration;

use tokio::time::Instant;

use crate::EdgeConfig;
use crate::auth::Identity;
use crate::rejection::Close;

/// How long another hub may be silent before what its subscriber holds goes to others. It sends a `PING` every
/// [`cluster::PING`](crate::cluster::PING), and stops passing deliveries on [`cluster::TRUST`](crate::cluster::TRUST)
/// after the last one that was answered: always earlier than this.
const RELAY_SILENCE: Duration = Duration::from_secs(6);

/// The deadlines of one connection.
#[derive(Debug)]
pub(super) struct Deadlines {
    ping_every: Duration,
    pong_deadline: Duration,
    stall_deadline: Duration,
    /// Until when the client has to prove who it is; none when it has.
    auth_by: Option<Instant>,
    /// When the token runs out, by the clock at the time it was checked.
    expires: Option<Instant>,
    next_ping: Instant,
    last_pong: Instant,
    /// Since when the outbox is full and the client takes nothing.
    blocked_since: Option<Instant>,
    /// Something came since the last ping.
    heard: bool,
    /// Another hub: how long it may be silent, and since when it is.
    relay: Option<(Duration, Instant)>,
}

/// What is due.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// The connection ends.
    Close(Close),
    /// The client is asked for a sign of life.
    Ping {
        /// Nothing came since the last one.
        idle: bool,
    },
}

impl Deadlines {
    pub(super) fn new(config: &EdgeConfig, now: Instant) -> Self {
        Self {
            ping_every: config.ping_every,
            pong_deadline: config.pong_deadline,
            stall_deadline: config.stall_deadline,
            auth_by: Some(now + config.auth_deadline),
            expires: None,
            next_ping: now + config.ping_every,
            last_pong: now,
            blocked_since: None,
            heard: false,
            relay: None,
        }
    }

    /// The client has proved who it is.
    pub(super) fn on_identity(&mut self, identity: &Identity, now: Instant, wall: promethean_event::Millis) {
        self.auth_by = None;
        self.expires = identity.deadline().map(|deadline| now + deadline.since(wall));
        self.relay = identity.relay.is_some().then_some((RELAY_SILENCE, now));
    }

    pub(super) fn on_pong(&mut self, now: Instant) {
        self.last_pong = now;
    }

    pub(super) fn on_read(&mut self, now: Instant) {
        self.heard = true;
        if let Some((_, since)) = &mut self.relay {
            *since = now;
        }
    }

    /// The outbox is full and the client takes nothing; whether that is new, and with it a deadline.
    pub(super) fn on_blocked(&mut self, now: Instant) -> bool {
        let new = self.blocked_since.is_none();
        self.blocked_since.get_or_insert(now);
        new
    }

    pub(super) fn on_unblocked(&mut self) {
        self.blocked_since = None;
    }

    /// When to look again at the latest.
    pub(super) fn next(&self) -> Instant {
        let blocked = self.blocked_since.map(|since| since + self.stall_deadline);
        let silent = self.relay.map(|(most, since)| since + most);
        let all = [self.auth_by, self.expires, blocked, silent, Some(self.last_pong + self.pong_deadline)];
        all.into_iter().flatten().fold(self.next_ping, Instant::min)
    }

    /// What is due at `now`. `reading`: whether the hub reads, so that silence is the client's.
    pub(super) fn due(&mut self, now: Instant, reading: bool) -> Option<Due> {
        if self.auth_by.is_some_and(|by| now >= by) {
            return Some(Due::Close(Close::Unauthorized));
        }
        if self.blocked_since.is_some_and(|since| now >= since + self.stall_deadline) {
            return Some(Due::Close(Close::DoesNotRead));
        }
        if let Some((most, since)) = &mut self.relay
            && now >= *since + *most
        {
            if reading {
                return Some(Due::Close(Close::NoPong));
            }
            *since = now;
        }
        if now >= self.last_pong + self.pong_deadline {
            if reading {
                return Some(Due::Close(Close::NoPong));
            }
            self.last_pong = now;
        }
        if self.expires.is_some_and(|expires| now >= expires) {
            // The clock was set back meanwhile, or the token would have been found expired: look again in a while.
            self.expires = Some(now + Duration::from_secs(1));
        }
        (now >= self.next_ping).then(|| {
            self.next_ping = now + self.ping_every;
            Due::Ping { idle: !std::mem::take(&mut self.heard) }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use promethean_event::Millis;

    const SECOND: Duration = Duration::from_secs(1);

    fn deadlines() -> (Deadlines, Instant) {
        let now = Instant::now();
        (Deadlines::new(&EdgeConfig::default(), now), now)
    }

    #[test]
    fn who_does_not_authenticate_within_10_s_is_closed_with_4401() {
        let (mut deadlines, start) = deadlines();
        assert_eq!(deadlines.next(), start + 10 * SECOND);
        assert_eq!(deadlines.due(start + 9 * SECOND, true), None);
        assert_eq!(deadlines.due(start + 10 * SECOND, true), Some(Due::Close(Close::Unauthorized)));
    }

    #[test]
    fn a_token_is_looked_at_when_it_runs_out() {
        let (mut deadlines, start) = deadlines();
        let identity = Identity { exp: Some(Millis(7_000)), ..Identity::wide_open() };
        deadlines.on_identity(&identity, start, Millis(1_000));
        assert_eq!(deadlines.next(), start + 11 * SECOND, "6 s and the leeway");
    }

    #[test]
    fn pings_go_out_and_no_pong_for_60_s_is_4408() {
        let (mut deadlines, start) = deadlines();
        deadlines.on_identity(&Identity::wide_open(), start, Millis(0));
        assert_eq!(deadlines.due(start + 20 * SECOND, true), Some(Due::Ping { idle: true }));
        deadlines.on_read(start + 20 * SECOND);
        deadlines.on_pong(start + 21 * SECOND);
        assert_eq!(deadlines.due(start + 40 * SECOND, true), Some(Due::Ping { idle: false }));
        assert_eq!(deadlines.due(start + 60 * SECOND, true), Some(Due::Ping { idle: true }));
        assert_eq!(deadlines.due(start + 81 * SECOND, true), Some(Due::Close(Close::NoPong)));
    }

    #[test]
    fn a_hub_that_is_silent_for_6_s_loses_what_it_holds_after_it_has_stopped_to_pass_it_on() {
        let (mut deadlines, start) = deadlines();
        let origin = promethean_bus::Origin { hub: "h".into(), subscription: 1 };
        deadlines.on_identity(&Identity::relay(origin), start, Millis(0));
        assert_eq!(deadlines.due(start + 5 * SECOND, true), None);
        assert_eq!(deadlines.due(start + 6 * SECOND, true), Some(Due::Close(Close::NoPong)));
        assert!(crate::cluster::TRUST < RELAY_SILENCE && crate::cluster::PING < crate::cluster::TRUST / 2);
    }

    #[test]
    fn silence_does_not_count_while_the_hub_does_not_read() {
        let (mut deadlines, start) = deadlines();
        deadlines.on_identity(&Identity::wide_open(), start, Millis(0));
        assert_eq!(deadlines.due(start + 61 * SECOND, false), Some(Due::Ping { idle: true }));
        assert_eq!(deadlines.due(start + 62 * SECOND, true), None);
    }

    #[test]
    fn a_client_that_takes_nothing_for_10_s_is_4429() {
        let (mut deadlines, start) = deadlines();
        deadlines.on_identity(&Identity::wide_open(), start, Millis(0));
        assert!(deadlines.on_blocked(start) && !deadlines.on_blocked(start + 5 * SECOND));
        assert_eq!(deadlines.next(), start + 10 * SECOND);
        assert_eq!(deadlines.due(start + 10 * SECOND, false), Some(Due::Close(Close::DoesNotRead)));
        deadlines.on_unblocked();
        assert_eq!(deadlines.due(start + 10 * SECOND, false), None);
    }
}
