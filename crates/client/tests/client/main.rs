//! The client against a real hub, through a proxy that loses connections when a test wants it to.

mod answers;
mod away;
mod closing;
mod scenarios;
mod snapshot_tail;
mod stage;
mod too_large;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use promethean_bus::{Bus, BusOptions};
use promethean_client::{Client, Code, EventId, From, GiveBack, Publish, SubscribeOptions, Subscription};
use promethean_event::Selector;
use promethean_gateway::auth::{AuthConfig, Authenticator, Secret};
use promethean_gateway::limits::{Quotas, Rate};
use promethean_gateway::listener::{Intake, Listener};
use promethean_gateway::{EdgeConfig, Hub, ws};
use promethean_store::memory::Memory;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_tungstenite::tungstenite::{Message, handshake, http};

const PATIENCE: Duration = Duration::from_secs(20);

async fn patient<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("in time")
}

async fn hub(auth: AuthConfig) -> (Arc<Hub>, SocketAddr) {
    hub_with(auth, Quotas::default()).await
}

async fn hub_with(auth: AuthConfig, quotas: Quotas) -> (Arc<Hub>, SocketAddr) {
    hub_of(auth, quotas, EdgeConfig::default()).await
}

async fn hub_of(auth: AuthConfig, quotas: Quotas, edge: EdgeConfig) -> (Arc<Hub>, SocketAddr) {
    let bus = Bus::new(Arc::new(Memory::new()), BusOptions::default());
    let auth = Authenticator::new(&auth).expect("a configuration");
    let hub = Arc::new(Hub::new(bus, auth, quotas, edge));
    let listener = Listener::bind(([127, 0, 0, 1], 0).into()).await.expect("a port");
    let addr = listener.local_addr();
    tokio::spawn(listener.serve(ws::router(Arc::clone(&hub)), Intake::new(100, None), hub.drain.watch()));
    (hub, addr)
}

/// Stands between client and hub.
struct Proxy {
    addr: SocketAddr,
    cut: watch::Sender<u64>,
    /// What the hub says does not reach the client.
    deaf: Arc<AtomicBool>,
    /// Nobody gets through.
    shut: Arc<AtomicBool>,
}

impl Proxy {
    async fn start(hub: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let addr = listener.local_addr().expect("an address");
        let cut = watch::Sender::new(0);
        let deaf = Arc::new(AtomicBool::new(false));
        let shut = Arc::new(AtomicBool::new(false));
        let (watching, muted, closed) = (cut.subscribe(), Arc::clone(&deaf), Arc::clone(&shut));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if closed.load(Ordering::SeqCst) {
                    continue;
                }
                let (mut watching, muted) = (watching.clone(), Arc::clone(&muted));
                watching.mark_unchanged();
                tokio::spawn(async move {
                    let Ok(hub) = TcpStream::connect(hub).await else { return };
                    tokio::select! {
                        () = pass(client, hub, &muted) => {}
                        _ = watching.changed() => {}
                    }
                });
            }
        });
        Self { addr, cut, deaf, shut }
    }

    fn url(&self) -> String {
        format!("ws://{}", self.addr)
    }

    fn cut(&self) {
        self.cut.send_modify(|count| *count += 1);
    }
}

async fn pass(client: TcpStream, hub: TcpStream, deaf: &AtomicBool) {
    let ((mut client_in, mut client_out), (mut hub_in, mut hub_out)) = (client.into_split(), hub.into_split());
    let up = async {
        let _ = tokio::io::copy(&mut client_in, &mut hub_out).await;
    };
    let down = async {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(count @ 1..) = hub_in.read(&mut buffer).await {
            if !deaf.load(Ordering::SeqCst) && client_out.write_all(&buffer[..count]).await.is_err() {
                return;
            }
        }
    };
    tokio::select! { () = up => {}, () = down => {} }
}

async fn connect(url: &str) -> Client {
    let backoff = (Duration::from_millis(10), Duration::from_millis(100));
    patient(Client::builder(url).backoff(backoff.0, backoff.1).connect()).await.expect("connected")
}

fn from_earliest() -> SubscribeOptions {
    SubscribeOptions { from: From::Earliest, ..SubscribeOptions::default() }
}

