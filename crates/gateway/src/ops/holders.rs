//! Which connection a subscription belongs to, and how many events it holds, for views that name holders.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream;
use promethean_bus::{MemberStatus, SubscriptionId};
use promethean_event::{Group, Topic};
use tokio::time::{Instant, timeout_at};

use crate::Hub;

/// The connection behind a subscription.
pub(super) struct Holder {
    /// As `/connections` names it.
    pub(super) connection: String,
    pub(super) sub: Option<String>,
}

/// All subscriptions of all connections.
pub(super) fn all(hub: &Hub) -> HashMap<SubscriptionId, Holder> {
    let mut holders = HashMap::new();
    for connection in hub.connections.list() {
        for held in connection.subscriptions() {
            holders.insert(held.id, Holder { connection: name(connection.id), sub: connection.sub() });
        }
    }
    holders
}

/// A connection's name.
pub(super) fn name(id: u64) -> String {
    format!("c{id}")
}

/// How long what a page shows waits for the store, and for other hubs: a little longer than the bus waits for a group's
/// owner, and much less than whoever asks for the page.
pub(crate) const ANSWERS: Duration = Duration::from_secs(3);
/// Groups that other hubs are asked for at a time.
const AT_ONCE: usize = 16;

/// How many events subscriptions hold; each group is asked once.
pub(crate) struct Holdings(HashMap<(Topic, Group), HashMap<SubscriptionId, usize>>);

impl Holdings {
    /// Asks `groups` what their members hold, all within [`ANSWERS`]: first this hub, which needs no store for that, then the
    /// owners of the others. A group that cannot be asked is not known.
    pub(crate) async fn of(hub: &Hub, groups: HashSet<(Topic, Group)>) -> Self {
        let until = Instant::now() + ANSWERS;
        let here = groups.into_iter().map(async |name| {
            let members = timeout_at(until, hub.bus.members_here(&name.0, &name.1)).await;
            (name, members)
        });
        let (mut known, mut elsewhere) = (HashMap::new(), Vec::new());
        for (name, members) in join_all(here).await {
            match members {
                Ok(Some(members)) => drop(known.insert(name, held(members))),
                Ok(None) => elsewhere.push(name),
                Err(_) => {}
            }
        }
        let elsewhere = stream::iter(elsewhere).map(async |name| {
            let status = timeout_at(until, hub.bus.group_outline(&name.0, &name.1)).await;
            (name, status)
        });
        let mut elsewhere = elsewhere.buffer_unordered(AT_ONCE);
        while let Some((name, status)) = elsewhere.next().await {
            if let Ok(Ok(status)) = status {
                known.insert(name, status.map(|status| held(status.members)).unwrap_or_default());
            }
        }
        Self(known)
    }

    /// How many events of the group the subscription holds; `None`: it is not known.
    pub(crate) fn held(&self, group: &(Topic, Group), subscription: SubscriptionId) -> Option<usize> {
        self.0.get(group).map(|members| members.get(&subscription).copied().unwrap_or(0))
    }
}

fn held(members: Vec<MemberStatus>) -> HashMap<SubscriptionId, usize> {
    members.into_iter().map(|member| (member.id, member.in_flight)).collect()
}
