//! Limits audit lines: each kind of line for each client, and all of them together.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, Hash, RandomState};
use std::time::{Duration, Instant};

/// Most kinds that are remembered. At the bound those whose time is over go; is there none, the rest share one.
const MOST: usize = 4_096;
/// Most limited lines a second.
const A_SECOND: u32 = 100;

#[derive(Debug, Default)]
pub(super) struct Limit {
    hasher: RandomState,
    kinds: HashMap<u64, Window>,
    second: Option<Instant>,
    written: u32,
    /// Lines beyond `A_SECOND` since the last one written.
    beyond: u64,
}

#[derive(Debug)]
struct Window {
    until: Instant,
    left_out: u64,
}

impl Limit {
    /// True if a line of this kind may be written at `now`, once in `every`: how many were left out since the last.
    pub(super) fn pass(&mut self, kind: &impl Hash, every: Duration, now: Instant) -> Option<u64> {
        let mut kind = self.hasher.hash_one(kind);
        if self.kinds.len() >= MOST && !self.kinds.contains_key(&kind) {
            self.kinds.retain(|_, window| window.until > now);
            if self.kinds.len() >= MOST {
                kind = 0;
            }
        }
        if let Some(window) = self.kinds.get_mut(&kind)
            && window.until > now
        {
            window.left_out += 1;
            return None;
        }
        if self.second.is_none_or(|second| now.duration_since(second) >= Duration::from_secs(1)) {
            (self.second, self.written) = (Some(now), 0);
        }
        if self.written >= A_SECOND {
            self.beyond += 1;
            return None;
        }
        self.written += 1;
        let before = self.kinds.insert(kind, Window { until: now + every, left_out: 0 });
        Some(before.map_or(0, |window| window.left_out) + std::mem::take(&mut self.beyond))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_kind_passes_once_in_its_time_and_says_what_was_left_out() {
        let (mut limit, start) = (Limit::default(), Instant::now());
        let mut at = |kind: &str, millis| limit.pass(&kind, SECOND, start + Duration::from_millis(millis));
        assert_eq!([at("a", 0), at("a", 10), at("b", 20), at("a", 999)], [Some(0), None, Some(0), None]);
        assert_eq!([at("a", 1_000), at("a", 2_000)], [Some(2), Some(0)]);
    }

    #[test]
    fn all_kinds_together_are_bounded_in_lines_and_in_memory() {
        let (mut limit, start) = (Limit::default(), Instant::now());
        let passed = (0..10_000).filter(|kind| limit.pass(kind, SECOND, start).is_some()).count();
        assert_eq!(passed, A_SECOND as usize);
        assert_eq!(limit.pass(&"later", SECOND, start + SECOND), Some(10_000 - u64::from(A_SECOND)));
        for second in 2..100 {
            for kind in 0..100 {
                limit.pass(&(second, kind), 200 * SECOND, start + second * SECOND);
            }
        }
        assert!(limit.kinds.len() <= MOST + 1, "{}", limit.kinds.len());
    }
}
