//! The account against a model: random histories of topics, relays and tails that share what a subscriber and its
//! connection may hold.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proptest::prelude::*;

use super::Account;

/// Topics and relays of three subscribers on one connection.
const HOLDERS: u8 = 12;
const SUBSCRIBERS: u8 = 3;

#[derive(Debug, Clone)]
enum Op {
    /// A topic takes events and then bytes, and waits where there are none.
    Take { holder: u8, events: usize, bytes: usize },
    /// A relay brings deliveries: what fits is taken, and it waits where something did not.
    Bring { holder: u8, events: usize, bytes: usize },
    /// A delivery larger than what is left is pushed.
    Overdraw { holder: u8, bytes: usize },
    /// One delivery goes beyond the limit, if none does already.
    Stretch { holder: u8, bytes: usize },
    /// Deliveries are answered, or written to the client.
    GiveBack { holder: u8, events: usize, bytes: usize },
    /// The holder has only so much left: what it did not use goes back.
    Keep { holder: u8, events: usize, bytes: usize },
    /// A topic is left, or its relay is lost.
    Leave { holder: u8 },
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let (holder, events, bytes) = (0..HOLDERS, 0_usize..8, 0_usize..40);
    let all = (holder, events, bytes);
    let op = prop_oneof![
        5 => all.clone().prop_map(|(holder, events, bytes)| Op::Take { holder, events, bytes }),
        2 => all.clone().prop_map(|(holder, events, bytes)| Op::Bring { holder, events, bytes }),
        1 => all.clone().prop_map(|(holder, _, bytes)| Op::Overdraw { holder, bytes }),
        2 => all.clone().prop_map(|(holder, _, bytes)| Op::Stretch { holder, bytes }),
        4 => all.clone().prop_map(|(holder, events, bytes)| Op::GiveBack { holder, events, bytes }),
        3 => all.clone().prop_map(|(holder, events, bytes)| Op::Keep { holder, events, bytes }),
        1 => all.prop_map(|(holder, ..)| Op::Leave { holder }),
    ];
    proptest::collection::vec(op, 1..120)
}

/// A model of an account, written without regard to speed.
#[derive(Default)]
struct Model {
    limit: usize,
    amounts: BTreeMap<u8, usize>,
    line: VecDeque<u8>,
    called: BTreeSet<u8>,
}

impl Model {
    fn used(&self) -> usize {
        self.amounts.values().sum()
    }

    fn free(&self) -> usize {
        self.limit.saturating_sub(self.used() + self.called.len())
    }

    fn try_take(&mut self, holder: u8, want: usize) -> usize {
        self.called.remove(&holder);
        let taken = want.min(self.free());
        *self.amounts.entry(holder).or_default() += taken;
        taken
    }

    fn wait(&mut self, holder: u8) {
        if !self.called.contains(&holder) && !self.line.contains(&holder) {
            self.line.push_back(holder);
        }
    }

    fn keep(&mut self, holder: u8, amount: usize) {
        let held = self.amounts.entry(holder).or_default();
        *held = amount.min(*held);
    }

    fn leave(&mut self, holder: u8) {
        self.amounts.remove(&holder);
        self.called.remove(&holder);
        self.line.retain(|this| *this != holder);
    }

    fn call(&mut self) -> Option<u8> {
        let holder = if self.free() > 0 { self.line.pop_front()? } else { return None };
        self.called.insert(holder);
        Some(holder)
    }
}

/// An account beside its model.
struct Pair {
    account: Account<u8>,
    model: Model,
}

impl Pair {
    fn new(limit: usize) -> Self {
        Self { account: Account::new(limit), model: Model { limit, ..Model::default() } }
    }

    fn take(&mut self, holder: u8, want: usize, waits: bool) -> usize {
        let taken = if waits { self.account.take(&holder, want) } else { self.account.try_take(&holder, want) };
        assert_eq!(taken, self.model.try_take(holder, want));
        if waits && taken == 0 && want > 0 {
            self.model.wait(holder);
        }
        self.check();
        taken
    }

    fn wait(&mut self, holder: u8) {
        self.account.wait(&holder);
        self.model.wait(holder);
        self.check();
    }

    fn keep(&mut self, holder: u8, amount: usize) {
        self.account.keep(&holder, amount);
        self.model.keep(holder, amount);
        self.check();
    }

    fn give_back(&mut self, holder: u8, amount: usize) {
        let left = self.account.of(&holder).saturating_sub(amount);
        self.account.give_back(&holder, amount);
        self.model.keep(holder, left);
        self.check();
    }

    fn overdraw(&mut self, holder: u8, amount: usize) {
        self.account.put(&holder, amount);
        *self.model.amounts.entry(holder).or_default() += amount;
        self.check();
    }

    fn leave(&mut self, holder: u8) {
        self.account.leave(&holder);
        self.model.leave(holder);
        self.check();
    }

