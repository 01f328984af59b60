//! A server as a process of its own: started, asked for its memory and CPU time, ended.

use std::io::{self, BufRead as _, BufReader};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::running;

/// How long a server may take to be ready.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running server. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Server {
    id: u32,
    pub(crate) address: SocketAddr,
}

/// A port of loopback that nobody has at the moment.
pub(crate) fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

fn spawn(command: &mut Command) -> io::Result<u32> {
    running::spawn(command).map_err(|error| {
        let program = command.get_program();
        let message = format!("{} does not start: {error}; `make bench-compare` installs it", program.display());
        io::Error::new(error.kind(), message)
    })
}

/// Starts a server and waits until its port answers. What it says goes to a file in `dir`, for the case that it dies.
pub(crate) fn start_at(mut command: Command, address: SocketAddr, dir: &Path) -> io::Result<Server> {
    let said = dir.join("said");
    let log = std::fs::File::create(&said)?;
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    let server = Server { id: spawn(&mut command)?, address };
    let began = Instant::now();
    while TcpStream::connect(address).is_err() {
        if let Some(status) = running::ended(server.id) {
            let said = std::fs::read_to_string(&said).unwrap_or_default();
            return Err(io::Error::other(format!("the server ended at its start with {status}: {}", said.trim())));
        }
        if began.elapsed() > PATIENCE {
            return Err(io::Error::other("the server does not get ready"));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    // The port may answer before everything behind it does.
    std::thread::sleep(Duration::from_millis(200));
    Ok(server)
}

/// Starts a hub, which says on its first line where it listens, and on standard error what is wrong.
pub(crate) fn start_ready(mut command: Command) -> io::Result<Server> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    // Dropping it ends it, also where it is none.
    let mut server = Server { id: spawn(&mut command)?, address: SocketAddr::from(([127, 0, 0, 1], 0)) };
    let stdout = running::with(server.id, |child| child.stdout.take()).flatten();
    let mut ready = String::new();
    BufReader::new(stdout.ok_or_else(|| io::Error::other("no standard output"))?).read_line(&mut ready)?;
    match ready.split_whitespace().find_map(|word| word.strip_prefix("ws=")?.parse().ok()) {
        Some(address) => {
            server.address = address;
            Ok(server)
        }
        None if ready.is_empty() => {
            // It is about to be gone.
            let began = Instant::now();
            while running::ended(server.id).is_none() && began.elapsed() < PATIENCE {
                std::thread::sleep(Duration::from_millis(5));
            }
            let status =
                running::ended(server.id).map_or_else(|| "nothing to say".to_owned(), |status| status.to_string());
            Err(io::Error::other(format!("the hub ended at its start with {status}")))
        }
        None => Err(io::Error::other(format!("the hub does not say where it listens: {ready:?}"))),
    }
}

impl Server {
    /// User and system time so far, in microseconds.
    pub(crate) fn cpu_micros(&self) -> f64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.id)).unwrap_or_default();
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
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.id)).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("");
        line.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap_or(0) * 1024
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        running::stop(self.id);
    }
}
