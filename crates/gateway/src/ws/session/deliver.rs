//! Deliveries from the inbox into the outbox: many events, one write.

use std::time::Duration;

use promethean_bus::Given;
use promethean_event::Millis;
use promethean_event::frame::write::{self, Context};

use super::core::Core;
use super::subscriptions::Subscription;
use crate::auth::{Action, Policy};
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
        if !self.may_deliver() {
            return;
        }
        self.deliver_held();
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
        let mut rest = given.as_slice();
        while let Some(first) = rest.first() {
            let run = rest.iter().take_while(|given| given.subscription == first.subscription).count();
            let (these, others) = rest.split_at(run);
            rest = others;
            match self.subscriptions.get_mut(first.subscription) {
                None => {}
                // Nobody sees it, and its lease would run out unseen: it goes back, and comes again after the pause.
                Some(subscription) if subscription.paused && subscription.about.group.is_some() => {
                    subscription.membership.give_back(these.iter().cloned());
                }
                Some(subscription) if subscription.holds_back() => subscription.held.extend(these.iter().cloned()),
                Some(subscription) => write_all(&mut self.outbox, subscription, these, &mut self.traces, now),
            }
        }
        given.clear();
        given.shrink_to(EVENTS);
        self.given = given;
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

    /// Goes on with what tails got while they were paused, as far as there is room.
    fn deliver_held(&mut self) {
        let now = self.hub.bus.now();
        let policy = self.narrowed.then(|| std::sync::Arc::clone(&self.in_force.read()));
        while self.has_room()
            && let Some(&id) = self.resumed.front()
        {
            let Some(subscription) = self.subscriptions.get_mut(id).filter(|subscription| !subscription.paused) else {
                self.resumed.pop_front();
                continue;
            };
            match subscription.held.pop_front() {
                Some(given) if given.is_current(now) && may_see(policy.as_deref(), subscription, &given) => {
                    write_all(&mut self.outbox, subscription, &[given], &mut self.traces, now);
                }
                Some(_) => {}
                None => {
                    self.resumed.pop_front();
                }
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

/// Whether a policy that is narrower than it was still allows a delivery that was held back.
fn may_see(narrowed: Option<&Policy>, subscription: &Subscription, given: &Given) -> bool {
    let group = subscription.about.group.as_ref();
    narrowed.is_none_or(|policy| policy.allows(Action::Subscribe, &given.event.topic, group))
}

fn context(given: &Given, now: Millis) -> Context {
    Context {
        attempt: given.attempt,
        max_attempts: given.max_attempts,
        deadline: if given.deadline == Millis(0) { Duration::ZERO } else { given.deadline.since(now) },
        lease: given.lease,
        snapshot: given.snapshot,
        cut: given.cut,
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
