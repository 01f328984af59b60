//! A projector inside a program that has the bus itself.
//!
//! The position is with the state on the output topic; the cursor of the group (the projection's name) on the input
//! follows it, so that lag is seen where one looks for it, and is the fence: who finds that somebody else moved it stops.

use std::borrow::Cow;
use std::convert::Infallible;
use std::sync::Arc;

use promethean_bus::{Bus, Draft};
use promethean_event::Millis;
use promethean_store::{GroupState, ReadMax, Saved, TopicSettings, Version};
use tokio::time::{MissedTickBehavior, interval};

use crate::{Error, Folder, Input, Output, Position, Projection, Settings, States};

/// Events read and folded at once.
const READ: usize = 500;
/// Keys restored at once.
const RESTORED: usize = 500;

/// A projection that runs on a bus.
pub struct Projector<P: Projection> {
    bus: Bus,
    folder: Folder<P>,
    /// The version of the group's state.
    version: Version,
}

impl<P: Projection> Projector<P> {
    /// Takes over where the projection was: reads the state and the position from the output topic, which is made a
    /// compacted one where it is not.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn open(bus: &Bus, settings: Settings, projection: P) -> Result<Self, Error> {
        let store = Arc::clone(bus.store());
        let output = settings.output.clone();
        let known = store.settings(&output);
        if known.compaction.is_none() {
            let compaction = Some(promethean_store::Compaction::default());
            store.set_settings(&output, TopicSettings { compaction, ..known }).await?;
        }
        let loaded = store.load(&settings.input, &settings.name).await?;
        let mut folder = Folder::new(settings, projection);
        let mut snapshot = store.key_snapshot(&output).await?;
        loop {
            let events = snapshot.next(RESTORED).await?;
            if events.is_empty() {
                break;
            }
            events.iter().for_each(|event| restore(&mut folder, event));
        }
        // The last one may be a tombstone, which no snapshot has, and is the one with the last position.
        for event in store.read(&output, snapshot.cut().max(1), ReadMax::events(1)).await? {
            restore(&mut folder, &event);
        }
        let mut version = 0;
        if let Some((state, now)) = loaded {
            let id = state.last.map(|(id, _)| id);
            folder.reached(Position { seq: state.floor, id });
            version = now;
        }
        let (position, input) = (folder.position(), &folder.settings().input);
        let place = store.locate(position.id.as_slice()).await?.pop().flatten().filter(|place| place.topic == *input);
        if place.is_some_and(|place| place.seq != position.seq) {
            return Err(Error::Renumbered { topic: input.to_string() });
        }
        Ok(Self { bus: bus.clone(), folder, version })
    }

    /// The state.
    pub fn states(&self) -> &States<P::State> {
        self.folder.states()
    }

    /// Up to where the input was folded.
    pub fn position(&self) -> Position {
        self.folder.position()
    }

    /// Folds some of the events that wait; returns how many. **Returned ⇒ their state is durable.**
    ///
    /// # Errors
    /// The projection has to stop; opening it again goes on where it was.
    pub async fn step(&mut self) -> Result<usize, Error> {
        let input = self.folder.settings().input.clone();
        let from = self.folder.position().seq + 1;
        let events = self.bus.store().read(&input, from, ReadMax::events(READ)).await?;
        let mut last = None;
        let mut folded = 0;
        for event in &events {
            self.folder.fold(&Input::from(event))?;
            (last, folded) = (Some((event.id, event.ts)), folded + 1);
            if self.folder.is_full() {
                break;
            }
        }
        if folded > 0 {
            self.publish().await?;
            let state = GroupState { floor: self.folder.position().seq, last, ..GroupState::default() };
            let Settings { input, name, .. } = self.folder.settings();
            match self.bus.store().compare_and_set(input, name, self.version, state).await? {
                Saved::Yes(version) => self.version = version,
                Saved::Conflict => return Err(Error::Replaced { name: name.to_string() }),
            }
        }
        Ok(folded)
    }

    /// Folds everything that waits.
    ///
    /// # Errors
    /// As [`Projector::step`].
    pub async fn catch_up(&mut self) -> Result<(), Error> {
        while self.step().await? > 0 {}
        Ok(())
    }

    /// Lets time change the state.
    ///
    /// # Errors
    /// As [`Projector::step`].
    pub async fn tick(&mut self, now: Millis) -> Result<(), Error> {
        self.folder.tick(now)?;
        self.publish().await
    }

    /// Folds what comes, for as long as the bus lives.
    ///
    /// # Errors
    /// As [`Projector::step`].
    pub async fn run(mut self) -> Result<Infallible, Error> {
        let mut grown = self.bus.store().watch(&self.folder.settings().input);
        let mut ticks = interval(self.folder.settings().tick);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            self.catch_up().await?;
            tokio::select! {
                grown = grown.changed() => grown.map_err(|_| Error::Closed)?,
                _ = ticks.tick() => self.tick(Millis::now()).await?,
            }
        }
    }

    async fn publish(&mut self) -> Result<(), Error> {
        loop {
            let outputs = self.folder.take()?;
            if outputs.is_empty() {
                return Ok(());
            }
            self.check().await?;
            let keys: Vec<String> = outputs.iter().map(Output::key).collect();
            let topic = &self.folder.settings().output;
            let draft =
                |Output { payload, options }| Draft { topic: topic.clone(), payload: Cow::Owned(payload), options };
            let answers = self.bus.publish_batch(outputs.into_iter().map(draft)).await?;
            let duplicates = answers.into_iter().map(|answer| answer.duplicate);
            if !self.folder.published(keys.into_iter().zip(duplicates)) {
                return Ok(());
            }
        }
    }

    /// Whoever was replaced publishes nothing more: it would be behind what the other one has.
    async fn check(&self) -> Result<(), Error> {
        let Settings { input, name, .. } = self.folder.settings();
        let version = self.bus.store().load(input, name).await?.map_or(0, |(_, version)| version);
        if version == self.version { Ok(()) } else { Err(Error::Replaced { name: name.to_string() }) }
    }
}

fn restore<P: Projection>(folder: &mut Folder<P>, event: &promethean_event::Event) {
    if let Some(key) = event.key() {
        let fields = event.fields();
        folder.restore(&key, event.payload(), |name| fields.header(name));
    }
}
