//! What the ops API says over a store that is damaged in one place, or does not answer at all: everything that does not need
//! it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use crate::harness::{Served, Setup};
use futures_util::SinkExt;
use parking_lot::Mutex;
use promethean_bus::{From, SubscribeOptions};
use promethean_event::{Group, Topic};
use promethean_gateway::ops::router;
use promethean_store::memory::Memory;
use promethean_store::suite::{Call, Watched, Watcher};
use promethean_store::{Error, Store};
use serde_json::Value;
use tokio::sync::watch;

/// What of the topic `bad` is damaged: its events, the state of its group, what is counted of it.
#[derive(Default)]
struct Torn {
    events: AtomicBool,
    group: AtomicBool,
    info: AtomicBool,
}

impl Watcher for Torn {
    async fn before(&self, _: Call) {}
    fn refuses(&self, call: Call, topic: Option<&Topic>) -> Option<Error> {
        let (torn, what) = match call {
            Call::Read => (&self.events, "segment 1"),
            Call::Load => (&self.group, "the group's state"),
            Call::Info => (&self.info, "what is counted"),
            _ => return None,
        };
        let bad = topic.is_some_and(|topic| topic.as_str() == "bad") && torn.load(SeqCst);
        bad.then(|| Error::Damaged(format!("{what}: damaged at offset 4096")))
    }
}

/// Keeps the errors that are logged on this thread, message and fields.
#[derive(Clone, Default)]
struct Logged(Arc<Mutex<String>>);

impl tracing::Subscriber for Logged {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::ERROR
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut |field: &tracing::field::Field, value: &dyn std::fmt::Debug| {
            self.0.lock().push_str(&format!("{field}={value:?} "));
        });
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

fn topic(name: &str) -> Topic {
    Topic::parse(name).expect("a topic")
}

fn group() -> Group {
    Group::parse("g").expect("a group")
}

