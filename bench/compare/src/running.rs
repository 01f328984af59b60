//! What a run leaves behind if it is ended from outside: the servers it started and their data. SIGTERM and SIGINT end the
//! servers, remove the data, and only then this process.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::signal::unix::{SignalKind, signal};

/// How long a server may take to end before it is killed.
const PATIENCE: Duration = Duration::from_secs(60);

struct Running {
    servers: Vec<Child>,
    data: Option<PathBuf>,
}

/// Locked by whoever starts or ends a server, and by the end of the process: nothing is started behind its back.
static RUNNING: Mutex<Running> = Mutex::new(Running { servers: Vec::new(), data: None });

fn running() -> MutexGuard<'static, Running> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From now on the two signals end everything. The servers get SIGINT of a terminal too: they may be gone already.
pub(crate) fn watch() -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let inside = runtime.enter();
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    drop(inside);
    std::thread::spawn(move || {
        let number = runtime.block_on(async {
            tokio::select! {
                _ = terminate.recv() => 15,
                _ = interrupt.recv() => 2,
            }
        });
        let mut running = running();
        running.servers.iter_mut().for_each(end);
        if let Some(data) = &running.data {
            let _ = std::fs::remove_dir_all(data);
        }
        // As a shell has it of a process that a signal ended.
        std::process::exit(128 + number);
    });
    Ok(())
}

/// Runs `work` on `data`, a directory that is new and that nothing is left of.
pub(crate) fn on<T>(data: &Path, work: impl FnOnce() -> T) -> T {
    let _ = std::fs::remove_dir_all(data);
    running().data = Some(data.to_owned());
    let done = work();
    let _ = std::fs::remove_dir_all(data);
    running().data = None;
    done
}

/// Starts a server; its process id.
pub(crate) fn spawn(command: &mut Command) -> io::Result<u32> {
    let mut running = running();
    let child = command.spawn()?;
    let id = child.id();
    running.servers.push(child);
    Ok(id)
}

/// Does something with a server that was started.
pub(crate) fn with<T>(id: u32, act: impl FnOnce(&mut Child) -> T) -> Option<T> {
    running().servers.iter_mut().find(|child| child.id() == id).map(act)
}

/// How a server ended, where it did.
pub(crate) fn ended(id: u32) -> Option<ExitStatus> {
    with(id, |child| child.try_wait().ok().flatten()).flatten()
}

/// Ends a server.
pub(crate) fn stop(id: u32) {
    let mut running = running();
    if let Some(at) = running.servers.iter().position(|child| child.id() == id) {
        end(&mut running.servers.swap_remove(at));
    }
}

fn end(child: &mut Child) {
    let began = Instant::now();
    let mut asked = false;
    while matches!(child.try_wait(), Ok(None)) {
        if !asked {
            let _ = Command::new("kill").args(["-TERM", &child.id().to_string()]).status();
            asked = true;
        }
        if began.elapsed() > PATIENCE {
            let _ = child.kill();
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
