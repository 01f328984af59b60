//! Frames that the next ones have to wait for: `AUTH` and `SUBSCRIBE`.

use std::borrow::Cow;
use std::sync::Arc;

use parking_lot::RwLock;
use promethean_bus::{Error, Membership, Request, SubscriptionId, TopicGate};
use promethean_event::frame::{Auth, Corr, Op, Subscribe, write};
use promethean_event::{Code, Cursor, Group, Millis, Selector};
use tokio::time::Instant;

use super::core::Core;
use super::pace::Pace;
use super::subscriptions::{About, patterns_of};
use crate::auth::{Action, Identity, Policy, Refusal};
use crate::cluster::Asked;
use crate::rejection::Rejection;
use crate::ws::connections::Held;

/// A frame that others waited for, with what came of it.
pub(super) enum Awaited {
    /// An `AUTH`.
    Auth { result: Result<Identity, Refusal>, quiet: Option<bool>, strict: Option<bool>, corr: Option<Corr> },
    /// A question of another hub, with its answer.
    Told(Box<[u8]>),
    /// A `SUBSCRIBE`.
    Subscribed { result: Result<(Membership, Vec<Cursor>), Error>, about: About, corr: Option<Corr> },
}

/// The policy in force, as the gates of pattern subscriptions see it.
pub(super) type InForce = Arc<RwLock<Arc<Policy>>>;

impl<'h> Core<'h> {
    pub(super) fn begin_auth(&mut self, auth: Auth<'_>, corr: Option<Corr>) {
        let Auth { token, quiet, strict } = auth;
        let (auth, token) = (&self.hub.auth, token.map(Cow::into_owned));
        self.barrier = Some(Box::pin(async move {
            Awaited::Auth { result: auth.authenticate(token.as_deref()).await, quiet, strict, corr }
        }));
    }

    /// A question of another hub about a group.
    pub(super) fn begin_asked(&mut self, asked: Asked) {
        let bus = &self.hub.bus;
        self.barrier = Some(Box::pin(async move { Awaited::Told(asked.answer(bus).await.into()) }));
    }

    pub(super) fn begin_subscribe(&mut self, subscribe: Subscribe<'_>, corr: Option<Corr>) {
        let Some(identity) = &self.identity else { return };
        let Subscribe { topic, selector, group, mut options, batch, named } = subscribe;
        let mut selectors = vec![selector.clone()];
        selectors.extend(options.topics.iter().filter(|one| **one != selector).cloned());
        if let Some(forbidden) = first_forbidden(&identity.policy, &selectors, group.as_ref()) {
            let rejection = Rejection::forbidden(Action::Subscribe, forbidden.as_str());
            return self.refuse(Op::Subscribe, corr, rejection);
        }
        let patterns = patterns_of(&selectors);
        let most = self.hub.config.max_connection_patterns;
        if patterns > 0 && identity.relay.is_none() && self.subscriptions.patterns() + patterns > most {
            let message = format!(
                "a connection may have at most {most} patterns (max_connection_patterns); subscribe to wider ones, or use another connection"
            );
            return self.refuse(Op::Subscribe, corr, Rejection::new(Code::LimitReached, message));
        }
        let warnings = match identity.relay {
            None => self.hub.config.caps.apply(named, &mut options),
            // Another hub has applied its own.
            Some(_) => Vec::new(),
        };
        // A quiet connection gets no OK without a mark.
        let corr = if corr.is_some() || !self.quiet { Corr::and_warnings(corr, warnings) } else { corr };
        let gate = (patterns > 0).then(|| self.gate(group.clone()));
        let max_in_flight = options.max_in_flight;
        let about = About {
            topic: topic.into(),
            group: group.clone(),
            selectors,
            batch,
            most: named.batch_size.unwrap_or(usize::MAX),
            max_in_flight,
        };
        let request = Request { topic: selector, group, options, gate, relayed: identity.relay.clone() };
        let (bus, inbox) = (&self.hub.bus, self.inbox.clone());
        self.subscribing = true;
        self.barrier =
            Some(Box::pin(
                async move { Awaited::Subscribed { result: bus.attach(request, &inbox).await, about, corr } },
            ));
    }

    /// Asks the policy in force, so that a renewal counts for topics that turn up after it.
    fn gate(&self, group: Option<Group>) -> TopicGate {
        let in_force = Arc::clone(&self.in_force);
        Arc::new(move |topic| in_force.read().allows(Action::Subscribe, topic, group.as_ref()))
    }

