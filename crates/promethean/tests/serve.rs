//! The real process: the ready line, shared ports, signals, and exit codes.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(30);

/// The process in a directory of its own, where also its stderr goes.
struct Process {
    child: Child,
    dir: TempDir,
}

impl Process {
    fn spawn(variables: &[(&str, &str)], args: &[&str]) -> Self {
        Self::spawn_with(variables, args, |stderr| stderr.into())
    }

    /// What it says goes where `stderr` says, instead of the file that is made for it.
    fn spawn_with(variables: &[(&str, &str)], args: &[&str], stderr: impl FnOnce(std::fs::File) -> Stdio) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let stderr = stderr(std::fs::File::create(dir.path().join("stderr")).expect("a file"));
        let any_port = [("WS_PORT", "0"), ("HTTP_PORT", "0"), ("OPS_PORT", "0"), ("PROMETHEAN_STORE", "memory")];
        let child = Command::new(env!("CARGO_BIN_EXE_promethean"))
            .arg("serve")
            .args(args)
            .env_clear()
            .envs(any_port)
            .envs(variables.iter().copied())
            .current_dir(dir.path())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()
            .expect("the binary runs");
        Self { child, dir }
    }

    fn said(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("stderr")).expect("text")
    }

    fn waits_to_say(&self, text: &str) {
        let start = Instant::now();
        while !self.said().contains(text) {
            assert!(start.elapsed() < PATIENCE, "{text:?} was not said: {}", self.said());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The exit code, and what was said on stderr.
    fn end(mut self) -> (Option<i32>, String) {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            if let Some(status) = self.child.try_wait().expect("a child") {
                return (status.code(), self.said());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("the hub did not end: {}", self.said());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A hub that is ready.
struct Hub {
    process: Process,
    ready: String,
}

impl Hub {
    fn start(variables: &[(&str, &str)], args: &[&str]) -> Self {
        Self::is_ready(Process::spawn(variables, args))
    }

    fn is_ready(mut process: Process) -> Self {
        let mut ready = String::new();
        let mut stdout = BufReader::new(process.child.stdout.take().expect("stdout"));
        stdout.read_line(&mut ready).expect("a line");
        assert!(ready.starts_with("promethean ready "), "{ready:?} {}", process.said());
        Self { process, ready: ready.trim_end().to_owned() }
    }

    fn field(&self, name: &str) -> &str {
        let field = self.ready.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        field.unwrap_or_else(|| panic!("{name} is not in {:?}", self.ready))
    }

    fn addr(&self, name: &str) -> SocketAddr {
        self.field(name).parse().expect("an address")
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process.child), signal).expect("signalled");
    }

    fn end(self) -> (Option<i32>, String) {
        self.process.end()
    }
}

fn get(addr: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(addr).expect("connected");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    write!(stream, "GET {path} HTTP/1.1\r\nhost: hub\r\nconnection: close\r\n\r\n").expect("written");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

#[test]
fn a_hub_keeps_freed_memory_for_a_while_unless_it_is_told_otherwise() {
    for (told, kept) in [(None, "4000"), (Some("250"), "250")] {
        let variables: Vec<_> = told.map(|delay| ("MIMALLOC_PURGE_DELAY", delay)).into_iter().collect();
        let hub = Hub::start(&variables, &[]);
        let environment = std::fs::read(format!("/proc/{}/environ", hub.process.child.id())).expect("the same process");
        let option = format!("MIMALLOC_PURGE_DELAY={kept}");
        assert_eq!(environment.split(|byte| *byte == 0).filter(|one| *one == option.as_bytes()).count(), 1);
        hub.signal(Signal::TERM);
        assert_eq!(hub.end().0, Some(0));
    }
}

#[test]
fn the_ready_line_names_three_listeners_and_the_store() {
    let hub = Hub::start(&[], &[]);
    let addrs = [hub.addr("ws"), hub.addr("http"), hub.addr("ops")];
    assert!(addrs.iter().all(|addr| addr.ip().is_loopback() && addr.port() != 0), "{}", hub.ready);
    assert!(addrs[0] != addrs[1] && addrs[1] != addrs[2] && addrs[0] != addrs[2]);
    assert_eq!(hub.ready, format!("promethean ready ws={} http={} ops={} store=memory", addrs[0], addrs[1], addrs[2]));
    assert!(get(addrs[0], "/").starts_with("HTTP/1.1 426"), "WebSocket only");
    assert!(get(addrs[1], "/readyz").starts_with("HTTP/1.1 200"));
    assert!(get(addrs[2], "/no/such/route").starts_with("HTTP/1.1 404"));
}

#[test]
fn equal_ports_share_one_listener() {
    let free = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address").port().to_string();
    let hub = Hub::start(&[], &["--ws-port", &free, "--http-port", &free, "--ops-port", &free]);
    assert_eq!((hub.field("ws"), hub.field("http")), (hub.field("ops"), hub.field("ops")));
    assert!(get(hub.addr("ops"), "/readyz").starts_with("HTTP/1.1 200"));
    let mut stream = TcpStream::connect(hub.addr("ws")).expect("connected");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    let head = "GET /any/path HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
                sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    stream.write_all(head.as_bytes()).expect("written");
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).expect("an answer");
    assert_eq!(&answer, b"HTTP/1.1 101");
}

#[test]
fn sigterm_and_sigint_end_it_in_order() {
    for signal in [Signal::TERM, Signal::INT] {
        let hub = Hub::start(&[], &[]);
        let addr = hub.addr("http");
        hub.signal(signal);
        let (code, said) = hub.end();
        assert_eq!(code, Some(0), "{said}");
        assert!(said.contains("shutting down") && said.contains("shut down"), "{said}");
        assert!(TcpStream::connect(addr).is_err());
    }
}

#[test]
fn a_log_that_cannot_be_written_stops_nothing() {
    let full = |_| std::fs::OpenOptions::new().write(true).open("/dev/full").expect("a full disk").into();
    let nobody = |_| {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        writer.into()
    };
    for stderr in [full as fn(std::fs::File) -> Stdio, nobody] {
        let hub = Hub::is_ready(Process::spawn_with(&[("PROMETHEAN_LOG", "debug")], &[], stderr));
        let body = "{\"retentionDays\":1}";
        let mut stream = TcpStream::connect(hub.addr("ops")).expect("connected");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
        let head = "PUT /settings?topic=a HTTP/1.1\r\nhost: hub\r\ncontent-type: application/json\r\nconnection: close";
        write!(stream, "{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).expect("written");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer:?}");
        hub.signal(Signal::TERM);
        assert_eq!(hub.end().0, Some(0));
    }
}

/// A publish whose body never comes whole: a request under way that does not end by itself.
fn hanging_publish(hub: &Hub) -> TcpStream {
    let mut stream = TcpStream::connect(hub.addr("http")).expect("connected");
    let head = "POST /publish/a HTTP/1.1\r\nhost: hub\r\nexpect: 100-continue\r\ncontent-length: 10\r\n\r\n";
    stream.write_all(head.as_bytes()).expect("written");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    let mut asked_on = [0; 12];
    stream.read_exact(&mut asked_on).expect("100 Continue");
    stream
}

#[test]
fn a_second_signal_ends_it_at_once_with_130() {
    let hub = Hub::start(&[], &[]);
    let hanging = hanging_publish(&hub);
    hub.signal(Signal::TERM);
    hub.process.waits_to_say("shutting down");
    hub.signal(Signal::INT);
    let (code, said) = hub.end();
    assert_eq!(code, Some(130), "{said}");
    drop(hanging);
}

#[test]
fn a_request_that_hangs_is_cut_off_in_the_end() {
    let hub = Hub::start(&[], &[]);
    let hanging = hanging_publish(&hub);
    hub.signal(Signal::TERM);
    let (code, said) = hub.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("cut off"), "{said}");
    drop(hanging);
}

#[test]
fn health_asks_the_running_hub() {
    let hub = Hub::start(&[], &[]);
    let ask = |server: String| {
        let args = ["health", "--server", server.as_str()];
        Command::new(env!("CARGO_BIN_EXE_promethean")).args(args).output().expect("the binary runs")
    };
    let ready = ask(format!("http://{}", hub.addr("http")));
    assert!(ready.status.success() && ready.stdout == b"ready\n", "{ready:?}");
    assert_eq!(ask(format!("http://{}", hub.addr("ws"))).status.code(), Some(1), "that port has no /readyz");
    let down = [("JWT_JWKS_URL", "http://127.0.0.1:1/keys"), ("PROMETHEAN_BIND", "127.0.0.1")];
    let waiting = Hub::start(&down, &[]);
    let not_ready = ask(format!("http://{}", waiting.addr("http")));
    assert_eq!(not_ready.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&not_ready.stderr).contains("signing keys"), "{not_ready:?}");
}

