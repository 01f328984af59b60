//! What the hub says: answers go to whoever waits for them, deliveries to their subscription.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use promethean_event::Code;
use promethean_event::frame::{Answer, Delivered, ask};

use super::{Driver, name};
use crate::pending::{Ask, Outcome};
use crate::subscription::PAUSE_AT;
use crate::{Delivery, Error};

impl Driver {
    pub(super) fn on_frame(&mut self, text: &str) {
        let outcome = match Answer::parse(text) {
            Ok(Some(Answer::Events { topic, group, events })) => {
                return self.on_events(&name(&topic, group.as_deref()), events);
            }
            Ok(Some(Answer::Ok(done))) => self.pending.on_done(&done),
            Ok(Some(Answer::Error(refusal))) => match (self.pending.on_refusal(&refusal), &refusal.topic) {
                (Outcome::Unasked, Some(topic)) if refusal.code != Some(Code::ShuttingDown) => {
                    // The hub ended a subscription.
                    let ended = self.by_name.remove(&name(topic, refusal.group.as_deref()));
                    if let Some(subscribed) = ended.and_then(|number| self.subscriptions.remove(&number)) {
                        let _ = subscribed.deliveries.send(Err(Error::refused(&refusal)));
                    }
                    return;
                }
                (outcome, _) => outcome,
            },
            Ok(None) => return,
            Err(error) => return tracing::warn!(%error, "a frame of the hub is not understood"),
        };
        match outcome {
            Outcome::Subscribed { subscription, result } => self.on_subscribed(subscription, result),
            Outcome::Renewed(Ok(expires)) => self.on_authenticated(expires),
            Outcome::Renewed(Err(error)) => self.renew_later(&error.to_string()),
            Outcome::Settled | Outcome::Unasked => {}
        }
    }

    fn on_subscribed(&mut self, number: u64, result: Result<(), Error>) {
        let Some(subscribed) = self.subscriptions.get_mut(&number) else { return };
        match result {
            Ok(()) => {
                if let Some((reply, subscription)) = subscribed.opening.take() {
                    // Whoever asked is gone: dropping the subscription unsubscribes.
                    let _ = reply.send(Ok(subscription));
                }
            }
            Err(error) if error.code() == Some(Code::UnknownId) && subscribed.last.take().is_some() => {
                // The event a tail wanted to go on after is gone from the log.
                let frame = self.subscribe_frame(number);
                self.outgoing.extend(frame);
            }
            Err(error) => {
                let Some(subscribed) = self.subscriptions.remove(&number) else { return };
                self.by_name.remove(&subscribed.topics.name());
                match subscribed.opening {
                    Some((reply, _)) => drop(reply.send(Err(error))),
                    None => drop(subscribed.deliveries.send(Err(error))),
                }
            }
        }
    }

    fn on_events(&mut self, name: &str, events: Vec<Delivered<'_>>) {
        let Some(&number) = self.by_name.get(name) else { return };
        let Some(subscribed) = self.subscriptions.get_mut(&number) else { return };
        for Delivered { event, ctx } in events {
            let received = match serde_json::from_str(event.get()) {
                Ok(received) => received,
                Err(error) => {
                    tracing::warn!(%error, "an event of the hub is not understood");
                    continue;
                }
            };
            let delivery = Delivery {
                event: received,
                json: event.get().into(),
                context: ctx,
                subscription: number,
                commands: subscribed.commands.clone(),
            };
            // A snapshot comes in the order of its keys: one that was cut short starts over.
            if subscribed.resumable && !ctx.snapshot {
                subscribed.last = Some(delivery.event.id);
            }
            subscribed.waiting.fetch_add(1, Ordering::AcqRel);
            if subscribed.deliveries.send(Ok(delivery)).is_err() {
                return self.unsubscribe(number);
            }
        }
        if subscribed.topics.group.is_none()
            && !subscribed.paused
            && subscribed.waiting.load(Ordering::Acquire) >= PAUSE_AT
        {
            subscribed.paused = true;
            let topic = Arc::clone(&subscribed.topics.topic);
            let frame = self.pending.ask(Ask::Nothing, |out, corr| ask::pause(out, corr, &topic, None));
            self.outgoing.push_back(frame);
        }
    }
}
