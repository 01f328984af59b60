//! Carrying out what the dispatcher decided: reading and delivering.

use std::collections::HashMap;

use promethean_event::{Event, Millis, Seq, Topic};
use promethean_store::{ReadMax, Result as StoreResult};

use super::Runner;
use crate::Given;
use crate::bus::Core;
use crate::group::{Command, Deliver, Dispatcher};

impl Runner {
    /// Carries out `commands`, and what follows from them, except that it does not ask for more.
    ///
    /// Returns how many events were read.
    pub(super) async fn carry_out(&mut self, dispatcher: &mut Dispatcher, commands: &mut Vec<Command>) -> usize {
        let mut read = 0;
        let mut again = Vec::new();
        for command in commands.drain(..) {
            match command {
                Command::Deliver(deliver) => again.push(deliver),
                Command::DeadLetter(letter) => self.letters.add([letter]),
                Command::Read { from, max, bytes, behind } => {
                    read += self.read(dispatcher, from, ReadMax { events: max, bytes }, behind).await;
                }
                Command::ReadSnapshot { max } => read += self.read_snapshot(dispatcher, max).await,
            }
        }
        if !again.is_empty() {
            self.redeliver(dispatcher, again).await;
        }
        read
    }

    /// Reads on from `from`.
    async fn read(&mut self, dispatcher: &mut Dispatcher, from: Seq, most: ReadMax, behind: bool) -> usize {
        let read = match self.ahead.take(from, most, self.core.clock.now()) {
            Some(events) => Ok(events),
            None => {
                let at_once = if behind { self.core.ahead.read(most) } else { most };
                let started = std::time::Instant::now();
                let read = self.core.store.read(&self.topic, from, at_once).await;
                self.core.metrics.poll_duration.observe(started.elapsed());
                read
            }
        };
        let now = self.core.clock.now();
        match read {
            Ok(mut events) => {
                self.ahead.keep(&mut events, most, now);
                let count = events.len();
                let mut commands = Vec::with_capacity(events.len());
                dispatcher.on_read(from, &events, now, &mut commands);
                self.give(dispatcher, events, commands).await;
                count
            }
            Err(error) => {
                tracing::error!(topic = %self.topic, group = %self.group, from, %error, "cannot read the topic");
                self.read_again = Some(tokio::time::Instant::now() + super::TRY_AGAIN);
                0
            }
        }
    }

    async fn read_snapshot(&mut self, dispatcher: &mut Dispatcher, max: usize) -> usize {
        // One that cannot be had is not an empty one: that would end it.
        let read = match self.snapshot.take() {
            Some(snapshot) => Ok(snapshot),
            None => self.core.store.key_snapshot(&self.topic).await.map(|mut snapshot| {
                if let Some(after) = dispatcher.snapshot_after() {
                    snapshot.begin_after(after);
                }
                snapshot
            }),
        };
        let read = match read {
            Ok(snapshot) => self.snapshot.insert(snapshot).next(max).await,
            Err(error) => Err(error),
        };
        let left = match &read {
            Ok(events) if events.is_empty() => dispatcher.left_of_snapshot(max),
            _ => Vec::new(),
        };
        let read = if left.is_empty() { read } else { read_each(&self.core, &self.topic, &left).await };
        let now = self.core.clock.now();
        match read {
            Ok(events) => {
                let mut commands = Vec::with_capacity(events.len());
                if left.is_empty() {
                    if events.is_empty() {
                        self.snapshot = None;
                    }
                    dispatcher.on_snapshot(&events, now, &mut commands);
                } else {
                    dispatcher.on_left_of_snapshot(&left, &events, now, &mut commands);
                }
                let count = events.len();
                self.give(dispatcher, events, commands).await;
                count
            }
            Err(error) => {
                tracing::error!(topic = %self.topic, group = %self.group, %error, "cannot read the snapshot");
                self.snapshot = None;
                self.read_again = Some(tokio::time::Instant::now() + super::TRY_AGAIN);
                0
            }
        }
    }

    /// Delivers events that were just read. What the dispatcher wants beyond them is read again.
    async fn give(&mut self, dispatcher: &mut Dispatcher, events: Vec<Event>, commands: Vec<Command>) {
        let max_attempts = dispatcher.max_attempts();
        let mut again = Vec::new();
        // Both are in the same order nearly always: one walk finds all.
        let mut events = events.into_iter();
        for command in commands {
            match command {
                Command::Deliver(deliver) => {
                    let at = events.as_slice().iter().position(|event| event.seq == deliver.seq);
                    match at.and_then(|at| events.nth(at)) {
                        Some(event) => self.hand_over(&deliver, event, max_attempts),
                        None => again.push(deliver),
                    }
                }
                Command::DeadLetter(letter) => self.letters.add([letter]),
                Command::Read { .. } | Command::ReadSnapshot { .. } => {}
            }
        }
        if !again.is_empty() {
            self.redeliver(dispatcher, again).await;
        }
    }

    fn hand_over(&mut self, deliver: &Deliver, event: Event, max_attempts: u32) {
        if let Some(member) = self.members.get_mut(&deliver.member) {
            if self.held.is_some() {
                member.handed.note(event.id, deliver.lease, member.options.max_in_flight);
            }
            let given = Given {
                subscription: deliver.member,
                event,
                attempt: deliver.attempt,
                max_attempts,
                lease: deliver.lease,
                deadline: Millis(0),
                lease_for: member.options.ack_timeout,
                snapshot: deliver.snapshot,
                cut: None,
                fence: self.held.as_ref().map(|held| held.fence.clone()),
            };
            member.put(given);
        }
    }

    /// Delivers events that were read before: reads them again.
    async fn redeliver(&mut self, dispatcher: &mut Dispatcher, delivers: Vec<Deliver>) {
        let max_attempts = dispatcher.max_attempts();
        let mut seqs: Vec<Seq> = delivers.iter().map(|deliver| deliver.seq).collect();
        seqs.sort_unstable();
        let (mut found, mut unreadable) = (HashMap::new(), None);
        for run in seqs.chunk_by(|one, next| one + 1 == *next) {
            let (mut from, last) = (run[0], run[run.len() - 1]);
            while from <= last {
                let left = usize::try_from(last - from + 1).unwrap_or(usize::MAX);
                match self.core.store.read(&self.topic, from, ReadMax::events(left)).await {
                    Ok(events) => {
                        let Some(end) = events.last().map(|event| event.seq) else { break };
                        from = end + 1;
                        found.extend(events.into_iter().map(|event| (event.seq, event)));
                    }
                    Err(error) => {
                        unreadable = Some(error);
                        break;
                    }
                }
            }
        }
        if let Some(error) = &unreadable {
            tracing::error!(topic = %self.topic, group = %self.group, %error, "cannot read events that are due again");
        }
        for deliver in delivers {
            match found.remove(&deliver.seq) {
                Some(event) => self.hand_over(&deliver, event, max_attempts),
                None if unreadable.is_some() => {
                    let now = self.core.clock.now();
                    dispatcher.on_unreadable(deliver.seq, now, &mut self.commands);
                }
                None => dispatcher.on_gone(deliver.seq),
            }
        }
    }
}

/// The events at these places, as far as they are there.
async fn read_each(core: &Core, topic: &Topic, seqs: &[Seq]) -> StoreResult<Vec<Event>> {
    let mut events = Vec::with_capacity(seqs.len());
    for &seq in seqs {
        let read = core.store.read(topic, seq, ReadMax::events(1)).await?;
        events.extend(read.into_iter().filter(|event| event.seq == seq));
    }
    Ok(events)
}
