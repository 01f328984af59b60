//! What a group has done on a topic: one value, small, that says all a restart has to know.

use promethean_event::{EventId, Millis, Seq};

use crate::{Ranges, TopicInfo};

/// The id and time of an event that is done; none where a hole in the log was passed.
pub type Mark = Option<(EventId, Millis)>;

/// The done seqs above the floor.
pub type Done = Ranges<Mark>;

/// An event that was delivered before and is not done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unfinished {
    /// Its place.
    pub seq: Seq,
    /// How often it was delivered without success.
    pub attempts: u32,
    /// It waits until then; 0: it does not.
    pub not_before: Millis,
    /// Seq of the dead letter that it was redriven from; 0: none.
    pub redriven: Seq,
}

/// A snapshot start that is under way: events up to `cut` are the latest of their keys.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SnapshotState {
    /// The snapshot is of this point; live events come after it.
    pub cut: Seq,
    /// Snapshot events that are done and, where `after` is known, come after it.
    pub done: Done,
    /// All keys up to this one were read; those that are not done are among the unfinished. `None`: no key was read, or the state
    /// is of an older hub, which kept every key that was done in `done`.
    pub after: Option<String>,
    /// Keys after `after`, as far as they were counted.
    pub left: Option<u64>,
}

/// What a group has done on a topic.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GroupState {
    /// All up to here are done.
    pub floor: Seq,
    /// The event at the floor.
    pub last: Mark,
    /// What is done above the floor.
    pub done: Done,
    /// Delivered before, not done; ascending by seq.
    pub unfinished: Vec<Unfinished>,
    /// A snapshot start that is not through.
    pub snapshot: Option<SnapshotState>,
    /// Grows when the cursor is moved by hand, and begins at another number where a group begins anew: makes what was
    /// done before distinguishable.
    pub generation: u64,
    /// Leases below this number were given out before the cursor was moved by hand.
    pub fence: u64,
}

/// The format of 0.1, and the one that also has `fence` and the place of a snapshot. A state without these is written in the
/// first, which older hubs can read.
const FIRST: u8 = 1;
const SECOND: u8 = 2;
/// As the second, with `redriven` of each unfinished event; written only while there is one.
const THIRD: u8 = 3;

impl GroupState {
    /// The state of a group that begins at `now`, before the first event. One that was forgotten and begins anew is another:
    /// its dead letters are not those of its former self.
    pub fn begun(now: Millis) -> Self {
        Self { generation: now.0, ..Self::default() }
    }

    /// Events of the topic that are there and not done (see [`TopicInfo::left`]), and keys of a snapshot start still to come.
    pub fn lag(&self, info: &TopicInfo) -> u64 {
        let Some(snapshot) = &self.snapshot else { return info.left(self.floor, &self.done) };
        let read = self.unfinished.iter().filter(|one| one.seq <= snapshot.cut).count() as u64;
        info.left(self.floor, &self.done) + snapshot.left.unwrap_or_default() + read
    }

    /// The state as bytes, for engines that keep bytes. Numbers are LEB128, counts before lists.
    pub fn encode(&self) -> Vec<u8> {
        let has_place = |snapshot: &SnapshotState| snapshot.after.is_some() || snapshot.left.is_some();
        let second = self.fence != 0 || self.snapshot.as_ref().is_some_and(has_place);
        let third = self.unfinished.iter().any(|one| one.redriven != 0);
        let version = if third { THIRD } else { FIRST + u8::from(second) };
        let mut out = vec![version];
        put(&mut out, self.floor);
        put_mark(&mut out, self.last);
        put_done(&mut out, &self.done);
        put(&mut out, self.unfinished.len() as u64);
        for one in &self.unfinished {
            put(&mut out, one.seq);
            put(&mut out, u64::from(one.attempts));
            put(&mut out, one.not_before.0);
            if version >= THIRD {
                put(&mut out, one.redriven);
            }
        }
        match &self.snapshot {
            None => out.push(0),
            Some(snapshot) => {
                out.push(1);
                put(&mut out, snapshot.cut);
                put_done(&mut out, &snapshot.done);
                if version >= SECOND {
                    put_text(&mut out, snapshot.after.as_deref());
                    put(&mut out, snapshot.left.map_or(0, |left| left.saturating_add(1)));
                }
            }
        }
        put(&mut out, self.generation);
        if version >= SECOND {
            put(&mut out, self.fence);
        }
        out
    }

    /// The state of these bytes; `None` when they are not one.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes;
        let version = take_byte(&mut rest)?;
        if !(FIRST..=THIRD).contains(&version) {
            return None;
        }
        let floor = take(&mut rest)?;
        let last = take_mark(&mut rest)?;
        let done = take_done(&mut rest)?;
        let count = take(&mut rest)?;
        let mut unfinished = Vec::new();
        for _ in 0..count {
            let (seq, attempts, not_before) = (take(&mut rest)?, take(&mut rest)?, take(&mut rest)?);
            unfinished.push(Unfinished {
                seq,
                attempts: u32::try_from(attempts).ok()?,
                not_before: Millis(not_before),
                redriven: if version >= THIRD { take(&mut rest)? } else { 0 },
            });
        }
        let snapshot = match take_byte(&mut rest)? {
            0 => None,
            1 => {
                let (cut, done) = (take(&mut rest)?, take_done(&mut rest)?);
                let place = version >= SECOND;
                let after = if place { take_text(&mut rest)? } else { None };
                let left = if place { take(&mut rest)?.checked_sub(1) } else { None };
                Some(SnapshotState { cut, done, after, left })
            }
            _ => return None,
        };
        let generation = take(&mut rest)?;
        let fence = if version >= SECOND { take(&mut rest)? } else { 0 };
        rest.is_empty().then_some(Self { floor, last, done, unfinished, snapshot, generation, fence })
    }
}

