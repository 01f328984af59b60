//! What each client frame does.

use promethean_bus::{Answer, SubscriptionId};
use promethean_event::frame::{
    Ack, Auth, Corr, Frame, Item, Modack, Nack, Named, Op, Publish, Request, Settled, Subscribe, decode,
};
use promethean_event::{Code, Group, Selector};

use super::core::{Core, Flow};
use crate::auth::Action;
use crate::cluster::Asked;
use crate::rejection::{Rejection, not_the_hubs_own};
use crate::trace::Operation;

impl Core<'_> {
    /// Takes in one frame: it is answered now, or in its place later.
    pub(super) fn on_frame(&mut self, text: &str) -> Flow {
        let relay = self.identity.as_ref().is_some_and(|identity| identity.relay.is_some());
        let busy = self.barrier.is_some();
        if relay
            && !busy
            && let Some(asked) = Asked::parse(text)
        {
            self.begin_asked(asked);
            return Flow::Next;
        }
        let Frame { corr, op, request } = decode(text);
        let answered = request.as_ref().ok().and_then(|request| self.answered(request));
        // While it subscribes, only answers to what it has are taken in, so that their leases do not run out.
        if busy && answered.is_none() {
            return Flow::Hold;
        }
        // A group that starts at `latest` starts after what this connection published before; and who leaves has its
        // answers first, or it would be a member until they are saved, and get events that nobody reads.
        let waits = match op {
            Op::Subscribe => !self.publishes.is_empty(),
            Op::Unsubscribe => !self.settles.is_empty(),
            _ => false,
        };
        if waits && !self.leaving {
            return Flow::Hold;
        }
        // The other hub has counted its clients' frames.
        let limited = if relay { None } else { self.quota.take(1).err() };
        let limited = limited.filter(|_| answered != Some(true));
        let request = match request {
            Ok(request) => request,
            Err(invalid) => {
                // Whoever has not said who they are learns nothing of what frames there are; what is not JSON is told so.
                let unknown = self.identity.is_none() && op != Op::Auth && invalid.code != Code::BadJson;
                self.refuse(op, corr, if unknown { unauthorized() } else { Rejection::from(invalid) });
                return Flow::Next;
            }
        };
        if let Some(limited) = limited {
            self.refuse(op, corr, Rejection::from(limited));
        } else if self.leaving {
            self.refuse(op, corr, Rejection::shutting_down());
        } else if self.identity.is_none() && op != Op::Auth {
            self.refuse(op, corr, unauthorized());
        } else if let Some(misspelt) = self.misspelt(&request, corr.as_ref()) {
            self.refuse(op, corr, misspelt);
        } else {
            // A quiet connection gets no `OK`, not for warnings either.
            let corr = corr.filter(|corr| corr.is_mark() || !self.quiet);
            self.on_request(op, request, corr);
        }
        Flow::Next
    }

    /// Refuses a frame with unknown fields where the client asked for that.
    fn misspelt(&self, request: &Request<'_>, corr: Option<&Corr>) -> Option<Rejection> {
        let warnings = corr.map(Corr::warnings).filter(|warnings| !warnings.is_empty())?;
        let strict = self.strict || matches!(request, Request::Auth(Auth { strict: Some(true), .. }));
        strict.then(|| Rejection::new(Code::BadRequest, warnings.join("; ")))
    }

    fn on_request(&mut self, op: Op, request: Request<'_>, corr: Option<Corr>) {
        match request {
            Request::Auth(auth) => self.begin_auth(auth, corr),
            Request::Ping(_) => self.ok(corr.as_ref()),
            Request::Publish(publish) => self.publish(publish, corr),
            Request::Subscribe(subscribe) => self.subscribe(*subscribe, corr),
            Request::Unsubscribe(named) => {
                let found = self.find(&named);
                self.with_found(op, corr, found, |core, id, corr| {
                    core.end_subscription(id);
                    core.ok(corr.as_ref());
                });
            }
            Request::Pause(named) => {
                let found = self.find(&named);
                self.with_found(op, corr, found, |core, id, corr| core.pause(id, true, corr));
            }
            Request::Resume(named) => {
                let found = self.find(&named);
                self.with_found(op, corr, found, |core, id, corr| core.pause(id, false, corr));
            }
            Request::Ack(Ack { of, settled, lease }) => {
                let found = self.find(&of);
                self.with_found(op, corr, found, |core, id, corr| {
                    let Some(subscription) = core.subscriptions.get_mut(id) else { return };
                    match settled {
                        Settled::Ids(ids) => {
                            let spans = core.traces.settle(ids.as_slice(), Operation::Ack);
                            core.settles.add(&subscription.membership, &ids, lease, Answer::Ack, corr, spans);
                        }
                        Settled::UpTo(id) => core.settles.add_up_to(&subscription.membership, id, lease, corr),
                    }
                });
            }
            Request::Nack(Nack { of, ids, lease, reason, delay, release }) => {
                let found = self.find(&of);
                let answer = Answer::Nack { reason: reason.map(Into::into), delay, release };
                self.with_found(op, corr, found, |core, id, corr| {
                    let Some(subscription) = core.subscriptions.get_mut(id) else { return };
                    let spans = core.traces.settle(ids.as_slice(), Operation::Nack);
                    core.settles.add(&subscription.membership, &ids, lease, answer, corr, spans);
                });
            }
            Request::Modack(Modack { of, ids, lease, extend }) => {
                let found = self.find(&of);
                self.with_found(op, corr, found, |core, id, corr| {
                    let Some(subscription) = core.subscriptions.get_mut(id) else { return };
                    let answer = Answer::Extend { by: core.hub.config.caps.extension(extend) };
                    core.settles.add(&subscription.membership, &ids, lease, answer, corr, Vec::new());
                });
            }
        }
    }

    /// Of an answer to deliveries of a subscription that there is: true if the connection holds one of the events.
    fn answered(&mut self, request: &Request<'_>) -> Option<bool> {
        let (of, held) = match request {
            Request::Ack(Ack { of, settled: Settled::Ids(ids), .. })
            | Request::Nack(Nack { of, ids, .. })
            | Request::Modack(Modack { of, ids, .. }) => (of, self.held.any(ids.as_slice())),
            Request::Ack(Ack { of, settled: Settled::UpTo(id), .. }) => (of, self.held.any(&[*id])),
            _ => return None,
        };
        self.subscriptions.find(&of.topic, of.group.as_deref()).map(|_| held)
    }

    fn publish(&mut self, publish: Publish<'_>, corr: Option<Corr>) {
        if let Err(rejection) = self.try_publish(publish, corr.as_ref()) {
            self.refuse(Op::Publish, corr, rejection);
        }
    }

    fn try_publish(&mut self, publish: Publish<'_>, corr: Option<&Corr>) -> Result<(), Rejection> {
        let Publish { topic, events } = publish;
        let Some(identity) = &self.identity else { return Ok(()) };
        let (topic, allowed) = self.names.topic(&topic, &identity.policy)?;
        if !allowed {
            return Err(Rejection::forbidden(Action::Publish, topic.as_str()));
        }
        let count = match &events {
            Item::One { .. } => 1,
            Item::Batch(items) => items.len(),
        };
        self.hub.quotas.take_topic(&topic, count)?;
        let span = self.traces.publish(&topic, &events);
        self.publishes.add(topic, events, corr, span, &self.hub.bus)?;
        Ok(())
    }

    fn subscribe(&mut self, subscribe: Subscribe<'_>, corr: Option<Corr>) {
        let group = subscribe.group.as_ref().map(Group::as_str);
        let most = self.hub.config.max_subscriptions;
        if let Some(Err(rejection)) = subscribe.group.as_ref().map(not_the_hubs_own) {
            self.refuse(Op::Subscribe, corr, rejection);
        } else if self.subscriptions.find(&subscribe.topic, group).is_some() {
            let message = "this connection has that subscription already; UNSUBSCRIBE first to change it";
            self.refuse(Op::Subscribe, corr, Rejection::new(Code::AlreadySubscribed, message));
        } else if self.subscriptions.len() >= most && self.identity.as_ref().is_none_or(|one| one.relay.is_none()) {
            let message = format!(
                "a connection may have at most {most} subscriptions (max_subscriptions); use a pattern or opts.topics"
            );
            self.refuse(Op::Subscribe, corr, Rejection::new(Code::BadRequest, message));
        } else {
            self.begin_subscribe(subscribe, corr);
        }
    }

    fn pause(&mut self, id: SubscriptionId, paused: bool, corr: Option<Corr>) {
        if let Some(subscription) = self.subscriptions.get_mut(id) {
            subscription.membership.pause(paused);
        }
        self.ok(corr.as_ref());
    }

    fn find(&mut self, named: &Named<'_>) -> Result<SubscriptionId, Rejection> {
        let group = named.group.as_deref();
        if let Some(id) = self.subscriptions.find(&named.topic, group) {
            return Ok(id);
        }
        // A name that cannot be one is told so.
        Selector::parse(&named.topic)?;
        group.map(Group::parse).transpose()?;
        let of_group = group.map_or_else(|| " without a group".to_owned(), |group| format!(" of the group {group}"));
        let message = format!("this connection has no subscription to {}{of_group}; SUBSCRIBE first", named.topic);
        Err(Rejection::new(Code::NotSubscribed, message))
    }

    fn with_found(
        &mut self,
        op: Op,
        corr: Option<Corr>,
        found: Result<SubscriptionId, Rejection>,
        then: impl FnOnce(&mut Self, SubscriptionId, Option<Corr>),
    ) {
        match found {
            Ok(id) => then(self, id, corr),
            Err(rejection) => self.refuse(op, corr, rejection),
        }
    }
}

fn unauthorized() -> Rejection {
    Rejection::new(Code::Unauthorized, "send AUTH with a token first")
}
