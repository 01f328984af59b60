//! How many cores a measurement keeps busy, and whose: the generator's own, MongoDB's, and those of Wine's server, which
//! passes MongoDB's system calls on where MongoDB runs under Wine.

use std::time::Instant;

/// Clock ticks a second in `/proc/PID/stat`.
const TICKS: f64 = 100.0;

/// The processes to look at.
#[derive(Debug, Clone, Default)]
pub struct Processes {
    mongod: Option<u32>,
    wine: Option<u32>,
}

/// Cores that were busy, on average.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cores {
    /// Of this process.
    pub generator: f64,
    /// Of MongoDB; none: it is not on this machine.
    pub mongod: Option<f64>,
    /// Of Wine's server; none: there is none.
    pub wine: Option<f64>,
}

impl std::fmt::Display for Cores {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.mongod {
            Some(mongod) => write!(f, "mongod {mongod:.2}")?,
            None => f.write_str("mongod elsewhere")?,
        }
        if let Some(wine) = self.wine {
            write!(f, ", wineserver {wine:.2}")?;
        }
        write!(f, ", generator {:.2}", self.generator)
    }
}

impl Processes {
    /// The mongod of this address, if it runs here.
    pub fn of(url: &str) -> Self {
        let hosts = url.split("://").nth(1).and_then(|rest| rest.split(['/', '?']).next()).unwrap_or_default();
        let first = hosts.rsplit('@').next().and_then(|hosts| hosts.split(',').next()).unwrap_or_default();
        let port = first.rsplit_once(':').map_or("27017", |(_, port)| port);
        let named = |args: &[String]| {
            args.iter().any(|arg| arg.contains("mongod")) && args.windows(2).any(|two| two == ["--port", port])
        };
        let mongod = pids().find(|pid| named(&strings(*pid, "cmdline")));
        let prefix = |pid: u32| strings(pid, "environ").into_iter().find(|one| one.starts_with("WINEPREFIX="));
        let wine = mongod.and_then(prefix).and_then(|mine| {
            let is_server = |pid: &u32| strings(*pid, "cmdline").first().is_some_and(|arg| arg.ends_with("wineserver"));
            pids().filter(is_server).find(|pid| prefix(*pid).as_ref() == Some(&mine))
        });
        Self { mongod, wine }
    }

    /// Begins to count.
    pub fn count(&self) -> Counting<'_> {
        Counting { of: self, began: Instant::now(), before: self.seconds() }
    }

    fn seconds(&self) -> [Option<f64>; 3] {
        [Some(std::process::id()), self.mongod, self.wine].map(|pid| pid.and_then(seconds))
    }
}

/// A measurement that is under way.
#[derive(Debug)]
pub struct Counting<'a> {
    of: &'a Processes,
    began: Instant,
    before: [Option<f64>; 3],
}

impl Counting<'_> {
    /// Ends it.
    pub fn end(self) -> Cores {
        let (now, elapsed) = (self.of.seconds(), self.began.elapsed().as_secs_f64());
        let used = |at: usize| Some((now[at]? - self.before[at]?) / elapsed);
        Cores { generator: used(0).unwrap_or_default(), mongod: used(1), wine: used(2) }
    }
}

fn pids() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn strings(pid: u32, file: &str) -> Vec<String> {
    let bytes = std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
    bytes.split(|byte| *byte == 0).map(|part| String::from_utf8_lossy(part).into_owned()).collect()
}

/// User and system time of a process so far.
fn seconds(pid: u32) -> Option<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before it may have spaces.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |at: usize| fields.get(at)?.parse::<f64>().ok();
    Some((ticks(11)? + ticks(12)?) / TICKS)
}