fn write_certificate(dir: &std::path::Path) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    std::fs::write(dir.join("cert.pem"), made.cert.pem()).expect("written");
    std::fs::write(dir.join("key.pem"), made.signing_key.serialize_pem()).expect("written");
}

#[test]
fn tls_is_on_every_port_and_sighup_reads_the_certificate_again() {
    let dir = tempfile::tempdir().expect("a directory");
    write_certificate(dir.path());
    let (cert, key, old) = (dir.path().join("cert.pem"), dir.path().join("key.pem"), dir.path().join("old.pem"));
    std::fs::copy(&cert, &old).expect("copied");
    let text = |path: &std::path::Path| path.to_str().expect("text").to_owned();
    let hub = Hub::start(&[], &["--tls-cert", &text(&cert), "--tls-key", &text(&key)]);
    let health = |name: &str, trusted: &std::path::Path| {
        let server = format!("https://localhost:{}", hub.addr(name).port());
        let mut command = Command::new(env!("CARGO_BIN_EXE_promethean"));
        let output = command.args(["health", "--server", &server]).env("SSL_CERT_FILE", trusted).output();
        output.expect("the binary runs").status.code()
    };
    assert_eq!((health("http", &old), health("ops", &old)), (Some(0), Some(0)));

    std::fs::write(&cert, "half a fi").expect("written");
    hub.signal(Signal::HUP);
    hub.process.waits_to_say("the old TLS certificate goes on");
    assert_eq!(health("http", &old), Some(0));

    write_certificate(dir.path());
    hub.signal(Signal::HUP);
    hub.process.waits_to_say("was read again");
    assert_eq!((health("http", &cert), health("http", &old)), (Some(0), Some(3)));
}

