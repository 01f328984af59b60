//! The options of a subscription over the network.

use std::time::Duration;

use promethean_event::{Filter, From, Invalid, Ordered, Selector};

/// The options of a subscription.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubscribeOptions {
    /// Where to start while the group has no position.
    pub from: From,
    /// Further topics or patterns of the same subscription.
    pub topics: Vec<Selector>,
    /// Most events that the hub reads at a time.
    pub batch_size: usize,
    /// Most unacked events that this subscriber holds, handled or waiting in the client. 16 by default: ask for little more
    /// than the program works on at a time.
    pub max_in_flight: usize,
    /// Most handlers of [`Client::handle`](crate::Client::handle) at a time. `None`: as many as `max_in_flight`, which is
    /// raised to this number otherwise.
    pub concurrency: Option<usize>,
    /// How long a delivery is leased. The client extends the leases of events that wait in it or that a handler works on.
    pub ack_timeout: Duration,
    /// For how long the client extends a lease, 1 h by default. An event that waited for so long is given back without an
    /// attempt; a handler that takes longer runs on, and the event is redelivered.
    pub max_extend: Duration,
    /// Deliveries before an event is dead-lettered; 0: no limit.
    pub max_attempts: u32,
    /// Which events the group wants.
    pub filter: Filter,
    /// In which order.
    pub ordered: Ordered,
    /// Of a subscription without a group: the place of a delivery (`DeliveryContext::resume`) at which to resume. It
    /// replaces `from`.
    pub resume: Option<Box<str>>,
}

impl Default for SubscribeOptions {
    fn default() -> Self {
        let promethean_event::SubscribeOptions {
            from,
            topics,
            batch_size,
            ack_timeout,
            max_attempts,
            filter,
            ordered,
            resume,
            ..
        } = promethean_event::SubscribeOptions::default();
        Self {
            from,
            topics,
            batch_size,
            max_in_flight: 16,
            concurrency: None,
            ack_timeout,
            max_extend: Duration::from_secs(3_600),
            max_attempts,
            filter,
            ordered,
            resume,
        }
    }
}

impl SubscribeOptions {
    /// Checks the ranges of the contract.
    ///
    /// # Errors
    /// `bad_request` that names the option.
    pub fn check(&self) -> Result<(), Invalid> {
        if self.concurrency == Some(0) {
            return Err(Invalid::request("concurrency", "must be at least 1, is 0"));
        }
        self.over_the_wire().check()
    }

    /// Most handlers at a time.
    pub(crate) fn handlers(&self) -> usize {
        self.concurrency.unwrap_or(self.max_in_flight)
    }

    /// The options that the hub is told.
    pub(crate) fn over_the_wire(&self) -> promethean_event::SubscribeOptions {
        promethean_event::SubscribeOptions {
            from: self.from,
            topics: self.topics.clone(),
            batch_size: self.batch_size,
            max_in_flight: self.max_in_flight.max(self.handlers()),
            ack_timeout: self.ack_timeout,
            max_attempts: self.max_attempts,
            filter: self.filter.clone(),
            ordered: self.ordered,
            resume: self.resume.clone(),
        }
    }
}

impl std::convert::From<promethean_event::SubscribeOptions> for SubscribeOptions {
    fn from(options: promethean_event::SubscribeOptions) -> Self {
        let promethean_event::SubscribeOptions {
            from,
            topics,
            batch_size,
            max_in_flight,
            ack_timeout,
            max_attempts,
            filter,
            ordered,
            resume,
        } = options;
        Self {
            from,
            topics,
            batch_size,
            max_in_flight,
            ack_timeout,
            max_attempts,
            filter,
            ordered,
            resume,
            ..Self::default()
        }
    }
}
