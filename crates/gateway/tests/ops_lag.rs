//! `/lag` and `/cursors` cost the same whatever the length of the topic: counted by what they ask of the store.

mod harness;

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use harness::{Served, Setup};
use promethean_bus::{From, Group, SubscribeOptions};
use promethean_event::{Event, EventId, Millis, NewEvent, Seq, Topic};
use promethean_gateway::ops::router;
use promethean_store::memory::Memory;
use promethean_store::{
    EventLog, GroupState, GroupStore, KeySnapshot, Outcome, Page, Pending, Place, ReadMax, Saved, Seek, Start, Store,
    Tail, TopicInfo, TopicSettings, Version,
};
use tokio::sync::watch;

/// The memory engine; events that were read and calls that look for something are counted.
struct Counting {
    store: Memory,
    events: AtomicUsize,
    searches: AtomicUsize,
}

impl Counting {
    /// Events read and searches since the last time.
    fn taken(&self) -> (usize, usize) {
        (self.events.swap(0, SeqCst), self.searches.swap(0, SeqCst))
    }

    fn searched<T>(&self, what: T) -> T {
        self.searches.fetch_add(1, SeqCst);
        what
    }
}

impl EventLog for Counting {
    fn append(&self, events: Vec<NewEvent>) -> Pending<'_, Vec<Outcome>> {
        self.store.append(events)
    }
    fn read<'a>(&'a self, topic: &'a Topic, from: Seq, max: ReadMax) -> Pending<'a, Vec<Event>> {
        Box::pin(async move {
            let read = self.store.read(topic, from, max).await?;
            self.events.fetch_add(read.len(), SeqCst);
            Ok(read)
        })
    }
    fn seek<'a>(&'a self, topic: &'a Topic, to: Seek) -> Pending<'a, Option<Start>> {
        self.searched(self.store.seek(topic, to))
    }
    fn locate<'a>(&'a self, ids: &'a [EventId]) -> Pending<'a, Vec<Option<Place>>> {
        self.searched(self.store.locate(ids))
    }
    fn latest_by_key<'a>(&'a self, topic: &'a Topic, keys: &'a [String]) -> Pending<'a, Vec<Option<Event>>> {
        self.searched(self.store.latest_by_key(topic, keys))
    }
    fn keys<'a>(&'a self, topic: &'a Topic, after: Option<&'a str>, limit: usize) -> Pending<'a, Page<Event>> {
        self.searched(self.store.keys(topic, after, limit))
    }
    fn key_snapshot<'a>(&'a self, topic: &'a Topic) -> Pending<'a, Box<dyn KeySnapshot>> {
        self.searched(self.store.key_snapshot(topic))
    }
    fn watch(&self, topic: &Topic) -> watch::Receiver<Tail> {
        self.store.watch(topic)
    }
    fn watch_topics(&self) -> watch::Receiver<u64> {
        self.store.watch_topics()
    }
    fn topics(&self) -> Pending<'_, Vec<Topic>> {
        self.store.topics()
    }
    fn info<'a>(&'a self, topic: &'a Topic) -> Pending<'a, Option<TopicInfo>> {
        self.store.info(topic)
    }
    fn trim<'a>(&'a self, topic: &'a Topic, before: Seq) -> Pending<'a, ()> {
        self.store.trim(topic, before)
    }
    fn settings(&self, topic: &Topic) -> TopicSettings {
        self.store.settings(topic)
    }
    fn set_settings<'a>(&'a self, topic: &'a Topic, settings: TopicSettings) -> Pending<'a, ()> {
        self.store.set_settings(topic, settings)
    }
    fn maintain(&self, now: Millis) -> Pending<'_, ()> {
        self.store.maintain(now)
    }
    fn ready(&self) -> promethean_store::Result<()> {
        self.store.ready()
    }
}

impl GroupStore for Counting {
    fn load<'a>(&'a self, topic: &'a Topic, group: &'a Group) -> Pending<'a, Option<(GroupState, Version)>> {
        self.store.load(topic, group)
    }
    fn compare_and_set<'a>(
        &'a self,
        topic: &'a Topic,
        group: &'a Group,
        expected: Version,
        state: GroupState,
    ) -> Pending<'a, Saved> {
        self.store.compare_and_set(topic, group, expected, state)
    }
    fn groups<'a>(&'a self, topic: &'a Topic) -> Pending<'a, Vec<(Group, GroupState)>> {
        self.store.groups(topic)
    }
    fn forget<'a>(&'a self, topic: &'a Topic, group: &'a Group) -> Pending<'a, bool> {
        self.store.forget(topic, group)
    }
}

impl Store for Counting {
    fn name(&self) -> &'static str {
        self.store.name()
    }
    fn close(&self) -> Pending<'_, ()> {
        self.store.close()
    }
    fn failed(&self) -> Pin<Box<dyn Future<Output = String> + Send + '_>> {
        self.store.failed()
    }
}

/// What each of the questions takes of a topic that has `events` events and a group that has done the first and the third.
async fn cost(events: usize) -> Vec<(usize, usize)> {
    let store = Arc::new(Counting { store: Memory::new(), events: 0.into(), searches: 0.into() });
    let hub: Served =
        Setup { store: Some(Arc::clone(&store) as Arc<dyn Store>), ..Setup::default() }.start(router).await;
    hub.fill("t", events).await;
    let (group, options) =
        (Group::parse("g").expect("a group"), SubscribeOptions { from: From::Earliest, ..Default::default() });
    let mut member = hub.hub.bus.subscribe("t", Some(group.clone()), options).await.expect("subscribed");
    for seq in 1..=3 {
        let given = harness::patient("a delivery", member.next()).await.expect("delivered");
        if seq != 2 {
            given.ack().await.expect("acked");
        }
    }
    drop(member);
    let topic = Topic::parse("t").expect("a topic");
    harness::patient("the member's leave", async {
        while hub.hub.bus.is_live(&topic, &group) {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    })
    .await;
    let mut costs = Vec::new();
    store.taken();
    for path in ["/lag?topic=t&group=g", "/cursors?topic=t", "/groups?topic=t", "/topics", "/metrics"] {
        let answer = hub.get(path).await;
        assert_eq!(answer.status, 200, "{path}");
        if path.starts_with("/lag") {
            assert_eq!(answer.ok()["lag"], events - 2, "{}", answer.text());
        }
        costs.push(store.taken());
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
