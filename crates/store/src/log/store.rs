//! The contracts, on the embedded engine.

use std::future::{Future, ready};
use std::sync::atomic::Ordering;

use promethean_event::{Event, EventId, Group, Millis, NewEvent, Seq, Topic};
use tokio::sync::{oneshot, watch};

use crate::log::Log;
use crate::log::blocking;
use crate::log::commit::queue::{EncodedSave, Request};
use crate::log::flush::Trouble;
use crate::log::guarded;
use crate::log::shared::Shared;
use crate::log::stop;
use crate::{
    Counts, Error, EventLog, EventSettings, GroupState, GroupStore, KeySnapshot, Outcome, Page, Pending, Pin, Place,
    Ranges, ReadMax, Result, Save, Saved, Seek, Start, Store, Tail, TopicInfo, TopicSettings, Version,
};

/// Most bytes of the saves of one frame, unless a single one is larger.
const SAVES: usize = 4 << 20;

impl Log {
    /// Leaves a request for the writer and waits for the answer.
    fn ask<'a, T: Send + 'a>(&'a self, request: impl FnOnce(oneshot::Sender<Result<T>>) -> Request) -> Pending<'a, T> {
        let (reply, answer) = oneshot::channel();
        let request = request(reply);
        Box::pin(async move {
            if let Some(error) = self.shared.failed() {
                return Err(error);
            }
            let left = guarded(&self.shared, || self.writer.at_once(request)).flatten();
            if let Some(request) = left {
                self.shared.queue.push(request).await?;
            }
            answer.await.unwrap_or_else(|_| Err(Error::Unknown("the writer has ended".to_owned())))
        })
    }

    fn now<'a, T: Send + 'a>(&self, work: impl FnOnce() -> Result<T>) -> Pending<'a, T> {
        Box::pin(ready(self.is_open().and_then(|()| work())))
    }
}

fn decode(bytes: &[u8]) -> Result<GroupState> {
    GroupState::decode(bytes).ok_or_else(|| Error::Damaged("a group's state cannot be read".to_owned()))
}

