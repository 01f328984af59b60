//! What the system says of this process, under the names that every Prometheus client uses.
//!
//! From `/proc/self`; where there is none, or a part cannot be read, that part is left out.

use std::fmt::Error;

use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

use super::collector::gauge;

/// Ticks a second in `/proc`: 100 on every Linux.
const TICKS: f64 = 100.0;

/// What is known of the process.
#[derive(Debug, Default)]
pub(super) struct Process {
    cpu_seconds: Option<f64>,
    start_seconds: Option<f64>,
    resident_bytes: Option<u64>,
    virtual_bytes: Option<u64>,
    threads: Option<u64>,
    open_fds: Option<u64>,
    max_fds: Option<u64>,
}

/// The process as it is now.
pub(super) fn read() -> Process {
    let text = |name: &str| std::fs::read_to_string(format!("/proc/{name}")).unwrap_or_default();
    let (status, stat, limits) = (text("self/status"), text("self/stat"), text("self/limits"));
    let kib = |name: &str| -> Option<u64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    // After the name in brackets, which may hold anything: field 3 of proc(5) on.
    let fields: Vec<&str> = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
    let ticks = |field: usize| fields.get(field - 3).and_then(|text| text.parse::<f64>().ok());
    let booted = text("stat").lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse::<f64>().ok());
    let files = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    Process {
        cpu_seconds: ticks(14).zip(ticks(15)).map(|(user, system)| (user + system) / TICKS),
        start_seconds: booted.zip(ticks(22)).map(|(booted, since)| booted + since / TICKS),
        resident_bytes: kib("VmRSS:").map(|kib| kib * 1024),
        virtual_bytes: kib("VmSize:").map(|kib| kib * 1024),
        threads: kib("Threads:"),
        open_fds: std::fs::read_dir("/proc/self/fd").ok().map(|entries| entries.count() as u64),
        max_fds: files.and_then(|rest| rest.split_whitespace().next()?.parse().ok()),
    }
}

impl Process {
    pub(super) fn encode(&self, out: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        if let Some(seconds) = self.cpu_seconds {
            let help = "CPU time of the process";
            let mut metric = out.encode_descriptor("process_cpu_seconds", help, None, MetricType::Counter)?;
            metric.encode_counter::<[(&str, &str); 0], _, u64>(&seconds, None)?;
        }
        if let Some(seconds) = self.start_seconds {
            let help = "When the process started, seconds since the epoch";
            let mut metric = out.encode_descriptor("process_start_time_seconds", help, None, MetricType::Gauge)?;
            metric.encode_gauge(&seconds)?;
        }
        for (name, help, value) in [
            ("process_resident_memory_bytes", "Memory that is in use", self.resident_bytes),
            ("process_virtual_memory_bytes", "Address space that is in use", self.virtual_bytes),
            ("process_threads", "Threads of the process", self.threads),
            ("process_open_fds", "Open file descriptors", self.open_fds),
            ("process_max_fds", "Most file descriptors that may be open", self.max_fds),
        ] {
            if let Some(value) = value {
                gauge(out, name, help, value)?;
            }
        }
        Ok(())
    }
}
