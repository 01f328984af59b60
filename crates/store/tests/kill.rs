//! `kill -9` of a real process under load, again and again, with a ledger of what it had been told.
//!
//! The program starts itself as the victim: a store that appends and acks and says on its standard output what was
//! answered. The parent kills it at a random moment, opens the directory, and looks for everything that was said.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use promethean_event::Group;
use promethean_store::log::{Log, Options, Sync};
use promethean_store::suite::{event, read_all, topic};
use promethean_store::{EventLog, GroupState, GroupStore, Outcome, Saved, Store};

const VICTIM: &str = "PROMETHEAN_TEST_VICTIM";
const CYCLES: u64 = 50;
const TOPICS: [&str; 3] = ["a", "b", "c"];

fn open(dir: &Path, sync: Sync) -> Log {
    let mut options = Options::new(dir);
    // Small files: kills must hit flushing too.
    (options.journal_bytes, options.segment_bytes, options.block_bytes) = (64 << 10, 64 << 10, 4 << 10);
    options.sync = sync;
    Log::open(options).expect("opens")
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

/// Appends and acks until it is killed.
fn victim(dir: &str, sync: Sync) {
    runtime().block_on(async {
        let log = Arc::new(open(Path::new(dir), sync));
        let publishers = TOPICS.map(|name| {
            let log = log.clone();
            tokio::spawn(async move {
                let group = Group::parse("g").expect("a group");
                let mut version =
                    log.load(&topic(name), &group).await.expect("loads").map_or(0, |(_, version)| version);
                loop {
                    let payload = format!("\"{}\"", "x".repeat(200));
                    let batch: Vec<_> = (0..20).map(|_| event(name).payload(&payload).new_event()).collect();
                    let mut said = String::new();
                    for outcome in log.append(batch).await.expect("appended") {
                        let Outcome::Stored(one) = outcome else { panic!("fresh ids") };
                        said += &format!("E {name} {} {}\n", one.seq, one.id);
                        let state = GroupState { floor: one.seq, ..GroupState::default() };
                        if one.seq % 20 == 0 {
                            let saved = log.compare_and_set(&topic(name), &group, version, state).await;
                            let Saved::Yes(now) = saved.expect("saved") else { panic!("nobody else saves") };
                            version = now;
                            said += &format!("G {name} {}\n", one.seq);
                        }
                    }
                    std::io::stdout().write_all(said.as_bytes()).expect("the parent listens");
                    std::io::stdout().flush().expect("the parent listens");
                }
            })
        });
        let (ended, ..) = futures_util::future::select_all(publishers).await;
        ended.expect("a publisher goes on until the end");
    });
}

/// What the victims said.
#[derive(Default)]
struct Ledger {
    events: HashMap<(String, u64), String>,
    floors: HashMap<String, u64>,
}

impl Ledger {
    fn hear(&mut self, line: &str) {
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["E", name, seq, id] => {
                let before = self.events.insert((name.to_owned(), seq.parse().expect("a number")), id.to_owned());
                assert!(before.is_none(), "{name} {seq} was given out twice");
            }
            ["G", name, floor] => {
                self.floors.insert(name.to_owned(), floor.parse().expect("a number"));
            }
            _ => panic!("the victim said {line:?}"),
        }
    }

    async fn check(&self, log: &Log) {
        let mut found = HashMap::new();
        for name in TOPICS {
            let events = read_all(log, name).await;
            assert!(events.iter().zip(1..).all(|(event, seq)| event.seq == seq), "{name} has a gap");
            found.extend(events.into_iter().map(|event| ((name.to_owned(), event.seq), event.id.to_string())));
            let group = Group::parse("g").expect("a group");
            let floor = log.load(&topic(name), &group).await.expect("loads").map_or(0, |(state, _)| state.floor);
            assert!(floor >= self.floors.get(name).copied().unwrap_or(0), "{name} has forgotten an ack");
        }
        for (place, id) in &self.events {
            assert_eq!(found.get(place), Some(id), "{place:?} was answered");
        }
    }
}

fn torment(sync: Sync, cycles: u64) -> usize {
    let dir = tempfile::tempdir().expect("a directory");
    let mut ledger = Ledger::default();
    for cycle in 0..cycles {
        let program = std::env::current_exe().expect("this program");
        let mut child = Command::new(program)
            .env(VICTIM, dir.path())
            .arg(sync.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the victim starts");
        let stdout = child.stdout.take().expect("piped");
        let killer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(15 + cycle * 37 % 60));
            child.kill().expect("killed");
            child.wait().expect("ended")
        });
        let mut said = String::new();
        let mut lines = BufReader::new(stdout);
        while lines.read_line(&mut said).expect("text") > 0 {
            // The last line may be cut: then it was not said.
            if let Some(line) = said.strip_suffix('\n') {
                ledger.hear(line);
            }
            said.clear();
        }
        let status = killer.join().expect("no panic");
        assert_eq!(status.code(), None, "the victim ended by itself: {status}");
        runtime().block_on(async {
            let log = open(dir.path(), sync);
            ledger.check(&log).await;
            log.close().await.expect("closed");
        });
    }
    ledger.events.len()
}

fn main() {
    if let Ok(dir) = std::env::var(VICTIM) {
        let sync = std::env::args().nth(1).and_then(|sync| sync.parse().ok()).unwrap_or_default();
        return victim(&dir, sync);
    }
    for (sync, cycles) in [(Sync::Always, CYCLES), (Sync::Never, 10)] {
        let events = torment(sync, cycles);
        assert!(events > 1_000, "only {events} events were answered: that was no load");
        println!("test nothing_answered_is_lost_by_kill_9 (sync {sync}, {cycles} kills, {events} events) ... ok");
    }
}
