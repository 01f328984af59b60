//! What every client must do with a hub: the scenarios of `sdk/typescript/test/scenarios.ts`, here with the Rust client
//! against the real binary. The same names, checked; a scenario that one client lacks fails the list.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use promethean_client::{
    Client, Code, Delivery, Error, Filter, From, GiveBack, Handling, Publish, PublishOptions, Published,
    SubscribeOptions,
};
use promethean_e2e::{Hub, Setup};
use promethean_testmongo::free_port;
use serde_json::{Value, json};

const SECRET: &str = "a-secret-that-only-the-scenarios-use";
const SCOPES: [&str; 3] = ["publish:**", "subscribe:**", "subscribe:dlq.**"];

macro_rules! scenarios {
    ($($name:ident: $title:literal;)*) => {
        const TITLES: &[&str] = &[$($title),*];
        mod run {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)] async fn $name() { super::$name().await })*
        }
    };
}

scenarios! {
    publishes: "publishes are stored once, in order, and a known id is answered as duplicate";
    groups: "members of a group share its events and another group gets them all";
    failing_handler: "a handler that throws gets the event again, and a dead letter after the last attempt";
    leases: "a lease that runs out gives the event to another member, and a running handler keeps its own";
    by_hand: "acks, nacks and extensions by hand";
    one_by_one: "an async iterator takes what it asks for and no more than maxInFlight waits";
    stopping: "a signal ends a subscription and a publish";
    fan_in: "patterns, filters and a snapshot start";
    eight_writers: "a snapshot start under eight writers is complete, then everything comes, nothing twice";
    hub_killed: "nothing is lost or doubled when the hub is killed and restarted";
    token_renewed: "a token is renewed before it runs out and the connection stays";
    token_refused: "a refused token is told to whoever waits";
}

#[test]
fn the_rust_client_and_the_sdk_run_the_same_scenarios() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../sdk/typescript/test/scenarios.ts");
    let text = std::fs::read_to_string(file).expect("the SDK's scenarios");
    let of_sdk: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("  async \"")?.split_once("\"(env)"))
        .map(|(name, _)| name)
        .collect();
    assert_eq!(of_sdk, TITLES);
}

/// A list that handlers write to.
#[derive(Debug)]
struct Seen<T>(Arc<Mutex<Vec<T>>>);

impl<T> Clone for Seen<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T: Clone> Seen<T> {
    fn new() -> Self {
        Self(Arc::default())
    }

    fn push(&self, value: T) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(value);
    }

    fn all(&self) -> Vec<T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn len(&self) -> usize {
        self.all().len()
    }
}

/// A hub with tokens, at an address that stays.
struct World {
    _dir: tempfile::TempDir,
    setup: Setup,
    hub: Option<Hub>,
    at: SocketAddr,
}

impl World {
    fn start() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        // It comes back at the same address.
        let setup = Setup::log(dir.path()).env("JWT_SECRET", SECRET).env("WS_PORT", &free_port().to_string());
        let hub = setup.start();
        Self { _dir: dir, at: hub.ws, setup, hub: Some(hub) }
    }

    fn url(&self) -> String {
        format!("ws://{}", self.at)
    }

    async fn client(&self) -> Client {
        let (shortest, longest) = (Duration::from_millis(50), Duration::from_millis(500));
        let client = Client::builder(self.url()).token(token(600)).backoff(shortest, longest).connect();
        client.await.expect("connected")
    }
}

fn token(seconds: u64) -> String {
    let mut command = Setup::program();
    command.args(["token", "--secret", SECRET, "--sub", "scenario", "--ttl", &format!("{seconds}s")]);
    for scope in SCOPES {
        command.args(["--scope", scope]);
    }
    let made = command.output().expect("the binary runs");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    String::from_utf8(made.stdout).expect("text").trim().to_owned()
}