#[test]
fn sighup_without_tls_changes_nothing() {
    let hub = Hub::start(&[], &[]);
    hub.signal(Signal::HUP);
    assert!(get(hub.addr("http"), "/").starts_with("HTTP/1.1 "));
    hub.signal(Signal::TERM);
    assert_eq!(hub.end().0, Some(0));
}

#[test]
fn a_port_that_is_taken_is_named_and_exits_1() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let addr = taken.local_addr().expect("an address");
    let (code, said) = Process::spawn(&[], &["--http-port", &addr.port().to_string()]).end();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains(&addr.to_string()), "{said}");
}

#[test]
fn a_hub_without_auth_says_so_and_names_unknown_variables() {
    let hub = Hub::start(&[("PROMETHEAN_SYNK", "never")], &[]);
    let said = hub.process.said();
    let lines = |text: &str| said.lines().filter(|line| line.contains(text)).count();
    assert_eq!((lines("auth is off"), lines("in clear text")), (1, 0), "{said}");
    assert!(said.contains("PROMETHEAN_SYNC"), "{said}");
    let hub = Hub::start(&[("WS_TOKEN", "token\n")], &[]);
    assert!(hub.addr("ws").ip().is_loopback(), "{}", hub.ready);
    let said = hub.process.said();
    assert!(!said.contains("auth is off") && !said.contains("in clear text"), "{said}");
    assert!(said.contains("white space at the ends of a secret is ignored"), "{said}");
}

