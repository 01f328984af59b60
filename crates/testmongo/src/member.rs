//! One mongod.

use std::net::TcpListener;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use mongodb::bson::doc;

use crate::admin;

/// One mongod with its data. Dropping it ends the process and removes the data.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) port: u16,
    dir: PathBuf,
    flags: Vec<String>,
    script: Option<Child>,
}

impl Member {
    /// Starts one on a free port and waits until it answers.
    pub(crate) fn start(dir: PathBuf, flags: &[String]) -> Self {
        // A port may be taken between the look and the start: then mongod ends at once.
        for _ in 0..5 {
            let mut member = Self { port: free_port(), dir: dir.clone(), flags: flags.to_vec(), script: None };
            if member.run() {
                return member;
            }
        }
        panic!("mongod does not start; its log: {}", log_of(&dir));
    }

    /// Starts it again, with the data that it had.
    pub(crate) fn restart(&mut self) {
        assert!(self.run(), "mongod does not start again; its log: {}", log_of(&self.dir));
    }

    /// `false`: it ended before it answered.
    fn run(&mut self) -> bool {
        let mut script = Command::new(script())
            .arg("run")
            .arg(self.port.to_string())
            .arg(&self.dir)
            .args(&self.flags)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0) // a Ctrl-C in the terminal ends the tests; this one ends with them
            .spawn()
            .expect("scripts/mongo.sh runs");
        let answers = admin::until("mongod answers", || {
            if script.try_wait().expect("a child").is_some() {
                return Ok(false);
            }
            admin::command(self.port, None, doc! { "hello": 1 }).map(|_| true).map_err(|error| error.to_string())
        });
        self.script = Some(script);
        answers
    }

    /// `kill -9`.
    pub(crate) fn kill(&mut self) {
        let done = Command::new(script()).args(["kill", &self.port.to_string()]).status().expect("the script runs");
        assert!(done.success(), "the member on port {} could not be killed", self.port);
        // Not `wait`: it closes the pipe first, and then the data would go too.
        if let Some(mut script) = self.script.take() {
            admin::until("the script ends", || match script.try_wait() {
                Ok(Some(_)) => Ok(()),
                _ => Err("it still runs".to_owned()),
            });
        }
        assert!(self.dir.join("data").exists(), "the data outlives the kill");
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if let Some(mut script) = self.script.take() {
            drop(script.stdin.take());
            let _ = script.wait();
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the workspace").to_owned()
}

pub(crate) fn script() -> PathBuf {
    root().join("scripts/mongo.sh")
}

/// A folder for one set, below `target`.
pub(crate) fn folder() -> PathBuf {
    static COUNT: AtomicU16 = AtomicU16::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    root().join("target/mongo/run").join(format!("{}-{count}", std::process::id()))
}

fn log_of(dir: &Path) -> String {
    let log = std::fs::read_to_string(dir.join("log")).unwrap_or_default();
    log.lines().rev().take(8).collect::<Vec<_>>().join("\n")
}

/// A port for a server that comes back at its place: below those that the system gives to outgoing connections and to whoever
/// asks for port 0, so that a killed member or hub finds its port free again, and nobody else answers there meanwhile.
///
/// # Panics
/// When none is free.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let nanos = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or(Duration::ZERO).subsec_nanos();
    let start = std::process::id().wrapping_mul(31).wrapping_add(nanos) % 10_000;
    for _ in 0..1_000 {
        let port = 20_000 + (start as u16 + NEXT.fetch_add(1, Ordering::Relaxed)) % 12_000;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no free port between 20000 and 32000");
}