async fn until(what: &str, check: impl Fn() -> bool) {
    let start = Instant::now();
    while !check() {
        assert!(start.elapsed() < Duration::from_secs(30), "in vain: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn sleep(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}

fn earliest() -> SubscribeOptions {
    SubscribeOptions { from: From::Earliest, ..SubscribeOptions::default() }
}

fn payload(delivery: &Delivery) -> Value {
    delivery.event().payload_as().expect("JSON")
}

/// A handler that notes what `of` says of each event.
async fn note<T: Clone + Send + 'static>(
    client: &Client,
    (topic, group): (&str, &str),
    options: SubscribeOptions,
    of: impl Fn(&Delivery) -> T + Send + 'static,
) -> (Seen<T>, Handling) {
    let seen = Seen::new();
    let list = seen.clone();
    let handling = client.handle(topic, group, options, move |delivery| {
        list.push(of(&delivery));
        async { Ok::<_, Error>(()) }
    });
    (seen, handling.await.expect("subscribed"))
}

/// A tail that notes what `of` says of each event.
async fn tail<T: Clone + Send + 'static>(
    client: &Client,
    topic: &str,
    options: SubscribeOptions,
    of: impl Fn(&Delivery) -> T + Send + 'static,
) -> Seen<T> {
    let seen = Seen::new();
    let list = seen.clone();
    let mut events = client.subscribe(topic, None, options).await.expect("subscribed");
    tokio::spawn(async move {
        while let Ok(Some(delivery)) = events.next().await {
            list.push(of(&delivery));
        }
    });
    seen
}

async fn all<T, F: Future<Output = Result<T, Error>>>(calls: impl IntoIterator<Item = F>) -> Vec<T> {
    futures_util::future::join_all(calls).await.into_iter().map(|answer| answer.expect("answered")).collect()
}

/// Publishes `n` after what was published before it, without waiting for the answer.
async fn in_line(answers: &mut tokio::task::JoinSet<(u64, Published)>, client: Client, topic: &'static str, n: u64) {
    let (sent, waiting) = tokio::sync::oneshot::channel();
    answers.spawn(async move {
        let mut publishing = std::pin::pin!(client.publish(topic, &n));
        let mut sent = Some(sent);
        let answer = std::future::poll_fn(|cx| {
            let polled = publishing.as_mut().poll(cx);
            if let Some(sent) = sent.take() {
                let _ = sent.send(());
            }
            polled
        });
        (n, answer.await.expect("confirmed"))
    });
    // After the first poll it has its place.
    waiting.await.expect("polled");
}

async fn publishes() {
    let world = World::start();
    let client = world.client().await;
    let mut answers = tokio::task::JoinSet::new();
    for n in 0..500 {
        in_line(&mut answers, client.clone(), "pub", n).await;
    }
    let answers: BTreeMap<u64, Published> = answers.join_all().await.into_iter().collect();
    let answers: Vec<Published> = answers.into_values().collect();
    assert!(answers.iter().map(|answer| answer.seq).eq(1..=500), "seqs");
    assert_eq!(answers.iter().map(|answer| answer.id).collect::<BTreeSet<_>>().len(), 500, "distinct ids");
    let again = Publish::new("other").expect("JSON").id(answers[7].id);
    let again = client.send("pub", again).await.expect("answered");
    assert_eq!((again.id, again.seq, again.duplicate), (answers[7].id, 8, true));
    let batch = (0..3).map(|n| Publish::new(&n).expect("JSON").key(format!("k{n}"))).collect();
    let batch = client.publish_batch("pub", batch).await.expect("published");
    assert_eq!(batch.iter().map(|one| one.seq).collect::<Vec<_>>(), [501, 502, 503]);
    let seen = tail(&client, "pub", earliest(), |delivery| delivery.event().seq).await;
    until("all events come through a tail", || seen.len() == 503).await;
    assert!(seen.all().into_iter().eq(1..=503), "order of the tail");
}

async fn groups() {
    let world = World::start();
    let slowly = |seen: Seen<u64>| {
        move |delivery: Arc<Delivery>| {
            let seen = seen.clone();
            async move {
                sleep(1).await;
                seen.push(delivery.event().seq);
                Ok::<_, Error>(())
            }
        }
    };
    let few = SubscribeOptions { max_in_flight: 5, ..earliest() };
    let (a, b, c) = (Seen::new(), Seen::new(), Seen::new());
    let clients = [world.client().await, world.client().await, world.client().await, world.client().await];
    let _a = clients[0].handle("groups", "shared", few.clone(), slowly(a.clone())).await.expect("subscribed");
    let _b = clients[1].handle("groups", "shared", few, slowly(b.clone())).await.expect("subscribed");
    let _c = clients[2].handle("groups", "alone", earliest(), slowly(c.clone())).await.expect("subscribed");
    let numbers: Vec<u64> = (0..200).collect();
    all(numbers.iter().map(|n| clients[3].publish("groups", n))).await;
    until("both groups are through", || a.len() + b.len() >= 200 && c.len() >= 200).await;
    let mut shared = [a.all(), b.all()].concat();
    shared.sort_unstable();
    assert!(shared.into_iter().eq(1..=200), "the shared group, each once");
    assert!(a.len() > 0 && b.len() > 0, "both members got some");
    let mut alone = c.all();
    alone.sort_unstable();
    assert!(alone.into_iter().eq(1..=200), "the other group");
}

async fn failing_handler() {
    let world = World::start();
    let client = world.client().await;
    let attempts = Seen::new();
    let list = attempts.clone();
    let options = SubscribeOptions { max_attempts: 3, ..earliest() };
    let handler = move |delivery: Arc<Delivery>| {
        let (what, attempt) = (payload(&delivery), delivery.context().attempt);
        list.push((what.as_str().unwrap_or_default().to_owned(), attempt));
        async move { if what == "bad" || attempt < 2 { Err("boom") } else { Ok(()) } }
    };
    let _handling = client.handle("nack", "g", options, handler).await.expect("subscribed");
    let (dead, _undertaker) = note(&client, ("dlq.nack", "undertaker"), earliest(), payload).await;
    let bad = client.publish("nack", "bad").await.expect("published");
    client.publish("nack", "good").await.expect("published");
    let of = |list: &Seen<(String, u32)>, what: &str| -> Vec<u32> {
        list.all().into_iter().filter(|(name, _)| name == what).map(|(_, attempt)| attempt).collect()
    };
    until("the dead letter", || dead.len() == 1 && of(&attempts, "good").len() == 2).await;
    assert_eq!((of(&attempts, "good"), of(&attempts, "bad")), (vec![1, 2], vec![1, 2, 3]));
    let letter = &dead.all()[0];
    assert_eq!((&letter["topic"], &letter["group"]), (&json!("nack"), &json!("g")));
    assert_eq!((&letter["err"], &letter["attempts"]), (&json!("boom"), &json!(3)));
    assert_eq!(letter["original"]["id"], json!(bad.id.to_string()));
}

async fn leases() {
    let world = World::start();
    let (client, other) = (world.client().await, world.client().await);
    let short = |max| SubscribeOptions { ack_timeout: Duration::from_millis(500), max_in_flight: max, ..earliest() };
    let mut hold = client.subscribe("lease", Some("g"), short(1)).await.expect("subscribed");
    client.publish("lease", &1).await.expect("published");
    let first = hold.next().await.expect("open").expect("a delivery");
    assert_eq!(first.context().attempt, 1);
    hold.pause().await.expect("paused");
    let (second, _second) = note(&other, ("lease", "g"), short(100), |d| d.context().attempt).await;
    until("the second delivery", || second.len() == 1).await;
    assert_eq!(second.all(), [2]);
    let late = tokio::time::timeout(Duration::from_millis(300), hold.next()).await;
    assert!(late.is_err(), "a paused subscriber gets nothing");

    let (runs, finished) = (Seen::new(), Arc::new(AtomicUsize::new(0)));
    let (list, done) = (runs.clone(), Arc::clone(&finished));
    let handler = move |delivery: Arc<Delivery>| {
        list.push(delivery.context().attempt);
        let done = Arc::clone(&done);
        async move {
            sleep(4_000).await;
            done.fetch_add(1, Ordering::SeqCst);
            Ok::<_, Error>(())
        }
    };
    let second = SubscribeOptions { ack_timeout: Duration::from_secs(1), ..earliest() };
    let _slow = client.handle("slow", "g", second, handler).await.expect("subscribed");
    client.publish("slow", &1).await.expect("published");
    until("the slow handler", || finished.load(Ordering::SeqCst) == 1).await;
    sleep(1_500).await;
    assert_eq!(runs.all(), [1], "one delivery although the handler took four leases");
}

async fn by_hand() {
    let world = World::start();
    let client = world.client().await;
    let options = SubscribeOptions { ack_timeout: Duration::from_secs(60), ..earliest() };
    let mut events = client.subscribe("manual", Some("g"), options).await.expect("subscribed");
    let batch = (0..3).map(|n| Publish::new(&n).expect("JSON")).collect();
    client.publish_batch("manual", batch).await.expect("published");
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(events.next().await.expect("open").expect("a delivery"));
    }
    held[0].extend(Duration::from_secs(90)).await.expect("extended");
    held[0].ack_fenced().await.expect("acked");
    held[1].ack().await.expect("acked");
    let later = GiveBack { reason: Some("later".to_owned()), delay: Some(Duration::from_millis(50)), release: false };
    held[2].nack(later).await.expect("nacked");
    let again = events.next().await.expect("open").expect("a delivery");
    assert_eq!((payload(&again), again.context().attempt), (json!(2), 2), "the nacked one");
    let lost = held[2].ack_fenced().await.expect_err("the lease is another's");
    assert_eq!(lost.code(), Some(Code::LeaseLost));
    again.ack().await.expect("acked");
    let late = held[0].extend(Duration::from_secs(90)).await.expect_err("it is done");
    assert!(matches!(late.code(), Some(Code::UnknownId | Code::LeaseLost)), "{late}");
}

