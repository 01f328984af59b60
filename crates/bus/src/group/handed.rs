//! When the deliveries of a member were handed to its connection: marks of (lease, time), each for all leases up to its own.
//!
//! Marks that lie close together become one with the later time, so that at most about [`MARKS`] cover the length of a lease.

use std::collections::VecDeque;
use std::time::Duration;

use promethean_event::Millis;

/// Marks kept for the length of a lease.
const MARKS: u32 = 64;

/// The hand-overs of one member.
#[derive(Debug, Default)]
pub(super) struct HandOvers {
    /// First hand-over that the mark covers, highest lease, time of the last hand-over; ascending.
    marks: VecDeque<(Millis, u64, Millis)>,
}

impl HandOvers {
    /// Every delivery up to `lease` is handed over at `at`.
    pub(super) fn add(&mut self, lease: u64, at: Millis, ack_timeout: Duration) {
        if self.marks.back().is_some_and(|(_, last, _)| *last >= lease) {
            return;
        }
        while self.marks.len() > 1 && self.marks.front().is_some_and(|(_, _, old)| *old + 2 * ack_timeout < at) {
            self.marks.pop_front();
        }
        match self.marks.back_mut() {
            Some((first, last, time)) if at.since(*first) < ack_timeout / MARKS => (*last, *time) = (lease, at),
            _ => self.marks.push_back((at, lease, at)),
        }
    }

    /// When the delivery `lease` was handed over.
    pub(super) fn of(&self, lease: u64) -> Option<Millis> {
        let at = self.marks.partition_point(|(_, last, _)| *last < lease);
        self.marks.get(at).map(|(_, _, time)| *time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_stay_few_and_name_the_time_of_each_hand_over() {
        let (mut handed, timeout) = (HandOvers::default(), Duration::from_secs(30));
        for lease in 1..=100_000 {
            handed.add(lease, Millis(lease * 10), timeout);
        }
        assert!(handed.marks.len() < 200, "{} marks", handed.marks.len());
        for lease in 99_000..=100_000 {
            let late = handed.of(lease).expect("handed over").since(Millis(lease * 10));
            assert!(late <= timeout / MARKS, "{lease}: {late:?} late");
        }
        assert_eq!(handed.of(100_001), None);
    }
}
