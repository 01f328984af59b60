//! Event ids: any UUID from clients, monotonic UUIDv7 from the hub.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use uuid::{ContextV7, Timestamp, Uuid};

use crate::{Code, Invalid, Millis};

/// The id of an event. Compares and prints without regard to case: always lower.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventId(Uuid);

impl EventId {
    /// Checks a UUID in its usual text form, hyphenated or plain, in any case.
    ///
    /// # Errors
    /// `bad_id` that shows what was sent.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        let parsed = if matches!(text.len(), 32 | 36) { Uuid::try_parse(text).ok() } else { None };
        parsed.map(Self).ok_or_else(|| {
            let shown: String = text.chars().take(48).collect();
            Invalid::new(
                Code::BadId,
                "id",
                format!("must be a UUID such as 0199d1c0-7d3b-7cc2-8b1a-3f0e2c9a4b5d, is {shown:?}"),
            )
        })
    }

    /// The id with these 16 bytes.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(Uuid::from_bytes(bytes))
    }

    /// The 16 bytes.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        self.0.as_bytes()
    }

    /// An id that follows from `parts` alone, for what the hub must do once even if it is told twice
    /// (a dead letter, a redrive). A UUIDv8.
    pub fn derived(parts: &[&[u8]]) -> Self {
        let mut bytes = Vec::with_capacity(parts.iter().map(|part| part.len() + 8).sum());
        for part in parts {
            bytes.extend_from_slice(&(part.len() as u64).to_le_bytes());
            bytes.extend_from_slice(part);
        }
        Self(uuid::Builder::from_custom_bytes(xxhash_rust::xxh3::xxh3_128(&bytes).to_be_bytes()).into_uuid())
    }

    /// Writes the 36 characters of the id into `buffer`.
    pub fn encode(self, buffer: &mut [u8; 36]) -> &str {
        self.0.hyphenated().encode_lower(buffer)
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}

impl fmt::Debug for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl serde::Serialize for EventId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.encode(&mut [0; 36]))
    }
}

impl<'de> serde::Deserialize<'de> for EventId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}

/// Makes UUIDv7 ids: each greater than the one before, from any thread, also when the clock steps back.
pub struct IdMaker {
    context: Mutex<(ContextV7, Millis)>,
}

impl IdMaker {
    /// A maker of its own order.
    pub fn new() -> Self {
        Self { context: Mutex::new((ContextV7::new(), Millis(0))) }
    }

    /// The next id at `now`.
    pub fn next(&self, now: Millis) -> EventId {
        let mut id = None;
        self.batch(now, 1, |made| id = Some(made));
        id.unwrap_or_else(|| EventId(Uuid::nil()))
    }

    /// The next `count` ids at `now`, with one lock for all of them.
    pub fn batch(&self, now: Millis, count: usize, mut take: impl FnMut(EventId)) {
        let mut guard = self.context.lock().unwrap_or_else(PoisonError::into_inner);
        let (context, last) = &mut *guard;
        *last = now.max(*last);
        let (seconds, nanos) = (last.0 / 1000, u32::try_from(last.0 % 1000).unwrap_or(0) * 1_000_000);
        for _ in 0..count {
            take(EventId(Uuid::new_v7(Timestamp::from_unix(&*context, seconds, nanos))));
        }
    }
}

impl Default for IdMaker {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for IdMaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IdMaker")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn ids_are_monotonic_in_a_thread_and_unique_over_threads() {
        let maker = IdMaker::new();
        let all: Vec<Vec<EventId>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| (0..20_000).map(|_| maker.next(Millis::now())).collect::<Vec<_>>()))
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        for ids in &all {
            assert!(ids.windows(2).all(|pair| pair[0] < pair[1]), "one thread saw an id go back");
        }
        assert_eq!(all.iter().flatten().collect::<HashSet<_>>().len(), 80_000);
    }

    #[test]
    fn ids_go_on_growing_when_the_clock_steps_back() {
        let maker = IdMaker::new();
        let ids: Vec<_> = [5_000, 1_000, 1, 5_000, 5_001].map(|ms| maker.next(Millis(ms))).into();
        assert!(ids.windows(2).all(|pair| pair[0] < pair[1]), "{ids:?}");
        assert_eq!(ids[0].0.get_version_num(), 7);
    }

    #[test]
    fn any_uuid_is_taken_and_answered_in_lower_case() {
        let upper = "0199D1C0-7D3B-1CC2-8B1A-3F0E2C9A4B5D";
        assert_eq!(EventId::parse(upper).map(|id| id.to_string()), Ok(upper.to_lowercase()));
        for bad in ["", "1", "0199D1C0-7D3B-1CC2-8B1A-3F0E2C9A4B5G", "{0199d1c0-7d3b-1cc2-8b1a-3f0e2c9a4b5d}"] {
            assert_eq!(EventId::parse(bad).expect_err(bad).code, Code::BadId);
        }
    }

    #[test]
    fn a_derived_id_depends_on_every_part_and_on_where_parts_end() {
        let id = EventId::derived(&[b"a", b"bc"]);
        assert_eq!(id, EventId::derived(&[b"a", b"bc"]));
        assert_ne!(id, EventId::derived(&[b"ab", b"c"]));
        assert_eq!(EventId::parse(&id.to_string()), Ok(id));
    }
}
