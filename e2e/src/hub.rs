//! A hub as a process of its own.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// How long a hub may take to be ready, and to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// How to start a hub. Ports are 0, the address is loopback, nothing comes from the caller's environment.
#[derive(Debug, Clone, Default)]
pub struct Setup {
    command: Option<String>,
    args: Vec<String>,
    env: Vec<(String, String)>,
}

impl Setup {
    /// On the embedded store in `dir`.
    pub fn log(dir: &Path) -> Self {
        Self::default().env("PROMETHEAN_STORE", "log").env("PROMETHEAN_DATA_DIR", &dir.display().to_string())
    }

    /// On the memory store.
    pub fn memory() -> Self {
        Self::default().env("PROMETHEAN_STORE", "memory")
    }

    /// On a MongoDB, perhaps with other hubs.
    pub fn mongo(url: &str) -> Self {
        Self::default().env("MONGO_URL", url)
    }

    /// With another command than `serve`.
    #[must_use]
    pub fn run(mut self, command: &str) -> Self {
        self.command = Some(command.to_owned());
        self
    }

    /// With a variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// With an argument of `serve`.
    #[must_use]
    pub fn arg(mut self, arg: &str) -> Self {
        self.args.push(arg.to_owned());
        self
    }

    /// The binary, without arguments and without the caller's environment.
    pub fn program() -> Command {
        let mut command = Command::new(binary());
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command
    }

    /// The command, not started.
    pub fn command(&self) -> Command {
        let mut command = Self::program();
        for name in ["WS_PORT", "HTTP_PORT", "OPS_PORT"] {
            command.env(name, "0");
        }
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command
            .arg(self.command.as_deref().unwrap_or("serve"))
            .args(&self.args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Starts it and waits until it is ready.
    pub fn start(&self) -> Hub {
        Hub::start(self)
    }
}

/// Runs a command of the binary to its end, with nothing of the caller's environment.
pub fn run(args: &[&str]) -> std::process::Output {
    promethean(args).output().expect("the binary runs")
}

/// Another command of the binary, not started; nothing comes from the caller's environment.
pub fn promethean(args: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The binary under test: `PROMETHEAN_BIN`, or the one beside this test's build.
pub fn binary() -> PathBuf {
    if let Some(path) = std::env::var_os("PROMETHEAN_BIN") {
        return path.into();
    }
    let test = std::env::current_exe().expect("a test has a path");
    let built = test.ancestors().nth(2).expect("target/<profile>/deps").join("promethean");
    assert!(built.exists(), "no binary to test: run `cargo build -p promethean` first, or `make test`");
    built
}

/// A running hub. Dropping it kills it.
#[derive(Debug)]
pub struct Hub {
    child: Child,
    /// Where the WebSocket gateway listens.
    pub ws: SocketAddr,
    /// Where HTTP listens.
    pub http: SocketAddr,
    /// Where ops listens.
    pub ops: SocketAddr,
    /// The start-up line.
    pub ready: String,
    log: Arc<Mutex<String>>,
}

impl Hub {
    fn start(setup: &Setup) -> Self {
        let mut child = setup.command().spawn().expect("the binary starts");
        let log = Arc::new(Mutex::new(String::new()));
        collect(child.stderr.take().expect("piped"), &log);
        let (lines, first) = mpsc::channel();
        let stdout = child.stdout.take().expect("piped");
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = lines.send(line);
            }
        });
        let ready = first.recv_timeout(PATIENCE).unwrap_or_else(|_| {
            let _ = child.kill();
            panic!("the hub did not get ready; it said:\n{}", text(&log));
        });
        let address = |name: &str| -> SocketAddr {
            let value = ready.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
            value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {name}=ADDR in {ready:?}"))
        };
        let (ws, http, ops) = (address("ws"), address("http"), address("ops"));
        Self { child, ws, http, ops, ready, log }
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it has logged so far.
    pub fn log(&self) -> String {
        text(&self.log)
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        self.child.kill().expect("killable");
        self.child.wait().expect("waitable");
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).expect("a pid")).expect("a pid");
        kill_process(pid, signal).expect("signalled");
    }

    /// Sends SIGTERM and waits for the end.
    pub fn terminate(&mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        self.wait()
    }

    /// Waits for the end.
    pub fn wait(&mut self) -> ExitStatus {
        let started = Instant::now();
        while started.elapsed() < PATIENCE {
            if let Some(status) = self.child.try_wait().expect("waitable") {
                return status;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("the hub did not end; it said:\n{}", self.log());
    }

    /// Resident memory in bytes.
    pub fn rss(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("running");
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("VmRSS");
        let kib: u64 = line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).expect("a number");
        kib * 1024
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("the hub said:\n{}", self.log());
        }
    }
}

/// Keeps the first 4 MiB of what a hub says.
fn collect(mut from: impl std::io::Read + Send + 'static, into: &Arc<Mutex<String>>) {
    let into = Arc::clone(into);
    std::thread::spawn(move || {
        let mut buffer = [0; 8192];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            let mut log = into.lock().unwrap_or_else(PoisonError::into_inner);
            if log.len() < 4 << 20 {
                log.push_str(&String::from_utf8_lossy(&buffer[..count]));
            }
        }
    });
}

fn text(log: &Mutex<String>) -> String {
    log.lock().unwrap_or_else(PoisonError::into_inner).clone()
}
