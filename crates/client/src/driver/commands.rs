//! What handles ask: each command becomes a frame, acks that come together share one.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use promethean_event::frame::ask;
use promethean_event::{Code, EventId, From, Selector, Topic};
use tokio_tungstenite::tungstenite::Message;

use super::leave::Wanted;
use super::{Driver, Subscribed, Topics};
use crate::mailbox::Mailbox;
use crate::pending::{Ask, Reply, Unconfirmed};
use crate::queue::{PAUSE_BYTES, queue};
use crate::settlement::{How, Settlement};
use crate::subscription::PAUSE_AT;
use crate::window::Room;
use crate::{Error, Publish, Published, Subscription};

/// What a handle asks of the driver.
pub(crate) enum Command {
    Publish {
        topic: Topic,
        events: Vec<Publish>,
        batch: bool,
        reply: Reply<Vec<Published>>,
        room: Room,
    },
    Subscribe {
        topics: Topics,
        mailbox: Mailbox,
        reply: Reply<Subscription>,
    },
    Settle(Settlement),
    /// The reader wants a pause, or its end.
    Hold {
        subscription: u64,
        held: bool,
        reply: Reply<()>,
    },
    /// A reader has caught up.
    Resume,
    /// No more deliveries, and what waits goes back.
    Halt {
        subscription: u64,
        reply: Reply<()>,
    },
    /// The end; `unhandled` goes back as what waits does.
    Unsubscribe {
        subscription: u64,
        unhandled: Vec<EventId>,
        reply: Option<Reply<()>>,
    },
    Close(Reply<()>),
}

impl Driver {
    pub(super) fn on_commands(&mut self) {
        let mut taken = std::mem::take(&mut self.taken);
        // Nothing came although it was waited for: no handle is left.
        self.ending |= taken.is_empty();
        let mut acks: HashMap<u64, Settlement> = HashMap::new();
        for command in taken.drain(..) {
            match command {
                // Dropped without an answer: their callers find that the client ends.
                Command::Publish { .. } | Command::Subscribe { .. } if self.closing.is_some() => {}
                Command::Publish { topic, events, batch, reply, room } => {
                    let unconfirmed = Unconfirmed::new(topic, events, batch, reply, room);
                    let frame = self.pending.publish(unconfirmed);
                    self.outgoing.push_back(frame);
                }
                Command::Subscribe { topics, mailbox, reply } => self.on_subscribe(topics, mailbox, reply),
                Command::Settle(ack @ Settlement { how: How::Ack, .. }) => match acks.entry(ack.subscription) {
                    Entry::Occupied(mut first) => first.get_mut().items.extend(ack.items),
                    Entry::Vacant(first) => drop(first.insert(ack)),
                },
                Command::Settle(settlement) => self.settle(settlement),
                Command::Hold { subscription, held, reply } => self.on_hold(subscription, held, reply),
                // Looked at below.
                Command::Resume => {}
                Command::Halt { subscription, reply } => self.halt(subscription, Vec::new(), Some(reply)),
                Command::Unsubscribe { subscription, unhandled, reply } => self.leave(subscription, unhandled, reply),
                Command::Close(reply) => self.on_close(reply),
            }
        }
        self.taken = taken;
        acks.into_values().for_each(|acks| self.settle(acks));
        self.resume();
        // A queue that was full may have swallowed the goodbye of a subscription that was dropped.
        let dropped = |(_, one): &(&u64, &Subscribed)| one.leaving.is_none() && one.deliveries.is_abandoned();
        let gone: Vec<u64> = self.subscriptions.iter().filter(dropped).map(|(number, _)| *number).collect();
        gone.into_iter().for_each(|number| self.leave(number, Vec::new(), None));
    }

    /// Sends answers to deliveries, or keeps them while the hub has no room for any.
    pub(super) fn settle(&mut self, settlement: Settlement) {
        let Some(subscribed) = self.subscriptions.get(&settlement.subscription) else {
            return settlement.reply(&Err(Error::Lost));
        };
        if self.refused.due().is_some() && subscribed.topics.group.is_some() {
            return self.refused.add(settlement);
        }
        let frame = self.pending.answers(settlement, &subscribed.topics);
        self.outgoing.extend(frame);
    }

