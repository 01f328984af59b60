//! How long the hub's allocator keeps memory that was freed, before it gives it back to the system.
//!
//! What a hub takes in lives for some seconds, until it is flushed, and the next events need as much again. With mimalloc's
//! default of one second most of it was given back and asked for anew, page by page: a quarter of the publishing rate
//! (docs/performance.md). mimalloc reads its options from the environment before `main`, and there is no other way to them
//! without unsafe code: so the hub starts itself once more with the option set, as the same process.

use std::os::unix::process::CommandExt as _;
use std::process::Command;

/// The option, in milliseconds. Whoever sets it is heeded.
const OPTION: &str = "MIMALLOC_PURGE_DELAY";
/// Four seconds: longer than what was taken in needs to be flushed, short enough to stay below 500 MB at full load.
const DELAY: &str = "4000";

/// Has memory kept for longer. Where that does not work, the hub runs with the allocator's default.
pub(crate) fn keep_memory() {
    if std::env::var_os(OPTION).is_some() {
        return;
    }
    let Ok(program) = std::env::current_exe() else { return };
    let mut arguments = std::env::args_os();
    let mut again = Command::new(program);
    if let Some(name) = arguments.next() {
        again.arg0(name);
    }
    // It returns only where it has failed.
    let _ = again.args(arguments).env(OPTION, DELAY).exec();
}