/// LEB128.
fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// The length and one, then the bytes; 0 for `None`.
fn put_text(out: &mut Vec<u8>, text: Option<&str>) {
    put(out, text.map_or(0, |text| text.len() as u64 + 1));
    out.extend_from_slice(text.unwrap_or_default().as_bytes());
}

fn take_text(rest: &mut &[u8]) -> Option<Option<String>> {
    let Some(length) = take(rest)?.checked_sub(1) else { return Some(None) };
    let (text, after) = rest.split_at_checked(usize::try_from(length).ok()?)?;
    *rest = after;
    Some(Some(String::from_utf8(text.to_vec()).ok()?))
}

fn put_mark(out: &mut Vec<u8>, mark: Mark) {
    match mark {
        None => out.push(0),
        Some((id, ts)) => {
            out.push(1);
            out.extend_from_slice(id.as_bytes());
            put(out, ts.0);
        }
    }
}

fn put_done(out: &mut Vec<u8>, done: &Done) {
    put(out, done.len() as u64);
    for (first, last, mark) in done.iter() {
        put(out, first);
        put(out, last - first);
        put_mark(out, mark);
    }
}

fn take_byte(rest: &mut &[u8]) -> Option<u8> {
    let (first, after) = rest.split_first()?;
    *rest = after;
    Some(*first)
}

fn take(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for shift in (0..70).step_by(7) {
        let byte = take_byte(rest)?;
        let bits = u64::from(byte & 0x7f);
        if shift == 63 && bits > 1 {
            return None;
        }
        number |= bits << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

fn take_mark(rest: &mut &[u8]) -> Option<Mark> {
    match take_byte(rest)? {
        0 => Some(None),
        1 => {
            let (id, after) = rest.split_first_chunk::<16>()?;
            *rest = after;
            Some(Some((EventId::from_bytes(*id), Millis(take(rest)?))))
        }
        _ => None,
    }
}

fn take_done(rest: &mut &[u8]) -> Option<Done> {
    let count = take(rest)?;
    let mut done = Done::default();
    for _ in 0..count {
        let first = take(rest)?;
        let last = first.checked_add(take(rest)?)?;
        done.insert(first, last, take_mark(rest)?);
    }
    Some(done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn mark() -> impl Strategy<Value = Mark> {
        proptest::option::of(
            (any::<[u8; 16]>(), any::<u64>()).prop_map(|(id, ts)| (EventId::from_bytes(id), Millis(ts))),
        )
    }

    fn done() -> impl Strategy<Value = Done> {
        proptest::collection::vec((any::<u32>(), 0_u64..9, mark()), 0..8).prop_map(|all| {
            all.into_iter().map(|(first, more, mark)| (u64::from(first), u64::from(first) + more, mark)).collect()
        })
    }

    /// Written by the hub of 0.1 (commit 414cfc3): a snapshot start of which seqs 3 and 5 to 6 are done.
    #[test]
    fn a_state_of_the_first_format_reads_as_it_always_did() {
        let bytes = [1, 9, 0, 0, 1, 4, 2, 0x90, 0x4e, 1, 9, 2, 3, 0, 0, 5, 1, 0, 7];
        let done: Done = [(3, 3, None), (5, 6, None)].into_iter().collect();
        let unfinished = vec![Unfinished { seq: 4, attempts: 2, not_before: Millis(10_000), redriven: 0 }];
        let snapshot = Some(SnapshotState { cut: 9, done, ..SnapshotState::default() });
        let state = GroupState { floor: 9, unfinished, snapshot, generation: 7, ..GroupState::default() };
        assert_eq!(GroupState::decode(&bytes), Some(state.clone()));
        assert_eq!(state.encode(), bytes, "an older hub reads it");
    }

    proptest! {
        #[test]
        fn a_state_reads_back_as_it_was_written(
            floor in any::<u64>(), last in mark(), above in done(), generation in any::<u64>(),
            unfinished in proptest::collection::vec((any::<u64>(), any::<u32>(), any::<u64>(), prop_oneof![Just(0_u64), any::<u64>()]), 0..5),
            snapshot in proptest::option::of((
                any::<u64>(), done(), proptest::option::of(".{0,9}"), proptest::option::of(0..u64::MAX),
            )), fence in prop_oneof![Just(0_u64), any::<u64>()],
        ) {
            let state = GroupState {
                floor, last, done: above, generation, fence,
                unfinished: unfinished.into_iter()
                    .map(|(seq, attempts, due, redriven)| Unfinished { seq, attempts, not_before: Millis(due), redriven })
                    .collect(),
                snapshot: snapshot.map(|(cut, done, after, left)| SnapshotState { cut, done, after, left }),
            };
            let bytes = state.encode();
            prop_assert_eq!(GroupState::decode(&bytes), Some(state));
            for cut in 0..bytes.len() {
                prop_assert_eq!(GroupState::decode(&bytes[..cut]), None);
            }
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = GroupState::decode(&bytes);
        }
    }
}