async fn one_by_one() {
    let world = World::start();
    let (client, other) = (world.client().await, world.client().await);
    let batch = (0..50).map(|n| Publish::new(&n).expect("JSON")).collect();
    client.publish_batch("iter", batch).await.expect("published");
    let few = SubscribeOptions { max_in_flight: 5, ..earliest() };
    let mut events = client.subscribe("iter", Some("g"), few).await.expect("subscribed");
    for n in 0..20 {
        let delivery = events.next().await.expect("open").expect("a delivery");
        assert_eq!(payload(&delivery), json!(n), "the first twenty, in order");
        if n < 19 {
            delivery.ack().await.expect("acked");
        }
    }
    drop(events);
    let (rest, _rest) = note(&other, ("iter", "g"), earliest(), |d| payload(d).as_u64()).await;
    until("the rest", || rest.len() == 31).await;
    let mut rest = rest.all();
    rest.sort_unstable();
    assert!(rest.into_iter().eq((19..50).map(Some)), "the one in the middle and all after it come back");
}

/// Rust's way to take a call back is to drop it.
async fn stopping() {
    let world = World::start();
    let client = world.client().await;
    let (seen, handling) = note(&client, ("abort", "g"), SubscribeOptions::default(), payload).await;
    client.publish("abort", &1).await.expect("published");
    until("the event", || seen.len() == 1).await;
    handling.stop().await.expect("ended without an error");
    client.publish("abort", &2).await.expect("published");
    sleep(200).await;
    assert_eq!(seen.all(), [json!(1)], "nothing after the end");
    drop(client.publish("abort", &"no more"));
    let last = client.publish("abort", &4).await.expect("published");
    assert_eq!(last.seq, 3, "a publish that nobody awaited was not sent");
}

