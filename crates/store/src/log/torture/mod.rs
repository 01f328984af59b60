//! Crashes and faults at every call of generated workloads, with a ledger of what was answered.
//!
//! A workload runs once on the recording test disk; then, for every call it made, the disk that a crash there leaves
//! behind is opened and held against the ledger: everything answered is there, nothing that was never published is,
//! seqs have no gaps, bytes are the publisher's. Recovery is crashed in the same way.

mod ledger;
mod workload;

use std::path::Path;
use std::sync::Arc;

use crate::log::Log;
use crate::log::Options;
use crate::log::Sync;
use crate::log::disk::test::{Fault, Survival, TestDisk};
use crate::log::open::recovery;
use crate::suite::event;
use crate::{Error, EventLog, Outcome, Store};
use ledger::Ledger;
pub use workload::Kind;

/// Numbers that follow from a seed (splitmix64).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The numbers of this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number, below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit.max(1)
    }
}

/// The directory on the test disk.
fn dir() -> &'static Path {
    Path::new("/data")
}

/// Files so small that a few events fill them.
fn options(disk: &TestDisk, sync: Sync) -> Options {
    Options {
        sync,
        journal_bytes: 4096,
        segment_bytes: 2048,
        block_bytes: 512,
        index_cache_bytes: 1 << 20,
        // A hundred thousand times, it would take most of the time.
        index_check_bytes: 0,
        maintenance: None,
        disk: Arc::new(disk.clone()),
        ..Options::new(dir())
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// Crashes a workload at every call, in every way, and recovery as well. Returns how many crashes were checked.
///
/// # Errors
/// What was wrong after which crash.
///
/// # Panics
/// When the engine does.
pub fn crash_everywhere(seed: u64, kind: Kind, sync: Sync) -> Result<u64, String> {
    let disk = TestDisk::new();
    disk.record();
    let ledger = runtime().block_on(async {
        let journal_bytes = if kind == Kind::Growing { 64 << 10 } else { 4096 };
        let log = Log::open(Options { journal_bytes, ..options(&disk, sync) }).expect("an empty disk opens");
        let ledger = workload::run(&log, &disk, seed, kind).await;
        log.close().await.expect("closes");
        ledger
    });
    let (mut crashes, mut random, mut checked) = (disk.crashes(), Random::new(!seed), 0);
    loop {
        for survival in Survival::ALL {
            let at = crashes.position();
            let name = |what: String| format!("seed {seed} {kind:?} {sync} crash at {at} {survival:?}: {what}");
            let left = crashes.crash(survival, &mut |limit| random.below(limit));
            left.record();
            // The same again, with the power going away during recovery.
            let again = survival == Survival::Sectors;
            recover(&left, sync, &ledger, at, random.below(8) == 0, !again).map_err(name)?;
            checked += 1;
            if again {
                let mut again = left.crashes();
                while again.advance() {
                    let choice = usize::try_from(random.below(Survival::ALL.len() as u64)).unwrap_or(0);
                    let left = again.crash(Survival::ALL[choice], &mut |limit| random.below(limit));
                    let call = again.position();
                    recover(&left, sync, &ledger, at, false, true)
                        .map_err(|what| name(format!("then at {call} of recovery: {what}")))?;
                    checked += 1;
                }
            }
        }
        if !crashes.advance() {
            return Ok(checked);
        }
    }
}

/// Opens what a crash left behind, holds it against the ledger, flushes what waits, and looks again. `last`: nobody
/// will look at the disk afterwards, so the store need not be closed in peace.
fn recover(disk: &TestDisk, sync: Sync, ledger: &Ledger, at: u64, go_on: bool, last: bool) -> Result<(), String> {
    let (shared, writer, lock) = recovery::open(options(disk, sync)).map_err(|error| error.to_string())?;
    ledger.check(&shared, at, sync == Sync::Always)?;
    let sealed: Vec<_> = shared.flushing.lock().sealed.drain(..).collect();
    for sealed in &sealed {
        shared.flush(sealed).map_err(|trouble| format!("flushing failed: {trouble:?}"))?;
    }
    if !sealed.is_empty() {
        ledger.check(&shared, at, sync == Sync::Always)?;
    }
    if last && !go_on {
        disk.power_off();
    }
    drop((writer, lock, shared));
    if !go_on {
        return Ok(());
    }
    // It has to take events again, and keep them.
    runtime().block_on(async {
        let log = Log::open(options(disk, sync)).map_err(|error| format!("again: {error}"))?;
        let told = log.append(vec![event("after.crash").new_event()]).await.map_err(|error| error.to_string())?;
        let stored = matches!(told[..], [Outcome::Stored(one)] if one.seq == 1 && !one.duplicate);
        log.close().await.map_err(|error| error.to_string())?;
        drop(log);
        let (shared, ..) = recovery::open(options(disk, sync)).map_err(|error| format!("after going on: {error}"))?;
        ledger.check(&shared, at, sync == Sync::Always)?;
        if stored { Ok(()) } else { Err(format!("an append after the crash was told {told:?}")) }
    })
}

/// Lets every call of recovery fail once, after crashes all over a workload: it opens or says why not, and the next
/// start finds everything. Returns how many failures were checked.
///
/// # Errors
/// What was wrong after which failure.
///
/// # Panics
/// When the engine does.
pub fn fail_in_recovery(seed: u64, kind: Kind, fault: Fault) -> Result<u64, String> {
    // Crashes close to each other leave much the same behind.
    const EVERY: u64 = 25;
    let disk = TestDisk::new();
    disk.record();
    let ledger = runtime().block_on(async {
        let log = Log::open(options(&disk, Sync::Always)).expect("an empty disk opens");
        let ledger = workload::run(&log, &disk, seed, kind).await;
        log.close().await.expect("closes");
        ledger
    });
    let (mut crashes, mut random, mut checked) = (disk.crashes(), Random::new(!seed), 0);
    loop {
        let at = crashes.position();
        if at % EVERY == 0 {
            let left = crashes.crash(Survival::Sectors, &mut |limit| random.below(limit));
            let whole = left.copy();
            whole.record();
            recover(&whole, Sync::Always, &ledger, at, false, true)?;
            for call in 0..whole.calls() {
                let name = |what: String| format!("seed {seed} {kind:?} crash at {at}, {fault:?} at {call}: {what}");
                let disk = left.copy();
                disk.record();
                disk.fail_at(call, fault);
                let opened = recovery::open(options(&disk, Sync::Always));
                if let Ok((shared, ..)) = &opened {
                    ledger.check(shared, at, true).map_err(name)?;
                    let sealed: Vec<_> = shared.flushing.lock().sealed.drain(..).collect();
                    let _ = sealed.iter().try_for_each(|sealed| shared.flush(sealed));
                }
                let (left, failed) = (disk.copy(), disk.has_failed());
                disk.power_off();
                drop(opened);
                if failed {
                    recover(&left, Sync::Always, &ledger, at, false, true).map_err(name)?;
                    checked += 1;
                }
            }
        }
        if !crashes.advance() {
            return Ok(checked);
        }
    }
}

/// Runs a workload with one call failing, for every call. Returns how many failures were checked.
///
/// # Errors
/// What was wrong after which failure.
///
/// # Panics
/// When the engine does.
pub fn fail_everywhere(seed: u64, kind: Kind, fault: Fault) -> Result<u64, String> {
    let (whole, mut checked) = (TestDisk::new(), 0);
    whole.record();
    runtime().block_on(fail_once(&whole, seed, kind, fault))?;
    for at in 0..whole.calls() {
        let disk = TestDisk::new();
        disk.record();
        disk.fail_at(at, fault);
        let name = |what: String| format!("seed {seed} {kind:?} {fault:?} at {at}: {what}");
        let ledger = runtime().block_on(fail_once(&disk, seed, kind, fault)).map_err(name)?;
        if !disk.has_failed() {
            // This call needed no space, or came in another order.
            continue;
        }
        // What is on the disk now is what a crash at this very moment would leave, if the system wrote everything.
        let calls = disk.calls();
        let left = disk.copy();
        recover(&left, Sync::Always, &ledger, calls, true, true).map_err(name)?;
        checked += 1;
    }
    Ok(checked)
}

async fn fail_once(disk: &TestDisk, seed: u64, kind: Kind, fault: Fault) -> Result<Ledger, String> {
    let Ok(log) = Log::open(options(disk, Sync::Always)) else { return Ok(Ledger::default()) };
    let ledger = workload::run(&log, disk, seed, kind).await;
    match fault {
        Fault::Full(_) => {
            // No room is not the end: it goes on by itself.
            let told = log.append(vec![event("room.again").new_event()]).await;
            if let (Err(Error::Closed(why)), true) = (&told, disk.has_failed()) {
                return Err(format!("the engine gave up: {why}"));
            }
        }
        Fault::Eio | Fault::Short => {
            // A failed write is the end: no answer may come after it that says otherwise.
            if log.shared.failed().is_some() {
                let told = log.append(vec![event("too.late").new_event()]).await;
                if !matches!(told, Err(Error::Closed(_))) {
                    return Err(format!("after a failure an append was told {told:?}"));
                }
                let why = tokio::time::timeout(std::time::Duration::from_secs(10), log.failed()).await;
                if !why.is_ok_and(|why| why.contains("told to fail")) {
                    return Err("the reason of the failure is not told".to_owned());
                }
            }
        }
    }
    drop(log);
    Ok(ledger)
}
