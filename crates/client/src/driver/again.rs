//! What the hub had no room for (`rate_limited`), and subscriptions that it could not serve for a while (`ack_failed`): asked
//! again when it says, if it is still wanted then.

use std::time::Duration;

use promethean_event::Code;
use tokio::time::Instant;

use super::{Driver, Subscribed};
use crate::Error;
use crate::pending::Reply;
use crate::settlement::{How, Settlement};

/// How long to wait where the hub does not say.
const A_MOMENT: Duration = Duration::from_secs(1);

/// A question to be asked again.
pub(super) enum Again {
    Subscribe(u64),
    Hold(u64, Option<Reply<()>>),
    Leave(u64),
    /// Acks that came while the hub did not have the subscription.
    Settle(Settlement),
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
                Again::Settle(settlement) => self.settle(settlement),
            }
        }
        if self.refused.due().is_some_and(|due| due <= now) {
            self.refused.take().into_iter().for_each(|settlement| self.settle(settlement));
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

    /// Answers to deliveries were taken or refused. Those that the hub had no room for are kept and sent again together;
    /// acks that came while the hub did not have the subscription wait until it has.
    pub(super) fn on_answered(&mut self, settlement: Settlement, result: Result<(), Error>) {
        let Err(error) = &result else {
            return self.on_taken(settlement);
        };
        if let Some(pause) = pause(error) {
            if let How::Keep(..) = settlement.how {
                // Asked for anew then, with what is due by that time.
                let look = Instant::now() + pause;
                self.keep_at = Some(self.keep_at.map_or(look, |at| at.min(look)));
                return;
            }
            return self.refused.refused(settlement, pause);
        }
        let number = settlement.subscription;
        let away = |one: &Subscribed| !one.live && one.leaving.is_none();
        let early = error.code() == Some(Code::NotSubscribed) && settlement.how == How::Ack;
        if early && self.subscriptions.get(&number).is_some_and(away) {
            return self.ask_later(A_MOMENT, Again::Settle(settlement));
        }
        let of_one = matches!(error.code(), Some(Code::UnknownId | Code::LeaseLost | Code::Forbidden));
        if of_one && settlement.items.len() > 1 {
            // Which one is meant the hub does not say.
            let Settlement { subscription, how, items } = settlement;
            for item in items {
                self.settle(Settlement { subscription, how: how.clone(), items: vec![item] });
            }
            return;
        }
        if let (true, How::Keep(..), Some(subscribed)) = (of_one, &settlement.how, self.subscriptions.get(&number)) {
            // Another member has it.
            subscribed.deliveries.forget(&settlement.ids());
        }
        settlement.reply(&result);
    }

    fn on_taken(&mut self, settlement: Settlement) {
        if let Some(subscribed) = self.subscriptions.get(&settlement.subscription) {
            match settlement.how {
                How::Ack => subscribed.deliveries.forget(&settlement.ids()),
                How::Keep(lease, asked) => subscribed.deliveries.extended(&settlement.ids(), asked + lease),
                How::Fenced(_) | How::Nack(..) | How::Extend(..) => {}
            }
        }
        settlement.reply(&Ok(()));
    }
}
