//! The hub's bounds of what subscribers may ask for.

use std::time::Duration;

use promethean_event::frame::NamedOptions;
use promethean_event::{SubscribeOptions, limits};

/// The lease of a subscriber that names none, and the most that any may ask for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caps {
    /// `ackTimeoutMs` of a subscriber that names none.
    pub ack_timeout: Duration,
    /// Longest lease and longest extension.
    pub max_ack_timeout: Duration,
    /// Most events that a subscriber may hold without an ack.
    pub max_in_flight: usize,
}

impl Default for Caps {
    fn default() -> Self {
        Self {
            ack_timeout: Duration::from_secs(30),
            max_ack_timeout: Duration::from_secs(3600),
            max_in_flight: limits::MAX_IN_FLIGHT,
        }
    }
}

impl Caps {
    /// Applies the default and the caps to `options`. Returns a sentence for each value that the client named and that was
    /// lowered.
    pub(crate) fn apply(&self, named: NamedOptions, options: &mut SubscribeOptions) -> Vec<String> {
        let mut warnings = Vec::new();
        options.ack_timeout = named.ack_timeout.unwrap_or(self.ack_timeout);
        if options.ack_timeout > self.max_ack_timeout {
            options.ack_timeout = self.max_ack_timeout;
            let most = self.max_ack_timeout.as_millis();
            warnings.push(format!("ackTimeoutMs: lowered to {most}, the hub's max_ack_timeout"));
        }
        if options.max_in_flight > self.max_in_flight {
            options.max_in_flight = self.max_in_flight;
            if named.max_in_flight.is_some() {
                warnings.push(format!("maxInFlight: lowered to {}, the hub's max_in_flight", self.max_in_flight));
            }
        }
        warnings
    }

    /// The extension of a lease within the bounds; `None`: the holder's `ackTimeoutMs`.
    pub(crate) fn extension(&self, asked: Option<Duration>) -> Option<Duration> {
        asked.map(|by| by.min(self.max_ack_timeout).max(limits::MIN_EXTENSION))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: NamedOptions = NamedOptions { batch_size: None, ack_timeout: None, max_in_flight: None };

    #[test]
    fn values_above_the_caps_are_lowered_and_named() {
        let caps = Caps { max_in_flight: 50, max_ack_timeout: Duration::from_secs(60), ..Caps::default() };
        let mut options = SubscribeOptions { max_in_flight: 51, ..SubscribeOptions::default() };
        let named = NamedOptions { ack_timeout: Some(Duration::from_secs(61)), max_in_flight: Some(51), ..NONE };
        let warnings = caps.apply(named, &mut options);
        assert_eq!((options.max_in_flight, options.ack_timeout), (50, Duration::from_secs(60)));
        assert_eq!(
            warnings,
            [
                "ackTimeoutMs: lowered to 60000, the hub's max_ack_timeout",
                "maxInFlight: lowered to 50, the hub's max_in_flight"
            ]
        );
    }

    #[test]
    fn values_that_the_client_does_not_name_are_the_hubs_and_need_no_warning() {
        let caps = Caps { ack_timeout: Duration::from_secs(7), max_in_flight: 50, ..Caps::default() };
        let mut options = SubscribeOptions { max_in_flight: 100, ..SubscribeOptions::default() };
        assert!(caps.apply(NONE, &mut options).is_empty());
        assert_eq!((options.max_in_flight, options.ack_timeout), (50, Duration::from_secs(7)));
        assert_eq!(caps.extension(None), None);
        assert_eq!(caps.extension(Some(Duration::ZERO)), Some(Duration::from_secs(1)));
        assert_eq!(caps.extension(Some(Duration::from_secs(9_999))), Some(Duration::from_secs(3_600)));
    }
}
