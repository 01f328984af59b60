//! Several hubs over one memory store in one process: ownership is a table, a relay is a call.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use promethean_bus::group::{Answer, Receipt};
use promethean_bus::{
    Bus, Cluster, Cursor, Error, EventId, Given, Group, GroupStatus, Inbox, Membership, Origin, Redrive, RelayError,
    RelayGiven, RelayJoin, Relayed, Relaying, Relays, Remote, Request, SeekTo, Selector, SubscribeOptions, Topic,
};
use promethean_store::memory::Memory;
use promethean_store::{Claim, Fence, GroupStore as _, Owned, Ownership, Peer, Pending, Result, Saved};
use tokio::sync::watch;
use tokio::time::Instant;

/// How long a hub may act, and how long it takes the others to find that it is gone.
const LEASE: Duration = Duration::from_secs(3600);

type Owners = HashMap<(Topic, Group), (Option<Arc<str>>, u64)>;

/// What the hubs share.
pub(crate) struct World {
    pub(crate) store: Arc<Memory>,
    owners: tokio::sync::Mutex<Owners>,
    hubs: Mutex<HashMap<Arc<str>, Bus>>,
    alive: watch::Sender<Vec<Arc<str>>>,
    /// Claims fail, as they do without a store.
    pub(crate) down: AtomicBool,
    /// Owners do not say how their groups stand: they hang.
    pub(crate) silent: AtomicBool,
    /// Hubs do not reach each other.
    cut: watch::Sender<bool>,
}

/// One hub.
pub(crate) struct Hub {
    pub(crate) name: Arc<str>,
    pub(crate) bus: Bus,
    pub(crate) fence: Fence,
    world: Arc<World>,
}

impl World {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            store: Arc::new(Memory::new()),
            owners: tokio::sync::Mutex::default(),
            hubs: Mutex::default(),
            alive: watch::channel(Vec::new()).0,
            down: AtomicBool::new(false),
            silent: AtomicBool::new(false),
            cut: watch::channel(false).0,
        })
    }

    pub(crate) fn hub(self: &Arc<Self>, name: &str) -> Hub {
        let (name, fence): (Arc<str>, _) = (name.into(), Fence::new(Instant::now() + LEASE));
        let own = Own { me: Arc::clone(&name), fence: fence.clone(), world: Arc::clone(self) };
        let calls = Calls { me: Arc::clone(&name), world: Arc::clone(self) };
        let cluster = Cluster { ownership: Arc::new(own), relays: Arc::new(calls) };
        let bus = Bus::clustered(Arc::clone(&self.store) as _, Default::default(), cluster);
        self.hubs.lock().unwrap_or_else(PoisonError::into_inner).insert(Arc::clone(&name), bus.clone());
        self.alive.send_modify(|alive| alive.push(Arc::clone(&name)));
        Hub { name, bus, fence, world: Arc::clone(self) }
    }

    /// Cuts the ways between hubs, or mends them.
    pub(crate) fn cut(&self, cut: bool) {
        self.cut.send_replace(cut);
    }

    fn bus_of(&self, peer: &Peer) -> Option<Bus> {
        let alive = self.alive.borrow().contains(&peer.id) && !*self.cut.borrow();
        alive.then(|| self.hubs.lock().unwrap_or_else(PoisonError::into_inner).get(&peer.id).cloned()).flatten()
    }

    pub(crate) async fn owner_of(&self, topic: &Topic, group: &Group) -> Option<Arc<str>> {
        self.owners.lock().await.get(&(topic.clone(), group.clone())).and_then(|(owner, _)| owner.clone())
    }
}

impl Hub {
    /// The others know that it is gone, and it does not: as after a stop of the whole process.
    pub(crate) fn is_declared_dead(&self) {
        self.world.alive.send_modify(|alive| alive.retain(|one| *one != self.name));
    }

    /// It is gone, and does nothing more.
    pub(crate) fn dies(&self) {
        self.fence.end();
        self.is_declared_dead();
    }

    /// It is back among the living.
    pub(crate) fn comes_back(&self) {
        self.world.alive.send_modify(|alive| alive.push(Arc::clone(&self.name)));
    }
}

fn peer(id: &Arc<str>) -> Peer {
    Peer { id: Arc::clone(id), address: format!("ws://{id}").into() }
}

