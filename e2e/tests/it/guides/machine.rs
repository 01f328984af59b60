//! A machine of the reader's, with a real systemd as its first process (`scripts/systemd.sh`), and the hub as its service.

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::ROOT;

/// Whose the data and the secrets are, and who may look at them.
const STATES: &str = "promethean:promethean:700\nroot:root:600";

/// A machine whose root is a folder of this one. Dropping it ends everything in it.
pub(super) struct Machine {
    root: PathBuf,
    script: Child,
}

impl Machine {
    /// Boots it.
    pub(super) fn boot(root: &Path) -> Self {
        let mut command = Command::new(script());
        command.arg("run").arg(root).stdin(Stdio::piped()).stdout(Stdio::piped());
        // A Ctrl-C in the terminal ends the tests; the machine ends with them, by its pipe.
        let mut script = command.process_group(0).spawn().expect("scripts/systemd.sh runs");
        let mut said = String::new();
        BufReader::new(script.stdout.take().expect("piped")).read_line(&mut said).expect("text");
        let machine = Self { root: root.to_owned(), script };
        assert_eq!(said, "running\n", "there is no systemd: the error is above");
        machine
    }

    /// The words that run a command there.
    pub(super) fn enter(&self) -> String {
        format!("{} in {}", script(), self.root.display())
    }

    /// What a command there says.
    fn ask(&self, command: &str) -> Result<String, String> {
        let asked = Command::new("sh").args(["-c", &format!("{} {command}", self.enter())]).output().expect("sh runs");
        let said = String::from_utf8_lossy(&asked.stdout).trim_end().to_owned();
        if asked.status.success() {
            return Ok(said);
        }
        let error = String::from_utf8_lossy(&asked.stderr);
        Err(format!("{command}: {}; it said:\n{said}{error}\n{}", asked.status, self.journal()))
    }

    /// What systemd and the hub have said.
    pub(super) fn journal(&self) -> String {
        let journal = format!("{} journalctl --no-pager --lines=40", self.enter());
        let asked = Command::new("sh").args(["-c", &journal]).output().expect("sh runs");
        String::from_utf8_lossy(&asked.stdout).into_owned()
    }

    fn expect(&self, command: &str, right: &str) -> Result<(), String> {
        let said = self.ask(command)?;
        let wrong = || format!("{command}: {said:?} instead of {right:?}\n{}", self.journal());
        if said == right { Ok(()) } else { Err(wrong()) }
    }

    /// The hub is a service that runs as the unit says, and does what systemd tells it. Afterwards it is stopped.
    pub(super) fn check_service(&self) -> Result<(), String> {
        let running = "systemctl show --property=ActiveState --property=SubState --property=UnitFileState promethean";
        self.expect(running, "ActiveState=active\nSubState=running\nUnitFileState=enabled")?;
        self.expect("promethean health --server http://127.0.0.1:8082", "ready")?;
        self.expect("stat --format=%U:%G:%a /var/lib/promethean /etc/promethean/environment", STATES)?;
        self.check_limits()?;
        for order in ["reload", "restart"] {
            self.ask(&format!("systemctl {order} promethean"))?;
            self.expect("promethean health --server http://127.0.0.1:8082", "ready")?;
        }
        self.ask("systemctl stop promethean")?;
        let ended = "systemctl show --property=Result --property=ExecMainStatus --property=ActiveState promethean";
        self.expect(ended, "Result=success\nExecMainStatus=0\nActiveState=inactive")
    }

    /// What the unit takes from the hub is gone.
    fn check_limits(&self) -> Result<(), String> {
        let pid = self.ask("systemctl show --property=MainPID --value promethean")?;
        let status = self.ask(&format!("cat /proc/{pid}/status"))?;
        let of = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
            line.trim().to_owned()
        };
        let taken = ["CapBnd:", "CapEff:", "NoNewPrivs:", "Seccomp:"].map(of);
        let right = ["0000000000000000", "0000000000000000", "1", "2"];
        if taken == right { Ok(()) } else { Err(format!("{taken:?} instead of {right:?}")) }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        drop(self.script.stdin.take());
        let _ = self.script.wait();
    }
}

fn script() -> String {
    Path::new(ROOT).join("scripts/systemd.sh").display().to_string()
}