#[test]
fn the_first_line_of_the_log_says_what_this_hub_is() {
    let dir = tempfile::tempdir().expect("a directory");
    let (data, audit) = (dir.path().join("data"), dir.path().join("audit"));
    let args =
        ["--store", "log", "--data-dir", data.to_str().expect("text"), "--audit-log", audit.to_str().expect("text")];
    let hub = Hub::start(&[("WS_TOKEN", "canary"), ("PROMETHEAN_LOG_FORMAT", "json")], &args);
    let said = hub.process.said();
    let line = said.lines().find(|line| line.contains("the hub is up")).unwrap_or_else(|| panic!("{said}"));
    let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
    let fields = &line["fields"];
    for (field, expected) in [
        ("version", env!("CARGO_PKG_VERSION")),
        ("store", "log"),
        ("dir", data.to_str().expect("text")),
        ("sync", "always"),
        ("auth", "token"),
        ("ws", &hub.addr("ws").to_string()),
        ("ops", &hub.addr("ops").to_string()),
    ] {
        assert_eq!(fields[field], expected, "{line}");
    }
    assert_eq!((&fields["tls"], &fields["events"]), (&false.into(), &0.into()), "{line}");
    assert!(fields["recovery_ms"].is_u64() && line["level"] == "INFO" && !said.contains("canary"), "{said}");
    assert!(get(hub.addr("ops"), "/topics").starts_with("HTTP/1.1 401"));
    let audited = std::fs::read_to_string(&audit).expect("written");
    assert!(audited.contains(r#""outcome":"refused""#) && audited.contains("127.0.0.1:"), "{audited}");
    hub.process.waits_to_say("\"audit\"");
}

#[test]
fn an_audit_log_that_cannot_be_opened_is_a_start_up_error() {
    let (code, said) = Process::spawn(&[], &["--audit-log", "/nowhere/audit"]).end();
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("audit_log: /nowhere/audit cannot be opened"), "{said}");
}

#[test]
fn a_certificate_that_cannot_be_read_is_named_and_exits_2() {
    let files = ["--tls-cert", "/nowhere/cert.pem", "--tls-key", "/nowhere/key.pem"];
    let (code, said) = Process::spawn(&[], &files).end();
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("/nowhere/cert.pem"), "{said}");
}

#[test]
fn with_auth_it_listens_where_bind_says_with_a_warning_and_secrets_are_not_logged() {
    let secrets = [("WS_TOKEN", "canary-token"), ("JWT_SECRET", "canary-secret"), ("PROMETHEAN_LOG", "trace")];
    let hub = Hub::start(&secrets, &["--bind", "0.0.0.0"]);
    assert!(hub.addr("ws").ip().is_unspecified(), "{}", hub.ready);
    assert!(hub.process.said().contains("tokens and events cross the network in clear text"), "{}", hub.process.said());
    let mut stream = TcpStream::connect(("127.0.0.1", hub.addr("http").port())).expect("connected");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    let head = "POST /publish/a HTTP/1.1\r\nhost: hub\r\nauthorization: Bearer canary-bearer\r\n\
                content-length: 2\r\nconnection: close\r\n\r\n{}";
    stream.write_all(head.as_bytes()).expect("written");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    assert!(!answer.contains("canary"), "{answer}");
    hub.signal(Signal::TERM);
    let (code, said) = hub.end();
    assert_eq!(code, Some(0));
    assert!(!said.contains("canary"), "{said}");
}