    pub(super) fn on_subscribe(&mut self, topics: Topics, mailbox: Mailbox, reply: Reply<Subscription>) {
        let name = topics.name();
        self.drop_unwanted(&name);
        let known = self.by_name.get(&name).and_then(|number| self.subscriptions.get_mut(number));
        if let Some(known) = known {
            let wanted = Wanted { topics, mailbox, reply };
            let refused = match &mut known.leaving {
                Some(leaving) => leaving.then(wanted),
                None => Some(wanted),
            };
            let Some(Wanted { reply, .. }) = refused else { return };
            let code = Code::AlreadySubscribed.as_str().to_owned();
            let message = "this client has that subscription already".to_owned();
            let _ = reply.send(Err(Error::Refused { code, message, retry_after: None }));
            return;
        }
        self.next_subscription += 1;
        let number = self.next_subscription;
        let (deliveries, reader) = queue(topics.options.over_the_wire().max_in_flight);
        let subscription = Subscription { number, deliveries: reader, mailbox: mailbox.clone() };
        let opening = Some((reply, subscription));
        let single = matches!(Selector::parse(&topics.topic), Ok(Selector::Topic(_)));
        let resumable = topics.group.is_none() && single && topics.options.topics.is_empty();
        let subscribed = Subscribed {
            topics,
            deliveries,
            mailbox,
            opening,
            resumable,
            last: None,
            resume: None,
            began: false,
            restarted: false,
            paused: false,
            held: false,
            live: false,
            leaving: None,
        };
        self.by_name.insert(name, number);
        self.subscriptions.insert(number, subscribed);
        let frame = self.subscribe_frame(number);
        self.outgoing.extend(frame);
    }

    pub(super) fn subscribe_frame(&mut self, number: u64) -> Option<Message> {
        let Self { subscriptions, pending, .. } = self;
        let subscribed = subscriptions.get_mut(&number)?;
        let Subscribed { topics: Topics { topic, group, options }, opening, last, resume, began, restarted, .. } =
            subscribed;
        let mut wire = options.over_the_wire();
        match (&*resume, &*last) {
            (Some(resume), _) => wire.resume = Some(resume.clone()),
            (_, Some(id)) => (wire.from, wire.resume) = (From::AfterId(*id), None),
            _ if group.is_none() => *restarted |= *began && wire.from == From::Snapshot,
            // Its position outranks this on every topic that it has read; a topic that appeared meanwhile has none.
            _ if opening.is_none() && wire.from != From::Snapshot => wire.from = From::Earliest,
            _ => {}
        }
        let ask = Ask::Subscribe { subscription: number };
        Some(pending.ask(ask, |out, corr| ask::subscribe(out, corr, topic, group.as_ref(), &wire, true)))
    }

    /// Begins the end: subscriptions are left, those with handlers when these are through.
    fn on_close(&mut self, reply: Reply<()>) {
        self.closing = Some(reply);
        let numbers: Vec<u64> = self.subscriptions.keys().copied().collect();
        for number in numbers {
            let Some(subscribed) = self.subscriptions.get(&number) else { continue };
            if subscribed.deliveries.has_handlers() {
                let unhandled = subscribed.deliveries.halt();
                self.halt(number, unhandled, None);
            } else {
                self.leave(number, Vec::new(), None);
            }
        }
    }

    /// Leaves a subscription whose caller was dropped before the hub granted it, so that its name is free.
    fn drop_unwanted(&mut self, name: &str) {
        let Some(&number) = self.by_name.get(name) else { return };
        let unwanted = |one: &Subscribed| one.opening.as_ref().is_some_and(|(reply, _)| reply.is_closed());
        if self.subscriptions.get(&number).is_some_and(unwanted) {
            self.leave(number, Vec::new(), None);
        }
    }

    /// Makes the hub pause a subscription, or go on with it.
    pub(super) fn tell_hold(&mut self, number: u64, reply: Option<Reply<()>>) {
        let Self { subscriptions, pending, outgoing, .. } = self;
        let Some(Subscribed { topics, held, paused, live, .. }) = subscriptions.get(&number) else {
            reply.into_iter().for_each(|reply| drop(reply.send(Err(Error::Lost))));
            return;
        };
        if !live {
            // The hub is told when it has the subscription.
            reply.into_iter().for_each(|reply| drop(reply.send(Ok(()))));
            return;
        }
        let Topics { topic, group, .. } = topics;
        // A tail whose reader is behind stays paused, whoever asks to go on: `resume` goes on when it has caught up.
        let write = if *held || *paused { ask::pause } else { ask::resume };
        let ask = Ask::Hold { subscription: number, reply };
        outgoing.push_back(pending.ask(ask, |out, corr| write(out, corr, topic, group.as_ref())));
    }

    fn on_hold(&mut self, number: u64, held: bool, reply: Reply<()>) {
        match self.subscriptions.get_mut(&number) {
            Some(subscribed) => subscribed.held = held,
            None => return drop(reply.send(Err(Error::Lost))),
        }
        self.tell_hold(number, Some(reply));
    }

    /// Goes on with subscriptions whose reader has caught up.
    fn resume(&mut self) {
        let few = |one: &Subscribed| one.topics.group.is_some() || one.deliveries.len() < PAUSE_AT / 2;
        let light = |one: &Subscribed| one.deliveries.bytes() <= PAUSE_BYTES / 2;
        let caught_up = |one: &Subscribed| one.paused && !one.held && few(one) && light(one);
        let numbers: Vec<u64> =
            self.subscriptions.iter().filter(|(_, one)| caught_up(one)).map(|(number, _)| *number).collect();
        for number in numbers {
            if let Some(subscribed) = self.subscriptions.get_mut(&number) {
                subscribed.paused = false;
            }
            self.tell_hold(number, None);
        }
    }
}
