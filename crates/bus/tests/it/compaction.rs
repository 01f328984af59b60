//! The compactor: the state of a topic by key, on a topic of its own.

use std::time::Duration;

use promethean_bus::{Answer, Bus, COMPACTOR_GROUP, Compacted, Compactor, From, SubscribeOptions, run_compactors};
use promethean_event::Millis;
use promethean_store::{Compaction, ReadMax, Retention, SnapshotJob, TopicSettings};
use serde_json::{Value, json};

use crate::common::{bus, drain, earliest, group, next, publish, publish_keyed, subscribe, topic};

const SECOND: Duration = Duration::from_secs(1);

fn compactor(bus: &Bus) -> Compactor {
    Compactor::new(bus, &topic("s"), &SnapshotJob::default()).expect("a compactor")
}

/// Every event of the snapshot topic: its key and its payload.
async fn written(bus: &Bus) -> Vec<(String, Value)> {
    let events = bus.store().read(&topic("s.snapshot"), 1, ReadMax::events(10_000)).await.expect("read");
    let pair =
        |event: &promethean_event::Event| (event.key().expect("a key").into_owned(), event.payload_as().expect("JSON"));
    events.iter().map(pair).collect()
}

fn wrote(states: u64, tombstones: u64) -> Compacted {
    Compacted { states, tombstones }
}

#[tokio::test(start_paused = true)]
async fn what_changed_is_written_with_its_time_and_what_is_gone_gets_a_tombstone() {
    let bus = bus();
    let mut compactor = compactor(&bus);
    assert_eq!(compactor.run_once().await, Ok(wrote(0, 0)), "a topic that does not exist");
    for (key, n) in [("a", 1), ("b", 2), ("a", 3), ("odd \"key\"", 4)] {
        publish_keyed(&bus, "s", key, n).await;
    }
    publish(&bus, "s", 5).await;
    assert_eq!(compactor.run_once().await, Ok(wrote(3, 0)), "all keys, once");
    assert_eq!(compactor.run_once().await, Ok(wrote(0, 0)), "nothing changed");
    let first =
        bus.store().latest_by_key(&topic("s"), &["a".to_owned()]).await.expect("read").remove(0).expect("there");
    let expected =
        |key: &str, payload: i32, ts: Millis| (key.to_owned(), json!({"key": key, "payload": payload, "ts": ts}));
    let all = written(&bus).await;
    assert_eq!(all[0], expected("a", 3, first.ts));
    assert_eq!(all.iter().map(|(key, _)| key.as_str()).collect::<Vec<_>>(), ["a", "b", "odd \"key\""]);

    publish_keyed(&bus, "s", "b", Value::Null).await;
    publish_keyed(&bus, "s", "c", 6).await;
    publish_keyed(&bus, "s", "d", 7).await;
    publish_keyed(&bus, "s", "d", Value::Null).await;
    assert_eq!(compactor.run_once().await, Ok(wrote(1, 1)), "a key that came and went between two runs is nobody's");
    let all = written(&bus).await;
    assert_eq!(all[3], ("b".to_owned(), Value::Null));
    assert_eq!((all[4].0.as_str(), &all[4].1["payload"], all.len()), ("c", &json!(6), 5));
    let cursor = bus.cursor(&topic("s"), &group(COMPACTOR_GROUP)).await.expect("ok").expect("some");
    assert_eq!(cursor.seq, 9);
    let settings = bus.store().settings(&topic("s.snapshot"));
    assert!(settings.compaction.is_some(), "the snapshot topic is compacted itself");
}

#[tokio::test(start_paused = true)]
async fn a_restart_misses_nothing_and_repeats_nothing() {
    let bus = bus();
    for round in 0..5 {
        for n in 0..200 {
            publish_keyed(&bus, "s", &format!("k{:03}", (n * 7 + round) % 150), n).await;
        }
        publish_keyed(&bus, "s", &format!("k{round:03}"), Value::Null).await;
        // Each one is new: it knows what is in the log and nothing else.
        let done = compactor(&bus).run_once().await.expect("written");
        assert!(done.states > 0 && done.tombstones == u64::from(round > 0), "{done:?}");
        assert_eq!(compactor(&bus).run_once().await, Ok(wrote(0, 0)));
        agree(&bus).await;
    }
    // The cursor is lost, or moved by hand: it costs a look at everything, nothing else.
    bus.set_cursor(&topic("s"), &group(COMPACTOR_GROUP), From::Earliest).await.expect("moved");
    assert_eq!(compactor(&bus).run_once().await, Ok(wrote(0, 0)));
}

