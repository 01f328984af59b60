//! The open connections, for operators. Touched when a connection changes, never per event.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use promethean_bus::{Inbox, Membership, SubscriptionId};
use promethean_event::{Group, Millis};

use crate::buffers::Holder;

/// All open connections. Bounded by the listener's slots.
#[derive(Debug, Default)]
pub struct Connections {
    next: AtomicU64,
    open: Mutex<HashMap<u64, Arc<Connection>>>,
}

/// One open connection.
#[derive(Debug)]
pub struct Connection {
    /// Its number.
    pub id: u64,
    /// Who it is, by address.
    pub peer: SocketAddr,
    /// Since when.
    pub since: Millis,
    sub: Mutex<Option<String>>,
    held: Mutex<Vec<Held>>,
    inbox: Inbox,
    holder: Arc<Holder>,
}

/// A subscription of a connection.
#[derive(Debug, Clone)]
pub struct Held {
    /// Its number, which the bus knows too.
    pub id: SubscriptionId,
    /// The topic or pattern that names it.
    pub topic: Box<str>,
    /// The group; none: an ephemeral tail.
    pub group: Option<Group>,
    /// Most events it holds.
    pub max_in_flight: usize,
    /// The subscription itself; dead when it has ended meanwhile.
    pub membership: Weak<Membership>,
}

impl Connections {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.open.lock().len()
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All of them, by number.
    pub fn list(&self) -> Vec<Arc<Connection>> {
        let mut all: Vec<_> = self.open.lock().values().cloned().collect();
        all.sort_unstable_by_key(|connection| connection.id);
        all
    }

    /// Adds a connection; it goes when the guard is dropped.
    pub(super) fn open(&self, peer: SocketAddr, inbox: &Inbox, holder: Arc<Holder>) -> Registered<'_> {
        let id = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        let connection = Arc::new(Connection {
            id,
            peer,
            since: Millis::now(),
            sub: Mutex::default(),
            held: Mutex::default(),
            inbox: inbox.clone(),
            holder,
        });
        self.open.lock().insert(id, Arc::clone(&connection));
        Registered { connections: self, connection }
    }
}

impl Connection {
    /// The subject of its token.
    pub fn sub(&self) -> Option<String> {
        self.sub.lock().clone()
    }

    /// Its subscriptions.
    pub fn subscriptions(&self) -> Vec<Held> {
        self.held.lock().clone()
    }

    /// Bytes that wait in the hub for it, deliveries and frames on their way out, and bytes of a half-read frame.
    pub fn buffered_bytes(&self) -> usize {
        self.inbox.buffered() + self.holder.reading()
    }
}

/// A connection that is open as long as this lives.
#[derive(Debug)]
pub(super) struct Registered<'c> {
    connections: &'c Connections,
    connection: Arc<Connection>,
}

impl Registered<'_> {
    pub(super) fn id(&self) -> u64 {
        self.connection.id
    }

    pub(super) fn peer(&self) -> SocketAddr {
        self.connection.peer
    }

    pub(super) fn set_sub(&self, sub: Option<String>) {
        *self.connection.sub.lock() = sub;
    }

    pub(super) fn add(&self, held: Held) {
        self.connection.held.lock().push(held);
    }

    pub(super) fn remove(&self, id: SubscriptionId) {
        self.connection.held.lock().retain(|held| held.id != id);
    }

    pub(super) fn holder(&self) -> &Holder {
        &self.connection.holder
    }
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        self.connections.open.lock().remove(&self.connection.id);
    }
}
