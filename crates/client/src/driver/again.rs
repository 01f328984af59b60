//! What the hub had no room for (`rate_limited`): asked again when it says, if it is still wanted then.

use std::time::Duration;

use promethean_event::Code;
use tokio::time::Instant;

use super::Driver;
use crate::Error;
use crate::pending::Reply;

/// How long to wait where the hub does not say.
const A_MOMENT: Duration = Duration::from_secs(1);

/// A question to be asked again.
pub(super) enum Again {
    Subscribe(u64),
    Hold(u64, Option<Reply<()>>),
    Leave(u64),
}

/// How long the hub wants to be left alone, where that is why it refused.
pub(super) fn pause(error: &Error) -> Option<Duration> {
    match error {
        Error::Refused { retry_after, .. } if error.code() == Some(Code::RateLimited) => {
            Some(retry_after.unwrap_or(A_MOMENT))
        }
        _ => None,
    }
}

/// When the first one is due.
pub(super) fn first(again: &[(Instant, Again)]) -> Option<Instant> {
    again.iter().map(|(at, _)| *at).min()
}

impl Driver {
    pub(super) fn ask_later(&mut self, pause: Duration, what: Again) {
        self.again.push((Instant::now() + pause, what));
    }

    pub(super) fn on_again(&mut self) {
        let now = Instant::now();
        let (due, later) = std::mem::take(&mut self.again).into_iter().partition(|(at, _)| *at <= now);
        self.again = later;
        let due: Vec<(Instant, Again)> = due;
        for (_, what) in due {
            match what {
                Again::Subscribe(number) => {
                    let wanted = self.subscriptions.get(&number).is_some_and(|one| !one.live && one.leaving.is_none());
                    let frame = if wanted { self.subscribe_frame(number) } else { None };
                    self.outgoing.extend(frame);
                }
                Again::Hold(number, reply) => self.tell_hold(number, reply),
                Again::Leave(number) => self.leave_on(number),
            }
        }
    }
}
