//! Marks in memory: gone with the process, so for effects that are gone with it too.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use promethean_event::EventId;

use super::{DEFAULT_TTL, DedupeStore};
use crate::Pending;

/// Marks in memory, at most `capacity`: at the bound the oldest mark is forgotten.
#[derive(Debug)]
pub struct MemoryDedupe {
    capacity: usize,
    ttl: Duration,
    marks: Mutex<Marks>,
}

#[derive(Debug, Default)]
struct Marks {
    /// When each mark runs out, and which entry of `order` is its own.
    until: HashMap<EventId, (Instant, u64)>,
    /// The order in which marks were made.
    order: VecDeque<(EventId, u64)>,
    next: u64,
}

impl MemoryDedupe {
    /// Room for `capacity` marks.
    pub fn new(capacity: usize) -> Self {
        Self { capacity: capacity.max(1), ttl: DEFAULT_TTL, marks: Mutex::default() }
    }

    /// The same with marks of [`exactly_once`](super::exactly_once) that are kept for `ttl`.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }
}

impl Marks {
    fn mark(&mut self, id: EventId, until: Instant, now: Instant, capacity: usize) {
        self.next += 1;
        self.until.insert(id, (until, self.next));
        self.order.push_back((id, self.next));
        while let Some(&(oldest, number)) = self.order.front() {
            let current = self.until.get(&oldest).filter(|(_, current)| *current == number);
            let keep = current.is_some_and(|(until, _)| *until > now) && self.until.len() <= capacity;
            if keep {
                break;
            }
            if current.is_some() {
                self.until.remove(&oldest);
            }
            self.order.pop_front();
        }
        // A mark that is renewed again and again leaves entries behind the oldest that stays.
        if self.order.len() > 2 * capacity {
            let Self { order, until, .. } = self;
            order.retain(|(id, number)| until.get(id).is_some_and(|(_, current)| current == number));
        }
    }
}

impl DedupeStore for MemoryDedupe {
    fn seen(&self, id: EventId) -> Pending<'_, bool> {
        let marks = self.marks.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = marks.until.get(&id).is_some_and(|(until, _)| *until > Instant::now());
        Box::pin(std::future::ready(Ok(seen)))
    }

    fn mark(&self, id: EventId, ttl: Duration) -> Pending<'_, ()> {
        let now = Instant::now();
        // A ttl beyond what the clock can count is as good as a year.
        let until = now.checked_add(ttl).unwrap_or_else(|| now + Duration::from_secs(365 * 86_400));
        self.marks.lock().unwrap_or_else(PoisonError::into_inner).mark(id, until, now, self.capacity);
        Box::pin(std::future::ready(Ok(())))
    }

    fn keeps(&self) -> Duration {
        self.ttl
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u16) -> EventId {
        let mut bytes = [0; 16];
        bytes[..2].copy_from_slice(&n.to_be_bytes());
        EventId::from_bytes(bytes)
    }

    #[tokio::test]
    async fn marks_are_bounded_and_the_oldest_is_forgotten() {
        let store = MemoryDedupe::new(3);
        for n in 0..1_000 {
            store.mark(id(n), Duration::from_secs(60)).await.expect("marked");
        }
        assert!(!store.seen(id(996)).await.expect("read"));
        for n in 997..1_000 {
            assert!(store.seen(id(n)).await.expect("read"), "{n}");
        }
        for _ in 0..1_000 {
            store.mark(id(999), Duration::from_secs(60)).await.expect("marked");
        }
        let kept = {
            let marks = store.marks.lock().expect("not poisoned");
            (marks.order.len(), marks.until.len())
        };
        assert!(kept.0 <= 6 && kept.1 <= 3, "{kept:?}");
        assert!(store.seen(id(998)).await.expect("read"), "renewing one does not push another out");
    }

    #[test]
    fn a_mark_runs_out() {
        let (mut marks, start) = (Marks::default(), Instant::now());
        marks.mark(id(1), start + Duration::from_secs(1), start, 10);
        marks.mark(id(2), start + Duration::from_secs(9), start + Duration::from_secs(2), 10);
        assert!(!marks.until.contains_key(&id(1)) && marks.until.contains_key(&id(2)));
    }
}
