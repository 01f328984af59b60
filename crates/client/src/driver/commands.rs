//! What handles ask: each command becomes a frame, acks that come together share one.

use std::collections::HashMap;
use std::time::Duration;

use promethean_event::frame::ask::{self, GiveBack};
use promethean_event::{Code, EventId, From, Selector, SubscribeOptions, Topic};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tokio_tungstenite::tungstenite::Message;

use super::leave::Wanted;
use super::{Driver, Subscribed, Topics};
use crate::pending::{Ask, Reply, Unconfirmed};
use crate::queue::queue;
use crate::subscription::PAUSE_AT;
use crate::{Error, Publish, Published, Subscription};

/// What a handle asks of the driver.
pub(crate) enum Command {
    Publish {
        topic: Topic,
        events: Vec<Publish>,
        batch: bool,
        reply: Reply<Vec<Published>>,
        permit: OwnedSemaphorePermit,
    },
    Subscribe {
        topics: Topics,
        commands: mpsc::Sender<Command>,
        reply: Reply<Subscription>,
    },
    Settle {
        subscription: u64,
        id: EventId,
        how: Settle,
        reply: Reply<()>,
    },
    /// The reader wants a pause, or its end.
    Hold {
        subscription: u64,
        held: bool,
        reply: Reply<()>,
    },
    /// The reader of a tail has caught up.
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
    Close(oneshot::Sender<()>),
}

/// An answer to a delivery.
pub(crate) enum Settle {
    Ack,
    /// With the number of its lease.
    Fenced(u64),
    Nack(GiveBack),
    Extend(Duration),
}

impl Driver {
    pub(super) fn on_commands(&mut self) {
        let mut taken = std::mem::take(&mut self.taken);
        // Nothing came although it was waited for: no handle is left.
        self.ending |= taken.is_empty();
        let mut acks: HashMap<u64, (Vec<EventId>, Vec<Reply<()>>)> = HashMap::new();
        for command in taken.drain(..) {
            match command {
                Command::Publish { topic, events, batch, reply, permit } => {
                    let unconfirmed = Unconfirmed::new(topic, events, batch, reply, permit);
                    let frame = self.pending.publish(unconfirmed);
                    self.outgoing.push_back(frame);
                }
                Command::Subscribe { topics, commands, reply } => self.on_subscribe(topics, commands, reply),
                Command::Settle { subscription, id, how: Settle::Ack, reply } => {
                    let (ids, replies) = acks.entry(subscription).or_default();
                    ids.push(id);
                    replies.push(reply);
                }
                Command::Settle { subscription, id, how, reply } => self.on_settle(subscription, id, how, reply),
                Command::Hold { subscription, held, reply } => self.on_hold(subscription, held, reply),
                // Looked at below.
                Command::Resume => {}
                Command::Halt { subscription, reply } => self.halt(subscription, reply),
                Command::Unsubscribe { subscription, unhandled, reply } => self.leave(subscription, unhandled, reply),
                Command::Close(reply) => {
                    let numbers: Vec<u64> = self.subscriptions.keys().copied().collect();
                    numbers.into_iter().for_each(|number| self.leave(number, Vec::new(), None));
                    self.closing = Some(reply);
                    self.ending = true;
                }
            }
        }
        self.taken = taken;
        for (number, (ids, replies)) in acks {
            self.ack(number, ids, replies);
        }
        self.resume();
        // A queue that was full may have swallowed the goodbye of a subscription that was dropped.
        let dropped = |(_, one): &(&u64, &Subscribed)| one.leaving.is_none() && one.deliveries.is_abandoned();
        let gone: Vec<u64> = self.subscriptions.iter().filter(dropped).map(|(number, _)| *number).collect();
        gone.into_iter().for_each(|number| self.leave(number, Vec::new(), None));
    }

    pub(super) fn ack(&mut self, number: u64, ids: Vec<EventId>, replies: Vec<Reply<()>>) {
        match self.subscriptions.get(&number) {
            Some(subscribed) => {
                let frame = self.pending.ack(number, &subscribed.topics, ids, replies);
                self.outgoing.extend(frame);
            }
            None => replies.into_iter().for_each(|reply| drop(reply.send(Err(Error::Lost)))),
        }
    }

    pub(super) fn on_subscribe(&mut self, topics: Topics, commands: mpsc::Sender<Command>, reply: Reply<Subscription>) {
        let name = topics.name();
        let known = self.by_name.get(&name).and_then(|number| self.subscriptions.get_mut(number));
        if let Some(known) = known {
            let wanted = Wanted { topics, commands, reply };
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
        let (deliveries, reader) = queue(topics.options.max_in_flight);
        let subscription = Subscription { number, deliveries: reader, commands: commands.clone() };
        let opening = Some((reply, subscription));
        let single = matches!(Selector::parse(&topics.topic), Ok(Selector::Topic(_)));
        let resumable = topics.group.is_none() && single && topics.options.topics.is_empty();
        let subscribed = Subscribed {
            topics,
            deliveries,
            commands,
            opening,
            resumable,
            last: None,
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
        let Subscribed { topics: Topics { topic, group, options }, last, began, restarted, .. } = subscribed;
        let resumed;
        let options = match last {
            Some(id) => {
                resumed = SubscribeOptions { from: From::AfterId(*id), ..options.clone() };
                &resumed
            }
            None => {
                // With a group the hub goes on with what is left of it.
                *restarted |= *began && group.is_none() && options.from == From::Snapshot;
                options
            }
        };
        let ask = Ask::Subscribe { subscription: number };
        Some(pending.ask(ask, |out, corr| ask::subscribe(out, corr, topic, group.as_ref(), options, true)))
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

    fn on_settle(&mut self, number: u64, id: EventId, how: Settle, reply: Reply<()>) {
        let Some(Subscribed { topics, .. }) = self.subscriptions.get(&number) else {
            let _ = reply.send(Err(Error::Lost));
            return;
        };
        let frame = match (how, &topics.group) {
            (Settle::Nack(how), _) => self.pending.nack(topics, id, &how, reply),
            (Settle::Extend(by), Some(group)) => {
                let write = |out: &mut Vec<u8>, corr| ask::modack(out, corr, &topics.topic, group, &[id], by);
                Some(self.pending.ask(Ask::Extend { reply }, write))
            }
            (Settle::Fenced(lease), Some(group)) => {
                let write = |out: &mut Vec<u8>, corr| ask::ack_fenced(out, corr, &topics.topic, group, id, lease);
                Some(self.pending.ask(Ask::Extend { reply }, write))
            }
            (Settle::Ack | Settle::Fenced(_) | Settle::Extend(_), _) => {
                let _ = reply.send(Ok(()));
                None
            }
        };
        self.outgoing.extend(frame);
    }

    /// Goes on with tails whose reader has caught up.
    fn resume(&mut self) {
        let caught_up = |one: &Subscribed| one.paused && !one.held && one.deliveries.len() < PAUSE_AT / 2;
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