async fn next(events: &mut Subscription) -> promethean_client::Delivery {
    patient(events.next()).await.expect("open").expect("a delivery")
}

#[tokio::test]
async fn what_is_published_is_delivered_acked_and_not_delivered_again() {
    let (hub, addr) = hub(AuthConfig::default()).await;
    let client = connect(&format!("ws://{addr}")).await;
    let published = client.publish("a.b", &json!({"n": 1})).await.expect("published");
    assert_eq!((published.seq, published.duplicate), (1, false));
    let mut events = client.subscribe("a.b", Some("g"), from_earliest()).await.expect("subscribed");
    let delivery = next(&mut events).await;
    assert_eq!((delivery.event().id, delivery.event().payload.get()), (published.id, r#"{"n":1}"#));
    assert_eq!((delivery.context().attempt, delivery.event().topic.as_str()), (1, "a.b"));
    delivery.extend(Duration::from_secs(60)).await.expect("extended");
    delivery.nack(GiveBack { reason: Some("again".into()), ..GiveBack::default() }).await.expect("nacked");
    let again = next(&mut events).await;
    assert_eq!(again.context().attempt, 2);
    again.ack().await.expect("acked");
    let cursor = hub.bus.cursors(&topic("a.b")).await.expect("cursors");
    assert_eq!(cursor[0].1.seq, 1);
    client.close().await.expect("closed");
}

fn topic(name: &str) -> promethean_client::Topic {
    promethean_client::Topic::parse(name).expect("a topic")
}

#[tokio::test]
async fn many_publishes_share_the_window_and_each_is_confirmed_once() {
    let (_, addr) = hub(AuthConfig::default()).await;
    let client = patient(Client::builder(format!("ws://{addr}")).window(8).connect()).await.expect("connected");
    let client = &client;
    let publishes = (0..500).map(|n| async move { client.publish("a", &n).await });
    let published = patient(futures_util::future::join_all(publishes)).await;
    let seqs: std::collections::BTreeSet<u64> = published.into_iter().map(|one| one.expect("published").seq).collect();
    assert_eq!(seqs.into_iter().collect::<Vec<_>>(), (1..=500).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_batch_is_all_or_none_and_a_refusal_carries_the_code() {
    let (_, addr) = hub(AuthConfig::default()).await;
    let client = connect(&format!("ws://{addr}")).await;
    let id = EventId::from_bytes([7; 16]);
    let events = vec![Publish::new(&1).expect("JSON").id(id), Publish::new(&2).expect("JSON").key("k")];
    let published = client.publish_batch("a", events).await.expect("published");
    assert_eq!(published.iter().map(|one| one.seq).collect::<Vec<_>>(), [1, 2]);
    let again = client.send("a", Publish::new(&1).expect("JSON").id(id)).await.expect("published");
    assert_eq!((again.seq, again.duplicate), (1, true));
    let refused = client.send("b", Publish::new(&1).expect("JSON").id(id)).await.expect_err("taken");
    assert_eq!((refused.code(), refused.is_retryable()), (Some(Code::DuplicateId), false));
    let refused = client.publish("not a topic", &1).await.expect_err("no topic");
    assert_eq!(refused.code(), Some(Code::BadTopic));
}

#[tokio::test]
async fn a_publish_whose_answer_was_lost_is_sent_again_and_stays_once() {
    let (hub, addr) = hub(AuthConfig::default()).await;
    let proxy = Proxy::start(addr).await;
    let client = connect(&proxy.url()).await;
    proxy.deaf.store(true, Ordering::SeqCst);
    let publishing: Vec<_> = (0..20)
        .map(|n| {
            let client = client.clone();
            tokio::spawn(async move { client.publish("a", &n).await })
        })
        .collect();
    let topic = topic("a");
    let stored = async {
        while hub.bus.store().info(&topic).await.expect("readable").is_none_or(|info| info.last_seq < 20) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    patient(stored).await;
    proxy.deaf.store(false, Ordering::SeqCst);
    proxy.cut();
    for publish in publishing {
        let published = patient(publish).await.expect("ran").expect("confirmed");
        assert!(published.seq <= 20 && !published.duplicate);
    }
    assert_eq!(hub.bus.store().info(&topic).await.expect("readable").expect("there").last_seq, 20, "each stays once");
}

#[tokio::test]
async fn subscriptions_come_back_after_a_lost_connection() {
    let (_, addr) = hub(AuthConfig::default()).await;
    let proxy = Proxy::start(addr).await;
    let client = connect(&proxy.url()).await;
    let direct = connect(&format!("ws://{addr}")).await;
    let mut group = client.subscribe("a", Some("g"), SubscribeOptions::default()).await.expect("subscribed");
    let mut tail = client.subscribe("a", None, SubscribeOptions::default()).await.expect("subscribed");
    direct.publish("a", &1).await.expect("published");
    let held = next(&mut group).await;
    assert_eq!(next(&mut tail).await.event().payload.get(), "1");
    proxy.cut();
    direct.publish("a", &2).await.expect("published");
    held.ack().await.expect("an ack that is asked again on the new connection");
    assert_eq!(next(&mut tail).await.event().payload.get(), "2", "the tail goes on where it was");
    loop {
        let delivery = next(&mut group).await;
        delivery.ack().await.expect("acked");
        if delivery.event().payload.get() == "2" {
            break;
        }
    }
}

#[tokio::test]
async fn a_tail_of_a_pattern_resumes_on_all_of_its_topics() {
    let (_, addr) = hub(AuthConfig::default()).await;
    let proxy = Proxy::start(addr).await;
    let client = connect(&proxy.url()).await;
    let direct = connect(&format!("ws://{addr}")).await;
    let mut tail = client.subscribe("w.*", None, SubscribeOptions::default()).await.expect("subscribed");
    proxy.cut();
    direct.publish("w.a", &1).await.expect("published");
    assert_eq!(next(&mut tail).await.event().payload.get(), "1", "from the place of the OK");
    proxy.cut();
    for (topic, n) in [("w.a", 2), ("w.b", 3), ("w.c", 4)] {
        direct.publish(topic, &n).await.expect("published");
    }
    let mut seen = Vec::new();
    for _ in 0..3 {
        seen.push(next(&mut tail).await.event().payload_as::<u32>().expect("a number"));
    }
    seen.sort_unstable();
    assert_eq!(seen, [2, 3, 4]);
}

#[tokio::test]
async fn a_slow_reader_of_a_tail_misses_nothing_and_pauses_the_hub() {
    let (hub, addr) = hub(AuthConfig::default()).await;
    let client = connect(&format!("ws://{addr}")).await;
    let mut tail = client.subscribe("a", None, SubscribeOptions::default()).await.expect("subscribed");
    for round in 0..10 {
        let events = (0..1_000).map(|n| Publish::new(&(round * 1_000 + n)).expect("JSON")).collect();
        client.publish_batch("a", events).await.expect("published");
    }
    let is_paused = || {
        let held = hub.connections.list().iter().flat_map(|one| one.subscriptions()).next();
        held.and_then(|held| held.membership.upgrade()).is_some_and(|membership| membership.is_paused())
    };
    let becomes = async |paused: bool| {
        patient(async {
            while is_paused() != paused {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    };
    becomes(true).await;
    // Asked to go on without having read: it would fill up what waits here.
    tail.pause().await.expect("paused");
    tail.resume().await.expect("taken");
    assert!(is_paused(), "until its reader has caught up");
    for expected in 0..10_000 {
        assert_eq!(next(&mut tail).await.event().payload_as::<u32>().expect("a number"), expected);
    }
    becomes(false).await;
}

#[tokio::test]
async fn the_token_is_checked_at_once_and_a_wrong_one_is_an_error() {
    let auth = AuthConfig { static_token: Some(Secret::new("sesame")), ..AuthConfig::default() };
    let (_, addr) = hub(auth).await;
    let url = format!("ws://{addr}");
    let refused = Client::builder(&url).token("barley").connect().await.expect_err("refused");
    assert_eq!((refused.code(), refused.is_denied(), refused.is_retryable()), (Some(Code::BadToken), true, false));
    let client = Client::builder(&url).token("sesame").connect().await.expect("connected");
    client.publish("a", &1).await.expect("published");
    let nobody = Client::builder("ws://127.0.0.1:9").connect().await.expect_err("nobody there");
    assert!(nobody.is_retryable() && nobody.code().is_none());
}

#[tokio::test]
async fn dropping_a_subscription_gives_its_events_back() {
    let (_, addr) = hub(AuthConfig::default()).await;
    let client = connect(&format!("ws://{addr}")).await;
    client.publish("a", &1).await.expect("published");
    let mut first = client.subscribe("a", Some("g"), from_earliest()).await.expect("subscribed");
    let delivery = next(&mut first).await;
    drop(first);
    let mut second = patient(async {
        loop {
            match client.subscribe("a", Some("g"), from_earliest()).await {
                Ok(subscription) => return subscription,
                Err(error) => assert_eq!(error.code(), Some(Code::AlreadySubscribed)),
            }
        }
    })
    .await;
    assert_eq!(next(&mut second).await.event().id, delivery.event().id);
}

#[tokio::test]
async fn over_tls_the_certificate_is_checked() {
    let (hub, _) = hub(AuthConfig::default()).await;
    let dir = tempfile::tempdir().expect("a directory");
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    let (cert, key) = (dir.path().join("cert.pem"), dir.path().join("key.pem"));
    std::fs::write(&cert, made.cert.pem()).expect("written");
    std::fs::write(&key, made.signing_key.serialize_pem()).expect("written");
    let tls = promethean_gateway::tls::Tls::open(&cert, &key).expect("a certificate and its key");
    let listener = Listener::bind(([127, 0, 0, 1], 0).into()).await.expect("a port");
    let url = format!("wss://localhost:{}", listener.local_addr().port());
    tokio::spawn(listener.serve(ws::router(Arc::clone(&hub)), Intake::new(100, Some(tls)), hub.drain.watch()));

    let mut roots = rustls::RootCertStore::empty();
    roots.add(made.cert.der().clone()).expect("a root");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let client = patient(Client::builder(&url).tls(Arc::new(config)).connect()).await.expect("connected");
    client.publish("a", &1).await.expect("published");
    let refused = patient(Client::builder(&url).connect()).await.expect_err("nobody vouches for it");
    assert!(refused.to_string().contains("certificate"), "{refused}");
}

#[tokio::test]
async fn what_is_asked_while_nobody_answers_is_answered_when_somebody_does() {
    let (_, addr) = hub(AuthConfig::default()).await;
    let proxy = Proxy::start(addr).await;
    let client = connect(&proxy.url()).await;
    let mut events = client.subscribe("a", Some("g"), SubscribeOptions::default()).await.expect("subscribed");
    client.publish("a", &1).await.expect("published");
    let held = next(&mut events).await;
    proxy.shut.store(true, Ordering::SeqCst);
    proxy.cut();
    let asking = async {
        tokio::join!(
            held.nack(GiveBack::default()),
            held.extend(Duration::from_secs(5)),
            client.publish("a", &2),
            client.subscribe("b", None, SubscribeOptions::default()),
        )
    };
    let open_again = async {
        tokio::time::sleep(Duration::from_millis(150)).await;
        proxy.shut.store(false, Ordering::SeqCst);
    };
    let ((nacked, extended, published, subscribed), ()) = patient(async { tokio::join!(asking, open_again) }).await;
    nacked.expect("a lost connection gives the event back");
    assert!(extended.expect_err("the lease went with the connection").is_retryable());
    assert_eq!(published.expect("published").seq, 2);
    subscribed.expect("subscribed");
    assert_eq!(next(&mut events).await.event().payload.get(), "1");
}

/// Publishes 1 to `count`.
async fn publish(client: &Client, count: u32) {
    let events = (1..=count).map(|n| Publish::new(&n).expect("JSON")).collect();
    client.publish_batch("a", events).await.expect("published");
}

#[tokio::test]
async fn what_nobody_has_read_goes_back_without_counting_as_an_attempt() {
    let (_, addr) = hub(AuthConfig::default()).await;
    let client = connect(&format!("ws://{addr}")).await;
    publish(&client, 10).await;
    // More often than an event is tried.
    for round in 1..=6 {
        let mut events = client.subscribe("a", Some("g"), from_earliest()).await.expect("subscribed");
        let delivery = next(&mut events).await;
        assert_eq!((delivery.event().seq, delivery.context().attempt), (round, 1));
        if round % 2 == 0 {
            delivery.ack().await.expect("acked");
        } else {
            delivery.ack().await.expect("acked");
            let unhandled = vec![next(&mut events).await, next(&mut events).await];
            events.end(unhandled).await.expect("given back");
        }
    }
    let mut events = client.subscribe("a", Some("g"), from_earliest()).await.expect("subscribed");
    for seq in 7..=10 {
        let delivery = next(&mut events).await;
        assert_eq!((delivery.event().seq, delivery.context().attempt), (seq, 1));
    }
}

#[tokio::test]
async fn closing_the_client_gives_back_what_waits() {
    let (_, addr) = hub(AuthConfig::default()).await;
    let url = format!("ws://{addr}");
    let client = connect(&url).await;
    publish(&client, 3).await;
    let mut events = client.subscribe("a", Some("g"), from_earliest()).await.expect("subscribed");
    next(&mut events).await.ack().await.expect("acked");
    client.close().await.expect("closed");
    assert!(patient(events.next()).await.expect("ended in order").is_none());
    let mut events = connect(&url).await.subscribe("a", Some("g"), from_earliest()).await.expect("subscribed");
    let delivery = next(&mut events).await;
    assert_eq!((delivery.event().seq, delivery.context().attempt), (2, 1));
}

#[tokio::test]
async fn a_handler_that_stops_takes_nothing_more() {
    let (_, addr) = hub(AuthConfig::default()).await;
    let client = connect(&format!("ws://{addr}")).await;
    let (started, mut running) = tokio::sync::mpsc::unbounded_channel();
    let slow = move |_| {
        let started = started.clone();
        async move {
            started.send(()).expect("the test waits");
            tokio::time::sleep(Duration::from_millis(400)).await;
            Ok::<(), String>(())
        }
    };
    let handling = client.handle("a", "g", SubscribeOptions::default(), slow).await.expect("subscribed");
    client.publish("a", &1).await.expect("published");
    patient(running.recv()).await.expect("it runs");
    let (stopped, ()) = tokio::join!(handling.stop(), async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        client.publish("a", &2).await.expect("published");
    });
    stopped.expect("stopped in order");
    let mut events = client.subscribe("a", Some("g"), from_earliest()).await.expect("subscribed");
    let delivery = next(&mut events).await;
    assert_eq!((delivery.event().seq, delivery.context().attempt), (2, 1));
}

#[tokio::test]
async fn a_handler_goes_on_while_its_lease_is_being_extended() {
    let (_, addr) = hub(AuthConfig::default()).await;
    let proxy = Proxy::start(addr).await;
    let client = connect(&proxy.url()).await;
    let (step, mut steps) = tokio::sync::mpsc::unbounded_channel();
    let slow = move |_| {
        let step = step.clone();
        async move {
            for n in 0..2 {
                step.send(n).expect("the test waits");
                tokio::time::sleep(Duration::from_millis(600)).await;
            }
            step.send(2).expect("the test waits");
            Ok::<(), String>(())
        }
    };
    let options = SubscribeOptions { ack_timeout: Duration::from_secs(1), ..SubscribeOptions::default() };
    let _handling = client.handle("a", "g", options, slow).await.expect("subscribed");
    client.publish("a", &1).await.expect("published");
    assert_eq!(patient(steps.recv()).await, Some(0));
    // The extension after a third of a second is not answered.
    proxy.deaf.store(true, Ordering::SeqCst);
    assert_eq!(patient(steps.recv()).await, Some(1));
    assert_eq!(patient(steps.recv()).await, Some(2));
}

#[tokio::test]
async fn what_the_hub_has_no_room_for_is_asked_again() {
    let number = |n| std::num::NonZeroU32::new(n).expect("a number");
    let quotas = Quotas::new(Some(Rate { per_second: number(10), burst: number(2) }), None);
    let (hub, addr) = hub_with(AuthConfig::default(), quotas).await;
    let proxy = Proxy::start(addr).await;
    let client = connect(&proxy.url()).await;
    let mut all = Vec::new();
    for topic in ["a", "b", "c", "d"] {
        let options = SubscribeOptions::default;
        let subscribed = loop {
            match client.subscribe(topic, Some("g"), options()).await {
                Ok(subscribed) => break subscribed,
                Err(error) => assert_eq!(error.code(), Some(Code::RateLimited)),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        all.push(subscribed);
    }
    for _ in 0..2 {
        patient(all[0].pause()).await.expect("paused");
        patient(all[0].resume()).await.expect("goes on");
    }
    proxy.cut();
    for (topic, events) in ["a", "b", "c", "d"].into_iter().zip(&mut all) {
        let direct = connect(&format!("ws://{addr}")).await;
        direct.publish(topic, &1).await.expect("published");
        next(events).await;
    }
    drop(all);
    let gone = async {
        while hub.connections.list().iter().any(|one| !one.subscriptions().is_empty()) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    patient(gone).await;
    drop(client);
}

#[expect(clippy::result_large_err, clippy::unnecessary_wraps, reason = "what an upgrade's callback looks like")]
fn promethean_v1(
    _: &handshake::server::Request,
    mut response: handshake::server::Response,
) -> Result<handshake::server::Response, handshake::server::ErrorResponse> {
    response.headers_mut().insert("sec-websocket-protocol", http::HeaderValue::from_static("promethean.v1"));
    Ok(response)
}

/// A hub that answers what `say` says to an op on a connection (the first is 1); after an `ERR` it hangs up.
async fn scripted(
    say: impl Fn(u32, &str) -> serde_json::Value + Send + Sync + 'static,
) -> (String, watch::Receiver<u32>) {
    use futures_util::{SinkExt, StreamExt};
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("ws://{}", listener.local_addr().expect("an address"));
    let (counter, count) = watch::channel(0);
    tokio::spawn(async move {
        for connection in 1.. {
            let (stream, _) = listener.accept().await.expect("a client");
            counter.send_replace(connection);
            let upgraded = tokio_tungstenite::accept_hdr_async(stream, promethean_v1).await;
            let mut wire = upgraded.expect("a WebSocket");
            while let Some(Ok(Message::Text(frame))) = wire.next().await {
                let frame: serde_json::Value = serde_json::from_str(&frame).expect("JSON");
                let mut answer = say(connection, frame["op"].as_str().expect("an op"));
                let hang_up = answer["op"] == "ERR" || answer["bye"] == true;
                answer["corr"] = frame["corr"].clone();
                wire.send(Message::text(answer.to_string())).await.expect("sent");
                if hang_up {
                    break;
                }
            }
        }
    });
    (url, count)
}

#[tokio::test]
async fn a_hub_that_shuts_down_does_not_end_a_subscription() {
    let (url, mut count) = scripted(|connection, _| match connection {
        1 => json!({"op": "OK", "bye": true}),
        2 => json!({"op": "ERR", "code": "shutting_down", "msg": "the hub is draining"}),
        _ => json!({"op": "OK"}),
    })
    .await;
    let client = connect(&url).await;
    let mut events = client.subscribe("a", Some("g"), SubscribeOptions::default()).await.expect("subscribed");
    patient(count.wait_for(|count| *count == 3)).await.expect("a third connection");
    let more = tokio::time::timeout(Duration::from_millis(200), events.next()).await;
    assert!(more.is_err(), "it is there, and nothing has come: {more:?}");
}

#[tokio::test]
async fn a_hub_that_has_no_keys_yet_is_borne_for_a_while() {
    for (refusals, ended) in [(9, None), (10, Some(Code::JwtInvalid))] {
        let (url, mut count) = scripted(move |connection, op| match (connection, op) {
            (1, "SUBSCRIBE") => json!({"op": "OK", "bye": true}),
            (2.., "AUTH") if connection <= refusals + 1 => {
                json!({"op": "ERR", "code": "jwt_invalid", "msg": "no keys"})
            }
            _ => json!({"op": "OK"}),
        })
        .await;
        let quick = Duration::from_millis(5);
        let client = Client::builder(&url).token("good").backoff(quick, quick).connect().await.expect("connected");
        let mut events = client.subscribe("a", Some("g"), SubscribeOptions::default()).await.expect("subscribed");
        if let Some(code) = ended {
            let error = patient(events.next()).await.expect_err("refused for good");
            assert_eq!(error.code(), Some(code));
            continue;
        }
        patient(count.wait_for(|count| *count == refusals + 2)).await.expect("a connection that is let in");
        let more = tokio::time::timeout(Duration::from_millis(200), events.next()).await;
        assert!(more.is_err(), "it is there, and nothing has come: {more:?}");
    }
}
