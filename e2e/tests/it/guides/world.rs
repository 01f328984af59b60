//! What the pages take for granted: a hub with orders in it, another one, a MongoDB, a Redis, some files.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use promethean_e2e::transcript::blocks;
use promethean_e2e::{Hub, Setup, Wire, binary, get, request};
use promethean_testmongo::{Scratch, free_port};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::machine::Machine;
use crate::ROOT;

/// An id as it stands on the pages: a dead letter's.
const LETTER: &str = "0199d1c0-7d3b-7cc2-8b1a-3f0e2c9a4b5d";
/// Directories that a machine has.
const FOLDERS: [&str; 6] = [
    "bin",
    "etc/systemd/system",
    "etc/promethean",
    "usr/local/bin",
    "var/lib/shop",
    ".local/share/bash-completion/completions",
];
/// When the Redis of the page got its entry.
const REDIS_MS: u64 = 1_700_000_000_123;

pub(super) struct World {
    /// Ends before the folder that it is made of goes.
    machine: Option<Machine>,
    dir: TempDir,
    hub: Hub,
    other: Hub,
    mongo: Scratch,
    /// The port of a `mongod` that the page starts.
    own_mongo: u16,
    _redis: Option<Redis>,
    letter: String,
}

impl World {
    /// The world before the first command of a page with this text.
    pub(super) async fn new(page: &str) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        for folder in FOLDERS {
            std::fs::create_dir_all(dir.path().join(folder)).expect("a directory");
        }
        symlink(binary(), dir.path().join("bin/promethean")).expect("a link");
        // `sudo` is whoever runs the tests, in this directory; an answer of 4xx or 5xx is a command that failed.
        script(dir.path(), "sudo", "exec \"$@\"");
        let own_mongo = free_port();
        if page.contains("\nmongod ") {
            mongodb(dir.path(), own_mongo);
        }
        if page.contains("npm ") {
            packages(dir.path());
        }
        write(dir.path(), ".curlrc", "fail\nsilent\nshow-error\nnoproxy = \"*\"\n");
        let hub = Setup::log(&dir.path().join("hub")).start();
        let other = Setup::log(&dir.path().join("other")).start();
        let letter = orders(&hub).await;
        files(dir.path(), page, &hub).await;
        stopped_hub(&dir.path().join("var/lib/promethean")).await;
        let redis = page.contains("redis-cli").then(|| Redis::start(dir.path()));
        let machine = page.contains("systemctl ").then(|| machine(dir.path()));
        let world = Self { dir, hub, other, mongo: Scratch::new(), own_mongo, machine, _redis: redis, letter };
        if page.contains("systemctl stop promethean\n") {
            world.install();
        }
        let staging = format!("promethean context set staging --server http://{}", world.other.ops);
        assert!(world.shell().args(["-c", &staging]).status().expect("bash runs").success());
        world
    }

    /// Makes the hub a service, as the page about it says.
    fn install(&self) {
        let page = std::fs::read_to_string(Path::new(ROOT).join("docs/operations.md")).expect("the page");
        let (_, install) =
            blocks(&page, "sh").into_iter().find(|(_, block)| block.contains("enable")).expect("a block");
        let done = self.shell().args(["-e", "-c", &self.stands_for(&install)]).output().expect("bash runs");
        assert!(done.status.success(), "{done:?}\n{}", self.journal());
    }

    /// What the machine's services have said.
    pub(super) fn journal(&self) -> String {
        self.machine.as_ref().map(Machine::journal).unwrap_or_default()
    }

    pub(super) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// A shell of the reader's, without anything of this machine.
    pub(super) fn shell(&self) -> Command {
        let mut bash = Command::new("bash");
        let path = format!("{}:{}", self.dir().join("bin").display(), std::env::var("PATH").expect("a PATH"));
        bash.current_dir(self.dir()).env_clear().env("PATH", path).env("HOME", self.dir()).stdin(Stdio::null());
        bash.envs([("WS_PORT", "0"), ("HTTP_PORT", "0"), ("OPS_PORT", "0"), ("no_proxy", "*")]);
        bash.env("PROMETHEAN_URL", format!("http://{}", self.hub.ops));
        bash.envs([("TOKEN", "a-token"), ("JWT_SECRET", "a secret that is long enough for anybody")]);
        bash
    }

    /// A command of a page, with this world's names.
    pub(super) fn stands_for(&self, command: &str) -> String {
        let dir = self.dir().display();
        let ports = |hub: &Hub| [(8090, hub.ws), (8081, hub.http), (8082, hub.ops)];
        let mut command = command.to_owned();
        let mut put = |name: &str, what: String| command = command.replace(name, &what);
        for name in ["https://hub.example", "http://other"] {
            for (port, at) in ports(&self.other) {
                put(&format!("{name}:{port}"), format!("http://{at}"));
            }
        }
        for (port, at) in ports(&self.hub) {
            put(&format!(":{port}"), format!(":{}", at.port()));
        }
        for database in ["db1,db2,db3/promethean", "db1,db2,db3/prom", "127.0.0.1/shop"] {
            put(&format!("mongodb://{database}?replicaSet=rs0"), self.mongo.url().to_owned());
        }
        put("27017", self.own_mongo.to_string());
        put("/tmp/db", format!("{dir}/db"));
        for folder in ["/var/lib/", "/etc/", "/usr/local/bin/"] {
            put(folder, format!("{dir}{folder}"));
        }
        put("sqlite:shop.db", format!("sqlite:{dir}/var/lib/shop/shop.db"));
        put("target/release/promethean", binary().display().to_string());
        put(" deploy/", format!(" {ROOT}/deploy/"));
        put(LETTER, self.letter.clone());
        command
    }

    /// What has to be there after a page's commands.
    pub(super) async fn check(&self, page: &str) -> Result<(), String> {
        let all = "/replay?from=earliest&limit=10000&topic=";
        let events = |answer: Value| answer["events"].as_array().cloned().unwrap_or_default();
        let orders = events(get(self.hub.http, &format!("{all}orders.created")).await.json());
        let has = |what: &str, found: bool| {
            if found { Ok(()) } else { Err(format!("after its commands there is no {what}")) }
        };
        match page {
            "docs/guide/migrating-from-redis-streams.md" => {
                let entry = |event: &Value| {
                    event["ts"] == REDIS_MS && event["payload"] == json!({"order": "o-1", "total": "12"})
                };
                has("entry of the stream", orders.iter().any(entry))
            }
            "docs/guide/migrating-from-the-seed.md" => {
                let seeds = events(get(self.hub.http, &format!("{all}seed.events")).await.json());
                has("event of the seed", seeds.len() == 1 && seeds[0]["ts"] == REDIS_MS && seeds[0]["key"] == "k")
            }
            "docs/guide/state.md" => {
                let live = get(self.hub.ops, "/latest-by-key?topic=process.state").await.json();
                let entries = live["entries"].as_object().cloned().unwrap_or_default();
                has("tombstone", entries.contains_key("dev:stt:1") && !entries.contains_key("dev:stt:7"))
            }
            "docs/guide/outbox.md" => {
                has("event of the outbox", orders.iter().any(|event| event["key"] == "from the outbox"))
            }
            "docs/guide/delivery.md" => {
                let letters = get(self.hub.ops, "/dlq?topic=orders.created").await.json();
                let entries = letters["entries"].as_array().cloned().unwrap_or_default();
                let back = |entry: &Value| entry["id"] == json!(self.letter) && entry["redriven"] == json!(true);
                has("letter that was redriven", entries.iter().any(back))
            }
            "docs/operations.md" => self.machine.as_ref().map_or_else(|| has("machine", false), Machine::check_service),
            "dashboard/README.md" => {
                let built = ["sdk/typescript/dist/sdk.js", "dashboard/dist/index.html"];
                has("page that is built", built.iter().all(|file| self.dir().join(file).is_file()))
            }
            "docs/cli.md" => {
                let copied = events(get(self.other.http, &format!("{all}orders.paid")).await.json());
                has("copy at the other hub", copied.len() == 1)
            }
            "docs/mongodb.md" => {
                let moved = Setup::mongo(self.mongo.url()).start();
                let moved = events(get(moved.http, &format!("{all}orders.created")).await.json());
                has("event that moved", moved.len() == 1)?;
                let url = format!("mongodb://127.0.0.1:{}/prom?replicaSet=rs0", self.own_mongo);
                let ready = get(Setup::mongo(&url).start().http, "/readyz").await;
                has("hub on the replica set for a try", ready.status == 200)
            }
            _ => Ok(()),
        }
    }
}

