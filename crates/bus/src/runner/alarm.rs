//! When a runner has to look again: after each answer the next lease ends later than the last did, and setting a timer
//! costs more than a ring in vain now and then.

use std::pin::Pin;

use tokio::time::{Instant, Sleep, sleep_until};

/// A timer that is set anew only when it has to ring earlier.
#[derive(Default)]
pub(super) struct Alarm {
    set: Option<(Instant, Pin<Box<Sleep>>)>,
}

impl Alarm {
    /// Resolves at `due`, or before.
    pub(super) async fn rings(&mut self, due: Option<Instant>) {
        let Some(due) = due else { return std::future::pending().await };
        match &mut self.set {
            None => self.set = Some((due, Box::pin(sleep_until(due)))),
            Some((at, sleep)) if due < *at => {
                *at = due;
                sleep.as_mut().reset(due);
            }
            Some(_) => {}
        }
        if let Some((_, sleep)) = &mut self.set {
            sleep.as_mut().await;
            self.set = None;
        }
    }
}
