//! The seed's projector: heartbeats become the state of processes, `alive` or `stale`.

use std::time::Duration;

use promethean_event::Millis;
use serde::{Deserialize, Serialize};

use crate::{Input, Projection, Settings, Skip, States};

/// The topic of heartbeats.
pub const HEARTBEATS: &str = "heartbeat.received";
/// The topic of processes, by `processId`.
pub const PROCESSES: &str = "process.state";

/// A sign of life.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// The process.
    pub pid: u32,
    /// What it is called.
    pub name: String,
    /// Where it runs.
    pub host: String,
    /// How busy it is.
    pub cpu_pct: f64,
    /// How large it is.
    pub mem_mb: f64,
    /// Its session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sid: Option<String>,
}

/// True if a process was heard of lately.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Heard of lately.
    Alive,
    /// Not heard of for a while.
    Stale,
}

/// What is known of a process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProcessState {
    /// `host:name:pid`.
    #[serde(rename = "processId")]
    pub process_id: String,
    /// What it is called.
    pub name: String,
    /// Where it runs.
    pub host: String,
    /// The process.
    pub pid: u32,
    /// Its session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sid: Option<String>,
    /// How busy it was.
    pub cpu_pct: f64,
    /// How large it was.
    pub mem_mb: f64,
    /// When it was heard of last.
    pub last_seen_ts: Millis,
    /// True if that is long ago.
    pub status: Status,
}

/// Heartbeats into processes.
#[derive(Debug, Clone, Copy)]
pub struct Processes {
    /// After how long without a heartbeat a process is stale.
    pub stale_after: Duration,
}

impl Default for Processes {
    fn default() -> Self {
        Self { stale_after: Duration::from_secs(15) }
    }
}

impl Processes {
    /// The seed's settings: `heartbeat.received` into `process.state`, scanned every 5 seconds.
    ///
    /// # Panics
    /// Never: the names are good.
    pub fn settings() -> Settings {
        Settings::new("process-projector", HEARTBEATS, PROCESSES).expect("good names")
    }

    fn status(self, last_seen: Millis, now: Millis) -> Status {
        if now.since(last_seen) > self.stale_after { Status::Stale } else { Status::Alive }
    }
}

impl Projection for Processes {
    type State = ProcessState;

    fn fold(&mut self, event: &Input<'_>, states: &mut States<ProcessState>) -> Result<(), Skip> {
        let Heartbeat { pid, name, host, cpu_pct, mem_mb, sid } = event.payload_as()?;
        let process_id = format!("{host}:{name}:{pid}");
        let last_seen_ts = states.get(&process_id).map_or(event.ts, |known| known.last_seen_ts.max(event.ts));
        let state = ProcessState {
            process_id: process_id.clone(),
            name,
            host,
            pid,
            sid,
            cpu_pct,
            mem_mb,
            last_seen_ts,
            status: Status::Alive,
        };
        states.set(process_id, state);
        Ok(())
    }

    fn tick(&mut self, now: Millis, states: &mut States<ProcessState>) {
        let turned: Vec<ProcessState> = states
            .iter()
            .filter(|(_, known)| self.status(known.last_seen_ts, now) != known.status)
            .map(|(_, known)| ProcessState { status: self.status(known.last_seen_ts, now), ..known.clone() })
            .collect();
        for state in turned {
            states.set(state.process_id.clone(), state);
        }
    }
}
