//! Hubs and MongoDB's primary are killed and stopped under load. The ledger keeps what was promised.
//!
//! The scenarios mostly wait for leases to run out, so all of them run at once, each with its own database and hubs.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use mongodb::bson::{Document, doc};
use promethean_e2e::{Hub, Ledger, Setup, Wire, get};
use promethean_testmongo::{Replica, Scratch};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::task::JoinSet;

const TOPIC: &str = "over.load";
const GROUP: &str = "g";
/// What docs/clustering.md promises.
const TAKEOVER: Duration = Duration::from_secs(10);
const WINDOW: usize = 16;
/// Between two publishes of one publisher: the machine has other scenarios to run too.
const PACE: Duration = Duration::from_millis(8);

/// How often each thing is done, at least once; `make torture` does it more often.
fn cycles(usual: usize) -> usize {
    let more = std::env::var("PROMETHEAN_CLUSTER_CYCLES").ok().and_then(|text| text.parse::<usize>().ok());
    (usual * more.unwrap_or(1)).max(1)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hubs_and_the_primary_die_and_stop_under_load_and_every_promise_is_kept() {
    let mut scenarios = JoinSet::new();
    for name in ["one", "two"] {
        scenarios.spawn(stopped_owners(name, cycles(4)));
    }
    scenarios.spawn(killed_hubs_on_the_shared_set(cycles(4)));
    scenarios.spawn(killed_hubs_with_a_user_who_may_only_read_and_write(cycles(4)));
    scenarios.spawn(killed_primaries(cycles(4)));
    while let Some(done) = scenarios.join_next().await {
        done.expect("every promise was kept");
    }
}

async fn killed_hubs_on_the_shared_set(cycles: usize) {
    let scratch = blocking(Scratch::new).await;
    killed_hubs("open", scratch.url(), cycles).await;
}

/// The hubs' user has `readWrite` on the database, as docs/mongodb.md asks for, and no right to end others' sessions.
async fn killed_hubs_with_a_user_who_may_only_read_and_write(cycles: usize) {
    let replica = blocking(|| {
        let replica = promethean_testmongo::Setup::default().user("admin", "secret").start();
        let roles = [doc! { "role": "readWrite", "db": "prom" }];
        replica.command(0, doc! { "createUser": "hub", "pwd": "only", "roles": &roles[..] }).expect("a user");
        replica
    })
    .await;
    killed_hubs("authenticated", &replica.url_of("hub", "only", "prom"), cycles).await;
    blocking(move || drop(replica)).await;
}

/// Any hub is killed with `kill -9` and started again, the owner as often as not.
async fn killed_hubs(name: &str, url: &str, cycles: usize) {
    let mut world = World::start(name, url, 3).await;
    for cycle in 0..cycles {
        world.load(Duration::from_millis(700 + (cycle as u64 * 131) % 500)).await;
        let victim = if cycle % 2 == 0 { world.owner().await } else { cycle % world.hubs.len() };
        world.kill(victim);
        world.flows_again(&format!("{name}: kill -9 of hub {victim}, cycle {cycle}")).await;
        world.revive(victim).await;
    }
    world.finish().await;
}

/// The owner is stopped for longer than its lease, and goes on.
async fn stopped_owners(name: &str, cycles: usize) {
    let scratch = blocking(Scratch::new).await;
    let mut world = World::start(name, scratch.url(), 2).await;
    for cycle in 0..cycles {
        world.load(Duration::from_millis(500)).await;
        let owner = world.owner().await;
        world.signal(owner, Signal::STOP);
        world.flows_again(&format!("{name}: SIGSTOP of the owner {owner}, cycle {cycle}")).await;
        world.signal(owner, Signal::CONT);
        world.is_ready(owner).await;
    }
    world.finish().await;
}

/// The primary of a set of three is killed and started again.
async fn killed_primaries(cycles: usize) {
    let replica = blocking(|| promethean_testmongo::Setup::default().members(3).start()).await;
    let mut world = World::start("primary", &replica.url("failover"), 2).await;
    let replica = Arc::new(Mutex::new(replica));
    let with = |replica: &Arc<Mutex<Replica>>| Arc::clone(replica);
    for cycle in 0..cycles {
        world.load(Duration::from_millis(700)).await;
        let shared = with(&replica);
        let primary = blocking(move || {
            let mut replica = shared.lock().unwrap_or_else(PoisonError::into_inner);
            let primary = replica.primary();
            replica.kill(primary);
            primary
        })
        .await;
        world.flows_again(&format!("kill -9 of the primary, cycle {cycle}")).await;
        let shared = with(&replica);
        // The next kill has to leave a majority that has everything.
        blocking(move || {
            let mut replica = shared.lock().unwrap_or_else(PoisonError::into_inner);
            replica.restart(primary);
            let began = Instant::now();
            while !caught_up(&replica, primary) {
                assert!(began.elapsed() < 6 * TAKEOVER, "the killed member does not catch up");
                std::thread::sleep(Duration::from_millis(100));
            }
        })
        .await;
    }
    world.finish().await;
}

/// True if a member is a secondary that has what the primary has, give or take a second.
fn caught_up(replica: &Replica, member: usize) -> bool {
    let primary = replica.primary();
    let Ok(status) = replica.command(primary, doc! { "replSetGetStatus": 1 }) else { return false };
    let members: Vec<&Document> =
        status.get_array("members").into_iter().flatten().filter_map(|one| one.as_document()).collect();
    let time = |at: usize| members.get(at).and_then(|one| one.get_datetime("optimeDate").ok());
    let secondary =
        members.get(member).is_some_and(|one| one.get_str("stateStr").is_ok_and(|state| state == "SECONDARY"));
    let behind = |one: &mongodb::bson::DateTime, two: &mongodb::bson::DateTime| {
        two.timestamp_millis() - one.timestamp_millis() > 1_000
    };
    secondary && matches!((time(member), time(primary)), (Some(one), Some(two)) if !behind(one, two))
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.expect("no panic")
}

/// Hubs with publishers and consumers who go to another hub when theirs is gone.
struct World {
    name: String,
    setup: Setup,
    hubs: Vec<Option<Hub>>,
    /// Where clients may go.
    places: Arc<Mutex<Vec<Option<SocketAddr>>>>,
    ledger: Ledger,
    /// Events delivered so far.
    flow: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    clients: JoinSet<()>,
    database: mongodb::Database,
}

impl World {
    async fn start(name: &str, url: &str, count: usize) -> Self {
        let setup = Setup::mongo(url);
        let starting = setup.clone();
        let hubs: Vec<Option<Hub>> = blocking(move || (0..count).map(|_| Some(starting.start())).collect()).await;
        let client = mongodb::Client::with_uri_str(url).await.expect("a client");
        let places = hubs.iter().map(|hub| hub.as_ref().map(|hub| hub.ws)).collect();
        let mut world = Self {
            name: name.to_owned(),
            setup,
            hubs,
            places: Arc::new(Mutex::new(places)),
            ledger: Ledger::default(),
            flow: Arc::default(),
            stop: Arc::default(),
            clients: JoinSet::new(),
            database: client.default_database().expect("the address names one"),
        };
        for number in 0..count {
            let (client, again) = (world.client(number), world.client(number + 1));
            world.clients.spawn(publisher(client, number));
            world.clients.spawn(consumer(again));
        }
        world
    }

    fn client(&self, number: usize) -> Visitor {
        Visitor {
            number,
            places: Arc::clone(&self.places),
            ledger: self.ledger.clone(),
            flow: Arc::clone(&self.flow),
            stop: Arc::clone(&self.stop),
        }
    }

    async fn load(&mut self, time: Duration) {
        tokio::time::sleep(time).await;
        if let Some(ended) = self.clients.try_join_next() {
            ended.expect("clients do not fail");
        }
    }

    /// Which hub owns the group.
    async fn owner(&self) -> usize {
        let began = Instant::now();
        loop {
            if let Some(owner) = self.find_owner().await {
                return owner;
            }
            assert!(began.elapsed() < 2 * TAKEOVER, "{}: nobody owns the group", self.name);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn find_owner(&self) -> Option<usize> {
        let cursors = self.database.collection::<Document>("cursors");
        let cursor = cursors.find_one(doc! { "_id": format!("{TOPIC}::{GROUP}") }).await.ok()??;
        let hubs = self.database.collection::<Document>("hubs");
        let hub = hubs.find_one(doc! { "_id": cursor.get_str("owner").ok()? }).await.ok()??;
        let address = hub.get_str("address").ok()?.strip_prefix("ws://")?.to_owned();
        self.hubs.iter().position(|hub| hub.as_ref().is_some_and(|hub| hub.ws.to_string() == address))
    }

    fn kill(&mut self, victim: usize) {
        self.places()[victim] = None;
        self.hubs[victim].take().expect("it lives").kill();
    }

    fn places(&self) -> std::sync::MutexGuard<'_, Vec<Option<SocketAddr>>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn signal(&self, hub: usize, signal: Signal) {
        self.hubs[hub].as_ref().expect("it lives").signal(signal);
    }

    async fn revive(&mut self, victim: usize) {
        let setup = self.setup.clone();
        let hub = blocking(move || setup.start()).await;
        self.places()[victim] = Some(hub.ws);
        self.hubs[victim] = Some(hub);
    }

    /// A hub that was stopped tells when it is one of them again.
    async fn is_ready(&self, hub: usize) {
        let (began, at) = (Instant::now(), self.hubs[hub].as_ref().expect("it lives").http);
        while get(at, "/readyz").await.status != 200 {
            assert!(began.elapsed() < TAKEOVER, "{}: the hub {hub} does not come back", self.name);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Events that are published from now on are delivered, in time.
    async fn flows_again(&mut self, what: &str) {
        let began = Instant::now();
        // What was under way does not count: what was sent later has to come.
        let before = self.ledger.entries().sent.clone();
        loop {
            let (came, published) = {
                let entries = self.ledger.entries();
                let news = |payload: &&String| !before.contains(*payload);
                (entries.delivered.iter().filter(news).count(), entries.published.keys().filter(news).count())
            };
            if came >= WINDOW {
                break;
            }
            assert!(
                began.elapsed() < TAKEOVER,
                "{what}: no delivery within {TAKEOVER:?}: {came} of {published} that were published since came"
            );
            self.load(Duration::from_millis(50)).await;
        }
        eprintln!("{what}: flows again after {:?}", began.elapsed());
    }

    /// Lets everything come to its end and looks whether all was kept.
    async fn finish(mut self) {
        self.stop.store(true, Ordering::SeqCst);
        let http = self.hubs.iter().flatten().next().expect("one lives").http;
        let ops = self.hubs.iter().flatten().next().expect("one lives").ops;
        let began = Instant::now();
        loop {
            let publishers_ended = self.clients.len() == self.hubs.len();
            let lag = get(ops, &format!("/lag?topic={TOPIC}&group={GROUP}")).await;
            if publishers_ended && lag.status == 200 && lag.json()["lag"] == 0 {
                break;
            }
            assert!(began.elapsed() < 6 * TAKEOVER, "{}: not everything was acked: {}", self.name, lag.text());
            if let Ok(Some(ended)) = tokio::time::timeout(Duration::from_millis(200), self.clients.join_next()).await {
                ended.expect("clients do not fail");
            }
        }
        let stored = self.ledger.check(http, TOPIC).await;
        let status = get(ops, &format!("/groups?topic={TOPIC}")).await.text();
        let entries = self.ledger.entries();
        for payload in entries.published.keys() {
            assert!(
                entries.delivered.contains(payload),
                "{}: {payload} was OKed and never delivered; {} were; {status}",
                self.name,
                entries.delivered.len()
            );
        }
        // Each publisher's order, whatever of it was answered.
        for publisher in 0..self.hubs.len() {
            let prefix = format!("{publisher}-");
            let numbers: Vec<u64> = stored
                .iter()
                .filter_map(|event| event["payload"].as_str()?.strip_prefix(&prefix)?.parse().ok())
                .collect();
            assert!(numbers.is_sorted(), "{}: the order of publisher {publisher}", self.name);
        }
        eprintln!(
            "{}: {} OKed, {} stored, {} acked, {} unknown",
            self.name,
            entries.published.len(),
            stored.len(),
            entries.acked.len(),
            entries.unknown
        );
        let least = 50 * cycles(4).min(4);
        assert!(entries.published.len() > least, "{}: too little was published", self.name);
        assert!(entries.acked.len() > least / 2, "{}: too little was acked", self.name);
        self.clients.abort_all();
    }
}

/// A client that goes to another hub when its own is gone.
struct Visitor {
    number: usize,
    places: Arc<Mutex<Vec<Option<SocketAddr>>>>,
    ledger: Ledger,
    flow: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
}

impl Visitor {
    /// A connection to the hub of one's choice, or the next one that takes it.
    async fn connect(&self, visit: usize) -> Wire {
        for place in self.number + visit.. {
            let at = {
                let places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
                places[place % places.len()]
            };
            if let Some(at) = at
                && let Ok(Ok(wire)) = tokio::time::timeout(Duration::from_secs(2), Wire::try_connect(at, &[])).await
            {
                return wire;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        unreachable!("there is always another place")
    }

    fn is_over(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }
}

/// Publishes one number after another; what was not answered stays unknown.
async fn publisher(visitor: Visitor, name: usize) {
    let mut numbers = 0_u64..;
    for visit in 0.. {
        let mut wire = visitor.connect(visit).await;
        let mut unanswered = VecDeque::new();
        while !visitor.is_over() || !unanswered.is_empty() {
            if !visitor.is_over() {
                let payload = format!("{name}-{}", numbers.next().expect("endless"));
                visitor.ledger.entries().sent.insert(payload.clone());
                if wire.send(&json!({"op": "PUBLISH", "topic": TOPIC, "payload": payload})).await.is_err() {
                    break;
                }
                unanswered.push_back(payload);
                tokio::time::sleep(PACE).await;
            }
            if unanswered.len() >= WINDOW || visitor.is_over() {
                let Some(answer) = wire.next().await else { break };
                let payload = unanswered.pop_front().expect("as many answers as frames");
                let mut entries = visitor.ledger.entries();
                match (answer["op"].as_str(), answer["code"].as_str()) {
                    (Some("OK"), _) => {
                        entries.published.insert(payload, answer["seq"].as_u64().expect("a seq"));
                    }
                    (_, Some("publish_failed" | "shutting_down")) => entries.unknown += 1,
                    _ => panic!("{answer}"),
                }
            }
        }
        visitor.ledger.entries().unknown += unanswered.len() as u64;
        if visitor.is_over() {
            return;
        }
    }
}

/// Acks whatever comes; an ack that was not answered with `OK` stays unknown.
async fn consumer(visitor: Visitor) {
    for visit in 0.. {
        let mut wire = visitor.connect(visit).await;
        let opts = json!({"from": "earliest", "maxInFlight": 20, "ackTimeoutMs": 10_000, "maxAttempts": 0});
        let subscribe = json!({"op": "SUBSCRIBE", "topic": TOPIC, "group": GROUP, "opts": opts, "corr": "s"});
        if wire.send(&subscribe).await.is_err() {
            continue;
        }
        let mut unanswered = VecDeque::new();
        while let Some(frame) = wire.next().await {
            if frame["op"] == "EVENT" {
                let id = visitor.ledger.delivered(&frame["event"]);
                visitor.flow.fetch_add(1, Ordering::Relaxed);
                let ack = json!({"op": "ACK", "topic": TOPIC, "group": GROUP, "id": id});
                if wire.send(&ack).await.is_err() {
                    break;
                }
                unanswered.push_back(id);
            } else if frame["corr"] == "s" {
                // Without an owner that answers, another hub is asked.
                if frame["op"] != "OK" {
                    break;
                }
            } else {
                answered(&visitor.ledger, &frame, &mut unanswered);
            }
        }
    }
}

fn answered(ledger: &Ledger, frame: &Value, unanswered: &mut VecDeque<String>) {
    let id = unanswered.pop_front().expect("as many answers as acks");
    match (frame["op"].as_str(), frame["code"].as_str()) {
        (Some("OK"), _) => {
            ledger.entries().acked.insert(id);
        }
        (_, Some("ack_failed" | "shutting_down")) => ledger.entries().unknown += 1,
        _ => panic!("{frame}"),
    }
}
