//! Who sent a request: refused while the hub drains, over its connection's quota, from a page of another site or with a bad
//! token, in this order; so a handler that has a [`Caller`] may go on.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use http::request::Parts;
use http::{HeaderMap, header};
use promethean_event::{Code, Group, Topic};

use super::Query;
use crate::Hub;
use crate::audit::Slot;
use crate::auth::{Action, Identity};
use crate::listener::Quota;
use crate::rejection::Rejection;
use crate::ws::origin;

/// Who sent a request.
#[derive(Debug)]
pub(crate) struct Caller {
    pub(crate) identity: Identity,
    /// For what the audit log is to say of the request.
    pub(crate) audit: Slot,
}

impl FromRequestParts<Arc<Hub>> for Caller {
    type Rejection = Rejection;

    async fn from_request_parts(parts: &mut Parts, hub: &Arc<Hub>) -> Result<Self, Rejection> {
        if hub.drain.has_begun() {
            return Err(Rejection::shutting_down());
        }
        if let Some(quota) = parts.extensions.get::<Quota>() {
            quota.of(&hub.quotas).take(1)?;
        }
        from_own_page(&parts.headers, hub)?;
        let identity = hub.auth.authenticate(bearer(&parts.headers)).await?;
        let audit = parts.extensions.get::<Slot>().cloned().unwrap_or_default();
        audit.is(identity.sub.as_deref());
        Ok(Self { identity, audit })
    }
}

impl Caller {
    /// Checks that the policy allows `action` on `topic`, for subscribers without a group.
    pub(crate) fn may(&self, action: Action, topic: &Topic) -> Result<(), Rejection> {
        if self.identity.policy.allows(action, topic, None) {
            return Ok(());
        }
        Err(Rejection::forbidden(action, topic.as_str()))
    }

    /// True if the operator's view shows `topic`, in any group of it.
    pub(crate) fn sees(&self, topic: &Topic) -> bool {
        let policy = &self.identity.policy;
        policy.shows(topic) || policy.allows(Action::Admin, topic, None)
    }

    /// Checks that the operator's view shows `topic`.
    pub(crate) fn must_see(&self, topic: &Topic) -> Result<(), Rejection> {
        if self.sees(topic) { Ok(()) } else { Err(Rejection::forbidden(Action::Subscribe, topic.as_str())) }
    }

    /// True if payloads of `topic` may be shown: `subscribe` for every group, or `admin`.
    pub(crate) fn reads(&self, topic: &Topic) -> bool {
        let policy = &self.identity.policy;
        policy.allows(Action::Subscribe, topic, None) || policy.allows(Action::Admin, topic, None)
    }

    /// Checks that payloads of `topic` may be shown.
    pub(crate) fn must_read(&self, topic: &Topic) -> Result<(), Rejection> {
        if self.reads(topic) { Ok(()) } else { Err(Rejection::forbidden(Action::Subscribe, topic.as_str())) }
    }

    /// True if the operator's view shows `group` on `topic`.
    pub(crate) fn sees_group(&self, topic: &Topic, group: &Group) -> bool {
        let policy = &self.identity.policy;
        policy.allows(Action::Subscribe, topic, Some(group))
            || policy.allows(Action::Subscribe, topic, None)
            || policy.allows(Action::Admin, topic, None)
    }

    /// Checks that the operator's view shows `group` on `topic`.
    pub(crate) fn must_see_group(&self, topic: &Topic, group: &Group) -> Result<(), Rejection> {
        if self.sees_group(topic, group) {
            return Ok(());
        }
        Err(Rejection::forbidden(Action::Subscribe, topic.as_str()))
    }
}

/// Somebody who may change the topic that the query names.
#[derive(Debug)]
pub(crate) struct Changer {
    pub(crate) topic: Topic,
    pub(crate) caller: Caller,
}

impl FromRequestParts<Arc<Hub>> for Changer {
    type Rejection = Rejection;

    async fn from_request_parts(parts: &mut Parts, hub: &Arc<Hub>) -> Result<Self, Rejection> {
        let caller = Caller::from_request_parts(parts, hub).await?;
        let topic = Query::parse(parts.uri.query().unwrap_or_default()).topic()?;
        caller.may(Action::Admin, &topic)?;
        Ok(Self { topic, caller })
    }
}

/// A page of another site can make a browser send requests; without this, also to a hub that asks for no token.
fn from_own_page(headers: &HeaderMap, hub: &Hub) -> Result<(), Rejection> {
    let (allowed, open) = (&hub.config.allowed_origins, hub.auth.is_open());
    if !origin::is_allowed(headers, allowed, open) {
        return Err(Rejection::new(Code::Forbidden, "pages of this origin may not ask; add it to allowed_origins"));
    }
    if open && origin::is_foreign_host(headers, allowed) {
        let message =
            "without auth the hub answers to localhost and IP addresses only; add this name to allowed_origins";
        return Err(Rejection::new(Code::Forbidden, message));
    }
    Ok(())
}

/// The token of `Authorization: Bearer`.
pub(crate) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}
