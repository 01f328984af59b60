//! `/lag` and `/cursors` cost the same whatever the length of the topic: counted by what they ask of the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use crate::harness::{Served, Setup};
use promethean_bus::{From, Group, SubscribeOptions};
use promethean_event::Topic;
use promethean_gateway::ops::router;
use promethean_store::Store;
use promethean_store::memory::Memory;
use promethean_store::suite::{Call, Watched, Watcher};

/// Counts the events that were read, and the calls that look for something.
#[derive(Default)]
struct Counting {
    events: AtomicUsize,
    searches: AtomicUsize,
}

impl Counting {
    /// Events read and searches since the last time.
    fn taken(&self) -> (usize, usize) {
        (self.events.swap(0, SeqCst), self.searches.swap(0, SeqCst))
    }
}

impl Watcher for Counting {
    async fn before(&self, call: Call) {
        if call == Call::Search {
            self.searches.fetch_add(1, SeqCst);
        }
    }

    fn after_read(&self, events: usize) {
        self.events.fetch_add(events, SeqCst);
    }
}

/// What each of the questions takes of a topic that has `events` events and a group that has done the first and the third.
async fn cost(events: usize) -> Vec<(usize, usize)> {
    let store = Arc::new(Watched { store: Memory::new(), watcher: Counting::default() });
    let hub: Served =
        Setup { store: Some(Arc::clone(&store) as Arc<dyn Store>), ..Setup::default() }.start(router).await;
    hub.fill("t", events).await;
    let (group, options) =
        (Group::parse("g").expect("a group"), SubscribeOptions { from: From::Earliest, ..Default::default() });
    let mut member = hub.hub.bus.subscribe("t", Some(group.clone()), options).await.expect("subscribed");
    for seq in 1..=3 {
        let given = crate::harness::patient("a delivery", member.next()).await.expect("delivered");
        if seq != 2 {
            given.ack().await.expect("acked");
        }
    }
    drop(member);
    let topic = Topic::parse("t").expect("a topic");
    crate::harness::patient("the member's leave", async {
        while hub.hub.bus.is_live(&topic, &group) {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    })
    .await;
    let mut costs = Vec::new();
    store.watcher.taken();
    for path in ["/lag?topic=t&group=g", "/cursors?topic=t", "/groups?topic=t", "/topics", "/metrics"] {
        let answer = hub.get(path).await;
        assert_eq!(answer.status, 200, "{path}");
        if path.starts_with("/lag") {
            assert_eq!(answer.ok()["lag"], events - 2, "{}", answer.text());
        }
        costs.push(store.watcher.taken());
    }
    costs
}

#[tokio::test]
async fn a_groups_lag_takes_one_event_of_the_store_however_long_the_topic_is() {
    let (short, long) = (cost(10).await, cost(3_000).await);
    assert_eq!(short, long);
    assert_eq!(long[0], (1, 0), "the oldest event that is not done, for its age");
    assert!(long.iter().all(|(events, searches)| *events <= 1 && *searches == 0), "{long:?}");
}

#[tokio::test]
async fn a_group_without_a_position_on_the_topic_has_no_lag() {
    let hub = Setup::default().start(router).await;
    hub.fill("t", 3).await;
    let shown = hub.get("/lag?topic=t&group=nobody").await.ok();
    for field in ["lastCursor", "lag", "lagMs"] {
        assert_eq!(shown.get(field), Some(&serde_json::Value::Null), "{field}: {shown}");
    }
    assert!(shown["tail"].is_string(), "{shown}");
    let (topic, group) = (Topic::parse("t").expect("a topic"), Group::parse("nobody").expect("a group"));
    hub.hub.bus.set_cursor(&topic, &group, From::Latest).await.expect("made");
    let shown = hub.get("/lag?topic=t&group=nobody").await.ok();
    assert_eq!((&shown["lag"], &shown["lagMs"]), (&0.into(), &0.into()), "{shown}");
}

#[tokio::test]
async fn how_late_a_group_is_goes_by_the_time_of_append_whatever_the_events_say() {
    let hub = Setup::default().start(router).await;
    hub.post("/publish/t?ts=1", "1").await.ok();
    let (topic, group) = (Topic::parse("t").expect("a topic"), Group::parse("g").expect("a group"));
    hub.hub.bus.set_cursor(&topic, &group, From::Earliest).await.expect("made");
    for path in ["/lag?topic=t&group=g", "/groups?topic=t"] {
        let shown = hub.get(path).await.ok();
        let row = shown["groups"].get(0).unwrap_or(&shown);
        assert!(row["lag"] == 1 && row["lagMs"].as_u64().is_some_and(|late| late < 60_000), "{path}: {shown}");
    }
}

#[tokio::test]
async fn events_that_are_gone_are_nobodys_lag() {
    let hub = Setup::default().start(router).await;
    hub.fill("t", 100).await;
    let (topic, group) = (Topic::parse("t").expect("a topic"), Group::parse("g").expect("a group"));
    hub.hub.bus.set_cursor(&topic, &group, From::Earliest).await.expect("made");
    for left in [100, 10, 0] {
        hub.hub.bus.store().trim(&topic, 101 - left).await.expect("trimmed");
        for path in ["/lag?topic=t&group=g", "/groups?topic=t", "/explain?topic=t&group=g"] {
            let shown = hub.get(path).await.ok();
            let row = shown["groups"].get(0).unwrap_or(&shown);
            assert_eq!(row["lag"], left, "{path}: {shown}");
        }
        let metrics = hub.get("/metrics").await;
        let line = format!("group_lag{{topic=\"t\",group=\"g\"}} {left}");
        assert!(metrics.text().lines().any(|this| this == line), "{line}: {}", metrics.text());
        let ask = |place: &str| {
            let body = format!("{{\"from\":\"{place}\"}}");
            hub.send(http::Method::PUT, "/cursors?topic=t&group=g&dryRun=1", &[], body)
        };
        let (end, start) = (ask("latest").await.ok(), ask("earliest").await.ok());
        assert_eq!((&end["lagBefore"], &end["lagAfter"], &end["skipped"]), (&left.into(), &0.into(), &left.into()));
        assert_eq!((&start["lagAfter"], &start["again"]), (&left.into(), &0.into()), "{start}");
    }
    assert_eq!(hub.get("/explain?topic=t&group=g").await.ok()["reasons"][0]["code"], "caught_up");
}