    pub(super) fn on_awaited(&mut self, awaited: Awaited) {
        self.subscribing = false;
        match awaited {
            Awaited::Told(answer) => self.outbox.text(|out| out.extend_from_slice(&answer)),
            Awaited::Auth { result: Err(refusal), corr, .. } => {
                self.hub.audit.authenticated(self.client(), Err(&refusal));
                self.error(corr.as_ref(), &Rejection::from(refusal));
            }
            Awaited::Auth { result: Ok(identity), quiet, strict, corr } => {
                if !self.hub.auth.is_open() {
                    self.hub.audit.authenticated(self.client(), Ok(&identity));
                }
                if corr.is_some() || !self.quiet {
                    let exp = identity.exp.map(|exp| exp.0 / 1000);
                    let sub = identity.sub.as_deref();
                    self.outbox.text(|out| write::authenticated(out, corr.as_ref(), sub, exp));
                }
                self.set_quiet(quiet.unwrap_or(self.quiet));
                self.strict = strict.unwrap_or(self.strict);
                self.set_identity(identity);
            }
            Awaited::Subscribed { result: Err(error), corr, .. } => {
                self.error(corr.as_ref(), &Rejection::new(error.code, error.message));
            }
            Awaited::Subscribed { result: Ok((membership, cursors)), about, corr } => {
                if corr.is_some() || !self.quiet {
                    let single = matches!(about.selectors.as_slice(), [Selector::Topic(_)]) || about.group.is_none();
                    self.outbox.text(|out| {
                        write::subscribed(out, corr.as_ref(), single, &cursors, membership.resume().as_deref())
                    });
                }
                let membership = Arc::new(membership);
                self.registered.add(Held {
                    id: membership.id(),
                    topic: about.topic.clone(),
                    group: about.group.clone(),
                    max_in_flight: about.max_in_flight,
                    membership: Arc::downgrade(&membership),
                });
                self.subscriptions.add(Arc::clone(&membership), about);
                membership.open();
            }
        }
    }

    /// Takes on an identity, the first or a renewed one.
    pub(super) fn set_identity(&mut self, identity: Identity) {
        let now = Instant::now();
        self.deadlines.on_identity(&identity, now, Millis::now());
        if self.identity.is_none() {
            self.pace = Pace::after_auth(now);
        }
        self.registered.set_sub(identity.sub.clone());
        let policy = Arc::clone(&identity.policy);
        self.identity = Some(identity);
        let before = std::mem::replace(&mut *self.in_force.write(), Arc::clone(&policy));
        if *before != *policy {
            self.narrowed |= self.subscriptions.len() > 0 && !policy.is_wide_open();
            self.names.clear();
            self.end_forbidden(&policy);
            self.subscriptions.iter().for_each(|(_, subscription)| subscription.membership.look_again());
        }
    }

    /// Ends what the policy no longer allows.
    fn end_forbidden(&mut self, policy: &Policy) {
        let mut ended = Vec::new();
        for (id, subscription) in self.subscriptions.iter() {
            let about = &subscription.about;
            let group = about.group.as_ref();
            if first_forbidden(policy, &about.selectors, group).is_some() {
                ended.push(id);
                continue;
            }
            // A pattern stays; the topics under it that are out of reach now go.
            for topic in subscription.membership.topics() {
                if !policy.allows(Action::Subscribe, &topic, group) {
                    subscription.membership.leave(&topic);
                }
            }
        }
        for id in ended {
            let Some(about) = self.end_subscription(id) else { continue };
            let group = about.group.as_ref().map(Group::as_str);
            let detail = write::ErrorDetail { topic: Some(&about.topic), group, ..write::ErrorDetail::default() };
            let of_group = group.map_or_else(String::new, |group| format!(" of the group {group}"));
            let message =
                format!("the subscription to {}{of_group} has ended: the renewed token does not allow it", about.topic);
            self.outbox.text(|out| write::error(out, None, Code::Forbidden, &message, detail));
            self.hub.audit.forbidden(self.client(), &Rejection::new(Code::Forbidden, message));
        }
    }

    /// Ends a subscription: what it holds goes back at once.
    pub(super) fn end_subscription(&mut self, id: SubscriptionId) -> Option<About> {
        self.registered.remove(id);
        self.subscriptions.remove(id)
    }
}

fn first_forbidden<'s>(policy: &Policy, selectors: &'s [Selector], group: Option<&Group>) -> Option<&'s Selector> {
    selectors.iter().find(|selector| !policy.allows_selector(Action::Subscribe, selector, group))
}
