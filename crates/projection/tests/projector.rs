//! Projectors on the bus and over a connection.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use promethean_bus::{Bus, BusOptions, Draft, Group, Topic};
use promethean_client::{Client, Publish};
use promethean_event::{Millis, payload_of};
use promethean_gateway::auth::{AuthConfig, Authenticator};
use promethean_gateway::limits::Quotas;
use promethean_gateway::listener::{Intake, Listener};
use promethean_gateway::{EdgeConfig, Hub, ws};
use promethean_projection::process::{Heartbeat, Processes, Status};
use promethean_projection::{Error, Input, Projection, Settings, Skip, States, bus, client};
use promethean_store::memory::Memory;

fn memory_bus() -> Bus {
    Bus::new(Arc::new(Memory::new()), BusOptions::default())
}

async fn hub(bus: &Bus) -> SocketAddr {
    let auth = Authenticator::new(&AuthConfig::default()).expect("a configuration");
    let hub = Arc::new(Hub::new(bus.clone(), auth, Quotas::default(), EdgeConfig::default()));
    let listener = Listener::bind(([127, 0, 0, 1], 0).into()).await.expect("a port");
    let addr = listener.local_addr();
    tokio::spawn(listener.serve(ws::router(Arc::clone(&hub)), Intake::new(100, None), hub.drain.watch()));
    addr
}

async fn connect(addr: SocketAddr) -> Client {
    Client::builder(format!("ws://{addr}")).connect().await.expect("connected")
}

async fn publish(bus: &Bus, topic: &str, key: Option<&str>, ts: Option<u64>, value: &impl serde::Serialize) {
    let payload = payload_of(value).expect("JSON");
    let mut draft = Draft::new(Topic::parse(topic).expect("a topic"), Cow::Owned(payload));
    draft.options.key = key.map(|key| key.to_owned().into());
    draft.options.ts = ts.map(Millis);
    bus.publish(&draft).await.expect("published");
}

fn beat(name: &str) -> Heartbeat {
    Heartbeat { pid: 7, name: name.to_owned(), host: "dev".to_owned(), cpu_pct: 1.5, mem_mb: 200.0, sid: None }
}

#[tokio::test]
async fn heartbeats_become_processes_that_are_alive_or_stale_also_after_a_restart() {
    let bus = memory_bus();
    publish(&bus, "heartbeat.received", None, Some(100_000), &beat("stt")).await;
    publish(&bus, "heartbeat.received", None, Some(101_000), &"no heartbeat").await;
    publish(&bus, "heartbeat.received", None, Some(110_000), &beat("tts")).await;
    let mut projector = bus::Projector::open(&bus, Processes::settings(), Processes::default()).await.expect("opened");
    projector.catch_up().await.expect("folded");
    let shown = |projector: &bus::Projector<Processes>| -> Vec<(String, Status, u64)> {
        let states = projector.states().iter();
        states.map(|(key, state)| (key.to_owned(), state.status, state.last_seen_ts.0)).collect()
    };
    let both = |stt, tts| vec![("dev:stt:7".to_owned(), stt, 100_000), ("dev:tts:7".to_owned(), tts, 110_000)];
    assert_eq!(shown(&projector), both(Status::Alive, Status::Alive));
    projector.tick(Millis(115_000)).await.expect("ticked");
    assert_eq!(shown(&projector), both(Status::Alive, Status::Alive), "fifteen seconds are not too long");
    projector.tick(Millis(115_001)).await.expect("ticked");
    assert_eq!(shown(&projector), both(Status::Stale, Status::Alive));

    let mut again = bus::Projector::open(&bus, Processes::settings(), Processes::default()).await.expect("opened");
    assert_eq!(
        (shown(&again), again.position().seq),
        (both(Status::Stale, Status::Alive), 3),
        "before anything is read"
    );
    again.tick(Millis(115_002)).await.expect("ticked");
    publish(&bus, "heartbeat.received", None, Some(116_000), &beat("stt")).await;
    again.catch_up().await.expect("folded");
    assert_eq!(shown(&again)[0], ("dev:stt:7".to_owned(), Status::Alive, 116_000));

    let topic = Topic::parse("process.state").expect("a topic");
    let info = bus.store().info(&topic).await.expect("known").expect("exists");
    assert_eq!(info.last_seq, 4, "two processes, one stale, one alive again: nothing twice");
    assert!(bus.store().settings(&topic).compaction.is_some());
    let latest = bus.store().latest_by_key(&topic, &["dev:stt:7".to_owned()]).await.expect("read").remove(0);
    let latest: serde_json::Value = latest.expect("there").payload_as().expect("JSON");
    let expected = serde_json::json!({"processId": "dev:stt:7", "name": "stt", "host": "dev", "pid": 7, "cpu_pct": 1.5,
        "mem_mb": 200.0, "last_seen_ts": 116_000, "status": "alive"});
    assert_eq!(latest, expected);
    let heartbeats = Topic::parse("heartbeat.received").expect("a topic");
    let lag = bus.lag(&heartbeats, &Group::parse("process-projector").expect("a group")).await.expect("known");
    assert_eq!(lag.events, 0);
}

