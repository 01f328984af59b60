//! What the hub says: answers go to whoever waits for them, deliveries to their subscription.

use std::time::Duration;

use promethean_event::frame::{Answer, Delivered};
use promethean_event::{Code, From};
use tokio::time::Instant;

use super::again::{self, Again};
use super::{Driver, name};
use crate::pending::{Outcome, Reply};
use crate::queue::PAUSE_BYTES;
use crate::subscription::PAUSE_AT;
use crate::{Delivery, Error};

/// True if a frame is a JSON object: anything else comes from a peer that is no hub.
fn is_object(text: &str) -> bool {
    text.trim_ascii_start().starts_with('{') && serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok()
}

impl Driver {
    /// Returns false for a text that is no JSON object. Other frames that are not understood are skipped.
    pub(super) fn on_frame(&mut self, text: &str) -> bool {
        let outcome = match Answer::parse(text) {
            Ok(Some(Answer::Events { topic, group, events })) => {
                self.on_events(&name(&topic, group.as_deref()), events);
                return true;
            }
            Ok(Some(Answer::Ok(done))) => {
                for warning in &done.warnings {
                    tracing::warn!(warning, "the hub took a request with a warning");
                }
                self.pending.on_done(&done)
            }
            Ok(Some(Answer::Error(refusal))) => match (self.pending.on_refusal(&refusal), &refusal.topic) {
                (Outcome::Unasked, Some(topic)) if refusal.code != Some(Code::ShuttingDown) => {
                    self.on_ended(&name(topic, refusal.group.as_deref()), Error::refused(&refusal));
                    return true;
                }
                (outcome, _) => outcome,
            },
            Ok(None) => return true,
            Err(error) => {
                tracing::warn!(%error, "a frame of the hub is not understood");
                return is_object(text);
            }
        };
        self.on_outcome(outcome);
        true
    }

    pub(super) fn on_outcome(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Subscribed { subscription, result } => self.on_subscribed(subscription, result),
            Outcome::Answered { settlement, result } => self.on_answered(settlement, result),
            Outcome::Held { subscription, reply, result } => self.on_held(subscription, reply, result),
            Outcome::Left { subscription, result } => self.on_left(subscription, result),
            Outcome::Renewed(Ok(expires)) => self.on_authenticated(expires),
            Outcome::Renewed(Err(error)) => self.renew_later(&error.to_string()),
            Outcome::Settled | Outcome::Unasked => {}
        }
    }

    fn on_subscribed(&mut self, number: u64, result: Result<Option<Box<str>>, Error>) {
        let Some(subscribed) = self.subscriptions.get_mut(&number) else { return };
        match result {
            Ok(resume) => {
                subscribed.live = true;
                // A snapshot resumes by event: the hub then notices tombstones that were removed meanwhile.
                if subscribed.topics.options.from != From::Snapshot {
                    subscribed.resume = resume.or(subscribed.resume.take());
                }
                let held = subscribed.held;
                if let Some((reply, subscription)) = subscribed.opening.take() {
                    // Whoever asked is gone: dropping the subscription unsubscribes.
                    let _ = reply.send(Ok(subscription));
                }
                if held {
                    self.tell_hold(number, None);
                }
            }
            // On its way out: the answer to that says the rest.
            Err(_) if subscribed.leaving.is_some() => {}
            Err(error)
                if matches!(error.code(), Some(Code::UnknownId | Code::BadRequest)) && subscribed.forget_place() =>
            {
                // The place at which a tail wanted to resume has gone from the log.
                let frame = self.subscribe_frame(number);
                self.outgoing.extend(frame);
            }
            // The hub is about to close the connection; the next one has the subscription.
            Err(error) if error.code() == Some(Code::ShuttingDown) => {}
            Err(error) => {
                if let (None, Some(pause)) = (&subscribed.opening, again::away(&error)) {
                    tracing::debug!(%error, "a subscription is not there yet, asking again");
                    return self.ask_later(pause, Again::Subscribe(number));
                }
                let Some(subscribed) = self.subscriptions.remove(&number) else { return };
                self.by_name.remove(&subscribed.topics.name());
                match subscribed.opening {
                    Some((reply, _)) => drop(reply.send(Err(error))),
                    None => subscribed.deliveries.fail(error),
                }
            }
        }
    }

    fn on_held(&mut self, number: u64, reply: Option<Reply<()>>, result: Result<(), Error>) {
        match result.as_ref().err().and_then(again::pause) {
            Some(pause) => self.ask_later(pause, Again::Hold(number, reply)),
            None => reply.into_iter().for_each(|reply| drop(reply.send(result.clone()))),
        }
    }

    fn on_events(&mut self, name: &str, events: Vec<Delivered<'_>>) {
        let Some(&number) = self.by_name.get(name) else { return };
        let Some(subscribed) = self.subscriptions.get_mut(&number) else { return };
        let now = Instant::now();
        for Delivered { event, ctx } in events {
            let received = match serde_json::from_str(event.get()) {
                Ok(received) => received,
                Err(error) => {
                    tracing::warn!(%error, "an event of the hub is not understood");
                    continue;
                }
            };
            subscribed.began = true;
            let (snapshot, cut, resume) = (ctx.snapshot, ctx.cut, ctx.resume.clone());
            let (lease, deadline) = (ctx.lease, ctx.ack_deadline_ms);
            let delivery = Delivery {
                event: received,
                json: event.get().into(),
                context: ctx,
                restarted: std::mem::take(&mut subscribed.restarted),
                subscription: number,
                arrived: now,
                lease: lease.into(),
                leased_until: now + Duration::from_millis(deadline),
                mailbox: subscribed.mailbox.clone(),
            };
            // A snapshot comes in the order of its keys: one that was cut short starts over, a whole one is gone on after.
            if subscribed.resumable {
                let seen = if snapshot { cut } else { Some(delivery.event.id) };
                subscribed.last = seen.or(subscribed.last);
            }
            if subscribed.topics.options.from != From::Snapshot {
                subscribed.resume = resume.or(subscribed.resume.take());
            }
            if lease != 0 {
                let look = now + delivery.keep_in();
                self.keep_at = Some(self.keep_at.map_or(look, |at| at.min(look)));
            }
            subscribed.deliveries.push(delivery);
        }
        if subscribed.leaving.is_some() {
            return;
        }
        if subscribed.deliveries.is_abandoned() {
            return self.leave(number, Vec::new(), None);
        }
        let many = subscribed.topics.group.is_none() && subscribed.deliveries.len() >= PAUSE_AT;
        if !subscribed.paused && (many || subscribed.deliveries.bytes() >= PAUSE_BYTES) {
            subscribed.paused = true;
            self.tell_hold(number, None);
        }
    }
}
