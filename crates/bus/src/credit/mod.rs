//! The account of what a subscriber or a connection may hold: take, give back, wait.
//!
//! Pure: no lock, no runtime. One account counts one thing (events of a subscriber, bytes of a connection) for all its
//! holders (the topics of a pattern, relays, tails). Invariants:
//! - `used` is the sum of what the holders have; only [`Account::put`] takes it beyond the limit;
//! - a holder that got nothing waits; the one that waits longest is called first, and one unit stays set aside for it
//!   until it takes;
//! - no holder waits while there is free credit, once [`Account::call`] has returned `None`.

#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

use foldhash::fast::RandomState;

/// An account with a limit. Bounded by its holders: one without credit that does not wait has no entry.
#[derive(Debug)]
pub(crate) struct Account<H> {
    limit: usize,
    used: usize,
    holders: HashMap<H, Held, RandomState>,
    line: VecDeque<H>,
    /// Units set aside, one for each holder that was called.
    called: usize,
}

/// The units of a holder.
#[derive(Debug, Default)]
struct Held {
    amount: usize,
    turn: Turn,
}

/// A holder's place in the line.
#[derive(Debug, Default, PartialEq, Eq)]
enum Turn {
    #[default]
    None,
    Waits,
    /// A unit is set aside for it.
    Called,
}

impl<H: Clone + Eq + Hash> Account<H> {
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, used: 0, holders: HashMap::default(), line: VecDeque::new(), called: 0 }
    }

    /// The units of all holders.
    #[cfg(test)]
    pub(crate) fn used(&self) -> usize {
        self.used
    }

    fn free(&self) -> usize {
        self.limit.saturating_sub(self.used + self.called)
    }

    /// The units that a holder could take, with the unit that is set aside for it.
    pub(crate) fn available(&self, holder: &H) -> usize {
        let called = self.holders.get(holder).is_some_and(|held| held.turn == Turn::Called);
        self.limit.saturating_sub(self.used + self.called - usize::from(called))
    }

    /// The units of a holder.
    pub(crate) fn of(&self, holder: &H) -> usize {
        self.holders.get(holder).map_or(0, |held| held.amount)
    }

    /// Takes up to `want` more for a holder. Where there is nothing, the holder waits until it is called.
    pub(crate) fn take(&mut self, holder: &H, want: usize) -> usize {
        let taken = self.try_take(holder, want);
        if taken == 0 && want > 0 {
            self.wait(holder);
        }
        taken
    }

    /// Takes up to `want` more for a holder, which does not wait where there is nothing.
    pub(crate) fn try_take(&mut self, holder: &H, want: usize) -> usize {
        self.end_call(holder);
        let taken = want.min(self.free());
        self.put(holder, taken);
        taken
    }

    /// Gives a holder `amount` more, whether there is room or not.
    pub(crate) fn put(&mut self, holder: &H, amount: usize) {
        if amount > 0 {
            self.used += amount;
            self.holders.entry(holder.clone()).or_default().amount += amount;
        }
    }

    /// Gives a holder `amount` more if there is room for it, or if the account is not over its limit yet: so that one
    /// delivery goes beyond the limit, and never two.
    pub(crate) fn stretch(&mut self, holder: &H, amount: usize) -> bool {
        let may = self.used <= self.limit;
        if may {
            self.put(holder, amount);
        }
        may
    }

    /// Has a holder wait for its turn.
    pub(crate) fn wait(&mut self, holder: &H) {
        let held = self.holders.entry(holder.clone()).or_default();
        if held.turn == Turn::None {
            held.turn = Turn::Waits;
            self.line.push_back(holder.clone());
        }
    }

    /// Gives back what a holder has beyond `amount`.
    pub(crate) fn keep(&mut self, holder: &H, amount: usize) {
        let Some(held) = self.holders.get_mut(holder) else { return };
        self.used -= held.amount.saturating_sub(amount);
        held.amount = held.amount.min(amount);
        self.forget(holder);
    }

    /// Gives back `amount` of what a holder has.
    pub(crate) fn give_back(&mut self, holder: &H, amount: usize) {
        self.keep(holder, self.of(holder).saturating_sub(amount));
    }

    /// Gives back all that a holder has; it waits no longer.
    pub(crate) fn leave(&mut self, holder: &H) {
        self.end_call(holder);
        let Some(held) = self.holders.remove(holder) else { return };
        self.used -= held.amount;
        if held.turn == Turn::Waits {
            self.line.retain(|this| this != holder);
        }
    }

    /// Calls the holder that waits longest, where there is credit for it. To be asked after each change until it returns
    /// `None`; a holder that is called takes in its turn, be it nothing.
    pub(crate) fn call(&mut self) -> Option<H> {
        if self.line.is_empty() || self.free() == 0 {
            return None;
        }
        let holder = self.line.pop_front()?;
        self.holders.entry(holder.clone()).or_default().turn = Turn::Called;
        self.called += 1;
        Some(holder)
    }

    fn end_call(&mut self, holder: &H) {
        if let Some(held) = self.holders.get_mut(holder)
            && held.turn == Turn::Called
        {
            held.turn = Turn::None;
            self.called -= 1;
            self.forget(holder);
        }
    }

    fn forget(&mut self, holder: &H) {
        if self.holders.get(holder).is_some_and(|held| held.amount == 0 && held.turn == Turn::None) {
            self.holders.remove(holder);
        }
    }
}
