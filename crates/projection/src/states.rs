//! The state of a projection by key, and what of it changed.
//!
//! A change that makes no difference is none. What one event changed is taken back as a whole where the fold refuses
//! the event after all.

use std::borrow::Borrow;
use std::collections::BTreeMap;

use promethean_event::{EventId, Seq, limits};

/// The event a key was changed by; none: a tick.
pub(crate) type Cause = Option<(Seq, EventId)>;

/// The state by key.
#[derive(Debug)]
pub struct States<S> {
    live: BTreeMap<String, S>,
    /// What the event at hand has changed, with what was there before.
    touched: Vec<(String, Option<S>)>,
    /// What is to be published.
    changed: BTreeMap<String, Cause>,
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
        Self { live: BTreeMap::new(), touched: Vec::new(), changed: BTreeMap::new(), most, refused: None }
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

    /// Whether there are none.
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

    /// What was touched counts, unless something of it was refused.
    pub(crate) fn keep(&mut self, cause: Cause) -> Result<(), Refused> {
        if let Some(refused) = self.refused {
            self.take_back();
            return Err(refused);
        }
        for (key, _) in self.touched.drain(..) {
            self.changed.insert(key, cause);
        }
        Ok(())
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
        self.changed.insert(key, None);
    }

    /// What was published last of a key is its state.
    pub(crate) fn settled(&mut self, key: &str) {
        self.changed.remove(key);
    }

    pub(crate) fn changes(&self) -> usize {
        self.changed.len()
    }

    pub(crate) fn take_changes(&mut self) -> BTreeMap<String, Cause> {
        std::mem::take(&mut self.changed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn live(states: &States<u32>) -> Vec<(&str, u32)> {
        states.iter().map(|(key, state)| (key, *state)).collect()
    }

    #[test]
    fn what_makes_no_difference_is_no_change() {
        let mut states = States::new(10);
        states.set("a", 1);
        states.set("b", 2);
        states.keep(None).expect("kept");
        assert_eq!(states.take_changes().len(), 2);
        states.set("a", 1);
        states.remove("c");
        states.keep(None).expect("kept");
        assert_eq!(states.changes(), 0);
        states.remove("b");
        states.set("a", 5);
        states.keep(None).expect("kept");
        assert_eq!(states.take_changes().into_keys().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(live(&states), [("a", 5)]);
    }

    #[test]
    fn what_an_event_touched_is_taken_back_as_a_whole() {
        let mut states = States::new(10);
        states.set("a", 1);
        states.set("b", 2);
        states.keep(None).expect("kept");
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
        states.keep(None).expect("kept");
        states.set("x".repeat(1025), 1);
        assert_eq!(states.keep(None), Err(Refused::BadKey));
        states.set("b", 1);
        states.set("c", 1);
        assert_eq!(states.keep(None), Err(Refused::TooMany));
        assert_eq!(live(&states), [("a", 1)], "nothing of the refused event stays");
        states.set("b", 1);
        assert_eq!(states.keep(None), Ok(()), "a refusal is of one event");
    }
}
