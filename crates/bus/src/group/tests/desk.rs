//! A dispatcher with a log of small events, driven by hand: each test says what happens, and looks at what goes out.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::time::Duration;

use promethean_event::{Draft, Event, EventId, Limits, Millis, Sealer, Seq, Topic, payload_of};
use promethean_store::GroupState;

use super::super::{Answer, Command, Deliver, Dispatcher, MemberId, MemberOptions, Policy, Receipt};

pub(super) struct Desk {
    pub(super) dispatcher: Dispatcher,
    pub(super) now: Millis,
    pub(super) log: Vec<Event>,
    /// The latest event of each key, in key order, as far as it is not read.
    pub(super) snapshot: VecDeque<Event>,
    /// Deliveries so far, in order.
    pub(super) out: Vec<Deliver>,
    /// Dead letters that were asked for.
    pub(super) letters: Vec<Seq>,
    /// Events that were read.
    pub(super) read: usize,
}

impl Desk {
    pub(super) fn new(policy: Policy, max_in_flight: usize) -> Self {
        let mut desk = Self::of(GroupState::default());
        desk.join(1, policy, max_in_flight);
        desk
    }

    pub(super) fn of(state: GroupState) -> Self {
        let dispatcher = Dispatcher::new(state, false, 1_000);
        Self {
            dispatcher,
            now: Millis(1_000_000),
            log: Vec::new(),
            snapshot: VecDeque::new(),
            out: Vec::new(),
            letters: Vec::new(),
            read: 0,
        }
    }

    pub(super) fn join(&mut self, id: MemberId, policy: Policy, max_in_flight: usize) {
        let options = MemberOptions { max_in_flight, ack_timeout: Duration::from_secs(30), batch_size: 1_000 };
        self.dispatcher.on_join(id, options, policy).expect("the same policy");
    }

    pub(super) fn leave(&mut self, id: MemberId) {
        let mut commands = Vec::new();
        self.dispatcher.on_leave(id, self.now, &mut commands);
        commands.into_iter().for_each(|command| self.carry_out(command, &mut Vec::new()));
    }

    pub(super) fn publish(&mut self, key: Option<&str>) -> Seq {
        let seq = self.log.last().map_or(1, |event| event.seq + 1);
        let mut draft = Draft::new(Topic::parse("t").expect("a topic"), Cow::Owned(payload_of(&seq).expect("JSON")));
        draft.options.key = key.map(|key| Cow::Owned(key.to_owned()));
        let mut sealer = Sealer::new(Limits::default());
        sealer.seal(&draft, id(seq), self.now, 16, 0).expect("valid");
        self.log.push(sealer.finish().remove(0).at(seq));
        self.dispatcher.on_tail(seq);
        seq
    }

    pub(super) fn publish_many(&mut self, count: usize, key: Option<&str>) {
        for _ in 0..count {
            self.publish(key);
        }
    }

    /// Carries commands out until there are none; returns the seqs that went out.
    pub(super) fn run(&mut self) -> Vec<Seq> {
        let (before, mut commands) = (self.out.len(), Vec::new());
        loop {
            self.dispatcher.poll(self.now, &mut commands);
            if commands.is_empty() {
                return self.out[before..].iter().map(|deliver| deliver.seq).collect();
            }
            for command in std::mem::take(&mut commands) {
                self.carry_out(command, &mut commands);
            }
        }
    }

    fn carry_out(&mut self, command: Command, commands: &mut Vec<Command>) {
        match command {
            Command::Read { from, max, .. } => {
                let first = self.log.partition_point(|event| event.seq < from);
                let end = self.log.len().min(first + max);
                self.read += end - first;
                self.dispatcher.on_read(from, &self.log[first..end], self.now, commands);
            }
            Command::ReadSnapshot { max } => {
                let part: Vec<Event> = self.snapshot.drain(..max.min(self.snapshot.len())).collect();
                let left = if part.is_empty() { self.dispatcher.left_of_snapshot(max) } else { Vec::new() };
                if left.is_empty() {
                    self.dispatcher.on_snapshot(&part, self.now, commands);
                } else {
                    let found: Vec<Event> = self.log.iter().filter(|one| left.contains(&one.seq)).cloned().collect();
                    self.dispatcher.on_left_of_snapshot(&left, &found, self.now, commands);
                }
            }
            Command::Deliver(deliver) => self.out.push(deliver),
            Command::DeadLetter(letter) => self.letters.push(letter.seq),
        }
    }

    pub(super) fn answer(&mut self, by: MemberId, seq: Seq, lease: Option<u64>, answer: &Answer) -> Receipt {
        let mut commands = Vec::new();
        let receipt = self.dispatcher.on_answer(by, id(seq), lease, answer, self.now, &mut commands);
        for command in commands {
            self.carry_out(command, &mut Vec::new());
        }
        receipt
    }

    /// Acks as the runner does: one that is not in flight counts by its place.
    pub(super) fn ack(&mut self, seq: Seq) {
        if self.answer(1, seq, None, &Answer::Ack) == Receipt::NotInFlight {
            self.dispatcher.on_late_ack(seq, id(seq), Millis(0));
        }
    }

    pub(super) fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
    }

    pub(super) fn lease_of(&self, seq: Seq) -> Option<u64> {
        self.out.iter().rev().find(|deliver| deliver.seq == seq).map(|deliver| deliver.lease)
    }
}

pub(super) fn id(seq: Seq) -> EventId {
    EventId::derived(&[&seq.to_le_bytes()])
}

pub(super) fn nack(delay: Option<Duration>) -> Answer {
    Answer::Nack { reason: Some("no".to_owned()), delay, release: false }
}
