//! `promethean migrate`: the real binary, a real replica set, cut off and run again.

use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use mongodb::bson::doc;
use promethean_event::{Event, Group, Millis, Topic};
use promethean_store::log::{Log, Options as LogOptions};
use promethean_store::mongo::{Cluster, Mongo, OpenError, Options};
use promethean_store::suite::{append, event, topic};
use promethean_store::{
    Compaction, EventLog as _, GroupState, GroupStore as _, Ownership as _, ReadMax, Retention, Store, Terms,
    TopicSettings, Unfinished,
};
use promethean_testmongo::Scratch;
use tempfile::TempDir;

fn migrate(dir: &TempDir, url: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_promethean"));
    command.args(["migrate", "--from"]).arg(dir.path()).args(["--to", url]).env_clear();
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn said(output: &Output) -> (Option<i32>, String) {
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    (output.status.code(), String::from_utf8_lossy(&text).into_owned())
}

fn group(name: &str) -> Group {
    Group::parse(name).expect("a group")
}

fn state(floor: u64) -> GroupState {
    let mut state = GroupState { floor, generation: 2, ..GroupState::default() };
    state.done.insert(floor + 2, floor + 3, None);
    state.unfinished.push(Unfinished { seq: floor + 1, attempts: 2, not_before: Millis(9), redriven: 0 });
    state
}

/// Topics with holes, without a beginning, with nothing left, and with nothing but a group.
async fn fill(dir: &TempDir, events: usize) {
    let log = Log::open(LogOptions::new(dir.path())).expect("opens");
    let raw = |n: usize| event("plain").payload(format!("{{\"n\": {n}}}")).key((n % 7).to_string());
    for start in (0..events).step_by(1_000) {
        append(&log, &(start..(start + 1_000).min(events)).map(raw).collect::<Vec<_>>()).await;
    }
    let compaction = TopicSettings { compaction: Some(Compaction::default()), ..TopicSettings::default() };
    log.set_settings(&topic("state"), compaction).await.expect("set");
    append(&log, &(0..90).map(|n| event("state").key((n % 9).to_string())).collect::<Vec<_>>()).await;
    log.maintain(Millis(5_000)).await.expect("maintained");
    append(&log, &vec![event("short"); 20]).await;
    log.trim(&topic("short"), 15).await.expect("trimmed");
    append(&log, &vec![event("gone"); 4]).await;
    log.trim(&topic("gone"), 5).await.expect("trimmed");
    for (name, floor) in [("plain", 7), ("state", 80), ("waiting", 0)] {
        log.compare_and_set(&topic(name), &group("ops"), 0, state(floor)).await.expect("saved");
    }
    let retention = Retention { max_age: Some(Duration::from_secs(86_400)), ..Retention::default() };
    log.set_settings(&topic("later"), TopicSettings { retention, ..TopicSettings::default() }).await.expect("set");
    log.close().await.expect("closed");
}

async fn all(store: &dyn Store, name: &str) -> Vec<Event> {
    let max = ReadMax { events: usize::MAX, bytes: usize::MAX };
    store.read(&topic(name), 0, max).await.expect("read")
}

async fn same(dir: &TempDir, url: &str) {
    let log = Log::open(LogOptions::new(dir.path())).expect("opens");
    let mongo = Mongo::open(Options::new(url)).await.expect("opens");
    assert_eq!(mongo.topics().await.expect("listed"), log.topics().await.expect("listed"));
    for name in ["plain", "state", "short", "gone", "waiting", "later"] {
        assert_eq!(all(&mongo, name).await, all(&log, name).await, "{name}");
        let name: Topic = topic(name);
        let ends = |info: promethean_store::TopicInfo| (info.events, info.first_seq, info.last_seq, info.last);
        let ours = log.info(&name).await.expect("known").map(ends);
        assert_eq!(mongo.info(&name).await.expect("known").map(ends), ours, "{name}");
        assert_eq!(mongo.groups(&name).await.expect("listed"), log.groups(&name).await.expect("listed"));
        assert_eq!(mongo.settings(&name), log.settings(&name));
    }
    let next = append(&mongo, &[event("plain"), event("gone")]).await;
    assert_eq!(next[1].seq, 5, "seqs go on");
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

#[test]
fn an_embedded_store_moves_to_mongodb_as_it_is() {
    let (dir, scratch) = (tempfile::tempdir().expect("a directory"), Scratch::new());
    runtime().block_on(fill(&dir, 500));
    let (code, text) = said(&migrate(&dir, scratch.url()).output().expect("it runs"));
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("copied 4 topics, 515 events and 3 groups"), "{text}");
    // Once more: nothing to do, and still the same.
    let (code, text) = said(&migrate(&dir, scratch.url()).arg("--json").output().expect("it runs"));
    assert_eq!((code, text.as_str()), (Some(0), "{\"topics\":4,\"events\":515,\"groups\":3}\n"));
    runtime().block_on(same(&dir, scratch.url()));
    // Now the database has an event of its own.
    let (code, text) = said(&migrate(&dir, scratch.url()).output().expect("it runs"));
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("in use already") && text.contains("nothing was written"), "{text}");
}

