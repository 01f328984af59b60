//! Deliveries from the inbox into the outbox: many events, one write.

use std::time::Duration;

use promethean_bus::Given;
use promethean_event::Millis;
use promethean_event::frame::write::{self, Context};

use super::core::Core;
use super::subscriptions::Subscription;
use crate::auth::Action;
use crate::rejection::Rejection;
use crate::trace::Traces;
use crate::ws::codec::Outbox;

/// Most events of one step: frames of the client get their turn in between.
const EVENTS: usize = 1_024;
/// About how large an `EVENTS` frame may get.
const FRAME: usize = 256 * 1024;

impl Core<'_> {
    /// Moves what is there into the outbox, as far as there is room.
    pub(super) fn deliver(&mut self) {
        if !self.has_room() || self.inbox.is_empty() {
            return;
        }
        let room = self.hub.config.max_outbound_bytes.saturating_sub(self.outbox.len());
        let now = self.hub.bus.now();
        let mut given = std::mem::take(&mut self.given);
        self.inbox.take(EVENTS, room, now, &mut given);
        if self.narrowed {
            self.drop_forbidden(&mut given);
        }
        self.held.add(&given);
        let mut rest = given.as_slice();
        while let Some(first) = rest.first() {
            let run = rest.iter().take_while(|given| given.subscription == first.subscription).count();
            let (these, others) = rest.split_at(run);
            rest = others;
            match self.subscriptions.get_mut(first.subscription) {
                None => {}
                Some(subscription) => write_all(&mut self.outbox, subscription, these, &mut self.traces, now),
            }
        }
        given.clear();
        given.shrink_to(EVENTS);
        self.given = given;
        self.inbox.set_sending(self.outbox.len());
        for (id, error) in self.inbox.take_ended() {
            if let Some(about) = self.end_subscription(id) {
                let topic = Some(&*about.topic);
                let group = about.group.as_ref().map(promethean_event::Group::as_str);
                let rejection = Rejection::new(error.code, format!("the subscription has ended: {}", error.message));
                let detail = write::ErrorDetail { topic, group, ..write::ErrorDetail::default() };
                self.outbox.text(|out| write::error(out, None, rejection.code, &rejection.msg, detail));
            }
        }
    }

    /// Drops what was on its way when a renewed token took its topic out of reach. The bus knows that the subscriber
    /// has left the topic, and gives it to others.
    fn drop_forbidden(&mut self, given: &mut Vec<Given>) {
        let policy = std::sync::Arc::clone(&self.in_force.read());
        given.retain(|one| {
            let group = self.subscriptions.get_mut(one.subscription).and_then(|this| this.about.group.as_ref());
            policy.allows(Action::Subscribe, &one.event.topic, group)
        });
    }
}

/// Describes a delivery to its receiver.
pub(crate) fn context(given: &Given, now: Millis) -> Context<'_> {
    Context {
        attempt: given.attempt,
        max_attempts: given.max_attempts,
        deadline: if given.deadline == Millis(0) { Duration::ZERO } else { given.deadline.since(now) },
        lease: given.lease,
        snapshot: given.snapshot,
        redriven: given.redriven,
        cut: given.cut,
        resume: given.resume.as_deref(),
    }
}

fn write_all(outbox: &mut Outbox, subscription: &Subscription, given: &[Given], traces: &mut Traces<'_>, now: Millis) {
    if traces.are_wanted() {
        given.iter().for_each(|one| traces.deliver(one, subscription.about.group.as_ref()));
    }
    if !subscription.about.batch {
        for one in given {
            outbox.text(|out| write::event(out, &subscription.head, &one.event, context(one, now)));
        }
        return;
    }
    let mut rest = given.iter().peekable();
    while rest.peek().is_some() {
        outbox.text(|out| {
            let start = out.len();
            write::begin_events(out, &subscription.head);
            for one in rest.by_ref().take(subscription.about.most) {
                write::next_event(out, &one.event, context(one, now));
                if out.len() - start >= FRAME {
                    break;
                }
            }
            write::end_events(out);
        });
    }
}
