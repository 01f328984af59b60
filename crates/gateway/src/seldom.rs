//! Lines of the log that the same trouble would write with every question.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Lets something be said once a second at most.
pub(crate) struct Seldom(Mutex<Option<Instant>>);

impl Seldom {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// True if it may be said at `now`; then it is.
    pub(crate) fn may(&self, now: Instant) -> bool {
        let mut said = self.0.lock();
        let may = said.is_none_or(|said| now.duration_since(said) >= Duration::from_secs(1));
        if may {
            *said = Some(now);
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_said_once_a_second_also_while_it_is_tried_all_the_time() {
        let (seldom, start) = (Seldom::new(), Instant::now());
        let said = (0..50).filter(|n| seldom.may(start + Duration::from_millis(n * 100)));
        assert_eq!(said.collect::<Vec<_>>(), [0, 10, 20, 30, 40]);
    }
}
