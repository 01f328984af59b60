//! Reads that are at least as new as what this hub has heard of.
//!
//! MongoDB promises less of a `majority` read than one would think: a primary that was just elected may answer with an
//! older state than the one before it had acknowledged, until it knows what a majority has. A hub that reads less than it
//! was told of would take the rest for removed, and pass it over. So every read carries the time of the newest thing that
//! this hub has heard of (its own commits and claims, the change stream, other reads), and the server answers when it is
//! as far. That costs no request, and mostly no wait: what was heard of is on a majority already.

use std::sync::atomic::{AtomicU64, Ordering};

use mongodb::ClientSession;
use mongodb::bson::Timestamp;

use super::Shared;

/// The newest time of the replica set that was heard of; it only grows.
#[derive(Default)]
pub(super) struct Seen(AtomicU64);

impl Seen {
    pub(super) fn advance(&self, to: Timestamp) {
        self.0.fetch_max(u64::from(to.time) << 32 | u64::from(to.increment), Ordering::AcqRel);
    }

    fn latest(&self) -> Option<Timestamp> {
        let packed = self.0.load(Ordering::Acquire);
        let half = |bits: u64| u32::try_from(bits & u64::from(u32::MAX)).unwrap_or(u32::MAX);
        (packed > 0).then(|| Timestamp { time: half(packed >> 32), increment: half(packed) })
    }
}

impl Shared {
    /// A session whose reads are at least as new as everything that was heard of until now.
    pub(super) async fn session(&self) -> mongodb::error::Result<ClientSession> {
        let mut session = self.client.start_session().await?;
        if let Some(latest) = self.seen.latest() {
            session.advance_operation_time(latest);
        }
        Ok(session)
    }

    /// What this session was answered has been heard of: before it is told to anybody.
    pub(super) fn heard(&self, session: &ClientSession) {
        if let Some(time) = session.operation_time() {
            self.seen.advance(time);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_does_not_go_back() {
        let (seen, at) = (Seen::default(), |time, increment| Timestamp { time, increment });
        assert_eq!(seen.latest(), None);
        for (heard, latest) in [((7, 3), (7, 3)), ((6, 9), (7, 3)), ((7, 2), (7, 3)), ((8, 1), (8, 1))] {
            seen.advance(at(heard.0, heard.1));
            assert_eq!(seen.latest(), Some(at(latest.0, latest.1)));
        }
        seen.advance(at(u32::MAX, u32::MAX));
        assert_eq!(seen.latest(), Some(at(u32::MAX, u32::MAX)));
    }
}
