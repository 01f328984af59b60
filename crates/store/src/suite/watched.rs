//! An engine with somebody who looks on: for tests that count what is asked of it, or let it take its time.

use std::future::Future;

use promethean_event::{Event, EventId, Group, Millis, NewEvent, Seq, Topic};
use tokio::sync::watch;

use crate::{
    Error, EventLog, EventSettings, GroupState, GroupStore, KeySnapshot, Outcome, Page, Pending, Pin, Place, Ranges,
    ReadMax, Result, Save, Saved, Seek, Start, Store, Tail, TopicInfo, TopicSettings, Version,
};

/// What an engine is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// An append.
    Append,
    /// A read by seq.
    Read,
    /// Anything that is found by something else than its seq: an id, a key, a time.
    Search,
    /// A save of the states of groups.
    Save,
    /// The list of all topics.
    Topics,
    /// What is counted of a topic.
    Info,
    /// A group's state.
    Load,
    /// Everything else.
    Other,
}

/// Who looks on.
pub trait Watcher: Send + Sync + 'static {
    /// The engine is asked; it answers once this is over.
    fn before(&self, call: Call) -> impl Future<Output = ()> + Send;

    /// What the engine answers instead of doing it, where it is not to.
    fn refuses(&self, _call: Call, _topic: Option<&Topic>) -> Option<Error> {
        None
    }

    /// So many events were read by seq.
    fn after_read(&self, _events: usize) {}
}

/// An engine, and who looks on.
#[derive(Debug)]
pub struct Watched<S, W> {
    /// The engine.
    pub store: S,
    /// Who looks on.
    pub watcher: W,
}

impl<S: Store, W: Watcher> Watched<S, W> {
    fn call<'a, T: 'a>(&'a self, call: Call, ask: impl FnOnce() -> Pending<'a, T> + Send + 'a) -> Pending<'a, T> {
        self.call_on(call, None, ask)
    }

    fn call_on<'a, T: 'a>(
        &'a self,
        call: Call,
        topic: Option<&'a Topic>,
        ask: impl FnOnce() -> Pending<'a, T> + Send + 'a,
    ) -> Pending<'a, T> {
        Box::pin(async move {
            self.watcher.before(call).await;
            match self.watcher.refuses(call, topic) {
                Some(error) => Err(error),
                None => ask().await,
            }
        })
    }
}

