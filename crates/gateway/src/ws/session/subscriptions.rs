//! The subscriptions of a connection, by name and by number.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;
use promethean_bus::{Membership, SubscriptionId};
use promethean_event::frame::write::Head;
use promethean_event::{Group, Selector};

/// A subscription as the session sees it.
pub(super) struct Subscription {
    /// The bus's side; the subscription ends with it.
    pub(super) membership: Arc<Membership>,
    pub(super) about: About,
    /// The beginning of its frames.
    pub(super) head: Head,
}

/// What was subscribed to.
#[derive(Debug, Clone)]
pub(super) struct About {
    /// The topic or pattern that names it.
    pub(super) topic: Box<str>,
    pub(super) group: Option<Group>,
    /// Everything it selects, the name's included.
    pub(super) selectors: Vec<Selector>,
    /// Deliveries come as `EVENTS`.
    pub(super) batch: bool,
    /// Most events of an `EVENTS` frame: the `batchSize` that was said.
    pub(super) most: usize,
    pub(super) max_in_flight: usize,
}

/// Counts the patterns among the selectors.
pub(super) fn patterns_of(selectors: &[Selector]) -> usize {
    selectors.iter().filter(|selector| matches!(selector, Selector::Pattern(_))).count()
}

/// The subscriptions of a connection. Bounded by `max_subscriptions`.
#[derive(Default)]
pub(super) struct Subscriptions {
    by_id: HashMap<SubscriptionId, Subscription, RandomState>,
    by_name: HashMap<Box<str>, SubscriptionId, RandomState>,
    /// Where a name is put together to be looked up.
    name: String,
}

impl Subscriptions {
    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Counts the patterns that they name.
    pub(super) fn patterns(&self) -> usize {
        self.by_id.values().map(|one| patterns_of(&one.about.selectors)).sum()
    }

    /// True if one of them may hold events that the bus has to take back: an ephemeral tail, and a pattern that no
    /// topic matches yet, hold none.
    pub(super) fn hold_leases(&self) -> bool {
        self.by_id.values().any(|one| one.about.group.is_some() && !one.membership.topics().is_empty())
    }

    /// Topic and group in one: neither may hold a NUL.
    fn join(&mut self, topic: &str, group: Option<&str>) {
        self.name.clear();
        self.name.push_str(topic);
        if let Some(group) = group {
            self.name.push('\0');
            self.name.push_str(group);
        }
    }

    /// The number of the subscription with this name.
    pub(super) fn find(&mut self, topic: &str, group: Option<&str>) -> Option<SubscriptionId> {
        self.join(topic, group);
        self.by_name.get(self.name.as_str()).copied()
    }

    pub(super) fn get_mut(&mut self, id: SubscriptionId) -> Option<&mut Subscription> {
        self.by_id.get_mut(&id)
    }

    pub(super) fn add(&mut self, membership: Arc<Membership>, about: About) {
        let group = about.group.as_ref().map(Group::as_str);
        let head = if about.batch { Head::events(&about.topic, group) } else { Head::event(&about.topic, group) };
        self.join(&about.topic, group);
        let id = membership.id();
        self.by_name.insert(self.name.as_str().into(), id);
        self.by_id.insert(id, Subscription { membership, about, head });
    }

    /// Ends a subscription: what it holds goes back at once.
    pub(super) fn remove(&mut self, id: SubscriptionId) -> Option<About> {
        let about = self.by_id.remove(&id)?.about;
        self.join(&about.topic, about.group.as_ref().map(Group::as_str));
        self.by_name.remove(self.name.as_str());
        Some(about)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (SubscriptionId, &Subscription)> {
        self.by_id.iter().map(|(id, subscription)| (*id, subscription))
    }

    pub(super) fn clear(&mut self) {
        self.by_id.clear();
        self.by_name.clear();
    }
}
