//! An event that was read and is not done.

use std::collections::BTreeMap;

use promethean_event::{Event, EventId, Millis, Seq};
use promethean_store::Unfinished;

use super::{MemberId, Unanswered, Why};

/// Where an unfinished event is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// It may go out.
    Ready,
    /// A member has it.
    ///
    /// `handed`: its connection has it. Until then the deadline is only the next time to look.
    Held { member: MemberId, deadline: Millis, since: Millis, handed: bool },
    /// It comes back at `due`.
    Waiting { due: Millis },
    /// An earlier event with its key is unfinished.
    Blocked,
    /// It is on its way to the dead letters.
    Dying,
}

/// An event that was read and is not done. Its bytes are not kept: a redelivery reads them again, so that slow
/// consumers cost no memory that grows with the events' size.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) id: EventId,
    pub(super) ts: Millis,
    pub(super) appended: Millis,
    pub(super) key: Option<u64>,
    /// Bytes of the event.
    pub(super) size: u32,
    /// Deliveries that count.
    pub(super) attempts: u32,
    /// All deliveries since the group was loaded, released ones too.
    pub(super) deliveries: u32,
    /// The number of the last delivery, whatever became of it; 0: none since the group was loaded.
    pub(super) lease: u64,
    pub(super) snapshot: bool,
    /// Seq of the dead letter that it was redriven from; 0: none.
    pub(super) redriven: Seq,
    pub(super) state: State,
    /// Why the last delivery failed, for people.
    pub(super) reason: Option<Box<str>>,
}

/// Most bytes of a reason that are kept.
const REASON_BYTES: usize = 200;

impl Entry {
    pub(super) fn new(event: &Event, snapshot: bool, key: Option<u64>, carried: Option<Unfinished>) -> Self {
        let (attempts, redriven) = carried.map_or((0, 0), |one| (one.attempts, one.redriven));
        let (id, ts, appended) = (event.id, event.ts, event.appended);
        let size = u32::try_from(event.body.len()).unwrap_or(u32::MAX);
        let state = State::Ready;
        Self { id, ts, appended, key, size, attempts, deliveries: 0, lease: 0, snapshot, redriven, state, reason: None }
    }

    /// True if the event was never given out, as far as is known.
    pub(super) fn is_fresh(&self) -> bool {
        self.lease == 0 && self.attempts == 0 && self.redriven == 0
    }

    /// True if the event was given out again since the delivery `lease`. A delivery before the group was loaded counts
    /// until the event goes out again.
    pub(super) fn is_lost(&self, lease: u64) -> bool {
        self.lease != 0 && self.lease != lease
    }

    /// What a restart has to know: nothing of an event that never failed, unless it is of a snapshot, which may be another
    /// one by then.
    pub(super) fn unfinished(&self, seq: Seq) -> Option<Unfinished> {
        let (failed, not_before) = match self.state {
            // The delivery under way has not failed yet.
            State::Held { .. } => (self.attempts.saturating_sub(1), Millis(0)),
            State::Waiting { due } => (self.attempts, due),
            _ => (self.attempts, Millis(0)),
        };
        (failed > 0 || not_before > Millis(0) || self.snapshot || self.redriven != 0).then_some(Unfinished {
            seq,
            attempts: failed,
            not_before,
            redriven: self.redriven,
        })
    }

    /// Keeps why a delivery failed, as far as it is not too long.
    pub(super) fn failed(&mut self, mut reason: String) {
        let end = (0..=REASON_BYTES.min(reason.len())).rev().find(|end| reason.is_char_boundary(*end)).unwrap_or(0);
        reason.truncate(end);
        self.reason = Some(reason.into_boxed_str());
    }

    pub(super) fn shown(&self, seq: Seq) -> Unanswered {
        let why = match self.state {
            State::Ready => Why::Ready,
            State::Held { member, deadline, since, .. } => Why::Held { member, lease: self.lease, deadline, since },
            State::Waiting { due } => Why::Backoff { until: due },
            State::Blocked => Why::BehindKey,
            State::Dying => Why::Dying,
        };
        Unanswered { seq, id: self.id, attempts: self.attempts, why, reason: self.reason.clone() }
    }
}

/// True if `seq` is held under the lease `token` until exactly `until`.
pub(super) fn holds(entries: &BTreeMap<Seq, Entry>, seq: Seq, until: Millis, token: u64) -> bool {
    matches!(entries.get(&seq), Some(Entry { lease, state: State::Held { deadline, .. }, .. })
        if (*lease, *deadline) == (token, until))
}

/// True if `seq` waits until exactly `until`.
pub(super) fn waits(entries: &BTreeMap<Seq, Entry>, seq: Seq, until: Millis) -> bool {
    matches!(entries.get(&seq), Some(Entry { state: State::Waiting { due }, .. }) if *due == until)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_reason_is_cut_between_characters() {
        let (id, ts) = (EventId::from_bytes([0; 16]), Millis(0));
        let mut entry = Entry {
            id,
            ts,
            appended: ts,
            key: None,
            size: 0,
            attempts: 1,
            deliveries: 1,
            lease: 1,
            snapshot: false,
            redriven: 0,
            state: State::Ready,
            reason: None,
        };
        entry.failed("x".repeat(199) + "é and more");
        assert_eq!(entry.reason.as_deref(), Some("x".repeat(199).as_str()));
        entry.failed("short".to_owned());
        assert_eq!(entry.reason.as_deref(), Some("short"));
        entry.failed(String::new());
        assert_eq!(entry.reason.as_deref(), Some(""));
    }
}