struct Own {
    me: Arc<str>,
    fence: Fence,
    world: Arc<World>,
}

impl Ownership for Own {
    fn claim<'a>(&'a self, topic: &'a Topic, group: &'a Group) -> Pending<'a, Claim> {
        Box::pin(async move {
            if self.world.down.load(Ordering::SeqCst) {
                return Err(promethean_store::Error::Refused("nobody answers".to_owned()));
            }
            let mut owners = self.world.owners.lock().await;
            let entry = owners.entry((topic.clone(), group.clone())).or_default();
            if let Some(owner) = &entry.0
                && *owner != self.me
                && self.world.alive.borrow().contains(owner)
            {
                return Ok(Claim::Other(peer(owner)));
            }
            *entry = (Some(Arc::clone(&self.me)), entry.1 + 1);
            let loaded = self.world.store.load(topic, group).await?;
            let (state, version) = match loaded {
                None => (None, 0),
                // A save of the same state: whoever had it before is behind by a version.
                Some((state, version)) => {
                    match self.world.store.compare_and_set(topic, group, version, state.clone()).await? {
                        Saved::Yes(version) => (Some(state), version),
                        Saved::Conflict => return Err(promethean_store::Error::Refused("conflict".to_owned())),
                    }
                }
            };
            let first_lease = entry.1 * 1_000_000;
            let fence = self.fence.clone();
            Ok(Claim::Owned(Box::new(Owned { epoch: entry.1, first_lease, state, version, fence })))
        })
    }

    fn release<'a>(&'a self, topic: &'a Topic, group: &'a Group, epoch: u64) -> Pending<'a, ()> {
        Box::pin(async move {
            let mut owners = self.world.owners.lock().await;
            if let Some(entry) = owners.get_mut(&(topic.clone(), group.clone()))
                && entry.1 == epoch
            {
                entry.0 = None;
            }
            Ok(())
        })
    }

    fn owner<'a>(&'a self, topic: &'a Topic, group: &'a Group) -> Pending<'a, Option<Peer>> {
        Box::pin(async move {
            if self.world.down.load(Ordering::SeqCst) {
                return Err(promethean_store::Error::Refused("nobody answers".to_owned()));
            }
            let owner = self.world.owner_of(topic, group).await;
            let alive = self.world.alive.borrow();
            Ok(owner.filter(|owner| *owner != self.me && alive.contains(owner)).map(|owner| peer(&owner)))
        })
    }

    fn gone<'a>(&'a self, peer: &'a Peer) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        let mut alive = self.world.alive.subscribe();
        Box::pin(async move {
            let _ = alive.wait_for(|alive| !alive.contains(&peer.id)).await;
        })
    }

    fn leads(&self) -> bool {
        self.world.alive.borrow().first() == Some(&self.me)
    }

    fn ready(&self) -> Result<()> {
        if self.world.down.load(Ordering::SeqCst) {
            return Err(promethean_store::Error::Refused("nobody answers".to_owned()));
        }
        Ok(())
    }

    fn leave(&self) -> Pending<'_, ()> {
        Box::pin(async { Ok(()) })
    }
}

struct Calls {
    me: Arc<str>,
    world: Arc<World>,
}

fn lost() -> RelayError {
    RelayError::Lost("it is gone".to_owned())
}

fn relayed<T>(result: std::result::Result<T, Error>) -> std::result::Result<T, RelayError> {
    result.map_err(|error| match error.code {
        promethean_bus::Code::ShuttingDown => RelayError::Lost(error.message),
        _ => RelayError::Refused(error),
    })
}

