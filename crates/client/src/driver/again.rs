//! What the hub had no room for (`rate_limited`), and subscriptions that it could not serve for a while (`ack_failed`): asked
//! again when it says, if it is still wanted then.

use std::time::Duration;

use promethean_event::{Code, EventId};
use tokio::time::Instant;

use super::{Driver, Subscribed};
use crate::Error;
use crate::pending::Reply;

/// How long to wait where the hub does not say.
const A_MOMENT: Duration = Duration::from_secs(1);

/// A question to be asked again.
pub(super) enum Again {
    Subscribe(u64),
    Hold(u64, Option<Reply<()>>),
    Leave(u64),
    /// What was acked while the hub did not have the subscription.
    Ack(u64, Vec<EventId>, Vec<Reply<()>>),
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

/// How long to wait with a subscription that was there, where the hub may serve it again later. A hub that shuts down
/// closes the connection: the next one has it again.
pub(super) fn away(error: &Error) -> Option<Duration> {
    match error {
        Error::Refused { retry_after, .. } if error.code() == Some(Code::AckFailed) => {
            Some(retry_after.unwrap_or(A_MOMENT))
        }
        _ => pause(error),
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
                Again::Ack(number, ids, replies) => self.ack(number, ids, replies),
            }
        }
    }

    /// The hub has ended a subscription: for good, or because it cannot serve it at the moment.
    pub(super) fn on_ended(&mut self, name: &str, error: Error) {
        let Some(&number) = self.by_name.get(name) else { return };
        let Some(subscribed) = self.subscriptions.get_mut(&number) else { return };
        match away(&error) {
            Some(pause) => {
                let asked = subscribed.leaving.is_none() && subscribed.live;
                subscribed.lost();
                // On its way out, the answer to that says the rest.
                if asked {
                    tracing::warn!(topic = &*subscribed.topics.topic, %error, "a subscription was ended, asking again");
                    self.ask_later(pause, Again::Subscribe(number));
                }
            }
            None => {
                self.by_name.remove(name);
                if let Some(subscribed) = self.subscriptions.remove(&number) {
                    subscribed.deliveries.fail(error);
                }
            }
        }
    }

    /// An ack was answered. One that came while the hub did not have the subscription waits until it has it again.
    pub(super) fn on_acked(
        &mut self,
        number: u64,
        ids: Vec<EventId>,
        replies: Vec<Reply<()>>,
        result: Result<(), Error>,
    ) {
        let away = |one: &Subscribed| !one.live && one.leaving.is_none();
        let early = matches!(&result, Err(error) if error.code() == Some(Code::NotSubscribed));
        if early && self.subscriptions.get(&number).is_some_and(away) {
            return self.ask_later(A_MOMENT, Again::Ack(number, ids, replies));
        }
        if let (Ok(()), Some(subscribed)) = (&result, self.subscriptions.get(&number)) {
            subscribed.deliveries.forget(&ids);
        }
        replies.into_iter().for_each(|reply| drop(reply.send(result.clone())));
    }
}