/// A hub with the topics `a`, `bad` and `z` of three events each, and a group that has done the first of each.
async fn three_topics() -> (Arc<Watched<Memory, Torn>>, Served) {
    let store = Arc::new(Watched { store: Memory::new(), watcher: Torn::default() });
    let hub = Setup { store: Some(Arc::clone(&store) as Arc<dyn Store>), ..Setup::default() }.start(router).await;
    for name in ["a", "bad", "z"] {
        hub.fill(name, 3).await;
        hub.hub.bus.set_cursor(&topic(name), &group(), promethean_bus::SeekTo::next(2)).await.expect("made");
        crate::harness::patient("the group to be idle", async {
            while hub.hub.bus.is_live(&topic(name), &group()) {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
    (store, hub)
}

/// The rows of `/groups` by topic and lag.
async fn rows(hub: &Served) -> Vec<(String, u64, u64)> {
    let shown = hub.get("/groups").await.ok();
    let rows = shown["groups"].as_array().expect("rows").iter();
    rows.map(|row| {
        let number = |name: &str| row[name].as_u64().expect("a number");
        (row["topic"].as_str().expect("a topic").to_owned(), number("lag"), number("seq"))
    })
    .collect()
}

fn all() -> Vec<(String, u64, u64)> {
    ["a", "bad", "z"].map(|name| (name.to_owned(), 2, 1)).to_vec()
}

#[tokio::test]
async fn a_damaged_event_costs_the_age_of_the_lag_and_nothing_else() {
    let (store, hub) = three_topics().await;
    let logged = Logged::default();
    let _guard = tracing::subscriber::set_default(logged.clone());
    store.watcher.events.store(true, SeqCst);
    assert_eq!(rows(&hub).await, all());
    let lag = hub.get("/lag?topic=bad&group=g").await.ok();
    assert_eq!((&lag["lag"], &lag["lagMs"], &lag["lastCursor"]["seq"]), (&2.into(), &0.into(), &1.into()), "{lag}");
    let metrics = hub.get("/metrics").await;
    assert!(metrics.text().contains("group_lag{topic=\"bad\",group=\"g\"} 2\n"), "{}", metrics.text());
    let said = "the age of a group's lag cannot be read topic=bad seq=2 error=segment 1: damaged at offset 4096";
    assert!(logged.0.lock().contains(said), "{}", logged.0.lock());
    // With a member, which cannot read it either.
    let options = SubscribeOptions { from: From::Earliest, ..SubscribeOptions::default() };
    let member = hub.hub.bus.subscribe("bad", Some(group()), options).await.expect("subscribed");
    assert_eq!(rows(&hub).await, all());
    let outline = hub.hub.bus.group_outline(&topic("bad"), &group()).await.expect("told").expect("a group");
    assert_eq!((outline.lag, outline.lag_age.as_millis(), outline.members.len()), (2, 0, 1));
    drop(member);
}

#[tokio::test]
async fn a_group_that_reaches_damage_ends_its_subscriptions_and_the_hub_is_not_ready() {
    let (store, hub) = three_topics().await;
    assert_eq!(hub.get("/readyz").await.status, 200);
    store.watcher.events.store(true, SeqCst);
    let mut member =
        hub.hub.bus.subscribe("bad", Some(group()), SubscribeOptions::default()).await.expect("subscribed");
    let ended = member.next().await.err().expect("ended");
    assert_eq!(ended.code, promethean_event::Code::StoreDamaged);
    assert!(ended.message.contains("bad") && !ended.message.contains("segment"), "{}", ended.message);
    hub.get("/readyz").await.refused(503, "store_damaged");
}

#[tokio::test]
async fn a_group_that_cannot_be_asked_is_shown_as_it_was_saved_and_named_in_the_log() {
    let (store, hub) = three_topics().await;
    let logged = Logged::default();
    let _guard = tracing::subscriber::set_default(logged.clone());
    store.watcher.group.store(true, SeqCst);
    assert_eq!(rows(&hub).await, all());
    let said =
        "a group is shown as it was saved: it cannot be asked how it stands topic=bad group=g error=the group's state";
    assert!(logged.0.lock().contains(said), "{}", logged.0.lock());
}

#[tokio::test]
async fn a_read_over_http_that_meets_damage_is_told_in_the_log() {
    let (store, hub) = three_topics().await;
    let logged = Logged::default();
    let _guard = tracing::subscriber::set_default(logged.clone());
    store.watcher.events.store(true, SeqCst);
    hub.get("/replay?topic=bad&from=earliest").await.refused(500, "publish_failed");
    let said = "what was asked for over HTTP cannot be read error=segment 1: damaged at offset 4096";
    assert!(logged.0.lock().contains(said), "{}", logged.0.lock());
}

/// A store that can be away.
struct Away(watch::Sender<bool>);

impl Watcher for Away {
    async fn before(&self, _: Call) {
        let _ = self.0.subscribe().wait_for(|away| !away).await;
    }
}

/// The values of some metrics; none: it is left out.
async fn metrics<const N: usize>(hub: &Served, names: [&str; N]) -> [Option<f64>; N] {
    let answer = hub.get("/metrics").await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    names.map(|name| answer.text().lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok()))
}

#[tokio::test]
async fn a_topic_whose_counts_are_damaged_takes_nothing_from_the_others() {
    let (store, hub) = three_topics().await;
    store.watcher.info.store(true, SeqCst);
    let [a, _, z] = <[_; 3]>::try_from(all()).expect("three");
    assert_eq!(rows(&hub).await, [a, ("bad".to_owned(), 0, 1), z]);
    let lags = ["a", "bad", "z"].map(|topic| format!("group_lag{{topic=\"{topic}\",group=\"g\"}}"));
    assert_eq!(metrics(&hub, lags.each_ref().map(|name| &**name)).await, [Some(2.0), None, Some(2.0)]);
}

/// A store on a busy machine: every answer takes a while.
struct Slow;

impl Watcher for Slow {
    async fn before(&self, call: Call) {
        if matches!(call, Call::Info) {
            tokio::time::sleep(std::time::Duration::from_millis(1_200)).await;
        }
    }
}

/// 40 topics take more than the three seconds for which a store that is away is waited for.
#[tokio::test]
async fn the_lag_of_a_group_is_there_and_right_however_slow_the_store() {
    let store = Arc::new(Watched { store: Memory::new(), watcher: Slow });
    let hub = Setup { store: Some(Arc::clone(&store) as Arc<dyn Store>), ..Setup::default() }.start(router).await;
    for n in 0..40 {
        hub.fill(&format!("t{n}"), 1).await;
    }
    hub.hub.bus.set_cursor(&topic("t39"), &group(), From::Earliest).await.expect("made");
    let lag = [r#"group_lag{topic="t39",group="g"}"#];
    assert_eq!(metrics(&hub, lag).await, [Some(1.0)]);
    hub.fill("t39", 1).await;
    assert_eq!(metrics(&hub, lag).await, [Some(2.0)], "not what the scrape before had");
}

#[tokio::test]
async fn metrics_and_connections_need_no_store() {
    let store = Arc::new(Watched { store: Memory::new(), watcher: Away(watch::channel(false).0) });
    let hub = Setup { store: Some(Arc::clone(&store) as Arc<dyn Store>), ..Setup::default() }.start(router).await;
    hub.fill("t", 3).await;
    let (mut socket, _) = tokio_tungstenite::connect_async(format!("ws://{}/ws", hub.addr)).await.expect("a WebSocket");
    let subscribe = r#"{"op":"SUBSCRIBE","topic":"t","group":"g","opts":{"from":"earliest"}}"#;
    socket.send(tokio_tungstenite::tungstenite::Message::text(subscribe)).await.expect("sent");
    let held = async |hub: &Served| -> Value {
        hub.get("/connections").await.ok()["connections"][0]["subscriptions"][0]["inflight"].clone()
    };
    crate::harness::patient("all three", async { while held(&hub).await != 3 {} }).await;
    let names = [
        "ws_connections",
        r#"events_published_total{topic="t"}"#,
        r#"ws_inflight{topic="t",group="g"}"#,
        r#"store_bytes{topic="t"}"#,
        r#"group_lag{topic="t",group="g"}"#,
    ];

    store.watcher.0.send_replace(true);
    assert_eq!(held(&hub).await, 3, "this hub knows it by itself");
    let away = metrics(&hub, names).await;
    assert_eq!(away, [Some(1.0), Some(3.0), Some(3.0), None, None], "what the store never said is left out");
    store.watcher.0.send_replace(false);
    let back = metrics(&hub, names).await;
    assert!(back[..3] == away[..3] && back[3].is_some() && back[4] == Some(3.0), "{back:?}");
    store.watcher.0.send_replace(true);
    assert_eq!(metrics(&hub, names).await, back, "what it said last is shown for a while");
    store.watcher.0.send_replace(false);
}
