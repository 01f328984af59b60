//! Event ids: any UUID from clients, monotonic UUIDv7 from the hub.

use std::fmt;
use std::hash::{BuildHasher as _, Hasher as _};
use std::sync::{Mutex, PoisonError};

use uuid::Uuid;

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

    /// Writes the id between the two quotes that `buffer` ends with, as JSON has it.
    #[inline]
    pub(crate) fn quoted(self, buffer: &mut [u8; 38]) -> &[u8] {
        if let Some(inside) = buffer.get_mut(1..37) {
            self.0.hyphenated().encode_lower(inside);
        }
        buffer
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
///
/// RFC 9562, section 6.2, method 1: 48 bits of time, a counter of 42 bits that starts anew at a random place in each
/// millisecond, 32 random bits. Written here because making an id is a part of every publish, and `uuid`'s own context
/// showed as 5 % of the bus's profile: it asks for more randomness than uniqueness needs.
pub struct IdMaker {
    state: Mutex<State>,
}

struct State {
    millis: u64,
    /// 42 bits.
    counter: u64,
    /// SplitMix64, seeded by the system.
    random: u64,
}

const COUNTER_BITS: u32 = 42;

impl State {
    fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Begins a millisecond, with half of the counter's range left to count in at least.
    fn begin(&mut self, millis: u64) {
        self.millis = millis;
        self.counter = self.random() >> (64 - COUNTER_BITS + 1);
    }

    fn next(&mut self) -> EventId {
        self.counter += 1;
        if self.counter >> COUNTER_BITS != 0 {
            self.begin(self.millis + 1);
        }
        let (high, low) = (self.counter >> 30, self.counter & ((1 << 30) - 1));
        let random = self.random() >> 32;
        let bits = u128::from(self.millis & ((1 << 48) - 1)) << 80
            | 0x7 << 76
            | u128::from(high) << 64
            | 0b10 << 62
            | u128::from(low) << 32
            | u128::from(random);
        EventId(Uuid::from_u128(bits))
    }
}

impl IdMaker {
    /// A maker of its own order.
    pub fn new() -> Self {
        // The keys of the standard hasher come from the system, anew for each.
        let random = std::hash::RandomState::new().build_hasher().finish();
        Self { state: Mutex::new(State { millis: 0, counter: 0, random }) }
    }

    /// The next id at `now`.
    pub fn next(&self, now: Millis) -> EventId {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if now.0 > state.millis {
            state.begin(now.0);
        }
        state.next()
    }

    /// The next `count` ids at `now`, with one lock for all of them.
    pub fn batch(&self, now: Millis, count: usize, mut take: impl FnMut(EventId)) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if now.0 > state.millis {
            state.begin(now.0);
        }
        for _ in 0..count {
            take(state.next());
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
        assert_eq!((ids[0].0.get_version_num(), ids[0].0.get_variant()), (7, uuid::Variant::RFC4122));
        assert_eq!(ids[0].0.get_timestamp().map(|at| at.to_unix()), Some((5, 0)));
    }

    #[test]
    fn a_counter_that_runs_over_goes_on_in_the_next_millisecond() {
        let mut state = State { millis: 7, counter: (1 << COUNTER_BITS) - 3, random: 1 };
        let ids: Vec<_> = (0..6).map(|_| state.next()).collect();
        assert!(ids.windows(2).all(|pair| pair[0] < pair[1]), "{ids:?}");
        assert_eq!(state.millis, 8);
    }

    #[test]
    fn makers_of_the_same_millisecond_do_not_meet() {
        let makers: Vec<IdMaker> = (0..50).map(|_| IdMaker::new()).collect();
        let ids: HashSet<EventId> = makers.iter().flat_map(|maker| (0..200).map(|_| maker.next(Millis(1)))).collect();
        assert_eq!(ids.len(), 10_000);
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
