//! Upkeep: the rounds in which retention, compaction and the sweep of left-over files run.
//!
//! A round first has the journal flushed, because retention and compaction see only flushed events.

mod clock;
mod compact;
mod maintain;
mod pace;
mod retain;
pub(in crate::log) mod room;
mod tables;

use std::time::{Duration, Instant};

use promethean_event::Millis;
use tokio::sync::oneshot::{self, error::TryRecvError};

use crate::Result;
use crate::log::commit::queue::Request;
use crate::log::flush::Trouble;
use crate::log::shared::Shared;
use crate::log::upkeep::clock::Clock;

/// How long a round waits for the journal to be flushed.
const FLUSHES: Duration = Duration::from_secs(10);
/// How long after a round the next one follows while the disk is nearly full.
const LOW: Duration = Duration::from_secs(1);

/// Looks after what is flushed at intervals, and first of all once what was found at open is flushed: what a hub has
/// replayed it need not keep in memory until it is busy again.
pub(super) fn maintain_at_intervals(shared: &Shared) {
    let Some(interval) = shared.options.maintenance else { return };
    let start = Instant::now();
    let mut clock = Clock::new(Millis::now(), Duration::ZERO);
    let (mut last, mut next) = (None, start + interval);
    let mut replayed = true;
    loop {
        let mut flushing = shared.flushing.lock();
        while !flushing.stop && shared.failed().is_none() {
            if replayed && flushing.sealed.is_empty() {
                break;
            }
            // A disk that is nearly full is looked after at once, then every second.
            let soon = shared.room.is_low().then(|| last.map_or(start, |last: Instant| last + LOW));
            let due = soon.map_or(next, |soon| soon.min(next));
            if Instant::now() >= due {
                break;
            }
            shared.flushing_changed.wait_until(&mut flushing, due);
        }
        if flushing.stop || shared.failed().is_some() {
            return;
        }
        drop(flushing);
        if std::mem::take(&mut replayed) {
            begin_to_flush(shared);
            // A hub that is restarted again and again keeps its bounds all the same.
            if let Err(trouble) = shared.retain_now(Millis::now()) {
                tracing::warn!(?trouble, "retention waits for the first round");
            }
            continue;
        }
        let (now, jumped) = clock.now(Millis::now(), start.elapsed());
        if jumped {
            tracing::warn!("the clock has jumped ahead; retention by age goes by the old time for an hour");
        }
        match flush_and_maintain(shared, now) {
            Ok(()) => {}
            Err(Trouble::NoRoom(reason)) => tracing::warn!(reason, "retention and compaction wait for room"),
            Err(_) if shared.files.has_ended() => return,
            Err(Trouble::Fatal(reason) | Trouble::Damaged(reason)) => {
                shared.fail(format!("maintenance failed: {reason}"))
            }
        }
        shared.restore_room();
        last = Some(Instant::now());
        next = Instant::now() + interval;
    }
}

/// Asks for the journal to be flushed where something waits for that; the answer comes when the file is sealed.
fn begin_to_flush(shared: &Shared) -> Option<oneshot::Receiver<Result<()>>> {
    shared.waits_to_be_flushed().then(|| {
        let (reply, sealed) = oneshot::channel();
        shared.queue.push_now(Request::Rotate { reply });
        sealed
    })
}

/// Retention and compaction see only what is flushed: what waits for that is flushed first, or it would be there for an
/// interval more. It is waited for [`FLUSHES`] at most; then what is flushed by then has its turn.
fn flush_and_maintain(shared: &Shared, now: Millis) -> std::result::Result<(), Trouble> {
    if shared.room.is_low() {
        shared.retain_now(now)?;
    }
    if let Some(mut sealed) = begin_to_flush(shared) {
        let until = Instant::now() + FLUSHES;
        let mut flushing = shared.flushing.lock();
        let waits = |sealed: &mut oneshot::Receiver<_>| matches!(sealed.try_recv(), Err(TryRecvError::Empty));
        while (waits(&mut sealed) || !flushing.sealed.is_empty())
            && !flushing.stop
            && flushing.no_room.is_none()
            && shared.failed().is_none()
            && Instant::now() < until
        {
            shared.flushing_changed.wait_for(&mut flushing, Duration::from_millis(20));
        }
        if flushing.stop || shared.failed().is_some() {
            return Ok(());
        }
    }
    shared.maintain(now, false)
}

#[cfg(all(test, feature = "suite"))]
mod tests {
    use super::*;
    use crate::log::{Log, Options};
    use crate::suite::{append, event, topic};
    use crate::{EventLog as _, Retention, TopicSettings};

    #[tokio::test]
    async fn one_round_of_maintenance_reaches_what_is_still_in_the_journal() {
        let dir = tempfile::tempdir().expect("a directory");
        let options = Options { maintenance: None, ..Options::new(dir.path().join("data")) };
        let log = Log::open(options).expect("opens");
        let retention = Retention { max_events: Some(10), ..Retention::default() };
        let settings = TopicSettings { retention, ..TopicSettings::default() };
        log.set_settings(&topic("t"), settings).await.expect("set");
        append(&log, &vec![event("t"); 100]).await;
        let shared = log.shared.clone();
        let round = tokio::task::spawn_blocking(move || flush_and_maintain(&shared, Millis::now()));
        round.await.expect("no panic").expect("maintained");
        let info = log.info(&topic("t")).await.expect("known").expect("exists");
        assert!((10..20).contains(&info.events), "{} events are there", info.events);
    }
}
