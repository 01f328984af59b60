//! SIGINT, SIGTERM and SIGHUP: exit code 130, and nothing half made is left.
//!
//! [`watch`] is for commands that wait in system calls: they end at once. Those that run on a runtime have [`Signals`].

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::out;
use crate::exit::{Exit, Failure};

/// The signals that end a command, heard from its beginning on.
pub(super) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    /// `None` under nohup: the terminal may go.
    hang_up: Option<Signal>,
}

impl Signals {
    /// Listens. Needs a Tokio runtime.
    pub(super) fn new() -> Result<Self, Failure> {
        let listen = |kind| signal(kind).map_err(|error| Failure::failed(format!("cannot wait for signals: {error}")));
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hang_up: if hang_up_is_ignored() { None } else { Some(listen(SignalKind::hangup())?) },
        })
    }

    /// Resolves at the next signal.
    pub(super) async fn next(&mut self) {
        let Self { interrupt, terminate, hang_up } = self;
        let hung_up = async {
            match hang_up {
                Some(hang_up) => hang_up.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hung_up => {}
        }
    }

    /// Returns the result of `command`, or fails with exit code 130 at a signal.
    pub(super) async fn unless<T>(&mut self, command: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        tokio::select! {
            // In this order: a signal counts from before the first step.
            biased;
            () = self.next() => Err(Failure::new(Exit::Interrupted, "interrupted")),
            done = command => done,
        }
    }
}

/// True if the process was started with SIGHUP ignored. Only Linux says so.
fn hang_up_is_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 == 1)
}

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

/// From now on, a signal ends the process with 130.
pub(super) fn watch() -> Result<(), Failure> {
    let failed = |error| Failure::failed(format!("cannot wait for signals: {error}"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let inside = runtime.enter();
    let mut signals = Signals::new()?;
    drop(inside);
    std::thread::spawn(move || {
        runtime.block_on(signals.next());
        end();
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