#[test]
fn a_database_whose_hubs_have_gone_on_is_refused_and_left_as_it_is() {
    let (dir, scratch) = (tempfile::tempdir().expect("a directory"), Scratch::new());
    let runtime = runtime();
    runtime.block_on(fill(&dir, 100));
    let (code, text) = said(&migrate(&dir, scratch.url()).output().expect("it runs"));
    assert_eq!(code, Some(0), "{text}");
    // The hubs of the database go on: a group acks, another one is new.
    let (plain, ops) = (topic("plain"), group("ops"));
    runtime.block_on(async {
        let hub = Mongo::open(Options::new(scratch.url())).await.expect("opens");
        let (_, version) = hub.load(&plain, &ops).await.expect("loaded").expect("it was copied");
        hub.compare_and_set(&plain, &ops, version, state(60)).await.expect("saved");
    });
    let refused = |what: &str| {
        let (code, text) = said(&migrate(&dir, scratch.url()).output().expect("it runs"));
        assert_eq!(code, Some(1), "{what}: {text}");
        assert!(text.contains("in use already") && text.contains("plain is not the same"), "{what}: {text}");
    };
    refused("a group has acked");
    runtime.block_on(async {
        let hub = Mongo::open(Options::new(scratch.url())).await.expect("no mark is left that keeps hubs out");
        let (now, version) = hub.load(&plain, &ops).await.expect("loaded").expect("it is there");
        assert_eq!(now, state(60), "what was acked stays acked");
        hub.compare_and_set(&plain, &ops, version, state(7)).await.expect("saved");
        hub.compare_and_set(&plain, &group("new"), 0, state(3)).await.expect("saved");
    });
    refused("there is a group that the directory has not");
    assert!(runtime.block_on(Mongo::open(Options::new(scratch.url()))).is_ok(), "hubs start as before");
}

#[test]
fn an_import_and_a_running_hub_exclude_each_other() {
    let (dir, scratch) = (tempfile::tempdir().expect("a directory"), Scratch::new());
    let runtime = runtime();
    runtime.block_on(fill(&dir, 10));
    let hub = runtime.block_on(Mongo::open(Options::new(scratch.url()))).expect("opens");
    let join = || runtime.block_on(Cluster::join(&hub, "ws://10.0.0.5:8090", "1", Terms::default()));
    let place = join().expect("a place");
    let (code, text) = said(&migrate(&dir, scratch.url()).output().expect("it runs"));
    assert_eq!((code, text.contains("running on the database (ws://10.0.0.5:8090)")), (Some(1), true), "{text}");
    runtime.block_on(async {
        hub.begin_import().await.expect_err("a hub that came after the first look is found by the second");
        assert!(!hub.import_target().await.expect("known").begun, "and no mark is left");
        place.leave().await.expect("left");
        hub.begin_import().await.expect("nobody is there");
    });
    let refused = join().err().expect("a hub that looked before the import began is refused").to_string();
    assert!(refused.contains("promethean migrate"), "{refused}");
    runtime.block_on(hub.end_import()).expect("ended");
    let (code, text) = said(&migrate(&dir, scratch.url()).output().expect("it runs"));
    assert_eq!(code, Some(0), "{text}");
}

fn copy(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir_all(to).expect("a directory");
    for entry in std::fs::read_dir(from).expect("listed") {
        let entry = entry.expect("an entry");
        let to = to.join(entry.file_name());
        if entry.file_type().expect("a type").is_dir() {
            copy(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), to).expect("copied");
        }
    }
}