async fn fan_in() {
    let world = World::start();
    let client = world.client().await;
    let topic_of = |delivery: &Delivery| delivery.event().topic.clone();
    let (wide, _wide) = note(&client, ("fan.*", "g"), SubscribeOptions::default(), topic_of).await;
    let filter = Filter { tags: vec!["#x".to_owned()], ..Filter::default() };
    let options = SubscribeOptions { filter, ..SubscribeOptions::default() };
    let (tagged, _tagged) = note(&client, ("fan.a", "tagged"), options, payload).await;
    let with_tag = |value: u32, tag: &'static str| {
        let options = PublishOptions { tags: vec![tag.into()], ..PublishOptions::default() };
        Publish::new(&value).expect("JSON").options(options)
    };
    client.send("fan.a", with_tag(1, "#x")).await.expect("published");
    client.send("fan.a", with_tag(2, "#y")).await.expect("published");
    client.publish("fan.b", &3).await.expect("published");
    until("all topics of the pattern", || wide.len() == 3 && tagged.len() == 1).await;
    let mut came = wide.all();
    came.sort();
    assert_eq!((came, tagged.all()), (vec!["fan.a".into(), "fan.a".into(), "fan.b".into()], vec![json!(1)]));
    let (past, _past) = note(&client, ("fan.*", "late"), earliest(), topic_of).await;
    let whole = tail(&client, "fan.*", earliest(), topic_of).await;
    until("the history of all topics", || past.len() == 3 && whole.len() == 3).await;
    for (key, value) in [("k1", json!(1)), ("k2", json!(2)), ("k1", json!(3)), ("k2", json!(null))] {
        client.send("fan.state", Publish::new(&value).expect("JSON").key(key)).await.expect("published");
    }
    let options = SubscribeOptions { from: From::Snapshot, ..SubscribeOptions::default() };
    let state = |d: &Delivery| (d.event().key.clone().unwrap_or_default(), payload(d), d.context().snapshot);
    let states = tail(&client, "fan.state", options, state).await;
    client.send("fan.state", Publish::new(&4).expect("JSON").key("k3")).await.expect("published");
    until("the snapshot and what follows", || states.len() >= 2).await;
    assert_eq!(states.all(), [("k1".to_owned(), json!(3), true), ("k3".to_owned(), json!(4), false)]);
}