impl EventLog for Log {
    fn append(&self, events: Vec<NewEvent>) -> Pending<'_, Vec<Outcome>> {
        self.ask(|reply| Request::Append { events, reply })
    }

    fn read<'a>(&'a self, topic: &'a Topic, from: Seq, max: ReadMax) -> Pending<'a, Vec<Event>> {
        let Some(state) = self.shared.topic(topic) else { return self.now(|| Ok(Vec::new())) };
        match self.shared.read_memory(&state, from, max) {
            Some(events) => self.now(|| Ok(events)),
            None => match self.is_open() {
                Err(error) => Box::pin(ready(Err(error))),
                Ok(()) => blocking(&self.shared, move |shared| shared.read(&state, from, max)),
            },
        }
    }

    fn seek<'a>(&'a self, topic: &'a Topic, to: Seek) -> Pending<'a, Option<Start>> {
        let exists = self.shared.topic(topic).filter(|state| state.inner.lock().last_seq > 0);
        let Some(state) = exists else {
            return self.now(|| Ok((!matches!(to, Seek::AfterId(_))).then(Start::default)));
        };
        if let Seek::Latest = to {
            let inner = state.inner.lock();
            let done = inner.last_seq;
            if done >= inner.tail_first() {
                let last = inner.held(done).map(|held| (held.id, held.ts));
                return self.now(|| Ok(Some(Start { done, last })));
            }
        }
        match self.is_open() {
            Err(error) => Box::pin(ready(Err(error))),
            Ok(()) => blocking(&self.shared, move |shared| shared.seek(&state, to)),
        }
    }

    fn locate<'a>(&'a self, ids: &'a [EventId]) -> Pending<'a, Vec<Option<Place>>> {
        if let Err(error) = self.is_open() {
            return Box::pin(ready(Err(error)));
        }
        let ids = ids.to_vec();
        blocking(&self.shared, move |shared| {
            let place = |id: &EventId| {
                let found = shared.find(*id)?;
                Ok(found.map(|(topic, seq, held)| Place { topic: topic.name.clone(), seq, ts: held.ts }))
            };
            ids.iter().map(place).collect()
        })
    }

    fn latest_by_key<'a>(&'a self, topic: &'a Topic, keys: &'a [String]) -> Pending<'a, Vec<Option<Event>>> {
        let Some(state) = self.shared.topic(topic) else { return self.now(|| Ok(vec![None; keys.len()])) };
        if let Err(error) = self.is_open() {
            return Box::pin(ready(Err(error)));
        }
        let keys = keys.to_vec();
        blocking(&self.shared, move |shared| shared.latest_by_key(&state, &keys))
    }

    fn keys<'a>(&'a self, topic: &'a Topic, after: Option<&'a str>, limit: usize) -> Pending<'a, Page<Event>> {
        let Some(state) = self.shared.topic(topic) else {
            return self.now(|| Ok(Page { items: Vec::new(), more: false }));
        };
        if let Err(error) = self.is_open() {
            return Box::pin(ready(Err(error)));
        }
        let after = after.map(str::to_owned);
        blocking(&self.shared, move |shared| shared.keys(&state, after.as_deref(), limit))
    }

    fn key_snapshot<'a>(&'a self, topic: &'a Topic) -> Pending<'a, Box<dyn KeySnapshot>> {
        let Some(state) = self.shared.topic(topic) else {
            return self.now(|| Ok(Box::new(Nothing) as Box<dyn KeySnapshot>));
        };
        if let Err(error) = self.is_open() {
            return Box::pin(ready(Err(error)));
        }
        blocking(&self.shared, move |shared| shared.key_snapshot(&state))
    }

    fn watch(&self, topic: &Topic) -> watch::Receiver<Tail> {
        if let Some(state) = self.shared.topics.read().get(topic) {
            return state.subscribe();
        }
        self.shared.topics.write().watch(topic)
    }

    fn watch_topics(&self) -> watch::Receiver<u64> {
        self.shared.created.subscribe()
    }

    fn exists(&self, topic: &Topic) -> bool {
        self.shared.topics.read().get(topic).is_some_and(|state| state.inner.lock().exists())
    }

    fn topics(&self) -> Pending<'_, Vec<Topic>> {
        self.now(|| {
            let topics = self.shared.topics.read().by_number.clone();
            let exist = topics.iter().filter(|topic| topic.inner.lock().exists());
            let mut names: Vec<_> = exist.map(|topic| topic.name.clone()).collect();
            names.sort();
            Ok(names)
        })
    }

    fn info<'a>(&'a self, topic: &'a Topic) -> Pending<'a, Option<TopicInfo>> {
        let Some(state) = self.shared.topic(topic) else { return self.now(|| Ok(None)) };
        if let Err(error) = self.is_open() {
            return Box::pin(ready(Err(error)));
        }
        let partly = {
            let inner = state.inner.lock();
            inner.segments.first().is_some_and(|meta| meta.first_seq < inner.first_seq)
        };
        if partly {
            return blocking(&self.shared, move |shared| shared.info(&state));
        }
        Box::pin(ready(self.shared.info(&state)))
    }

    fn trim<'a>(&'a self, topic: &'a Topic, before: Seq) -> Pending<'a, ()> {
        let topic = topic.clone();
        self.ask(|reply| Request::Trim { topic, before, reply })
    }

    fn create<'a>(&'a self, topic: &'a Topic) -> Pending<'a, ()> {
        let topic = topic.clone();
        self.ask(|reply| Request::Create { topic, reply })
    }

    fn delete<'a>(&'a self, topics: &'a [Topic]) -> Pending<'a, ()> {
        let topics = topics.to_vec();
        self.ask(|reply| Request::Delete { topics, reply })
    }

    fn remove<'a>(&'a self, topic: &'a Topic, seqs: &'a Ranges<()>) -> Pending<'a, ()> {
        Box::pin(async move {
            let Some(state) = self.shared.topic(topic) else { return Ok(()) };
            let first = {
                let state = state.clone();
                blocking(&self.shared, move |shared| shared.first_seq(&state)).await?
            };
            // What lies at the front is hidden by a mark, without rewriting a segment.
            let front =
                seqs.iter().find(|(from, to, ())| (*from..=*to).contains(&first)).map_or(first, |(_, to, ())| to + 1);
            if front > first {
                self.trim(topic, front).await?;
            }
            let rest: Ranges<()> = seqs.iter().filter(|(_, to, ())| *to >= front).collect();
            if rest.is_empty() {
                return Ok(());
            }
            self.ask(|reply| Request::Rotate { reply }).await?;
            blocking(&self.shared, move |shared| {
                shared.wait_flushed()?;
                shared.remove_seqs(&state, &rest)
            })
            .await
        })
    }

    fn settings(&self, topic: &Topic) -> TopicSettings {
        self.shared.topic(topic).map(|state| state.inner.lock().settings.clone()).unwrap_or_default()
    }

    fn all_settings(&self) -> Vec<(Topic, TopicSettings)> {
        let topics = self.shared.topics.read().by_number.clone();
        let all = topics.iter().map(|topic| (topic.name.clone(), topic.inner.lock().settings.clone()));
        all.filter(|(_, settings)| *settings != TopicSettings::default()).collect()
    }

    fn event_settings(&self, topic: &Topic) -> EventSettings {
        let topics = self.shared.topics.read();
        topics.get(topic).map_or_else(|| TopicSettings::default().of_events(), |state| state.event_settings())
    }

    fn set_settings<'a>(&'a self, topic: &'a Topic, settings: TopicSettings) -> Pending<'a, ()> {
        let topic = topic.clone();
        self.ask(|reply| Request::Settings { topic, settings, reply })
    }

    fn maintain(&self, now: Millis) -> Pending<'_, ()> {
        let failed = |shared: &Shared, trouble| match trouble {
            Trouble::NoRoom(reason) => Error::Refused(reason),
            Trouble::Fatal(reason) | Trouble::Damaged(reason) => {
                shared.fail(format!("maintenance failed: {reason}"));
                Error::Closed(reason)
            }
        };
        Box::pin(async move {
            let retained = blocking(&self.shared, move |shared| {
                if !shared.room.is_low() {
                    return Ok(());
                }
                shared.retain_now(now).map_err(|trouble| failed(shared, trouble))
            });
            retained.await?;
            self.ask(|reply| Request::Rotate { reply }).await?;
            let maintained = blocking(&self.shared, move |shared| {
                shared.wait_flushed()?;
                let maintained = shared.maintain(now, true).map_err(|trouble| failed(shared, trouble));
                shared.restore_room();
                maintained
            });
            maintained.await
        })
    }

    fn pin<'a>(&'a self, topics: &'a [Topic]) -> Pending<'a, Box<dyn Pin>> {
        self.now(|| {
            let end = |topic: &Topic| self.shared.topic(topic).map_or(0, |state| state.inner.lock().last_seq);
            Ok(self.shared.pins.hold(topics, self.shared.options.pin_for, end))
        })
    }

    fn ready(&self) -> Result<()> {
        self.is_open()?;
        let no_room = self.shared.flushing.lock().no_room.clone();
        match no_room.or_else(|| self.shared.room.refused()) {
            Some(reason) => Err(Error::Refused(reason)),
            None => Ok(()),
        }
    }
}