impl<S: Store, W: Watcher> EventLog for Watched<S, W> {
    fn append(&self, events: Vec<NewEvent>) -> Pending<'_, Vec<Outcome>> {
        self.call(Call::Append, move || self.store.append(events))
    }
    fn read<'a>(&'a self, topic: &'a Topic, from: Seq, max: ReadMax) -> Pending<'a, Vec<Event>> {
        Box::pin(async move {
            let events = self.call_on(Call::Read, Some(topic), move || self.store.read(topic, from, max)).await?;
            self.watcher.after_read(events.len());
            Ok(events)
        })
    }
    fn seek<'a>(&'a self, topic: &'a Topic, to: Seek) -> Pending<'a, Option<Start>> {
        self.call(Call::Search, move || self.store.seek(topic, to))
    }
    fn locate<'a>(&'a self, ids: &'a [EventId]) -> Pending<'a, Vec<Option<Place>>> {
        self.call(Call::Search, move || self.store.locate(ids))
    }
    fn latest_by_key<'a>(&'a self, topic: &'a Topic, keys: &'a [String]) -> Pending<'a, Vec<Option<Event>>> {
        self.call(Call::Search, move || self.store.latest_by_key(topic, keys))
    }
    fn keys<'a>(&'a self, topic: &'a Topic, after: Option<&'a str>, limit: usize) -> Pending<'a, Page<Event>> {
        self.call(Call::Search, move || self.store.keys(topic, after, limit))
    }
    fn pin<'a>(&'a self, topics: &'a [Topic]) -> Pending<'a, Box<dyn Pin>> {
        self.store.pin(topics)
    }

    fn key_snapshot<'a>(&'a self, topic: &'a Topic) -> Pending<'a, Box<dyn KeySnapshot>> {
        self.call(Call::Search, move || self.store.key_snapshot(topic))
    }
    fn watch(&self, topic: &Topic) -> watch::Receiver<Tail> {
        self.store.watch(topic)
    }
    fn watch_topics(&self) -> watch::Receiver<u64> {
        self.store.watch_topics()
    }
    fn topics(&self) -> Pending<'_, Vec<Topic>> {
        self.call(Call::Topics, move || self.store.topics())
    }
    fn info<'a>(&'a self, topic: &'a Topic) -> Pending<'a, Option<TopicInfo>> {
        self.call_on(Call::Info, Some(topic), move || self.store.info(topic))
    }
    fn trim<'a>(&'a self, topic: &'a Topic, before: Seq) -> Pending<'a, ()> {
        self.call(Call::Other, move || self.store.trim(topic, before))
    }
    fn exists(&self, topic: &Topic) -> bool {
        self.store.exists(topic)
    }
    fn create<'a>(&'a self, topic: &'a Topic) -> Pending<'a, ()> {
        self.call(Call::Other, move || self.store.create(topic))
    }
    fn delete<'a>(&'a self, topics: &'a [Topic]) -> Pending<'a, ()> {
        self.call(Call::Other, move || self.store.delete(topics))
    }
    fn remove<'a>(&'a self, topic: &'a Topic, seqs: &'a Ranges<()>) -> Pending<'a, ()> {
        self.call(Call::Other, move || self.store.remove(topic, seqs))
    }
    fn settings(&self, topic: &Topic) -> TopicSettings {
        self.store.settings(topic)
    }
    fn all_settings(&self) -> Vec<(Topic, TopicSettings)> {
        self.store.all_settings()
    }
    fn event_settings(&self, topic: &Topic) -> EventSettings {
        self.store.event_settings(topic)
    }
    fn set_settings<'a>(&'a self, topic: &'a Topic, settings: TopicSettings) -> Pending<'a, ()> {
        self.call(Call::Other, move || self.store.set_settings(topic, settings))
    }
    fn maintain(&self, now: Millis) -> Pending<'_, ()> {
        self.call(Call::Other, move || self.store.maintain(now))
    }
    fn ready(&self) -> Result<()> {
        self.store.ready()
    }
}

impl<S: Store, W: Watcher> GroupStore for Watched<S, W> {
    fn load<'a>(&'a self, topic: &'a Topic, group: &'a Group) -> Pending<'a, Option<(GroupState, Version)>> {
        self.call_on(Call::Load, Some(topic), move || self.store.load(topic, group))
    }
    fn save_many(&self, saves: Vec<Save>) -> Pending<'_, Vec<Result<Saved>>> {
        self.call(Call::Save, move || self.store.save_many(saves))
    }
    fn groups<'a>(&'a self, topic: &'a Topic) -> Pending<'a, Vec<(Group, GroupState)>> {
        self.call(Call::Other, move || self.store.groups(topic))
    }
    fn topics_of_groups(&self) -> Pending<'_, Vec<Topic>> {
        self.call(Call::Other, move || self.store.topics_of_groups())
    }
    fn forget<'a>(&'a self, topic: &'a Topic, group: &'a Group) -> Pending<'a, bool> {
        self.call(Call::Other, move || self.store.forget(topic, group))
    }
}

impl<S: Store, W: Watcher> Store for Watched<S, W> {
    fn name(&self) -> &'static str {
        self.store.name()
    }
    fn close(&self) -> Pending<'_, ()> {
        self.store.close()
    }
    fn refused(&self) -> u64 {
        self.store.refused()
    }

    fn failed(&self) -> std::pin::Pin<Box<dyn Future<Output = String> + Send + '_>> {
        self.store.failed()
    }
}