#[test]
fn what_recovery_cuts_off_the_directory_is_told() {
    let (dir, scratch) = (tempfile::tempdir().expect("a directory"), Scratch::new());
    let running = tempfile::tempdir().expect("a directory");
    runtime().block_on(async {
        let log = Log::open(LogOptions::new(running.path())).expect("opens");
        append(&log, &[event("t")]).await;
        append(&log, &[event("t")]).await;
        // As a crash in the middle of the last write leaves it.
        copy(running.path(), dir.path());
    });
    let journal = dir.path().join("journal").join("00000001.wal");
    let mut bytes = std::fs::read(&journal).expect("a journal");
    let last = bytes.iter().rposition(|byte| *byte != 0).expect("a frame");
    bytes[last - 40..=last].fill(0);
    std::fs::write(&journal, bytes).expect("written");
    let output = migrate(&dir, scratch.url()).output().expect("it runs");
    let (code, text) = said(&output);
    assert_eq!((code, text.contains("1 events")), (Some(0), true), "{text}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("cut a frame that was not whole"), "{text}");
}

#[test]
fn a_migration_that_is_killed_goes_on_where_it_was_and_no_hub_starts_meanwhile() {
    let (dir, scratch) = (tempfile::tempdir().expect("a directory"), Scratch::new());
    let runtime = runtime();
    runtime.block_on(fill(&dir, 20_000));
    let watched = runtime.block_on(Mongo::open(Options::new(scratch.url()))).expect("opens");
    let mut running = migrate(&dir, scratch.url()).spawn().expect("it runs");
    let began = Instant::now();
    while watched.watch(&topic("plain")).borrow().seq < 2_000 {
        assert!(began.elapsed() < Duration::from_secs(30), "nothing arrives");
        assert!(running.try_wait().expect("a child").is_none(), "it ended before it could be killed");
        std::thread::sleep(Duration::from_millis(1));
    }
    running.kill().expect("killed");
    running.wait().expect("ended");
    let half = runtime.block_on(watched.imported(&topic("plain"))).expect("known");
    assert!((2_000..20_000).contains(&half), "{half} events were copied when it was killed");
    let refused = runtime.block_on(Mongo::open(Options::new(scratch.url()))).err();
    assert!(matches!(refused, Some(OpenError::HalfImported(_))), "{refused:?}");
    // The kill may have left a transaction open: the next run ends it.
    let (code, text) = said(&migrate(&dir, scratch.url()).output().expect("it runs"));
    assert_eq!(code, Some(0), "{text}");
    runtime.block_on(same(&dir, scratch.url()));
}

#[test]
fn a_migration_that_died_inside_a_transaction_is_gone_on_with_at_once() {
    let (dir, scratch) = (tempfile::tempdir().expect("a directory"), Scratch::new());
    let runtime = runtime();
    runtime.block_on(fill(&dir, 100));
    // One that has begun, writes to the topic and never ends it: MongoDB keeps that for a minute.
    let (_died, mut left) = runtime.block_on(async {
        let died = Mongo::open(Options { import: true, ..Options::new(scratch.url()) }).await.expect("opens");
        died.begin_import().await.expect("begun");
        let mut session = died.client().start_session().await.expect("a session");
        session.start_transaction().await.expect("begun");
        let counters = died.database().collection::<mongodb::bson::Document>("counters");
        let moved = doc! { "$set": { "next": 3_i64 } };
        let written = counters.update_one(doc! { "_id": "plain" }, moved).upsert(true).session(&mut session);
        written.await.expect("written");
        (died, session)
    });
    let (code, text) = said(&migrate(&dir, scratch.url()).output().expect("it runs"));
    assert_eq!(code, Some(0), "{text}");
    runtime.block_on(async { left.commit_transaction().await }).expect_err("it was ended");
    runtime.block_on(same(&dir, scratch.url()));
}

#[test]
fn a_directory_that_is_none_and_a_wrong_address_are_named() {
    let dir = tempfile::tempdir().expect("a directory");
    let (code, text) = said(&migrate(&dir, "mongodb://127.0.0.1:1").output().expect("it runs"));
    assert_eq!((code, text.contains("is not a data directory")), (Some(2), true), "{text}");
    runtime().block_on(fill(&dir, 1));
    let (code, text) = said(&migrate(&dir, "nonsense").output().expect("it runs"));
    assert_eq!((code, text.contains("mongodb://HOST")), (Some(2), true), "{text}");
    let nobody = "mongodb://127.0.0.1:1/x?replicaSet=rs&serverSelectionTimeoutMS=200";
    let (code, text) = said(&migrate(&dir, nobody).output().expect("it runs"));
    assert_eq!((code, text.contains("no MongoDB answers at 127.0.0.1:1")), (Some(3), true), "{text}");
}