impl Relays for Calls {
    fn join(&self, owner: &Peer, join: RelayJoin) -> Relaying<(Cursor, Box<dyn Remote>)> {
        let (bus, world, owner) = (self.world.bus_of(owner), Arc::clone(&self.world), owner.clone());
        let origin = Origin { hub: (&*self.me).into(), subscription: join.subscription };
        Box::pin(async move {
            let bus = bus.ok_or_else(lost)?;
            let options = SubscribeOptions {
                from: join.from,
                max_in_flight: join.options.max_in_flight,
                ack_timeout: join.options.ack_timeout,
                batch_size: join.options.batch_size,
                ordered: join.policy.ordered,
                max_attempts: join.policy.max_attempts,
                filter: join.policy.filter,
                ..SubscribeOptions::default()
            };
            let request = Request {
                topic: Selector::Topic(join.topic.clone()),
                group: Some(join.group),
                options,
                gate: None,
                relayed: Some(origin),
            };
            let inbox = Inbox::new();
            let (membership, mut cursors) = relayed(bus.attach(request, &inbox).await)?;
            membership.pause(join.paused);
            let membership = Arc::new(membership);
            let pump = pump(bus, inbox, owner, world, join.subscription, join.deliveries);
            let pump = tokio::spawn(pump).abort_handle();
            let cursor = cursors.pop().ok_or_else(lost)?;
            Ok((cursor, Box::new(Member { membership, pump }) as Box<dyn Remote>))
        })
    }

    fn seek(&self, owner: &Peer, topic: &Topic, group: &Group, to: SeekTo) -> Relaying<Cursor> {
        let (bus, topic, group) = (self.world.bus_of(owner), topic.clone(), group.clone());
        Box::pin(async move { relayed(bus.ok_or_else(lost)?.set_cursor_here(&topic, &group, to).await) })
    }

    fn redrive(&self, owner: &Peer, topic: &Topic, group: &Group, letters: Vec<Redrive>) -> Relaying<Vec<bool>> {
        let (bus, topic, group) = (self.world.bus_of(owner), topic.clone(), group.clone());
        Box::pin(async move { relayed(bus.ok_or_else(lost)?.redrive_here(&topic, &group, &letters).await) })
    }

    fn status(&self, owner: &Peer, topic: &Topic, group: &Group, unfinished: bool) -> Relaying<Option<GroupStatus>> {
        let (bus, topic, group) = (self.world.bus_of(owner), topic.clone(), group.clone());
        if self.world.silent.load(Ordering::SeqCst) {
            return Box::pin(std::future::pending());
        }
        Box::pin(async move {
            let bus = bus.ok_or_else(lost)?;
            relayed(bus.status_here(&topic, &group, unfinished).await)
        })
    }
}

/// Carries deliveries over until the owner is gone or ends the membership.
async fn pump(
    bus: Bus,
    inbox: Inbox,
    owner: Peer,
    world: Arc<World>,
    subscription: u64,
    deliveries: tokio::sync::mpsc::Sender<(u64, Relayed)>,
) {
    let (mut alive, mut cut) = (world.alive.subscribe(), world.cut.subscribe());
    loop {
        tokio::select! {
            biased;
            _ = alive.wait_for(|alive| !alive.contains(&owner.id)) => break,
            _ = cut.wait_for(|cut| *cut) => break,
            () = inbox.ready() => {}
        }
        let mut given = Vec::new();
        let now = bus.now();
        inbox.take(16, usize::MAX, now, &mut given);
        let given: Vec<RelayGiven> = given
            .into_iter()
            .map(|one: Given| RelayGiven {
                left: one.deadline.since(now),
                event: one.event,
                attempt: one.attempt,
                max_attempts: one.max_attempts,
                lease: one.lease,
                snapshot: one.snapshot,
                redriven: one.redriven,
                fence: Fence::new(Instant::now() + LEASE),
            })
            .collect();
        if !given.is_empty() && deliveries.send((subscription, Relayed::Given(given))).await.is_err() {
            return;
        }
        if !inbox.take_ended().is_empty() {
            break;
        }
    }
    let _ = deliveries.send((subscription, Relayed::Lost("the owner is gone".to_owned()))).await;
}

struct Member {
    membership: Arc<Membership>,
    pump: tokio::task::AbortHandle,
}

impl Drop for Member {
    fn drop(&mut self) {
        self.pump.abort();
    }
}

impl Remote for Member {
    fn answer(&self, ids: Vec<(EventId, Option<u64>)>, answer: Answer) -> Relaying<Vec<Receipt>> {
        let membership = Arc::clone(&self.membership);
        Box::pin(async move { relayed(membership.answer(ids, answer).await) })
    }

    fn ack_up_to(&self, id: EventId, lease: Option<u64>) -> Relaying<()> {
        let membership = Arc::clone(&self.membership);
        Box::pin(async move { relayed(membership.ack_up_to(id, lease).await) })
    }

    fn pause(&self, paused: bool) {
        self.membership.pause(paused);
    }
}
