//! Deadlines in order. Cancelling is lazy: a stale entry is recognised by its token when its time comes, and the
//! heap is swept once stale entries outnumber live ones, so that it stays as small as what is in flight.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use promethean_event::{Millis, Seq};

/// A heap of (deadline, seq, token).
#[derive(Debug, Default)]
pub(super) struct Timers {
    heap: BinaryHeap<Reverse<(Millis, Seq, u64)>>,
}

impl Timers {
    /// Adds a deadline.
    pub(super) fn push(&mut self, at: Millis, seq: Seq, token: u64) {
        self.heap.push(Reverse((at, seq, token)));
    }

    /// The next deadline that `is_live` still knows; stale ones before it are dropped.
    pub(super) fn next(&mut self, is_live: impl Fn(Millis, Seq, u64) -> bool) -> Option<(Millis, Seq)> {
        while let Some(Reverse((at, seq, token))) = self.heap.peek().copied() {
            if is_live(at, seq, token) {
                return Some((at, seq));
            }
            self.heap.pop();
        }
        None
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.heap.len()
    }

    /// Drops stale entries when there are more than twice as many entries as `live`.
    pub(super) fn sweep(&mut self, live: usize, is_live: impl Fn(Millis, Seq, u64) -> bool) {
        if self.heap.len() > 2 * live + 64 {
            self.heap.retain(|Reverse((at, seq, token))| is_live(*at, *seq, *token));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_deadlines_are_swept_before_they_outnumber_the_live_ones() {
        let mut timers = Timers::default();
        for seq in 0..100_000 {
            timers.push(Millis(seq), seq, 0);
            timers.sweep(10, |_, this, _| this + 10 > seq);
            assert!(timers.heap.len() <= 2 * 10 + 64 + 1, "{} entries", timers.heap.len());
        }
        assert_eq!(timers.next(|_, seq, _| seq == 99_999), Some((Millis(99_999), 99_999)));
        assert_eq!(timers.next(|_, _, _| false), None);
        assert!(timers.heap.is_empty());
    }
}
