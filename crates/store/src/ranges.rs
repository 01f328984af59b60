//! A set of seqs as ranges: what is done above the floor.
//!
//! Invariant: ranges are ascending, not empty, and neither touch nor overlap, so that their number is bounded by
//! the number of unfinished events between them.

use promethean_event::Seq;
use std::collections::BTreeMap;

/// A set of seqs. Each range carries a value of its last seq (its id and time, for example).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ranges<T> {
    /// First seq → (last seq, what belongs to the last).
    ranges: BTreeMap<Seq, (Seq, T)>,
}

impl<T> Default for Ranges<T> {
    fn default() -> Self {
        Self { ranges: BTreeMap::new() }
    }
}

impl<T: Copy> Ranges<T> {
    /// True if `seq` is in the set.
    pub fn contains(&self, seq: Seq) -> bool {
        self.ranges.range(..=seq).next_back().is_some_and(|(_, (last, _))| seq <= *last)
    }

    /// True if the set is empty.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// How many ranges there are.
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// How many seqs are in the set.
    pub fn count(&self) -> u64 {
        self.ranges.iter().map(|(first, (last, _))| last - first + 1).sum()
    }

    /// How many seqs from `seq` on are in the set.
    pub fn count_from(&self, seq: Seq) -> u64 {
        let inside = self.ranges.range(..seq).next_back().map_or(0, |(_, (last, _))| (last + 1).saturating_sub(seq));
        inside + self.ranges.range(seq..).map(|(first, (last, _))| last - first + 1).sum::<u64>()
    }

    /// The value of the range whose last seq is `last`.
    pub fn value_ending_at(&self, last: Seq) -> Option<T> {
        self.ranges.range(..=last).next_back().filter(|(_, (end, _))| *end == last).map(|(_, (_, value))| *value)
    }

    /// The last seq of the range that `seq` is in.
    pub fn end_of(&self, seq: Seq) -> Option<Seq> {
        self.ranges.range(..=seq).next_back().map(|(_, (last, _))| *last).filter(|last| seq <= *last)
    }

    /// Adds `first..=last`; `value` belongs to `last`.
    pub fn insert(&mut self, first: Seq, last: Seq, value: T) {
        if first > last {
            return;
        }
        let (mut first, mut last, mut value) = (first, last, value);
        if let Some((&before, &(end, _))) = self.ranges.range(..=first).next_back()
            && end.saturating_add(1) >= first
        {
            if end >= last {
                return;
            }
            // Extending the range before is what an ack in order does: no removal, no new node.
            let next = self.ranges.range(first + 1..).next().map(|(start, _)| *start);
            if next.is_none_or(|start| start > last.saturating_add(1)) {
                if let Some(range) = self.ranges.get_mut(&before) {
                    *range = (last, value);
                }
                return;
            }
            first = before;
        }
        while let Some((&start, &(end, its))) = self.ranges.range(first..).next()
            && start <= last.saturating_add(1)
        {
            self.ranges.remove(&start);
            if end > last {
                (last, value) = (end, its);
            }
        }
        self.ranges.insert(first, (last, value));
    }

    /// Takes one seq out of the set. The range before it, if one is left, has `value` as that of its last seq.
    pub fn remove(&mut self, seq: Seq, value: T) {
        let Some((&first, &(last, its))) = self.ranges.range(..=seq).next_back() else { return };
        if seq > last {
            return;
        }
        self.ranges.remove(&first);
        if first < seq {
            self.ranges.insert(first, (seq - 1, value));
        }
        if seq < last {
            self.ranges.insert(seq + 1, (last, its));
        }
    }

    /// Takes away and returns the range that begins at `seq`: its last seq and value.
    pub fn take_at(&mut self, seq: Seq) -> Option<(Seq, T)> {
        self.ranges.remove(&seq)
    }

    /// The ranges, ascending: first, last, value of the last.
    pub fn iter(&self) -> impl Iterator<Item = (Seq, Seq, T)> + '_ {
        self.ranges.iter().map(|(first, (last, value))| (*first, *last, *value))
    }
}

impl<T: Copy> FromIterator<(Seq, Seq, T)> for Ranges<T> {
    fn from_iter<I: IntoIterator<Item = (Seq, Seq, T)>>(iter: I) -> Self {
        let mut ranges = Self::default();
        for (first, last, value) in iter {
            ranges.insert(first, last, value);
        }
        ranges
    }
}

#[cfg(test)]
mod tests {
    use super::Ranges;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn a_removed_seq_leaves_the_others(first in 1_u64..10, more in 0_u64..10, seq in 1_u64..25) {
            let mut ranges = Ranges::default();
            ranges.insert(first, first + more, first + more);
            ranges.remove(seq, seq.saturating_sub(1));
            let left: Vec<u64> = (first..=first + more).filter(|one| *one != seq).collect();
            prop_assert_eq!(ranges.iter().flat_map(|(first, last, _)| first..=last).collect::<Vec<_>>(), left);
            for (_, last, value) in ranges.iter() {
                prop_assert_eq!(value, last);
            }
        }

        #[test]
        fn ranges_are_the_set_they_stand_for(inserts in proptest::collection::vec((1_u64..40, 0_u64..6), 0..40)) {
            let (mut ranges, mut model) = (Ranges::default(), BTreeSet::new());
            for (first, more) in inserts {
                ranges.insert(first, first + more, first + more);
                model.extend(first..=first + more);
                prop_assert_eq!(ranges.iter().flat_map(|(first, last, _)| first..=last).collect::<BTreeSet<_>>(), model.clone());
                prop_assert_eq!(ranges.count(), model.len() as u64);
                for pair in ranges.iter().collect::<Vec<_>>().windows(2) {
                    prop_assert!(pair[0].1 + 1 < pair[1].0, "ranges touch: {:?}", pair);
                }
                for (_, last, value) in ranges.iter() {
                    prop_assert_eq!(value, last, "the value is the last seq's");
                }
            }
            for seq in 1..50 {
                prop_assert_eq!(ranges.contains(seq), model.contains(&seq));
                prop_assert_eq!(ranges.count_from(seq), model.range(seq..).count() as u64);
                prop_assert_eq!(ranges.value_ending_at(seq).is_some(), model.contains(&seq) && !model.contains(&(seq + 1)));
            }
        }
    }
}