impl GroupStore for Log {
    fn load<'a>(&'a self, topic: &'a Topic, group: &'a Group) -> Pending<'a, Option<(GroupState, Version)>> {
        self.now(|| {
            let Some(state) = self.shared.topic(topic) else { return Ok(None) };
            let saved = state.inner.lock().groups.get(group).cloned();
            saved.map(|(version, bytes)| Ok((decode(&bytes)?, version))).transpose()
        })
    }

    fn save_many(&self, saves: Vec<Save>) -> Pending<'_, Vec<Result<Saved>>> {
        let mut frames: Vec<Vec<EncodedSave>> = Vec::with_capacity(1);
        let mut bytes = 0_usize;
        for Save { topic, group, expected, state } in saves {
            let save = EncodedSave { topic, group, expected, state: state.encode() };
            bytes = bytes.saturating_add(save.bound());
            match frames.last_mut() {
                Some(frame) if bytes <= SAVES => frame.push(save),
                _ => {
                    bytes = save.bound();
                    frames.push(vec![save]);
                }
            }
        }
        Box::pin(async move {
            let mut outcomes = Vec::new();
            for saves in frames {
                let count = saves.len();
                match self.ask(|reply| Request::Save { saves, reply }).await {
                    Ok(mut saved) => outcomes.append(&mut saved),
                    // Of this frame alone: earlier ones are saved.
                    Err(error) => outcomes.extend(std::iter::repeat_n(Err(error), count)),
                }
            }
            Ok(outcomes)
        })
    }

    fn groups<'a>(&'a self, topic: &'a Topic) -> Pending<'a, Vec<(Group, GroupState)>> {
        self.now(|| {
            let Some(state) = self.shared.topic(topic) else { return Ok(Vec::new()) };
            let groups = state.inner.lock().groups.clone();
            groups.into_iter().map(|(group, (_, bytes))| Ok((group, decode(&bytes)?))).collect()
        })
    }

    fn topics_of_groups(&self) -> Pending<'_, Vec<Topic>> {
        self.now(|| {
            let topics = self.shared.topics.read().by_number.clone();
            let with_groups = topics.iter().filter(|topic| !topic.inner.lock().groups.is_empty());
            let mut names: Vec<_> = with_groups.map(|topic| topic.name.clone()).collect();
            names.sort();
            Ok(names)
        })
    }

    fn forget<'a>(&'a self, topic: &'a Topic, group: &'a Group) -> Pending<'a, bool> {
        let (topic, group) = (topic.clone(), group.clone());
        self.ask(|reply| Request::Forget { topic, group, reply })
    }
}

