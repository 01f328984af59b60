//! A projector that is killed with `kill -9` a hundred times ends with exactly the state of one that never was.
//!
//! The program starts itself as the victim: the embedded store, the bus, a publisher and a projector of what it
//! publishes. The parent kills it at random moments; at last one is left to catch up, and what it has is compared with
//! a plain fold of everything that is in the log.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use promethean_bus::{Bus, Draft, Topic};
use promethean_event::{Millis, payload_of};
use promethean_projection::bus::Projector;
use promethean_projection::{Input, Projection, Settings, Skip, States};
use promethean_store::log::{Log, Options};
use promethean_store::{EventLog as _, ReadMax, Store as _};
use serde::{Deserialize, Serialize};

const VICTIM: &str = "PROMETHEAN_TEST_VICTIM";
const KILLS: u64 = 100;
const KEYS: u64 = 400;

/// Not idempotent on purpose: whatever is folded twice, or not at all, shows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Account {
    count: u64,
    sum: u64,
    /// Depends on the order.
    trail: u64,
}

struct Accounts;

impl Projection for Accounts {
    type State = Account;
    fn fold(&mut self, event: &Input<'_>, states: &mut States<Account>) -> Result<(), Skip> {
        let amount: u64 = event.payload_as()?;
        let key = event.key.as_deref().ok_or("no key")?;
        let before = states.get(key).cloned().unwrap_or(Account { count: 0, sum: 0, trail: 0 });
        let count = before.count + 1;
        // Accounts are closed now and then: what was removed must not come back.
        if amount.is_multiple_of(97) && count > 5 {
            states.remove(key);
            return Ok(());
        }
        let trail = before.trail.wrapping_mul(31).wrapping_add(amount);
        states.set(key, Account { count, sum: before.sum + amount, trail });
        Ok(())
    }
}

fn settings() -> Settings {
    Settings::new("accounts", "payments", "accounts").expect("good names")
}

fn open(dir: &Path) -> Arc<Log> {
    let mut options = Options::new(dir);
    // Small files: kills must hit settling and compaction too.
    (options.journal_bytes, options.segment_bytes, options.block_bytes) = (256 << 10, 256 << 10, 4 << 10);
    Arc::new(Log::open(options).expect("opens"))
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

/// Publishes and folds until it is killed.
async fn victim(dir: &Path) {
    let bus = Bus::new(open(dir), Default::default());
    let projector = Projector::open(&bus, settings(), Accounts).await.expect("opened");
    let running = tokio::spawn(projector.run());
    let topic = Topic::parse("payments").expect("a topic");
    let mut random = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 1) | 1;
    while !running.is_finished() {
        let drafts: Vec<_> = (0..20)
            .map(|_| {
                random = next(random);
                let mut draft = Draft::new(topic.clone(), Cow::Owned(payload_of(&(random >> 44)).expect("JSON")));
                draft.options.key = Some((random % KEYS).to_string().into());
                draft
            })
            .collect();
        bus.publish_batch(drafts).await.expect("published");
    }
    panic!("the projector stopped by itself: {:?}", running.await);
}

fn next(mut random: u64) -> u64 {
    random ^= random << 13;
    random ^= random >> 7;
    random ^ (random << 17)
}

/// The state of a run that nobody interrupted, without any of the machinery, and how many events it is of.
async fn expected(log: &Log) -> (u64, BTreeMap<String, Account>) {
    let topic = Topic::parse("payments").expect("a topic");
    let (mut seq, mut accounts) = (0, BTreeMap::<String, Account>::new());
    loop {
        let events = log.read(&topic, seq + 1, ReadMax::events(5_000)).await.expect("read");
        let Some(last) = events.last() else { return (seq, accounts) };
        seq = last.seq;
        for event in &events {
            let (key, amount) =
                (event.key().expect("a key").into_owned(), event.payload_as::<u64>().expect("a number"));
            let account = accounts.entry(key.clone()).or_insert(Account { count: 0, sum: 0, trail: 0 });
            account.count += 1;
            if amount.is_multiple_of(97) && account.count > 5 {
                accounts.remove(&key);
                continue;
            }
            account.sum += amount;
            account.trail = account.trail.wrapping_mul(31).wrapping_add(amount);
        }
    }
}

async fn published(dir: &Path, log: &Arc<Log>) -> (u64, BTreeMap<String, Account>) {
    let bus = Bus::new(log.clone(), Default::default());
    let projector =
        Projector::open(&bus, settings(), Accounts).await.unwrap_or_else(|error| panic!("{dir:?}: {error}"));
    let states = projector.states().iter().map(|(key, state)| (key.to_owned(), state.clone())).collect();
    (projector.position().seq, states)
}

fn main() {
    if let Ok(dir) = std::env::var(VICTIM) {
        return runtime().block_on(victim(Path::new(&dir)));
    }
    let dir = tempfile::tempdir().expect("a directory");
    let runtime = runtime();
    let (mut reached, mut kills, started) = (0, 0, Instant::now());
    let mut random = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 1) | 1;
    println!("seed {random}");
    for cycle in 0..KILLS {
        let program = std::env::current_exe().expect("this program");
        let mut child =
            Command::new(program).env(VICTIM, dir.path()).stdout(Stdio::null()).spawn().expect("the victim starts");
        random = next(random);
        std::thread::sleep(Duration::from_millis(4 + random % 60));
        child.kill().expect("killed");
        let status = child.wait().expect("ended");
        assert_eq!(status.code(), None, "the victim ended by itself: {status}");
        kills += 1;
        if cycle % 10 == 9 {
            runtime.block_on(async {
                let log = open(dir.path());
                let (position, _) = published(dir.path(), &log).await;
                assert!(position >= reached, "it went back from {reached} to {position}");
                reached = position;
                // The output topic is compacted meanwhile, as it would be over days.
                log.maintain(Millis::now()).await.expect("maintained");
                log.close().await.expect("closed");
            });
        }
    }
    runtime.block_on(async {
        let log = open(dir.path());
        assert!(reached > 0, "no victim lived long enough to fold anything");
        let bus = Bus::new(log.clone(), Default::default());
        let mut last = Projector::open(&bus, settings(), Accounts).await.expect("opened");
        let (events, expected) = expected(&log).await;
        let left = events - last.position().seq;
        last.catch_up().await.expect("caught up");
        let (position, states) = published(dir.path(), &log).await;
        assert_eq!(position, events);
        assert!(events > 1_000 && expected.len() > 100, "{events} events, {} accounts: no load", expected.len());
        assert_eq!(states, expected);
        log.close().await.expect("closed");
        println!(
            "test a_projector_killed_at_random_has_the_state_of_an_uninterrupted_run ({kills} kills, {events} events, \
             {left} left for the last, {:?}) ... ok",
            started.elapsed()
        );
    });
}
