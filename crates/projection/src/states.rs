//! The state of a projection by key, and what of it changed.
//!
//! A change that makes no difference is none. What one event changed is taken back as a whole where the fold refuses
//! the event after all.

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};

use promethean_event::{EventId, Seq, limits};

/// The event a key was changed by; none: a tick.
pub(crate) type Cause = Option<(Seq, EventId)>;

/// A key that is to be published.
#[derive(Debug)]
struct Changed {
    cause: Cause,
    bytes: usize,
}

/// What one event, or one tick, has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Extent {
    /// Keys.
    pub(crate) keys: usize,
    /// The sum of their sizes.
    pub(crate) bytes: usize,
}

/// The state by key.
#[derive(Debug)]
pub struct States<S> {
    live: BTreeMap<String, S>,
    /// What the event at hand has changed, with what was there before.
    touched: Vec<(String, Option<S>)>,
    /// What is to be published.
    changed: BTreeMap<String, Changed>,
    /// The sum of its sizes.
    bytes: usize,
    most: usize,
    refused: Option<Refused>,
}

/// Why the event at hand cannot count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    /// There would be more keys than may be.
    TooMany,
    /// A key that no event may have.
    BadKey,
}

impl<S: PartialEq> States<S> {
    pub(crate) fn new(most: usize) -> Self {
        let (live, changed) = (BTreeMap::new(), BTreeMap::new());
        Self { live, touched: Vec::new(), changed, bytes: 0, most, refused: None }
    }

    /// The state of a key.
    pub fn get(&self, key: &str) -> Option<&S> {
        self.live.get(key)
    }

    /// All keys with their states, in the order of the keys.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &S)> {
        self.live.iter().map(|(key, state)| (key.as_str(), state))
    }

    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.live.len()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.live.is_empty()
    }

    /// Gives a key a state.
    pub fn set(&mut self, key: impl Into<String> + Borrow<str>, state: S) {
        match self.live.get(key.borrow()) {
            Some(same) if *same == state => return,
            None if self.live.len() >= self.most => return self.refused = Some(Refused::TooMany),
            None if key.borrow().len() > limits::MAX_KEY_BYTES => return self.refused = Some(Refused::BadKey),
            _ => {}
        }
        let key = key.into();
        let before = self.live.insert(key.clone(), state);
        self.touched.push((key, before));
    }

    /// Removes a key: a tombstone is published for it.
    pub fn remove(&mut self, key: &str) {
        if let Some((key, state)) = self.live.remove_entry(key) {
            self.touched.push((key, Some(state)));
        }
    }

    /// Takes a state over as it was published.
    pub(crate) fn restore(&mut self, key: String, state: Option<S>) {
        match state {
            Some(state) => drop(self.live.insert(key, state)),
            None => drop(self.live.remove(&key)),
        }
    }

    /// What was touched counts, unless something of it was refused. `size` says how large a key is with its state.
    pub(crate) fn keep(&mut self, cause: Cause, size: impl Fn(&str, Option<&S>) -> usize) -> Result<Extent, Refused> {
        if let Some(refused) = self.refused {
            self.take_back();
            return Err(refused);
        }
        let touched: BTreeSet<String> = self.touched.drain(..).map(|(key, _)| key).collect();
        let mut extent = Extent { keys: touched.len(), bytes: 0 };
        for key in touched {
            let bytes = size(&key, self.live.get(&key));
            extent.bytes += bytes;
            self.change(key, Changed { cause, bytes });
        }
        Ok(extent)
    }

    fn change(&mut self, key: String, changed: Changed) {
        self.bytes += changed.bytes;
        if let Some(before) = self.changed.insert(key, changed) {
            self.bytes -= before.bytes;
        }
    }

    /// What was touched does not count.
    pub(crate) fn take_back(&mut self) {
        self.refused = None;
        for (key, before) in self.touched.drain(..).rev() {
            match before {
                Some(state) => drop(self.live.insert(key, state)),
                None => drop(self.live.remove(&key)),
            }
        }
    }

    /// What was published of a key is not its state, or may not be the last word: it is to be published once more.
    pub(crate) fn again(&mut self, key: String) {
        self.change(key, Changed { cause: None, bytes: 0 });
    }

    /// What was published last of a key is its state.
    pub(crate) fn settled(&mut self, key: &str) {
        if let Some(settled) = self.changed.remove(key) {
            self.bytes -= settled.bytes;
        }
    }

    pub(crate) fn changes(&self) -> usize {
        self.changed.len()
    }

    /// How large they are together.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn take_changes(&mut self) -> BTreeMap<String, Cause> {
        self.bytes = 0;
        std::mem::take(&mut self.changed).into_iter().map(|(key, changed)| (key, changed.cause)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn live(states: &States<u32>) -> Vec<(&str, u32)> {
        states.iter().map(|(key, state)| (key, *state)).collect()
    }

    /// A state has the size that it says.
    fn keep(states: &mut States<u32>) -> Result<Extent, Refused> {
        states.keep(None, |key, state| key.len() + state.map_or(0, |state| *state as usize))
    }

    #[test]
    fn what_makes_no_difference_is_no_change() {
        let mut states = States::new(10);
        states.set("a", 1);
        states.set("b", 2);
        keep(&mut states).expect("kept");
        assert_eq!(states.take_changes().len(), 2);
        states.set("a", 1);
        states.remove("c");
        keep(&mut states).expect("kept");
        assert_eq!(states.changes(), 0);
        states.remove("b");
        states.set("a", 5);
        keep(&mut states).expect("kept");
        assert_eq!(states.take_changes().into_keys().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(live(&states), [("a", 5)]);
    }

    #[test]
    fn what_an_event_touched_is_taken_back_as_a_whole() {
        let mut states = States::new(10);
        states.set("a", 1);
        states.set("b", 2);
        keep(&mut states).expect("kept");
        states.take_changes();
        states.set("a", 3);
        states.set("a", 4);
        states.remove("b");
        states.set("c", 9);
        states.take_back();
        assert_eq!((live(&states), states.changes()), (vec![("a", 1), ("b", 2)], 0));
    }

    #[test]
    fn there_are_no_more_keys_than_there_may_be_and_no_bad_ones() {
        let mut states = States::new(2);
        states.set("a", 1);
        keep(&mut states).expect("kept");
        states.set("x".repeat(1025), 1);
        assert_eq!(keep(&mut states), Err(Refused::BadKey));
        states.set("b", 1);
        states.set("c", 1);
        assert_eq!(keep(&mut states), Err(Refused::TooMany));
        assert_eq!(live(&states), [("a", 1)], "nothing of the refused event stays");
        states.set("b", 4);
        assert_eq!(keep(&mut states), Ok(Extent { keys: 1, bytes: 5 }), "a refusal is of one event");
    }

    #[test]
    fn how_large_the_changes_are_is_the_sum_of_what_each_key_has_last() {
        let mut states = States::new(10);
        for (key, state, bytes) in [("a", 100, 101), ("b", 50, 152), ("a", 10, 62), ("a", 10, 62)] {
            states.set(key, state);
            keep(&mut states).expect("kept");
            assert_eq!(states.bytes(), bytes, "{key} is {state}");
        }
        states.remove("b");
        keep(&mut states).expect("kept");
        assert_eq!(states.bytes(), 12);
        states.settled("b");
        states.again("a".to_owned());
        assert_eq!((states.bytes(), states.changes()), (0, 1));
        states.set("c", 1);
        keep(&mut states).expect("kept");
        states.take_changes();
        assert_eq!(states.bytes(), 0);
    }
}