impl Store for Log {
    fn name(&self) -> &'static str {
        "log"
    }

    fn counts(&self) -> Counts {
        let groups = self.shared.counters.groups.load(Ordering::Relaxed);
        Counts {
            topics: self.shared.topics.read().by_number.len(),
            groups: usize::try_from(groups).unwrap_or(usize::MAX),
        }
    }

    fn refused(&self) -> u64 {
        self.stats().refused
    }

    fn close(&self) -> Pending<'_, ()> {
        let running = self.running.lock().take();
        blocking(&self.shared, move |shared| {
            stop(shared, running);
            shared.failed().map_or(Ok(()), Err)
        })
    }

    fn failed(&self) -> std::pin::Pin<Box<dyn Future<Output = String> + Send + '_>> {
        let mut failure = self.shared.failure.subscribe();
        Box::pin(async move {
            let reason = failure.wait_for(Option::is_some).await.ok().and_then(|reason| reason.clone());
            // The sender lives as long as the engine: without a reason there is nothing to say.
            match reason {
                Some(reason) => reason,
                None => std::future::pending().await,
            }
        })
    }
}

/// The keys of a topic that does not exist.
struct Nothing;

impl KeySnapshot for Nothing {
    fn cut(&self) -> Seq {
        0
    }

    fn begin_after(&mut self, _: &str) {}

    fn left(&mut self) -> Pending<'_, u64> {
        Box::pin(std::future::ready(Ok(0)))
    }

    fn next(&mut self, _: usize) -> Pending<'_, Vec<Event>> {
        Box::pin(ready(Ok(Vec::new())))
    }
}
