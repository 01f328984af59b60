//! Which connection a subscription belongs to, for views that name holders.

use std::collections::HashMap;

use promethean_bus::SubscriptionId;

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
