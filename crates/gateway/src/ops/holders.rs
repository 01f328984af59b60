//! Which connection a subscription belongs to, and how many events it holds, for views that name holders.

use std::collections::HashMap;

use promethean_bus::{GroupStatus, SubscriptionId};
use promethean_event::{Group, Topic};

use crate::Hub;
use crate::rejection::Rejection;

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

/// How many events subscriptions hold; each group is asked once.
#[derive(Default)]
pub(crate) struct Holdings(HashMap<(Topic, Group), HashMap<SubscriptionId, usize>>);

impl Holdings {
    /// Events of `group` on `topic` that the subscription holds.
    pub(crate) async fn of(
        &mut self,
        hub: &Hub,
        topic: Topic,
        group: &Group,
        subscription: SubscriptionId,
    ) -> Result<usize, Rejection> {
        let name = (topic, group.clone());
        if !self.0.contains_key(&name) {
            let status: Option<GroupStatus> = hub.bus.group_outline(&name.0, &name.1).await?;
            let members = status.into_iter().flat_map(|status| status.members);
            self.0.insert(name.clone(), members.map(|member| (member.id, member.in_flight)).collect());
        }
        Ok(self.0.get(&name).and_then(|members| members.get(&subscription)).copied().unwrap_or(0))
    }
}