/// The live keys of the snapshot are those of the source, each with its latest payload.
async fn agree(bus: &Bus) {
    let source = bus.store().keys(&topic("s"), None, 10_000).await.expect("read").items;
    let snapshot = bus.store().keys(&topic("s.snapshot"), None, 10_000).await.expect("read").items;
    let expected: Vec<Value> = source
        .iter()
        .map(|event| json!({"key": event.key(), "payload": event.payload_as::<Value>().expect("JSON"), "ts": event.ts}))
        .collect();
    let kept: Vec<Value> = snapshot.iter().map(|event| event.payload_as().expect("JSON")).collect();
    assert_eq!(kept, expected);
}

#[tokio::test(start_paused = true)]
async fn a_compactor_that_was_away_sees_keys_that_left_no_trace() {
    let bus = bus();
    let compaction = Some(Compaction { tombstone_grace: SECOND });
    bus.store().set_settings(&topic("s"), TopicSettings { compaction, ..Default::default() }).await.expect("set");
    publish_keyed(&bus, "s", "a", 1).await;
    publish_keyed(&bus, "s", "b", 2).await;
    let mut running = compactor(&bus);
    assert_eq!(running.run_once().await, Ok(wrote(2, 0)));
    publish_keyed(&bus, "s", "a", Value::Null).await;
    publish_keyed(&bus, "s", "b", 3).await;
    bus.store().maintain(Millis::now() + 3600 * SECOND).await.expect("maintained");
    let left = bus.store().read(&topic("s"), 1, ReadMax::events(10)).await.expect("read");
    assert_eq!(left.iter().map(|event| event.seq).collect::<Vec<_>>(), [4], "the tombstone itself is gone");
    assert_eq!(compactor(&bus).run_once().await, Ok(wrote(1, 1)));
    agree(&bus).await;
    // Retention takes keys without a tombstone.
    let retention = Retention { max_age: Some(SECOND), ..Default::default() };
    bus.store()
        .set_settings(&topic("s"), TopicSettings { compaction, retention, ..Default::default() })
        .await
        .expect("set");
    assert_eq!(running.run_once().await, Ok(wrote(0, 0)));
    bus.store().maintain(Millis::now() + 3600 * SECOND).await.expect("maintained");
    assert_eq!(running.run_once().await, Ok(wrote(0, 1)));
    agree(&bus).await;
}

#[tokio::test(start_paused = true)]
async fn a_key_set_restricts_what_is_written() {
    let bus = bus();
    let job = SnapshotJob { topic: Some(topic("s.some")), keys: vec!["a".into(), "x".into()], ..Default::default() };
    let mut compactor = Compactor::new(&bus, &topic("s"), &job).expect("a compactor");
    for key in ["a", "b"] {
        publish_keyed(&bus, "s", key, 1).await;
    }
    assert_eq!(compactor.run_once().await, Ok(wrote(1, 0)));
    publish_keyed(&bus, "s", "a", Value::Null).await;
    assert_eq!(compactor.run_once().await, Ok(wrote(0, 1)));
    assert_eq!(compactor.run_once().await, Ok(wrote(0, 0)));
    assert_eq!(bus.store().info(&topic("s.some")).await.expect("ok").map(|info| info.last_seq), Some(2));
}

/// The compactor of `s` as a hub has it that was just started.
async fn run_new(bus: &Bus, target: Option<&str>, keys: &[&str]) -> Compacted {
    let keys = keys.iter().map(|&key| key.to_owned()).collect();
    let job = SnapshotJob { topic: target.map(topic), keys, ..Default::default() };
    Compactor::new(bus, &topic("s"), &job).expect("a compactor").run_once().await.expect("written")
}

/// The live keys of a snapshot topic, each with the payload it has there.
async fn live(bus: &Bus, name: &str) -> Vec<(String, Value)> {
    let events = bus.store().keys(&topic(name), None, 10_000).await.expect("read").items;
    let pair = |event: &promethean_event::Event| {
        let state: Value = event.payload_as().expect("JSON");
        (event.key().expect("a key").into_owned(), state["payload"].clone())
    };
    events.iter().map(pair).collect()
}