    /// Wakes those whose turn it is; the rest of the histories decides when they take.
    fn check(&mut self) {
        while let Some(holder) = self.account.call() {
            assert_eq!(Some(holder), self.model.call(), "the one that waits longest");
        }
        assert_eq!(self.model.call(), None, "nobody waits while there is free credit");
        assert_eq!((self.account.used(), self.account.free()), (self.model.used(), self.model.free()));
        for holder in 0..HOLDERS {
            assert_eq!(self.account.of(&holder), self.model.amounts.get(&holder).copied().unwrap_or(0));
        }
        let live = (0..HOLDERS).filter(|holder| {
            let model = &self.model;
            self.account.of(holder) > 0 || model.line.contains(holder) || model.called.contains(holder)
        });
        assert_eq!(self.account.holders.len(), live.count(), "an entry for each holder that has or wants something");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn an_account_keeps_its_promises_whatever_happens(
        ops in ops(),
        limit in 1_usize..12,
        bytes in 1_usize..100,
    ) {
        let mut connection = Pair::new(bytes);
        let mut subscribers: Vec<Pair> = (0..SUBSCRIBERS).map(|_| Pair::new(limit)).collect();
        for op in ops {
            let (Op::Take { holder, .. }
            | Op::Bring { holder, .. }
            | Op::Overdraw { holder, .. }
            | Op::Stretch { holder, .. }
            | Op::GiveBack { holder, .. }
            | Op::Keep { holder, .. }
            | Op::Leave { holder }) = op;
            let subscriber = &mut subscribers[usize::from(holder % SUBSCRIBERS)];
            match op {
                Op::Take { events, bytes, .. } => {
                    let has = subscriber.account.of(&holder);
                    let taken = subscriber.take(holder, events, true);
                    if taken > 0 && connection.take(holder, bytes, true) == 0 {
                        subscriber.keep(holder, has);
                    }
                }
                Op::Bring { events, bytes, .. } => {
                    if subscriber.take(holder, events, false) < events {
                        subscriber.wait(holder);
                    }
                    if connection.take(holder, bytes, false) < bytes {
                        connection.wait(holder);
                    }
                }
                Op::Overdraw { bytes, .. } => connection.overdraw(holder, bytes),
                Op::Stretch { bytes, .. } => {
                    let before = connection.model.used();
                    let stretched = connection.account.stretch(&holder, bytes);
                    assert_eq!(stretched, before <= connection.model.limit, "never two beyond the limit");
                    *connection.model.amounts.entry(holder).or_default() += if stretched { bytes } else { 0 };
                    connection.check();
                }
                Op::GiveBack { events, bytes, .. } => {
                    subscriber.give_back(holder, events);
                    connection.give_back(holder, bytes);
                }
                Op::Keep { events, bytes, .. } => {
                    subscriber.keep(holder, events);
                    connection.keep(holder, bytes);
                }
                Op::Leave { .. } => {
                    subscriber.leave(holder);
                    connection.leave(holder);
                }
            }
        }
        for pair in subscribers.iter_mut().chain([&mut connection]) {
            finish(pair);
        }
    }
}

/// Everyone gives back what it has and takes when it is called: each that waits has its turn, in order.
fn finish(pair: &mut Pair) {
    for holder in 0..HOLDERS {
        pair.keep(holder, 0);
    }
    for _ in 0..2 * u32::from(HOLDERS) {
        for holder in pair.model.called.clone() {
            assert!(pair.take(holder, 1, true) > 0, "a unit was set aside for it");
            pair.keep(holder, 0);
        }
    }
    assert!(pair.model.line.is_empty() && pair.model.called.is_empty());
    assert_eq!((pair.account.used(), pair.account.holders.len()), (0, 0));
}

#[test]
fn credit_goes_to_those_who_wait_for_it_in_turn() {
    let mut account = Account::new(4);
    assert_eq!(account.take(&"one", 3), 3);
    assert_eq!((account.take(&"two", 3), account.take(&"two", 1)), (1, 0));
    assert_eq!((account.take(&"two", 1), account.take(&"three", 9)), (0, 0));
    assert_eq!(account.call(), None);

    account.give_back(&"one", 1);
    assert_eq!((account.call(), account.call()), (Some("two"), None), "one unit, one is called");
    assert_eq!(account.take(&"four", 1), 0, "the unit is set aside");
    // It has no use for the unit any more.
    assert_eq!(account.take(&"two", 0), 0);
    assert_eq!(account.call(), Some("three"), "two waits no longer, though it asked twice");
    assert_eq!(account.take(&"three", 9), 1);
}

#[test]
fn a_holder_that_leaves_waits_no_longer_and_what_was_set_aside_for_it_goes_on() {
    let mut account = Account::new(1);
    assert_eq!(account.take(&1, 1), 1);
    assert_eq!((account.take(&2, 1), account.take(&3, 1), account.take(&4, 1)), (0, 0, 0));
    account.leave(&2);
    account.leave(&1);
    assert_eq!((account.call(), account.call()), (Some(3), None));
    account.leave(&3);
    assert_eq!((account.call(), account.used()), (Some(4), 0));
}
