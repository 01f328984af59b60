//! The embedded engine on the test disk: the power goes away, and calls fail, at every single call.
//!
//! The seeds are fixed so that a run can be repeated; `examples/torture.rs` takes others for as long as it is told.

use promethean_store::log::Sync;
use promethean_store::log::disk::test::Fault;
use promethean_store::log::torture::{Kind, crash_everywhere, fail_everywhere, fail_in_recovery};

/// How many calls a workload makes depends on what its appends meet: one seed after another until they are enough.
fn crash(seed: u64, kind: Kind, sync: Sync, at_least: u64) {
    let (mut seed, mut checked) = (seed, 0);
    while checked < at_least {
        checked += crash_everywhere(seed, kind, sync).unwrap_or_else(|wrong| panic!("{wrong}"));
        println!("{checked} crash points up to seed {seed}");
        seed += 100;
    }
}

fn fail(seed: u64, kind: Kind, fault: Fault, at_least: u64) {
    let checked = fail_everywhere(seed, kind, fault).unwrap_or_else(|wrong| panic!("{wrong}"));
    println!("{checked} failures");
    assert!(checked >= at_least, "only {checked} failures were checked");
}

fn fail_recovery(seed: u64, kind: Kind, fault: Fault, at_least: u64) {
    let checked = fail_in_recovery(seed, kind, fault).unwrap_or_else(|wrong| panic!("{wrong}"));
    println!("{checked} failures in recovery");
    assert!(checked >= at_least, "only {checked} failures were checked");
}

macro_rules! tests {
    ($($name:ident: $work:expr;)*) => { $(#[test] fn $name() { $work })* };
}

// The crash points asked for here come to 110,000.
tests! {
    nothing_answered_is_lost_in_a_crash: crash(1, Kind::Plain, Sync::Always, 14_000);
    nothing_answered_is_lost_in_another_crash: crash(2, Kind::Plain, Sync::Always, 20_000);
    nothing_answered_is_lost_in_a_journal_that_grows: crash(3, Kind::Growing, Sync::Always, 5_000);
    a_crash_while_trimming_or_compacting_loses_nothing_else: crash(4, Kind::Shrinking, Sync::Always, 13_000);
    a_crash_while_trimming_or_compacting_loses_nothing_else_again: crash(5, Kind::Shrinking, Sync::Always, 22_000);
    a_deletion_is_all_or_nothing_in_a_crash: crash(16, Kind::Deleting, Sync::Always, 8_000);
    without_syncs_a_crash_leaves_a_prefix_of_deletions: crash(17, Kind::Deleting, Sync::Never, 4_000);
    without_syncs_a_crash_leaves_a_prefix: crash(6, Kind::Plain, Sync::Never, 18_000);
    without_syncs_a_crash_leaves_a_prefix_also_when_compacting: crash(7, Kind::Shrinking, Sync::Never, 18_000);
    an_io_error_at_any_call_is_the_end_or_harmless: fail(8, Kind::Plain, Fault::Eio, 250);
    an_io_error_at_any_call_while_compacting_is_the_end_or_harmless: fail(9, Kind::Shrinking, Fault::Eio, 250);
    half_a_write_at_any_call_is_the_end_or_harmless: fail(10, Kind::Plain, Fault::Short, 250);
    a_full_disk_at_any_call_is_waited_out: fail(11, Kind::Plain, Fault::Full(0), 50);
    a_disk_that_stays_full_for_a_while_is_waited_out: fail(12, Kind::Shrinking, Fault::Full(25), 100);
    an_io_error_at_any_call_of_recovery_loses_nothing: fail_recovery(13, Kind::Plain, Fault::Eio, 100);
    half_a_write_at_any_call_of_recovery_loses_nothing: fail_recovery(14, Kind::Shrinking, Fault::Short, 100);
    a_full_disk_at_any_call_of_recovery_loses_nothing: fail_recovery(15, Kind::Plain, Fault::Full(0), 40);
}