#[tokio::test]
async fn of_two_instances_on_a_bus_the_older_one_stops() {
    let bus = memory_bus();
    publish(&bus, "in", Some("a"), None, &1).await;
    let settings = || Settings::new("sums", "in", "out").expect("good");
    let mut old = bus::Projector::open(&bus, settings(), Sums).await.expect("opened");
    old.catch_up().await.expect("folded");
    let mut new = bus::Projector::open(&bus, settings(), Sums).await.expect("opened");
    publish(&bus, "in", Some("a"), None, &2).await;
    new.catch_up().await.expect("folded");
    publish(&bus, "in", Some("a"), None, &3).await;
    new.catch_up().await.expect("folded");
    let stopped = old.catch_up().await.expect_err("it was replaced");
    assert!(matches!(stopped, Error::Replaced { .. }), "{stopped}");
    let last = bus::Projector::open(&bus, settings(), Sums).await.expect("opened");
    assert_eq!(last.states().get("a"), Some(&6));
}

#[tokio::test]
async fn a_state_with_too_many_keys_stops_it_with_a_remedy() {
    let bus = memory_bus();
    for n in 1..=4 {
        publish(&bus, "in", Some(&n.to_string()), None, &n).await;
    }
    let settings = Settings { max_keys: 3, ..Settings::new("sums", "in", "out").expect("good") };
    let mut projector = bus::Projector::open(&bus, settings, Sums).await.expect("opened");
    let stopped = projector.catch_up().await.expect_err("too many");
    assert!(stopped.to_string().contains("max_keys"), "{stopped}");
}

/// Sums by key; a sum that is a multiple of ten goes.
struct Sums;

impl Projection for Sums {
    type State = u64;
    fn fold(&mut self, event: &Input<'_>, states: &mut States<u64>) -> Result<(), Skip> {
        let key = event.key.as_deref().ok_or("no key")?;
        let sum = states.get(key).copied().unwrap_or(0) + event.payload_as::<u64>()?;
        match sum % 10 {
            0 => states.remove(key),
            _ => states.set(key, sum),
        }
        Ok(())
    }
}

