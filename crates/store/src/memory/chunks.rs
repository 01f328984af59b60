//! The events of a topic, ascending by seq, in pieces of one size: growing never copies what is there.

use std::collections::VecDeque;

use promethean_event::{Event, Seq};

const CHUNK: usize = 1024;

/// Invariants: no chunk is empty; seqs ascend within and across chunks.
#[derive(Default)]
pub(super) struct Chunks {
    chunks: VecDeque<VecDeque<Event>>,
    len: usize,
}

impl Chunks {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn first(&self) -> Option<&Event> {
        self.chunks.front()?.front()
    }

    pub(super) fn push(&mut self, event: Event) {
        if self.chunks.back().is_none_or(|chunk| chunk.len() >= CHUNK) {
            self.chunks.push_back(VecDeque::with_capacity(CHUNK));
        }
        if let Some(chunk) = self.chunks.back_mut() {
            chunk.push_back(event);
            self.len += 1;
        }
    }

    pub(super) fn pop_first(&mut self) -> Option<Event> {
        let chunk = self.chunks.front_mut()?;
        let event = chunk.pop_front();
        if chunk.is_empty() {
            self.chunks.pop_front();
        }
        self.len -= usize::from(event.is_some());
        event
    }

    /// The events from `seq` on.
    pub(super) fn from(&self, seq: Seq) -> impl Iterator<Item = &Event> {
        // What is read is near the end nearly always: look there first.
        let newest = self.chunks.len().saturating_sub(1);
        let in_newest = self.chunks.back().and_then(VecDeque::front).is_some_and(|first| first.seq <= seq);
        let at = if in_newest {
            newest
        } else {
            self.chunks.partition_point(|chunk| chunk.back().is_some_and(|last| last.seq < seq))
        };
        let within = self.chunks.get(at).map_or(0, |chunk| index(chunk, seq));
        self.chunks.range(at.min(self.chunks.len())..).flatten().skip(within)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Event> {
        self.chunks.iter().flatten()
    }

    /// Removes events of the piece that has `from` or what comes after it: those that `keep` does not want. Returns
    /// them, and where the next piece begins.
    pub(super) fn sift(&mut self, from: Seq, keep: impl Fn(&Event) -> bool) -> (Vec<Event>, Option<Seq>) {
        let at = self.chunks.partition_point(|chunk| chunk.back().is_some_and(|last| last.seq < from));
        let Some(chunk) = self.chunks.get_mut(at) else { return (Vec::new(), None) };
        let next = chunk.back().map(|last| last.seq + 1);
        if chunk.iter().all(&keep) {
            return (Vec::new(), next);
        }
        let (mut kept, mut gone) = (VecDeque::with_capacity(CHUNK), Vec::new());
        for event in std::mem::take(chunk) {
            if keep(&event) { kept.push_back(event) } else { gone.push(event) }
        }
        self.len -= gone.len();
        let before = at.checked_sub(1).and_then(|before| self.chunks.get_mut(before));
        match before.filter(|before| before.len() + kept.len() <= CHUNK) {
            Some(before) => {
                before.extend(kept);
                self.chunks.remove(at);
            }
            None if kept.is_empty() => drop(self.chunks.remove(at)),
            None => self.chunks[at] = kept,
        }
        (gone, next)
    }
}

/// The index of the first event of `chunk` with this seq or a later one.
fn index(chunk: &VecDeque<Event>, seq: Seq) -> usize {
    let first = chunk.front().map_or(0, |event| event.seq);
    let direct = usize::try_from(seq.saturating_sub(first)).unwrap_or(usize::MAX);
    match chunk.get(direct) {
        // Without holes before it, the place is known.
        Some(event) if event.seq == seq => direct,
        _ => chunk.partition_point(|event| event.seq < seq),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use promethean_event::{Draft, EventId, Limits, Millis, Sealer, Topic, payload_of};
    use proptest::prelude::*;

    fn event(seq: Seq) -> Event {
        let draft =
            Draft::new(Topic::parse("t").expect("a topic"), std::borrow::Cow::Owned(payload_of(&seq).expect("JSON")));
        let mut sealer = Sealer::new(Limits::default());
        sealer.seal(&draft, EventId::from_bytes([0; 16]), Millis(0), 1, 0).expect("valid");
        sealer.finish().remove(0).at(seq)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20))]
        #[test]
        fn chunks_are_the_list_they_stand_for(holes in proptest::collection::btree_set(1_u64..4_000, 0..2_000), drop in 0_usize..2_500) {
            let mut chunks = Chunks::default();
            let mut model: Vec<Seq> = (1..4_000).filter(|seq| !holes.contains(seq)).collect();
            model.iter().for_each(|seq| chunks.push(event(*seq)));
            for expected in model.drain(..drop.min(model.len())).collect::<Vec<_>>() {
                prop_assert_eq!(chunks.pop_first().map(|event| event.seq), Some(expected));
            }
            prop_assert_eq!(chunks.len(), model.len());
            for from in (0..4_100).step_by(37) {
                let got: Vec<Seq> = chunks.from(from).take(5).map(|event| event.seq).collect();
                let expected: Vec<Seq> = model.iter().copied().filter(|seq| *seq >= from).take(5).collect();
                prop_assert_eq!(got, expected);
            }
            let mut next = Some(0);
            while let Some(from) = next {
                let gone;
                (gone, next) = chunks.sift(from, |event| event.seq % 3 > 0);
                prop_assert!(gone.iter().all(|event| event.seq % 3 == 0));
            }
            model.retain(|seq| seq % 3 > 0);
            prop_assert_eq!((chunks.len(), chunks.iter().map(|event| event.seq).collect::<Vec<_>>()), (model.len(), model));
        }
    }
}
