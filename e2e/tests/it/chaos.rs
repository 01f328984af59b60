//! The Rust client with a hub that is killed every second, behind a proxy that cuts, resets, half-closes, swallows and
//! delays. A ledger has what the client was told, and what its handlers saw. `CHAOS_SECONDS` (6) says for how long.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use promethean_client::{Client, From, Publish, SubscribeOptions};
use promethean_e2e::{Ledger, Setup, replay};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

const TOPIC: &str = "chaos.load";
const PUBLISHERS: usize = 3;
const WINDOW: usize = 20;
const GROUPS: [&str; 2] = ["billing", "mail"];
/// For the rest after the last fault.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trick {
    Cut,
    Reset,
    HalfClose,
    Swallow,
    Delay,
}

/// Where the hub is, and what the proxy does to all connections; the number makes each a new one.
struct Proxy {
    hub: watch::Sender<SocketAddr>,
    trick: watch::Sender<(u64, Option<Trick>)>,
}

impl Proxy {
    async fn start(hub: SocketAddr) -> (Arc<Self>, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("ws://{}", listener.local_addr().expect("an address"));
        let proxy = Arc::new(Self { hub: watch::Sender::new(hub), trick: watch::Sender::new((0, None)) });
        let serving = Arc::clone(&proxy);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (hub, mut tricks) = (*serving.hub.borrow(), serving.trick.subscribe());
                tricks.mark_unchanged();
                tokio::spawn(async move {
                    if let Ok(hub) = TcpStream::connect(hub).await {
                        pass(client, hub, tricks).await;
                    }
                });
            }
        });
        (proxy, url)
    }

    fn play(&self, trick: Trick) {
        self.trick.send_modify(|(number, now)| (*number, *now) = (*number + 1, Some(trick)));
    }
}