async fn eight_writers() {
    let world = World::start();
    let (writer, reader) = (world.client().await, world.client().await);
    let written = Arc::new(Mutex::new(BTreeMap::<u64, (String, bool)>::new()));
    let ledger = Arc::clone(&written);
    let write = move |key: String, live: bool| {
        let (writer, written) = (writer.clone(), Arc::clone(&ledger));
        async move {
            let value = if live { json!({"key": key}) } else { Value::Null };
            let published =
                writer.send("snap", Publish::new(&value).expect("JSON").key(&key)).await.expect("published");
            written.lock().unwrap_or_else(PoisonError::into_inner).insert(published.seq, (key, live));
        }
    };
    let mut writers = tokio::task::JoinSet::new();
    for w in 0..8_u64 {
        let write = write.clone();
        writers.spawn(async move {
            for n in 0..60_u64 {
                write(format!("k{}", (w * 7 + n * 3) % 20), !(w + n).is_multiple_of(9)).await;
            }
        });
    }
    until("some are written", || written.lock().unwrap_or_else(PoisonError::into_inner).len() > 100).await;
    let options = SubscribeOptions { from: From::Snapshot, ..SubscribeOptions::default() };
    let seen = tail(&reader, "snap", options, |d| (d.event().seq, d.context().snapshot)).await;
    while writers.join_next().await.transpose().expect("written").is_some() {}
    write("end".to_owned(), true).await;
    until("the last event", || seen.all().contains(&(481, false))).await;
    let (snapshot, live): (Vec<_>, Vec<_>) = seen.all().into_iter().partition(|(_, snapshot)| *snapshot);
    let first = live[0].0;
    let live: Vec<u64> = live.into_iter().map(|(seq, _)| seq).collect();
    assert_eq!(live, (first..=481).collect::<Vec<_>>(), "everything after the snapshot, in order");
    let mut state = BTreeMap::new();
    for (seq, (key, lives)) in written.lock().unwrap_or_else(PoisonError::into_inner).range(..first) {
        match lives {
            true => state.insert(key.clone(), *seq),
            false => state.remove(key),
        };
    }
    let of_snapshot: BTreeSet<u64> = snapshot.iter().map(|(seq, _)| *seq).collect();
    assert_eq!(
        (of_snapshot.len(), of_snapshot),
        (snapshot.len(), state.into_values().collect()),
        "that moment's state"
    );
}

async fn hub_killed() {
    let mut world = World::start();
    let (publisher, consumer) = (world.client().await, world.client().await);
    let seen = Seen::new();
    let list = seen.clone();
    let handler = move |delivery: Arc<Delivery>| {
        let list = list.clone();
        async move {
            sleep(2).await;
            list.push(payload(&delivery).as_u64());
            Ok::<_, Error>(())
        }
    };
    let _handling = consumer.handle("crash", "g", earliest(), handler).await.expect("subscribed");
    let mut answers = tokio::task::JoinSet::new();
    for n in 0..300_u64 {
        in_line(&mut answers, publisher.clone(), "crash", n).await;
        if n == 100 {
            world.hub.take().expect("running").kill();
        }
        if n == 200 {
            world.hub = Some(world.setup.start());
        }
        sleep(2).await;
    }
    let stored: BTreeMap<u64, u64> = answers.join_all().await.into_iter().map(|(n, answer)| (n, answer.seq)).collect();
    assert!(stored.values().copied().eq(1..=300), "stored once each, in the order of publishing: {stored:?}");
    until("the group has them all", || seen.all().into_iter().collect::<BTreeSet<_>>().len() == 300).await;
}

async fn token_renewed() {
    let world = World::start();
    let asked = Arc::new(AtomicUsize::new(0));
    let counting = Arc::clone(&asked);
    let fetch = move || {
        let first = counting.fetch_add(1, Ordering::SeqCst) == 0;
        async move { Ok::<_, Error>(token(if first { 3 } else { 600 })) }
    };
    let client = Client::builder(world.url()).token_from(fetch).connect().await.expect("connected");
    let (seen, _handling) = note(&client, ("token", "g"), SubscribeOptions::default(), payload).await;
    until("the second token", || asked.load(Ordering::SeqCst) == 2).await;
    // Longer than the first token and its leeway.
    sleep(9_000).await;
    client.publish("token", "after").await.expect("published");
    until("the event", || seen.len() == 1).await;
    assert_eq!(asked.load(Ordering::SeqCst), 2, "a new connection would have asked again");
}

async fn token_refused() {
    let world = World::start();
    let refused = Client::builder(world.url()).token("wrong").connect().await.expect_err("refused");
    assert!(matches!(refused.code(), Some(Code::BadToken | Code::JwtInvalid)) && !refused.is_retryable(), "{refused}");
    let source = || async { Err::<String, _>("the issuer is away") };
    let without = Client::builder(world.url()).token_from(source).connect().await.expect_err("no token");
    assert!(without.to_string().contains("no token: the issuer is away"), "{without}");
}
