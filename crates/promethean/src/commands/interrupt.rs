//! SIGINT in commands that wait in system calls: exit code 130 at once, and nothing half made is left.
//!
//! Those that run on a runtime look after it themselves (`hub::unless_interrupted`, `serve`, `outbox drain`).

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::signal::unix::{SignalKind, signal};

use super::out;
use crate::exit::{Exit, Failure};

/// What an interrupt leaves behind.
struct Left {
    /// A file that is none yet: it is removed.
    partial: Option<PathBuf>,
    /// What has to be done about the rest, asked when it happens.
    remedy: Option<Box<dyn Fn() -> String + Send>>,
}

/// Locked by whoever makes or ends something, and by the end of the process: it cannot come in between.
static LEFT: Mutex<Left> = Mutex::new(Left { partial: None, remedy: None });

fn left() -> MutexGuard<'static, Left> {
    LEFT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From now on, an interrupt ends the process with 130.
pub(super) fn watch() -> Result<(), Failure> {
    let failed = |error| Failure::failed(format!("cannot wait for signals: {error}"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let inside = runtime.enter();
    let mut interrupts = signal(SignalKind::interrupt()).map_err(failed)?;
    drop(inside);
    std::thread::spawn(move || {
        if runtime.block_on(interrupts.recv()).is_some() {
            end();
        }
    });
    Ok(())
}

fn end() {
    let left = left();
    if let Some(partial) = &left.partial {
        let _ = std::fs::remove_file(partial);
    }
    let remedy = left.remedy.as_ref().map_or_else(String::new, |remedy| remedy());
    out::clear_bar();
    out::failure(&Failure::new(Exit::Interrupted, format!("interrupted{remedy}")));
    std::process::exit(Exit::Interrupted as i32);
}

/// Makes a file that is removed if an interrupt comes before [`settled`].
pub(super) fn making<T>(partial: &Path, make: impl FnOnce() -> T) -> T {
    let mut left = left();
    left.partial = Some(partial.to_owned());
    make()
}

/// What to say in addition if an interrupt comes before [`settled`].
pub(super) fn leaving(remedy: impl Fn() -> String + Send + 'static) {
    left().remedy = Some(Box::new(remedy));
}

/// The last step, after which an interrupt leaves nothing behind.
pub(super) fn settled<T>(last: impl FnOnce() -> T) -> T {
    let mut left = left();
    let done = last();
    *left = Left { partial: None, remedy: None };
    done
}
