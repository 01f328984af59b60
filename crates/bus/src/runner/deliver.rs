//! Carries out the dispatcher's commands, and delivers events that were read.

use std::collections::HashMap;

use promethean_event::{Event, Millis, Seq};
use promethean_store::{Error as StoreError, KeySnapshot, ReadMax, Result as StoreResult};

use super::Runner;
use super::read::Read;
use crate::Given;
use crate::group::{Command, Deliver, Dispatcher};

impl Runner {
    /// Carries out `commands`: starts reads, and notes dead letters.
    pub(super) fn carry_out(&mut self, dispatcher: &mut Dispatcher, commands: &mut Vec<Command>) {
        let mut again = Vec::new();
        for command in commands.drain(..) {
            match command {
                Command::Deliver(deliver) => again.push(deliver),
                Command::DeadLetter(letter) => self.letters.add([letter]),
                Command::Read { from, max, bytes, behind } => self.read(from, ReadMax { events: max, bytes }, behind),
                Command::ReadSnapshot { max } => self.read_snapshot(dispatcher, max),
            }
        }
        self.redeliver(again);
    }

    /// Takes up the reads that have returned. Returns how many events were read.
    pub(super) fn take_reads(&mut self, dispatcher: &mut Dispatcher) -> usize {
        let mut count = 0;
        while let Some(read) = self.reads.next() {
            let now = self.core.clock.now();
            match read {
                Read::Events { from, most, events: Ok(mut events) } => {
                    self.ahead.keep(&mut events, most, now);
                    count += events.len();
                    let mut commands = Vec::with_capacity(events.len());
                    dispatcher.on_read(from, &events, now, &mut commands);
                    self.give(dispatcher, events, commands);
                }
                Read::Events { from, events: Err(error), .. } => {
                    tracing::error!(topic = %self.topic, group = %self.group, from, %error, "cannot read the topic");
                    self.on_damage(&error);
                    self.read_again = Some(tokio::time::Instant::now() + super::TRY_AGAIN);
                }
                Read::Snapshot { snapshot, max, events } => {
                    count += self.on_snapshot(dispatcher, snapshot, max, events)
                }
                Read::Left { left, events } => match events {
                    Ok(events) => {
                        let mut commands = Vec::with_capacity(events.len());
                        dispatcher.on_left_of_snapshot(&left, &events, now, &mut commands);
                        count += events.len();
                        self.give(dispatcher, events, commands);
                    }
                    Err(error) => self.on_snapshot_failed(&error),
                },
                Read::Again { delivers, found, unreadable } => {
                    self.on_redelivery(dispatcher, delivers, found, unreadable)
                }
            }
        }
        count
    }

    /// Takes in events of a snapshot; at its end, starts to read those that were read before the group was loaded and are
    /// not done.
    fn on_snapshot(
        &mut self,
        dispatcher: &mut Dispatcher,
        snapshot: Option<Box<dyn KeySnapshot>>,
        max: usize,
        events: StoreResult<Vec<Event>>,
    ) -> usize {
        let events = match events {
            Ok(events) => events,
            Err(error) => {
                self.on_snapshot_failed(&error);
                return 0;
            }
        };
        let left = if events.is_empty() { dispatcher.left_of_snapshot(max) } else { Vec::new() };
        if !left.is_empty() {
            self.snapshot = snapshot;
            self.read_left(left);
            return 0;
        }
        self.snapshot = snapshot.filter(|_| !events.is_empty());
        let (now, count) = (self.core.clock.now(), events.len());
        let mut commands = Vec::with_capacity(count);
        dispatcher.on_snapshot(&events, now, &mut commands);
        self.give(dispatcher, events, commands);
        count
    }

    /// Ends the subscriptions of a group that has reached damage: it would wait for the event for ever.
    fn on_damage(&self, error: &StoreError) {
        if let StoreError::Damaged(_) = error {
            let reached = self.core.on_damage(&self.topic);
            self.members.values().for_each(|member| member.subscriber().end(reached.clone()));
        }
    }

    fn on_snapshot_failed(&mut self, error: &StoreError) {
        tracing::error!(topic = %self.topic, group = %self.group, %error, "cannot read the snapshot");
        self.on_damage(error);
        self.snapshot = None;
        self.read_again = Some(tokio::time::Instant::now() + super::TRY_AGAIN);
    }

    /// Delivers events that were just read. Those that the dispatcher wants beyond them are read again.
    fn give(&mut self, dispatcher: &Dispatcher, events: Vec<Event>, commands: Vec<Command>) {
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
        self.redeliver(again);
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
                redriven: deliver.redriven,
                cut: None,
                resume: None,
                fence: self.held.as_ref().map(|held| held.fence.clone()),
            };
            member.put(given);
        }
    }

    /// Delivers events that were read once more.
    fn on_redelivery(
        &mut self,
        dispatcher: &mut Dispatcher,
        delivers: Vec<Deliver>,
        mut found: HashMap<Seq, Event>,
        unreadable: Option<StoreError>,
    ) {
        let max_attempts = dispatcher.max_attempts();
        if let Some(error) = &unreadable {
            tracing::error!(topic = %self.topic, group = %self.group, %error, "cannot read events that are due again");
            self.on_damage(error);
        }
        // An answer may have come since, or the lease may have ended.
        for deliver in delivers {
            if !dispatcher.is_held(deliver.seq, deliver.lease) {
                continue;
            }
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
