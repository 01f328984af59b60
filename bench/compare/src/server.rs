//! A server as a process of its own: started, asked for its memory and CPU time, ended.

use std::io::{self, BufRead as _, BufReader};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a server may take to be ready, and to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running server. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    pub(crate) address: SocketAddr,
}

/// A port of loopback that nobody has at the moment.
pub(crate) fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

fn spawn(mut command: Command) -> io::Result<Child> {
    let program = command.get_program().to_owned();
    command.spawn().map_err(|error| {
        let message = format!("{} does not start: {error}; `make bench-compare` installs it", program.display());
        io::Error::new(error.kind(), message)
    })
}

/// Starts a server and waits until its port answers.
pub(crate) fn start_at(mut command: Command, address: SocketAddr) -> io::Result<Server> {
    let child = spawn({
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    })?;
    let server = Server { child, address };
    let began = Instant::now();
    while TcpStream::connect(address).is_err() {
        if began.elapsed() > PATIENCE {
            return Err(io::Error::other("the server does not get ready"));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    // The port may answer before everything behind it does.
    std::thread::sleep(Duration::from_millis(200));
    Ok(server)
}

/// Starts a hub, which says on its first line where it listens.
pub(crate) fn start_ready(mut command: Command) -> io::Result<Server> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    let mut child = spawn(command)?;
    let mut ready = String::new();
    let stdout = child.stdout.take().ok_or_else(|| io::Error::other("no standard output"))?;
    BufReader::new(stdout).read_line(&mut ready)?;
    let address = ready.split_whitespace().find_map(|word| word.strip_prefix("ws=")?.parse().ok());
    match address {
        Some(address) => Ok(Server { child, address }),
        None => {
            let _ = child.kill();
            let _ = child.wait();
            Err(io::Error::other(format!("the hub does not say where it listens: {ready:?}")))
        }
    }
}

impl Server {
    /// User and system time so far, in microseconds.
    pub(crate) fn cpu_micros(&self) -> f64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap_or_default();
        // After the name in parentheses: state is field 3, utime and stime are 14 and 15, in ticks of 10 ms.
        let fields = stat.rsplit(')').next().unwrap_or("").split_whitespace().skip(11).take(2);
        fields.filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() * 10_000.0
    }

    /// The most resident memory it ever had, in bytes.
    pub(crate) fn peak_rss(&self) -> u64 {
        self.memory("VmHWM:")
    }

    /// Its resident memory now, in bytes.
    pub(crate) fn rss(&self) -> u64 {
        self.memory("VmRSS:")
    }

    fn memory(&self, name: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("");
        line.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap_or(0) * 1024
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status();
        let began = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) {
            if began.elapsed() > PATIENCE {
                let _ = self.child.kill();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