#[test]
fn the_log_is_the_default_and_a_second_hub_on_its_directory_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = [("PROMETHEAN_STORE", ""), ("PROMETHEAN_DATA_DIR", dir.path().to_str().expect("text"))];
    let hub = Hub::start(&data, &[]);
    assert_eq!(hub.field("store"), "log");
    let (code, said) = Process::spawn(&data, &[]).end();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("in use by another process"), "{said}");
    hub.signal(Signal::TERM);
    assert_eq!(hub.end().0, Some(0));
    let again = Hub::start(&data, &[]);
    again.signal(Signal::TERM);
    assert_eq!(again.end().0, Some(0), "the directory is free again");
}

fn doctor(args: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_promethean")).arg("doctor").args(args).output().expect("runs");
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(said).expect("text"))
}

#[test]
fn the_doctor_finds_damage_and_saves_the_rest() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data");
    let data_text = data.to_str().expect("text");
    let mut hub = Hub::start(&[("PROMETHEAN_STORE", "log"), ("PROMETHEAN_DATA_DIR", data_text)], &[]);
    for n in 0..20 {
        assert!(publish(hub.addr("http"), &format!("{{\"n\":{n}}}")).starts_with("HTTP/1.1 200"));
    }
    hub.process.child.kill().expect("killed");
    hub.process.child.wait().expect("ended");

    let (code, said) = doctor(&[data_text]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("20 events") && said.contains("sound"), "{said}");

    flip_a_byte_of(&data.join("journal"), b"\"n\":3");
    let (code, said) = doctor(&[data_text]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("journal") && said.contains("offset"), "{said}");
    let (code, said) = doctor(&[data_text, "--json"]);
    assert!(code == Some(1) && said.contains("\"damage\""), "{said}");

    let saved = dir.path().join("saved");
    let (code, said) = doctor(&[data_text, "--salvage", saved.to_str().expect("text")]);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(doctor(&[saved.to_str().expect("text")]).0, Some(0));
    assert_eq!(doctor(&[dir.path().to_str().expect("text")]).0, Some(1), "not a data directory");
}

#[test]
fn the_doctor_makes_the_index_anew() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data");
    let data_text = data.to_str().expect("text");
    let variables = [("PROMETHEAN_STORE", "log"), ("PROMETHEAN_DATA_DIR", data_text)];
    let hub = Hub::start(&variables, &[]);
    assert!(publish(hub.addr("http"), "1").starts_with("HTTP/1.1 200"));
    hub.signal(Signal::TERM);
    assert_eq!(hub.end().0, Some(0));
    let (code, said) = doctor(&[data_text, "--rebuild-index"]);
    assert_eq!(code, Some(0), "{said}");
    let hub = Hub::start(&variables, &[]);
    assert!(get(hub.addr("http"), "/replay?topic=a&from=earliest").contains("\"count\":1"));
}

fn publish(addr: SocketAddr, payload: &str) -> String {
    let mut stream = TcpStream::connect(addr).expect("connected");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    let length = payload.len();
    let head = "POST /publish/a HTTP/1.1\r\nhost: hub\r\ncontent-type: application/json\r\n";
    write!(stream, "{head}content-length: {length}\r\nconnection: close\r\n\r\n{payload}").expect("written");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

/// Changes one byte inside the first place where a file of `dir` holds `text`.
fn flip_a_byte_of(dir: &std::path::Path, text: &[u8]) {
    for entry in std::fs::read_dir(dir).expect("a directory") {
        let path = entry.expect("an entry").path();
        let mut bytes = std::fs::read(&path).expect("read");
        if let Some(at) = bytes.windows(text.len()).position(|window| window == text) {
            bytes[at + 1] ^= 1;
            return std::fs::write(&path, bytes).expect("written");
        }
    }
    panic!("nothing to damage in {}", dir.display());
}