fn expected(amounts: &[(String, u64)]) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for (key, amount) in amounts {
        let sum = sums.remove(key).unwrap_or(0) + amount;
        if !u64::is_multiple_of(sum, 10) {
            sums.insert(key.clone(), sum);
        }
    }
    sums
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_a_connection_a_projector_that_is_cut_off_at_random_counts_nothing_twice() {
    let bus = memory_bus();
    let addr = hub(&bus).await;
    let random = |n: u64| n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
    let amounts: Vec<_> = (0..4_000_u64).map(|n| ((random(n) % 23).to_string(), random(n * 7 + 1) % 9 + 1)).collect();
    let publisher = connect(addr).await;
    let writing = {
        let amounts = amounts.clone();
        tokio::spawn(async move {
            for chunk in amounts.chunks(10) {
                let events = chunk.iter().map(|(key, amount)| Publish::new(amount).expect("JSON").key(key));
                publisher.publish_batch("in", events.collect()).await.expect("published");
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
    };
    let settings = || Settings::new("sums", "in", "out").expect("good");
    // A hundred lives, each ended in the middle of whatever it was doing.
    for life in 0..100_u64 {
        let client = connect(addr).await;
        let projector = client::Projector::open(&client, settings(), Sums).await.expect("opened");
        let running = tokio::spawn(projector.run());
        tokio::time::sleep(Duration::from_micros(500 + random(life) % 8_000)).await;
        running.abort();
        assert!(running.await.is_err_and(|ended| ended.is_cancelled()), "it ended by itself");
    }
    writing.await.expect("written");
    let client = connect(addr).await;
    let mut projector = client::Projector::open(&client, settings(), Sums).await.expect("opened");
    while projector.position().seq < amounts.len() as u64 {
        tokio::time::timeout(Duration::from_secs(20), projector.step()).await.expect("in time").expect("folded");
    }
    let states: BTreeMap<_, _> = projector.states().iter().map(|(key, sum)| (key.to_owned(), *sum)).collect();
    assert_eq!(states, expected(&amounts));
    let live = bus.store().keys(&Topic::parse("out").expect("a topic"), None, 100).await.expect("read").items;
    let live: BTreeMap<_, u64> = live
        .iter()
        .map(|event| (event.key().expect("a key").into_owned(), event.payload_as().expect("JSON")))
        .collect();
    assert_eq!(live, states, "what is published is what it has");
}

#[tokio::test]
async fn over_a_connection_the_position_outlives_the_tombstones_that_carried_it() {
    let bus = memory_bus();
    let client = connect(hub(&bus).await).await;
    let settings = || Settings::new("sums", "in", "out").expect("good");
    publish(&bus, "in", Some("a"), None, &4).await;
    publish(&bus, "in", Some("a"), None, &6).await;
    let mut projector = client::Projector::open(&client, settings(), Sums).await.expect("opened");
    while projector.position().seq < 2 {
        projector.step().await.expect("folded");
    }
    let (out, now) = (Topic::parse("out").expect("a topic"), Millis::now());
    let last = || async { bus.store().info(&out).await.expect("read").expect("a topic").last_seq };
    projector.tick(now).await.expect("ticked");
    let before = last().await;
    projector.tick(now + Duration::from_secs(600)).await.expect("ticked");
    assert_eq!(last().await, before + 1, "the position by itself");
    drop(projector);
    // What compaction does when their grace is over.
    bus.store().trim(&out, before + 1).await.expect("trimmed");
    let again = client::Projector::open(&client, settings(), Sums).await.expect("opened");
    assert_eq!((again.position().seq, again.states().iter().count()), (2, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_instances_over_connections_the_older_one_stops() {
    let bus = memory_bus();
    let addr = hub(&bus).await;
    let settings = || Settings::new("sums", "in", "out").expect("good");
    let (one, two) = (connect(addr).await, connect(addr).await);
    let old = client::Projector::open(&one, settings(), Sums).await.expect("opened");
    let old = tokio::spawn(old.run());
    let mut new = client::Projector::open(&two, settings(), Sums).await.expect("opened");
    let stopped = tokio::time::timeout(Duration::from_secs(20), old).await.expect("in time").expect("no panic");
    assert!(matches!(stopped, Err(Error::Replaced { .. })), "{stopped:?}");
    publish(&bus, "in", Some("a"), None, &4).await;
    new.step().await.expect("folded");
    assert_eq!(new.states().get("a"), Some(&4));
}

/// What an instance had on its way to the output when it was replaced: the first `count` inputs, each 1, as one batch.
async fn late_batch(bus: &Bus, settings: Settings, count: u64) {
    let output = settings.output.clone();
    let mut folder = promethean_projection::Folder::new(settings, Sums);
    for seq in 1..=count {
        let (id, key) = (promethean_event::EventId::derived(&[&seq.to_le_bytes()]), Some("a".into()));
        folder.fold(&Input { id, seq, ts: Millis(seq), key, payload: "1" }).expect("room");
    }
    let draft = |one: promethean_projection::Output| Draft {
        topic: output.clone(),
        payload: std::borrow::Cow::Owned(one.payload),
        options: one.options,
    };
    bus.publish_batch(folder.take().expect("JSON").into_iter().map(draft)).await.expect("published");
}

async fn latest_sum(bus: &Bus) -> u64 {
    let topic = Topic::parse("out").expect("a topic");
    let latest = bus.store().latest_by_key(&topic, &["a".to_owned()]).await.expect("read").remove(0);
    latest.expect("there").payload_as().expect("JSON")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_older_instance_had_on_its_way_leaves_no_key_behind_over_a_connection() {
    for dies_in_between in [false, true] {
        let bus = memory_bus();
        let addr = hub(&bus).await;
        let settings = || Settings::new("sums", "in", "out").expect("good");
        let client = connect(addr).await;
        let mut new = client::Projector::open(&client, settings(), Sums).await.expect("opened");
        late_batch(&bus, settings(), 5).await;
        // The new one's batches have other borders: it writes an earlier state behind a later one.
        for seq in 1..=2 {
            publish(&bus, "in", Some("a"), None, &1).await;
            while new.position().seq < seq {
                new.step().await.expect("folded");
            }
        }
        assert_eq!(latest_sum(&bus).await, 2);
        for _ in 3..=5 {
            publish(&bus, "in", Some("a"), None, &1).await;
        }
        while !dies_in_between && new.position().seq < 5 {
            new.step().await.expect("folded");
        }
        if !dies_in_between {
            assert_eq!(latest_sum(&bus).await, 5, "it did not count as published before");
        }
        drop(new);
        let third = client::Projector::open(&client, settings(), Sums).await.expect("opened");
        assert_eq!((third.states().get("a"), third.position().seq), (Some(&5), 5));
        assert_eq!(latest_sum(&bus).await, 5, "died in between: {dies_in_between}");
    }
}

#[tokio::test]
async fn what_the_older_instance_had_on_its_way_leaves_no_key_behind_on_a_bus() {
    let bus = memory_bus();
    let settings = || Settings::new("sums", "in", "out").expect("good");
    let mut new = bus::Projector::open(&bus, settings(), Sums).await.expect("opened");
    late_batch(&bus, settings(), 5).await;
    for expected in [2, 5] {
        while new.position().seq < expected {
            publish(&bus, "in", Some("a"), None, &1).await;
            new.catch_up().await.expect("folded");
        }
        assert_eq!(latest_sum(&bus).await, expected);
    }
    let third = bus::Projector::open(&bus, settings(), Sums).await.expect("opened");
    assert_eq!((third.states().get("a"), third.position().seq), (Some(&5), 5));
}

#[tokio::test]
async fn on_a_bus_an_instance_that_was_replaced_publishes_nothing_more() {
    let bus = memory_bus();
    let settings = || Settings::new("sums", "in", "out").expect("good");
    let mut old = bus::Projector::open(&bus, settings(), Sums).await.expect("opened");
    let mut new = bus::Projector::open(&bus, settings(), Sums).await.expect("opened");
    publish(&bus, "in", Some("a"), None, &1).await;
    new.catch_up().await.expect("folded");
    publish(&bus, "in", Some("a"), None, &2).await;
    let stopped = old.step().await.expect_err("it was replaced");
    assert!(matches!(stopped, Error::Replaced { .. }), "{stopped}");
    assert_eq!(latest_sum(&bus).await, 1, "the new one has not folded more");
}

/// The same events again on another hub, without the first two: as `export --from` and `import` would have it.
async fn imported(bus: &Bus) -> Bus {
    let to = memory_bus();
    for name in ["in", "out"] {
        let topic = Topic::parse(name).expect("a topic");
        let events = bus.store().read(&topic, 1, promethean_store::ReadMax::events(99)).await.expect("read");
        for event in events.iter().filter(|event| name == "out" || event.seq > 2) {
            let payload = serde_json::value::RawValue::from_string(event.payload().to_owned()).expect("JSON");
            let mut draft = Draft::new(topic.clone(), Cow::Owned(payload));
            draft.options.id = Some(event.id);
            draft.options.key = event.key();
            draft.options.headers = event.fields().headers;
            to.publish(&draft).await.expect("published");
        }
    }
    to
}

#[tokio::test]
async fn a_state_whose_input_was_numbered_anew_is_refused_and_not_left_behind() {
    let bus = memory_bus();
    let settings = || Settings::new("sums", "in", "out").expect("good");
    let mut first = bus::Projector::open(&bus, settings(), Sums).await.expect("opened");
    for number in 1..=5 {
        publish(&bus, "in", Some("a"), None, &number).await;
    }
    first.catch_up().await.expect("folded");
    let bus = imported(&bus).await;
    let refused = bus::Projector::open(&bus, settings(), Sums).await.err().expect("refused");
    assert!(matches!(refused, Error::Renumbered { .. }), "{refused}");
    assert!(refused.to_string().contains("promethean backup"), "{refused}");

    let connection = connect(hub(&bus).await).await;
    let mut projector = client::Projector::open(&connection, settings(), Sums).await.expect("opened");
    publish(&bus, "in", Some("a"), None, &6).await;
    let refused = projector.step().await.expect_err("the sixth has the place of the fourth");
    assert!(matches!(refused, Error::Renumbered { .. }), "{refused}");
}

/// An event `[keys, bytes]` sets as many keys to a state of as many bytes; a tick at `now` sets `now` keys to 1.
struct Wide;

impl Projection for Wide {
    type State = String;
    fn fold(&mut self, event: &Input<'_>, states: &mut States<String>) -> Result<(), Skip> {
        let [keys, bytes] = event.payload_as::<[usize; 2]>()?;
        (0..keys).for_each(|key| states.set(format!("{}-{key}", event.seq), "x".repeat(bytes)));
        Ok(())
    }
    fn tick(&mut self, now: Millis, states: &mut States<String>) {
        (0..now.0).for_each(|key| states.set(format!("tick {key}"), "1".to_owned()));
    }
}

#[tokio::test]
async fn over_a_connection_a_tick_may_change_more_keys_than_a_batch_has_events() {
    let bus = memory_bus();
    let client = connect(hub(&bus).await).await;
    let settings = || Settings::new("wide", "in", "out").expect("good");
    let mut projector = client::Projector::open(&client, settings(), Wide).await.expect("opened");
    projector.tick(Millis(12_000)).await.expect("published in several batches");
    drop(projector);
    let again = client::Projector::open(&client, settings(), Wide).await.expect("opened");
    assert_eq!(again.states().len(), 12_000);
}

#[tokio::test]
async fn over_a_connection_states_that_are_together_more_than_a_frame_are_published() {
    let bus = memory_bus();
    for _ in 0..20 {
        publish(&bus, "in", None, None, &[25, 40_000]).await;
    }
    let client = connect(hub(&bus).await).await;
    let settings = || Settings::new("wide", "in", "out").expect("good");
    let mut projector = client::Projector::open(&client, settings(), Wide).await.expect("opened");
    while projector.position().seq < 20 {
        let step = tokio::time::timeout(Duration::from_secs(30), projector.step());
        step.await.expect("in time").expect("20 MB in several batches");
    }
    drop(projector);
    let again = client::Projector::open(&client, settings(), Wide).await.expect("opened");
    assert_eq!((again.states().len(), again.position().seq), (500, 20));
}

#[tokio::test]
async fn over_a_connection_one_event_that_changes_more_than_a_batch_takes_is_named_with_the_remedy() {
    for wide in [[10_001, 1], [9_501, 1], [300, 40_000]] {
        let bus = memory_bus();
        let client = connect(hub(&bus).await).await;
        let settings = || Settings::new("wide", "in", "out").expect("good");
        publish(&bus, "in", None, None, &[9_500, 10]).await;
        let mut projector = client::Projector::open(&client, settings(), Wide).await.expect("opened");
        projector.step().await.expect("as many as may be");
        publish(&bus, "in", None, None, &wide).await;
        let refused = projector.step().await.expect_err("too much for one batch");
        assert!(matches!(refused, Error::TooMuch { keys, .. } if keys == wide[0]), "{refused}");
        assert!(refused.to_string().contains("let the fold change less"), "{refused}");
        // Nothing of it is there, also not the position.
        drop(projector);
        let again = client::Projector::open(&client, settings(), Wide).await.expect("opened");
        assert_eq!((again.states().len(), again.position().seq), (9_500, 1));
    }
}