/// Passes bytes on until one side ends or a trick ends it.
async fn pass(mut client: TcpStream, mut hub: TcpStream, mut tricks: watch::Receiver<(u64, Option<Trick>)>) {
    let (mut up, mut down) = (vec![0; 16 * 1024], vec![0; 16 * 1024]);
    loop {
        tokio::select! {
            read = client.read(&mut up) => match read {
                Ok(count @ 1..) if hub.write_all(&up[..count]).await.is_ok() => {}
                _ => return,
            },
            read = hub.read(&mut down) => match read {
                Ok(count @ 1..) if client.write_all(&down[..count]).await.is_ok() => {}
                _ => return,
            },
            changed = tricks.changed() => {
                let trick = tricks.borrow_and_update().1;
                match (changed, trick) {
                    (Err(_), _) | (_, Some(Trick::Cut)) => return,
                    (_, Some(Trick::Reset)) => return drop(client.set_zero_linger()),
                    (_, Some(Trick::HalfClose)) => {
                        let _ = client.shutdown().await;
                        return tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                    // Both directions are stuck; what was read meanwhile never arrives.
                    (_, Some(Trick::Swallow)) => return tokio::time::sleep(Duration::from_millis(300)).await,
                    (_, Some(Trick::Delay)) => tokio::time::sleep(Duration::from_millis(100)).await,
                    (_, None) => {}
                }
            }
        }
    }
}

/// What the handlers of a group saw.
#[derive(Default)]
struct Seen {
    running: BTreeSet<String>,
    started: BTreeSet<String>,
    handled: BTreeSet<String>,
    twice_at_once: Vec<String>,
}

async fn connect(url: &str) -> Client {
    let backoff = (Duration::from_millis(10), Duration::from_millis(200));
    let quiet = |_: promethean_client::Report<'_>| {};
    loop {
        match Client::builder(url).backoff(backoff.0, backoff.1).on_error(quiet).connect().await {
            Ok(client) => return client,
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
    }
}

async fn consume(client: &Client, group: &str, seen: Arc<Mutex<Seen>>) -> promethean_client::Handling {
    let options = SubscribeOptions {
        from: From::Earliest,
        concurrency: Some(20),
        ack_timeout: Duration::from_secs(5),
        max_attempts: 20,
        ..SubscribeOptions::default()
    };
    let handler = move |delivery: Arc<promethean_client::Delivery>| {
        let seen = Arc::clone(&seen);
        async move {
            let payload: String = delivery.event().payload_as().expect("a string");
            {
                let mut seen = seen.lock().expect("not poisoned");
                seen.started.insert(payload.clone());
                if !seen.running.insert(payload.clone()) {
                    seen.twice_at_once.push(payload.clone());
                }
            }
            tokio::time::sleep(Duration::from_millis(delivery.event().seq % 10)).await;
            let mut seen = seen.lock().expect("not poisoned");
            seen.running.remove(&payload);
            if (delivery.event().seq + u64::from(delivery.context().attempt)).is_multiple_of(50) {
                return Err("now and then");
            }
            seen.handled.insert(payload);
            Ok(())
        }
    };
    client.handle(TOPIC, group, options, handler).await.expect("subscribed")
}

/// Publishes in order, some at a time, until it is told to stop; returns what failed.
async fn publish(client: Client, name: String, ledger: Ledger, stop: watch::Receiver<bool>) -> Vec<String> {
    let numbers = futures_util::stream::iter(0..).take_while(|_| std::future::ready(!*stop.borrow()));
    let one = |number: u32| {
        let (client, ledger, name) = (client.clone(), ledger.clone(), name.clone());
        async move {
            let payload = format!("{name}-{number:06}");
            ledger.entries().sent.insert(payload.clone());
            let event = Publish::new(&payload).expect("JSON").key(name);
            match client.send(TOPIC, event).await {
                Ok(published) => {
                    ledger.entries().published.insert(payload, published.seq);
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    None
                }
                Err(error) => Some(error.to_string()),
            }
        }
    };
    numbers.map(one).buffered(WINDOW).filter_map(std::future::ready).collect().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faults_of_hub_and_network_lose_double_and_reorder_nothing() {
    let seconds = std::env::var("CHAOS_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(6);
    let dir = tempfile::tempdir().expect("a directory");
    let mut hub = Setup::log(dir.path()).start();
    let (proxy, url) = Proxy::start(hub.ws).await;
    let (publisher, consumer) = (connect(&url).await, connect(&url).await);
    let (ledger, stop) = (Ledger::default(), watch::Sender::new(false));
    let groups = GROUPS.map(|group| (group, Arc::new(Mutex::new(Seen::default()))));
    let mut handlings = Vec::new();
    for (group, seen) in &groups {
        handlings.push(consume(&consumer, group, Arc::clone(seen)).await);
    }
    let publishing: Vec<_> = (0..PUBLISHERS)
        .map(|n| tokio::spawn(publish(publisher.clone(), format!("p{n}"), ledger.clone(), stop.subscribe())))
        .collect();

    let (started, mut round) = (Instant::now(), 0_usize);
    while started.elapsed() < Duration::from_secs(seconds) {
        for _ in 0..3 {
            round += 1;
            tokio::time::sleep(Duration::from_millis(150 + (round as u64 * 97) % 250)).await;
            let tricks = [Trick::Cut, Trick::Delay, Trick::Reset, Trick::Swallow, Trick::HalfClose];
            proxy.play(tricks[round % tricks.len()]);
        }
        hub.kill();
        hub = Setup::log(dir.path()).start();
        proxy.hub.send_replace(hub.ws);
    }
    stop.send_replace(true);
    for publishing in publishing {
        let failed = tokio::time::timeout(PATIENCE, publishing).await.expect("answered in time").expect("ran");
        assert_eq!(failed, Vec::<String>::new(), "a lost connection fails no publish");
    }

    let stored = ledger.check(hub.http, TOPIC).await;
    let text = |event: &serde_json::Value| event["payload"].as_str().expect("a string").to_owned();
    let mut last: BTreeMap<String, String> = BTreeMap::new();
    for event in &stored {
        let (key, payload) = (event["key"].to_string(), text(event));
        let before = last.insert(key, payload.clone()).unwrap_or_default();
        assert!(before < payload, "{payload} lies behind {before}");
    }
    for (group, seen) in &groups {
        let waiting = Instant::now();
        loop {
            let letters = replay(hub.http, &format!("dlq.{TOPIC}")).await;
            let mine = letters.iter().map(|letter| &letter["payload"]).filter(|letter| letter["group"] == *group);
            let dead: BTreeSet<String> = mine.map(|letter| text(&letter["original"])).collect();
            {
                let seen = seen.lock().expect("not poisoned");
                assert_eq!(seen.twice_at_once, Vec::<String>::new(), "{group}: handled twice at once");
                assert!(dead.is_subset(&seen.started), "{group}: dead letters that no handler saw");
                if stored.iter().all(|event| seen.handled.contains(&text(event)) || dead.contains(&text(event))) {
                    break;
                }
            }
            assert!(waiting.elapsed() < PATIENCE, "{group}: not all is handled");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    let closing = Instant::now();
    for client in [publisher, consumer] {
        client.close().await.expect("closed");
    }
    assert!(closing.elapsed() < PATIENCE, "both close within their limits");
    drop(handlings);
    let published = ledger.entries().published.len();
    println!("{published} publishes in {seconds} s, {} events", stored.len());
    assert!(published as u64 > seconds * 50, "too little was published: {published}");
}
