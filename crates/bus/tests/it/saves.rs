//! Acks while saves take their time: every one is answered, however a save and the next acks fall together.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use promethean_bus::{Bus, EventId, Group, Topic};
use promethean_event::{Event, Millis, NewEvent, Seq};
use promethean_store::memory::Memory;
use promethean_store::{
    EventLog, GroupState, GroupStore, KeySnapshot, Outcome, Page, Pending, Place, ReadMax, Result, Saved, Seek, Start,
    Store, Tail, TopicInfo, TopicSettings, Version,
};
use tokio::sync::watch;

use crate::common::{earliest, next, publish, subscribe};

/// A store whose saves are done only when they have been looked at so many times.
struct Slow {
    memory: Memory,
    looks: usize,
}

/// Is over after so many turns of the runtime, in each of which every task has its own.
async fn turns(mut left: usize) {
    poll_fn(|cx| {
        if left == 0 {
            return Poll::Ready(());
        }
        left -= 1;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

impl GroupStore for Slow {
    fn load<'a>(&'a self, topic: &'a Topic, group: &'a Group) -> Pending<'a, Option<(GroupState, Version)>> {
        self.memory.load(topic, group)
    }
    fn compare_and_set<'a>(
        &'a self,
        topic: &'a Topic,
        group: &'a Group,
        expected: Version,
        state: GroupState,
    ) -> Pending<'a, Saved> {
        Box::pin(async move {
            turns(self.looks).await;
            self.memory.compare_and_set(topic, group, expected, state).await
        })
    }
    fn groups<'a>(&'a self, topic: &'a Topic) -> Pending<'a, Vec<(Group, GroupState)>> {
        self.memory.groups(topic)
    }
    fn forget<'a>(&'a self, topic: &'a Topic, group: &'a Group) -> Pending<'a, bool> {
        self.memory.forget(topic, group)
    }
}

impl EventLog for Slow {
    fn append(&self, events: Vec<NewEvent>) -> Pending<'_, Vec<Outcome>> {
        self.memory.append(events)
    }
    fn read<'a>(&'a self, topic: &'a Topic, from: Seq, max: ReadMax) -> Pending<'a, Vec<Event>> {
        self.memory.read(topic, from, max)
    }
    fn seek<'a>(&'a self, topic: &'a Topic, to: Seek) -> Pending<'a, Option<Start>> {
        self.memory.seek(topic, to)
    }
    fn locate<'a>(&'a self, ids: &'a [EventId]) -> Pending<'a, Vec<Option<Place>>> {
        self.memory.locate(ids)
    }
    fn latest_by_key<'a>(&'a self, topic: &'a Topic, keys: &'a [String]) -> Pending<'a, Vec<Option<Event>>> {
        self.memory.latest_by_key(topic, keys)
    }
    fn keys<'a>(&'a self, topic: &'a Topic, after: Option<&'a str>, limit: usize) -> Pending<'a, Page<Event>> {
        self.memory.keys(topic, after, limit)
    }
    fn key_snapshot<'a>(&'a self, topic: &'a Topic) -> Pending<'a, Box<dyn KeySnapshot>> {
        self.memory.key_snapshot(topic)
    }
    fn watch(&self, topic: &Topic) -> watch::Receiver<Tail> {
        self.memory.watch(topic)
    }
    fn watch_topics(&self) -> watch::Receiver<u64> {
        self.memory.watch_topics()
    }
    fn topics(&self) -> Pending<'_, Vec<Topic>> {
        self.memory.topics()
    }
    fn info<'a>(&'a self, topic: &'a Topic) -> Pending<'a, Option<TopicInfo>> {
        self.memory.info(topic)
    }
    fn trim<'a>(&'a self, topic: &'a Topic, before: Seq) -> Pending<'a, ()> {
        self.memory.trim(topic, before)
    }
    fn settings(&self, topic: &Topic) -> TopicSettings {
        self.memory.settings(topic)
    }
    fn set_settings<'a>(&'a self, topic: &'a Topic, settings: TopicSettings) -> Pending<'a, ()> {
        self.memory.set_settings(topic, settings)
    }
    fn maintain(&self, now: Millis) -> Pending<'_, ()> {
        self.memory.maintain(now)
    }
    fn ready(&self) -> Result<()> {
        self.memory.ready()
    }
}

impl Store for Slow {
    fn name(&self) -> &'static str {
        "slow"
    }
    fn close(&self) -> Pending<'_, ()> {
        self.memory.close()
    }
    fn failed(&self) -> Pin<Box<dyn Future<Output = String> + Send + '_>> {
        self.memory.failed()
    }
}

#[tokio::test(start_paused = true)]
async fn every_ack_is_answered_however_it_falls_together_with_the_save_before_it() {
    for (looks, apart) in (0..16).flat_map(|looks| (0..32).map(move |apart| (looks, apart))) {
        let bus = Bus::new(Arc::new(Slow { memory: Memory::new(), looks }), Default::default());
        let mut events = subscribe(&bus, "t", "g", earliest()).await;
        publish(&bus, "t", 1).await;
        publish(&bus, "t", 2).await;
        let (first, second) = (next(&mut events).await, next(&mut events).await);
        // With the first one, while its save is under way, at its very end, after it.
        let first = tokio::spawn(async move { first.ack().await });
        let second = tokio::spawn(async move {
            turns(apart).await;
            second.ack().await
        });
        for ack in [first, second] {
            let answered = tokio::time::timeout(Duration::from_secs(5), ack).await;
            let answered = answered.unwrap_or_else(|_| panic!("no answer: {looks} looks, {apart} apart"));
            answered.expect("no panic").expect("acked");
        }
    }
}