/// Orders, a group `billing` that is behind and has a dead letter (its id is the answer), and state by key.
async fn orders(hub: &Hub) -> String {
    let mut wire = Wire::connect(hub.ws).await;
    let many: Vec<Value> = (0..120).map(|n| json!({"payload": {"order": n}, "key": format!("o-{n}")})).collect();
    let opts = json!({"from": "earliest", "maxAttempts": 1, "maxInFlight": 2});
    for (topic, events) in [("orders.created", many), ("orders.paid", vec![json!({"payload": 1})])] {
        wire.ok(json!({"op": "PUBLISH", "topic": topic, "events": events})).await;
    }
    for key in ["dev:stt:1", "dev:stt:7"] {
        let opts = json!({"key": key, "ts": 1_700_000_000_000_u64});
        wire.ok(json!({"op": "PUBLISH", "topic": "process.state", "payload": {"status": "alive"}, "opts": opts})).await;
    }
    for topic in ["heartbeat.received", "audit.log"] {
        wire.ok(json!({"op": "PUBLISH", "topic": topic, "payload": 1})).await;
    }
    wire.ok(json!({"op": "SUBSCRIBE", "topic": "orders.created", "group": "billing", "opts": opts})).await;
    let given = wire.expect("EVENT").await;
    let id = &given["event"]["id"];
    wire.ok(json!({"op": "NACK", "topic": "orders.created", "group": "billing", "id": id, "reason": "no stock"})).await;
    let letters = "/replay?topic=dlq.orders.created&from=earliest";
    let started = Instant::now();
    loop {
        let page = get(hub.http, letters).await;
        if page.status == 200
            && let Some(letter) = page.json()["events"][0]["id"].as_str()
        {
            return letter.to_owned();
        }
        assert!(started.elapsed() < Duration::from_secs(30), "no dead letter: {}", page.text());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The files that pages speak of.
async fn files(dir: &Path, page: &str, hub: &Hub) {
    let export = request(hub.http, "GET", "/export?topic=orders.created", &[], b"").await;
    write(dir, "orders.ndjson", &export.text());
    if let Some((_, policy)) = blocks(page, "json").first() {
        write(dir, "billing.json", policy);
    }
    let id = "018bcfe5-687b-7000-8000-000000000001";
    let exported = json!({"_id": {"$oid": "65"}, "id": id, "ts": REDIS_MS as f64 + 0.25, "topic": "seed.events", "key": "k", "payload": 1});
    write(dir, "events.json", &exported.to_string());
    let shop = rusqlite::Connection::open(dir.join("var/lib/shop/shop.db")).expect("opened");
    // A drain makes the table.
    let outbox = format!("sqlite:{}", dir.join("var/lib/shop/shop.db").display());
    let server = format!("ws://{}", hub.ws);
    let made = promethean_e2e::run(&["outbox", "drain", "--once", "--outbox", &outbox, "--server", &server]);
    assert!(made.status.success(), "{made:?}");
    let row = "INSERT INTO outbox (id, topic, key, payload) VALUES (?1, 'orders.created', 'from the outbox', '{}')";
    shop.execute(row, ["00000009-0000-4000-8000-000000000009"]).expect("a row");
}

/// The directory of a hub that was stopped.
async fn stopped_hub(dir: &Path) {
    let mut hub = Setup::log(dir).start();
    Wire::connect(hub.ws).await.ok(json!({"op": "PUBLISH", "topic": "orders.created", "payload": 1})).await;
    assert!(hub.terminate().success());
}

fn write(dir: &Path, name: &str, text: &str) {
    std::fs::write(dir.join(name), text).expect("written");
}

fn script(dir: &Path, name: &str, text: &str) {
    let at = dir.join("bin").join(name);
    std::fs::write(&at, format!("#!/bin/sh\n{text}\n")).expect("written");
    std::fs::set_permissions(&at, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("set");
}

/// A machine for what would change this one. `dir` is its root, so arguments lose that part of a path on the way in.
fn machine(dir: &Path) -> Machine {
    let machine = Machine::boot(dir);
    let at = dir.display();
    let inside = format!(r#"for arg; do shift; set -- "$@" "${{arg#{at}}}"; done"#);
    for name in ["useradd", "systemctl"] {
        script(dir, name, &format!("{inside}\nexec {} {name} \"$@\"", machine.enter()));
    }
    machine
}

/// A real `mongod`, wherever this machine has it from, and the shell, which looks for that one.
fn mongodb(dir: &Path, port: u16) {
    let path = std::env::var("PATH").expect("a PATH");
    script(dir, "mongod", &format!("PATH='{path}' exec {ROOT}/scripts/mongo.sh mongod \"$@\""));
    script(dir, "mongosh", &format!("exec {} --port {port} \"$@\"", program("mongosh")));
}

/// The packages of npm, with what `make web` installed for them. `npm ci` checks the lock file and installs nothing.
fn packages(dir: &Path) {
    let of = ["sdk/typescript", "dashboard", "LICENSE-MIT", "LICENSE-APACHE"];
    let listed = Command::new("git").args(["ls-files", "--"]).args(of).current_dir(ROOT).output().expect("git runs");
    for file in String::from_utf8(listed.stdout).expect("text").lines() {
        let to = dir.join(file);
        std::fs::create_dir_all(to.parent().expect("a directory")).expect("a directory");
        std::fs::copy(Path::new(ROOT).join(file), to).expect("copied");
    }
    for package in ["sdk/typescript", "dashboard"] {
        let installed = Path::new(ROOT).join(package).join("node_modules");
        assert!(installed.is_dir(), "{package} has no node_modules: `make web` installs them");
        symlink(installed, dir.join(package).join("node_modules")).expect("a link");
    }
    let checked = r#"for arg; do [ "$arg" != ci ] || set -- "$@" --dry-run --offline; done"#;
    let quiet = "export npm_config_loglevel=silent npm_config_update_notifier=false";
    script(dir, "npm", &format!("{checked}\n{quiet}\nexec {} \"$@\"", program("npm")));
}

/// Where this machine has the program.
fn program(name: &str) -> String {
    let path = std::env::var_os("PATH").expect("a PATH");
    let installed = Path::new(ROOT).join("target").join(name).join("node_modules/.bin");
    let found = std::env::split_paths(&path).chain([installed]).map(|dir| dir.join(name)).find(|at| at.is_file());
    found.unwrap_or_else(|| panic!("no {name} on this machine: `make test` installs it")).display().to_string()
}

/// A Redis with a stream of one entry.
struct Redis(Child);

impl Redis {
    fn start(dir: &Path) -> Self {
        let socket = dir.join("redis.sock");
        let at = socket.display().to_string();
        let mut server = Command::new("redis-server");
        server.args(["--port", "0", "--unixsocket", &at, "--save", "", "--dir"]).arg(dir).stdout(Stdio::null());
        let redis = Self(server.spawn().expect("redis-server starts: `make test` installs it"));
        let started = Instant::now();
        let id = format!("{REDIS_MS}-0");
        loop {
            let added = Command::new("redis-cli")
                .args(["-e", "-s", &at, "XADD", "orders", &id, "order", "o-1", "total", "12"])
                .output();
            if added.is_ok_and(|added| added.status.success()) {
                break;
            }
            assert!(started.elapsed() < Duration::from_secs(30), "Redis does not answer");
            std::thread::sleep(Duration::from_millis(20));
        }
        script(dir, "redis-cli", &format!("exec {} -s {at} \"$@\"", program("redis-cli")));
        redis
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
