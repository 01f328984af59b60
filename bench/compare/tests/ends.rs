//! How a run ends: by a signal with nothing left behind, and at once where a server does not start.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A directory that goes with the test.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("promethean-compare-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("made");
        Self(dir)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn compare(args: &[&str], dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_promethean-compare"));
    command.args(args).arg("--dir").arg(dir).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < Duration::from_secs(50), "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_signal_ends_the_servers_and_removes_their_data() {
    for (signal, code) in [("-TERM", 143), ("-INT", 130)] {
        let dir = Dir::new(signal);
        let data = dir.0.join("data");
        let mut run = compare(&["--only", "null", "--seconds", "100"], &data).spawn().expect("it runs");
        let id = run.id();
        let mut server = String::new();
        wait_for("no server", || {
            let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
            server = children.trim().to_owned();
            !server.is_empty() && data.join("null-0").exists()
        });
        Command::new("kill").args([signal, &id.to_string()]).status().expect("signalled");
        wait_for("it goes on", || run.try_wait().expect("a child").is_some());
        assert_eq!(run.wait().expect("ended").code(), Some(code), "{signal}");
        assert!(!Path::new("/proc").join(&server).exists(), "{signal}: the server {server} is still there");
        assert!(!data.join("null-0").exists(), "{signal}: the data is still there");
    }
}

#[test]
fn a_server_that_dies_at_its_start_is_reported_with_what_it_said() {
    let dir = Dir::new("dies");
    let server = dir.0.join("server");
    std::fs::write(&server, "#!/bin/sh\necho 'no licence found' >&2\nexit 7\n").expect("written");
    std::fs::set_permissions(&server, std::fs::Permissions::from_mode(0o755)).expect("set");
    let server = server.display().to_string();
    for args in [["--only", "nats", "--nats"], ["--only", "redis", "--redis"], ["--only", "promethean", "--promethean"]]
    {
        let run = compare(&[&args[..], &[&server]].concat(), &dir.0.join("data")).output().expect("it runs");
        let said = String::from_utf8_lossy(&run.stderr).into_owned();
        assert!(!run.status.success() && said.contains("exit status: 7"), "{args:?}: {said}");
        assert!(said.contains("no licence found"), "{args:?}: {said}");
    }
}