fn states(all: &[(&str, i32)]) -> Vec<(String, Value)> {
    all.iter().map(|&(key, n)| (key.to_owned(), json!(n))).collect()
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_topic_that_changed_gets_everything_in_its_first_run() {
    let bus = bus();
    publish_keyed(&bus, "s", "a", 1).await;
    publish_keyed(&bus, "s", "b", 2).await;
    assert_eq!(run_new(&bus, None, &[]).await, wrote(2, 0));
    assert_eq!(run_new(&bus, Some("s.other"), &[]).await, wrote(2, 0), "nothing happened on the source meanwhile");
    assert_eq!(run_new(&bus, Some("s.other"), &[]).await, wrote(0, 0));
    publish_keyed(&bus, "s", "a", Value::Null).await;
    publish_keyed(&bus, "s", "c", 3).await;
    assert_eq!(run_new(&bus, Some("s.other"), &[]).await, wrote(1, 1));
    assert_eq!(live(&bus, "s.other").await, states(&[("b", 2), ("c", 3)]));
    assert_eq!(live(&bus, "s.snapshot").await, states(&[("a", 1), ("b", 2)]), "the old one is left as it is");
    assert_eq!(run_new(&bus, None, &[]).await, wrote(1, 1), "set back, it has what it missed");
    assert_eq!(live(&bus, "s.snapshot").await, states(&[("b", 2), ("c", 3)]));
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_topic_that_changes_under_a_running_hub_is_made_whole() {
    let bus = bus();
    let running = tokio::spawn(run_compactors(bus.clone(), |_| std::future::ready(true)));
    let set = async |target: Option<&str>| {
        let snapshot = Some(SnapshotJob { topic: target.map(topic), interval: SECOND / 5, ..Default::default() });
        let settings = TopicSettings { snapshot, compaction: Some(Compaction::default()), ..Default::default() };
        bus.store().set_settings(&topic("s"), settings).await.expect("set");
        tokio::time::sleep(6 * SECOND).await;
    };
    publish_keyed(&bus, "s", "ok", 1).await;
    set(None).await;
    set(Some("s.other")).await;
    assert_eq!(live(&bus, "s.other").await, states(&[("ok", 1)]));
    publish_keyed(&bus, "s", "k2", 2).await;
    tokio::time::sleep(SECOND).await;
    assert_eq!(live(&bus, "s.other").await, states(&[("k2", 2), ("ok", 1)]));
    set(None).await;
    assert_eq!(live(&bus, "s.snapshot").await, states(&[("k2", 2), ("ok", 1)]));
    bus.drain().await;
    tokio::time::timeout(60 * SECOND, running).await.expect("it ends with the bus").expect("no panic");
}

#[tokio::test(start_paused = true)]
async fn a_key_set_that_changed_takes_keys_away_and_brings_them_back() {
    let bus = bus();
    for (key, n) in [("a", 1), ("b", 2), ("c", 3)] {
        publish_keyed(&bus, "s", key, n).await;
    }
    assert_eq!(run_new(&bus, None, &[]).await, wrote(3, 0));
    assert_eq!(run_new(&bus, None, &["a"]).await, wrote(0, 2), "keys outside the set are gone");
    assert_eq!(live(&bus, "s.snapshot").await, states(&[("a", 1)]));
    assert_eq!(run_new(&bus, None, &["b", "a"]).await, wrote(1, 0), "of an event that was written once before");
    assert_eq!(run_new(&bus, None, &["a", "b"]).await, wrote(0, 0), "the same set");
    for (key, n) in [("a", 4), ("b", 5), ("c", 6)] {
        publish_keyed(&bus, "s", key, n).await;
    }
    assert_eq!(run_new(&bus, None, &["a", "b"]).await, wrote(2, 0));
    assert_eq!(live(&bus, "s.snapshot").await, states(&[("a", 4), ("b", 5)]));
    assert_eq!(run_new(&bus, None, &["a"]).await, wrote(0, 1));
    assert_eq!(run_new(&bus, None, &[]).await, wrote(2, 0), "no set: all keys, though nothing happened");
    assert_eq!(live(&bus, "s.snapshot").await, states(&[("a", 4), ("b", 5), ("c", 6)]));
    let cursor = bus.cursor(&topic("s"), &group(COMPACTOR_GROUP)).await.expect("ok").expect("some");
    assert_eq!(cursor.seq, 6);
}

#[tokio::test(start_paused = true)]
async fn a_cursor_that_was_moved_by_hand_is_not_believed() {
    let bus = bus();
    publish_keyed(&bus, "s", "a", 1).await;
    assert_eq!(run_new(&bus, None, &[]).await, wrote(1, 0));
    publish_keyed(&bus, "s", "b", 2).await;
    bus.set_cursor(&topic("s"), &group(COMPACTOR_GROUP), From::Latest).await.expect("moved");
    assert_eq!(run_new(&bus, None, &[]).await, wrote(1, 0));
}

#[tokio::test(start_paused = true)]
async fn snapshots_that_would_feed_or_undo_each_other_are_not_run() {
    let bus = bus();
    let running = tokio::spawn(run_compactors(bus.clone(), |_| std::future::ready(true)));
    // As a race between two hubs, or an older version, may leave them.
    for (name, target) in [
        ("c1", Some("c2")),
        ("c2", Some("c3")),
        ("c3", Some("c1")),
        ("own", Some("own")),
        ("letters", Some("dlq.letters")),
        ("one", Some("two.snapshot")),
        ("two", None),
        ("p", Some("pq")),
        ("q", Some("pq")),
        ("feeds", Some("c1")),
        ("chain", None),
        ("chain.snapshot", None),
    ] {
        let snapshot = Some(SnapshotJob { topic: target.map(topic), interval: SECOND, ..Default::default() });
        let settings = TopicSettings { snapshot, ..Default::default() };
        bus.store().set_settings(&topic(name), settings).await.expect("set");
    }
    for name in ["c1", "own", "letters", "one", "two", "p", "q", "chain"] {
        publish_keyed(&bus, name, name, 1).await;
    }
    tokio::time::sleep(20 * SECOND).await;
    let mut events = Vec::new();
    for name in ["c1", "c2", "c3", "own", "dlq.letters"] {
        let info = bus.store().info(&topic(name)).await.expect("ok");
        events.push((name, info.map_or(0, |info| info.last_seq)));
    }
    assert_eq!(events, [("c1", 1), ("c2", 0), ("c3", 0), ("own", 1), ("dlq.letters", 0)]);
    assert_eq!(live(&bus, "two.snapshot").await, states(&[("two", 1)]), "whose name it has");
    assert_eq!(live(&bus, "pq").await, states(&[("p", 1)]), "the first by name");
    let chained = bus.store().info(&topic("chain.snapshot.snapshot")).await.expect("ok").map(|info| info.last_seq);
    assert_eq!(chained, Some(1), "a snapshot of a snapshot is harmless");
    // Once it is mended, it runs.
    let snapshot = Some(SnapshotJob { interval: SECOND, ..Default::default() });
    bus.store().set_settings(&topic("q"), TopicSettings { snapshot, ..Default::default() }).await.expect("set");
    tokio::time::sleep(6 * SECOND).await;
    assert_eq!(live(&bus, "q.snapshot").await, states(&[("q", 1)]));
    bus.drain().await;
    tokio::time::timeout(60 * SECOND, running).await.expect("it ends with the bus").expect("no panic");
}

#[tokio::test(start_paused = true)]
async fn two_compactors_of_one_topic_write_once() {
    let bus = bus();
    for n in 0..100 {
        publish_keyed(&bus, "s", &format!("k{n}"), n).await;
    }
    let (mut one, mut two) = (compactor(&bus), compactor(&bus));
    let (first, second) = tokio::join!(one.run_once(), two.run_once());
    assert!(first.is_ok() && second.is_ok(), "{first:?} {second:?}");
    assert_eq!(written(&bus).await.len(), 100);
    publish_keyed(&bus, "s", "k1", Value::Null).await;
    let (first, second) = tokio::join!(one.run_once(), two.run_once());
    assert!(first.is_ok() && second.is_ok(), "{first:?} {second:?}");
    assert_eq!(written(&bus).await.len(), 101);
    agree(&bus).await;
}

#[tokio::test(start_paused = true)]
async fn the_hub_runs_it_for_topics_that_are_set_so_and_as_often_as_they_say() {
    let bus = bus();
    let asked = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counter = std::sync::Arc::clone(&asked);
    let owns = move |topic: promethean_event::Topic| {
        counter.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        std::future::ready(topic.as_str() == "s")
    };
    let running = tokio::spawn(run_compactors(bus.clone(), owns));
    publish_keyed(&bus, "s", "a", 1).await;
    publish_keyed(&bus, "other", "a", 1).await;
    tokio::time::sleep(20 * SECOND).await;
    assert!(written(&bus).await.is_empty(), "nobody asked for it");
    let snapshot = Some(SnapshotJob { interval: 10 * SECOND, ..Default::default() });
    let settings = TopicSettings { snapshot, ..Default::default() };
    for name in ["s", "other"] {
        bus.store().set_settings(&topic(name), settings.clone()).await.expect("set");
    }
    tokio::time::sleep(6 * SECOND).await;
    assert_eq!(written(&bus).await.len(), 1, "soon after the settings were changed");
    let before = asked.load(std::sync::atomic::Ordering::Relaxed);
    publish_keyed(&bus, "s", "a", 2).await;
    tokio::time::sleep(12 * SECOND).await;
    assert_eq!(written(&bus).await.len(), 2);
    assert_eq!(asked.load(std::sync::atomic::Ordering::Relaxed) - before, 2, "once a topic and interval");
    assert!(bus.store().info(&topic("other.snapshot")).await.expect("ok").is_none(), "owned by another hub");
    bus.drain().await;
    tokio::time::timeout(60 * SECOND, running).await.expect("it ends with the bus").expect("no panic");
}

#[tokio::test(start_paused = true)]
async fn a_topic_may_have_a_smaller_limit_than_the_hub() {
    let bus = bus();
    let settings = TopicSettings { max_event_bytes: Some(300), ..Default::default() };
    bus.store().set_settings(&topic("s"), settings).await.expect("set");
    let refused = bus.publish_value(&topic("s"), &"x".repeat(300)).await.expect_err("too large");
    assert_eq!(refused.code, promethean_bus::Code::TooLarge);
    assert!(refused.message.contains("300"), "{refused}");
    publish(&bus, "s", "small").await;
    publish(&bus, "t", "x".repeat(300)).await;
}

#[tokio::test(start_paused = true)]
async fn a_group_behind_what_retention_left_goes_on_with_the_first_event_there_is() {
    let bus = bus();
    for n in 1..=100 {
        publish(&bus, "t", n).await;
    }
    let mut events = subscribe(&bus, "t", "g", SubscribeOptions { max_in_flight: 4, ..earliest() }).await;
    assert_eq!(drain(&mut events, 2).await, ["1", "2"]);
    // Three and four are in flight with it now; five to ninety go unseen.
    bus.store().trim(&topic("t"), 91).await.expect("trimmed");
    bus.store().maintain(Millis::now()).await.expect("maintained");
    drop(events);
    let mut events = subscribe(&bus, "t", "g", SubscribeOptions::default()).await;
    let expected: Vec<_> = (91..=100).map(|n| n.to_string()).collect();
    assert_eq!(drain(&mut events, 10).await, expected);
    let lag = bus.lag(&topic("t"), &group("g")).await.expect("known");
    assert_eq!((lag.events, lag.cursor.map(|cursor| cursor.seq)), (0, Some(100)), "what is gone does not count as lag");
}

#[tokio::test(start_paused = true)]
async fn what_is_gone_is_not_lag_also_while_nobody_reads_on() {
    let bus = bus();
    let (topic, idle, full) = (topic("t"), group("idle"), group("full"));
    for n in 1..=100 {
        publish(&bus, "t", n).await;
    }
    bus.set_cursor(&topic, &idle, From::Earliest).await.expect("made");
    // It has no room to read on, and five was acked out of order.
    let mut events = subscribe(&bus, "t", "full", SubscribeOptions { max_in_flight: 4, ..earliest() }).await;
    let fifth = bus.store().read(&topic, 5, ReadMax::events(1)).await.expect("read")[0].id;
    let held = next(&mut events).await;
    events.membership().answer(vec![(fifth, None)], Answer::Ack).await.expect("acked");
    for (first, idle_lag, full_lag) in [(1, 100, 99), (4, 97, 4 + 95), (91, 10, 4 + 10), (101, 0, 4)] {
        bus.store().trim(&topic, first).await.expect("trimmed");
        bus.store().maintain(Millis::now()).await.expect("maintained");
        for (group, expected) in [(&idle, idle_lag), (&full, full_lag)] {
            let lag = bus.lag(&topic, group).await.expect("known").events;
            let status = bus.group_status(&topic, group).await.expect("known").expect("a group");
            assert_eq!((lag, status.lag), (expected, expected), "{group} from {first}");
        }
    }
    drop(held);
}
