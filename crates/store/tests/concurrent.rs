//! Publishers, readers, flushing, trimming and compaction of the embedded engine, all at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use promethean_event::{Millis, NewEvent};
use promethean_store::log::{Log, Options};
use promethean_store::suite::{append, event, seqs, topic};
use promethean_store::{Compaction, Error, EventLog, Outcome, ReadMax, Seek, Store, TopicSettings};

const PUBLISHERS: u64 = 4;
const BATCHES: u64 = 100;
const EACH: u64 = 5;

fn open(dir: &std::path::Path, sync: &str) -> Arc<Log> {
    let mut options = Options::new(dir);
    options.sync = sync.parse().expect("a mode");
    (options.journal_bytes, options.segment_bytes, options.block_bytes) = (16 << 10, 16 << 10, 1 << 10);
    options.maintenance = Some(Duration::from_millis(7));
    Arc::new(Log::open(options).expect("opens"))
}

async fn publish(log: &Log, publisher: u64) {
    for n in 0..BATCHES {
        let keyed = event("state").key(format!("k{}", (n + publisher) % 10));
        let plain = (0..EACH).map(|_| event("plain").payload(format!("\"{}\"", "x".repeat(60))));
        append(log, &plain.chain([keyed]).collect::<Vec<_>>()).await;
    }
}

/// Reads every event of `plain` in order, as it comes.
async fn follow(log: &Log) {
    let (mut next, mut watch) = (1, log.watch(&topic("plain")));
    while next <= PUBLISHERS * BATCHES * EACH {
        let events = log.read(&topic("plain"), next, ReadMax { events: 64, bytes: 4096 }).await.expect("read");
        for event in &events {
            assert_eq!(event.seq, next, "a reader missed an event");
            next += 1;
        }
        if events.is_empty() {
            watch.wait_for(|tail| tail.seq >= next).await.expect("more comes");
        }
    }
}

/// The latest of a key never goes back, and a snapshot has every key.
async fn watch_keys(log: &Log, done: &AtomicBool) {
    let keys: Vec<String> = (0..10).map(|n| format!("k{n}")).collect();
    let mut last = vec![0; keys.len()];
    while !done.load(Ordering::Acquire) {
        let latest = log.latest_by_key(&topic("state"), &keys).await.expect("found");
        for ((key, before), event) in keys.iter().zip(&mut last).zip(latest) {
            let seq = event.map_or(0, |event| event.seq);
            assert!(seq >= *before, "the latest of {key} went back from {before} to {seq}");
            *before = seq;
        }
        let known = last.iter().filter(|seq| **seq > 0).count();
        let mut snapshot = log.key_snapshot(&topic("state")).await.expect("opened");
        let (cut, mut seen) = (snapshot.cut(), 0);
        loop {
            let part = snapshot.next(3).await.expect("read");
            if part.is_empty() {
                break;
            }
            assert!(part.iter().all(|event| event.seq <= cut), "an event of a later time");
            seen += part.len();
        }
        // One that was replaced and compacted away meanwhile may be left out; with few keys that is seldom all.
        assert!(seen <= keys.len() && (known == 0 || seen > 0), "{seen} keys in a snapshot, {known} are known");
        let first = log.seek(&topic("plain"), Seek::Earliest).await.expect("sought").expect("a place");
        assert_eq!(first.done, 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn readers_miss_nothing_while_everything_happens_at_once() {
    everything_at_once("always").await;
}

/// Here publishers write themselves, beside the writer's thread.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn readers_miss_nothing_while_everything_happens_at_once_and_nothing_waits_for_the_disk() {
    everything_at_once("5ms").await;
}

async fn everything_at_once(sync: &str) {
    let place = tempfile::tempdir().expect("a directory");
    let log = open(&place.path().join("data"), sync);
    let settings = TopicSettings { compaction: Some(Compaction::default()), ..TopicSettings::default() };
    log.set_settings(&topic("state"), settings).await.expect("set");
    let done = Arc::new(AtomicBool::new(false));
    let mut running = Vec::new();
    for publisher in 0..PUBLISHERS {
        let log = log.clone();
        running.push(tokio::spawn(async move { publish(&log, publisher).await }));
    }
    for _ in 0..2 {
        let log = log.clone();
        running.push(tokio::spawn(async move { follow(&log).await }));
    }
    let keys = {
        let (log, done) = (log.clone(), done.clone());
        tokio::spawn(async move { watch_keys(&log, &done).await })
    };
    let maintenance = {
        let (log, done) = (log.clone(), done.clone());
        tokio::spawn(async move {
            while !done.load(Ordering::Acquire) {
                log.maintain(Millis(2_000)).await.expect("maintained");
            }
        })
    };
    for one in running {
        tokio::time::timeout(Duration::from_secs(120), one).await.expect("it ends").expect("no panic");
    }
    done.store(true, Ordering::Release);
    keys.await.expect("no panic");
    maintenance.await.expect("no panic");
    log.maintain(Millis(2_000)).await.expect("maintained");
    assert_eq!(seqs(&*log, "plain").await.len() as u64, PUBLISHERS * BATCHES * EACH);
    assert_eq!(seqs(&*log, "state").await.len(), 10, "the latest of each key is left");
    assert!(log.stats().flushes > 10);
    log.close().await.expect("closed");
}

/// What the first look at it gives; dropping it then changes nothing about what was asked for.
fn at_once<T>(asked: &mut promethean_store::Pending<'_, T>) -> Option<promethean_store::Result<T>> {
    match asked.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => Some(answer),
        Poll::Pending => None,
    }
}

fn made(topic: &'static str, bytes: usize) -> Vec<NewEvent> {
    vec![event(topic).payload(format!("\"{}\"", "x".repeat(bytes))).new_event()]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_small_and_waits_for_no_disk_is_done_in_the_thread_of_whoever_asks() {
    for (sync, direct) in [("never", true), ("1s", true), ("always", false)] {
        let place = tempfile::tempdir().expect("a directory");
        let mut options = Options::new(place.path().join("data"));
        options.sync = sync.parse().expect("a mode");
        let log = Log::open(options).expect("opens");
        for _ in 0..1_000 {
            log.append(made("t", 10)).await.expect("appended");
        }
        let small = log.stats().direct;
        // Not all: the writer's thread makes the file longer, and may be at something when the next one comes.
        assert_eq!(small > 100, direct, "{sync}: {small}");
        for n in 0..10 {
            log.append(made("t", 300 << 10)).await.expect("appended");
            append(&log, &[event("t").id(n + 1)]).await;
        }
        assert_eq!(log.stats().direct, small, "{sync}: nothing large, no id that has to be looked up");
        log.close().await.expect("closed");
        assert!(matches!(log.append(made("t", 10)).await, Err(Error::Closed(_))), "{sync}: nothing after the end");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_asked_first_is_done_first_whoever_does_it() {
    let place = tempfile::tempdir().expect("a directory");
    let mut options = Options::new(place.path().join("data"));
    options.sync = "never".parse().expect("a mode");
    let log = Log::open(options).expect("opens");
    for round in 0..300 {
        // Large ones are for the writer's thread, small ones for this one, unless something is before them.
        let sizes = [300 << 10, 10, 10, if round % 3 == 0 { 300 << 10 } else { 10 }, 10];
        let mut asked: Vec<_> = sizes.map(|bytes| log.append(made("t", bytes))).into();
        let mut answers: Vec<_> = asked.iter_mut().map(at_once).collect();
        for (answer, asked) in answers.iter_mut().zip(asked) {
            if answer.is_none() {
                *answer = Some(asked.await);
            }
        }
        let seqs = answers.into_iter().flatten().map(|answer| match answer.expect("appended").as_slice() {
            [Outcome::Stored(stored)] => stored.seq,
            other => panic!("{other:?}"),
        });
        let first = round * sizes.len() as u64 + 1;
        assert_eq!(seqs.collect::<Vec<_>>(), (first..first + sizes.len() as u64).collect::<Vec<_>>());
    }
    let (direct, commits) = (log.stats().direct, log.stats().commits);
    assert!(commits > direct, "{direct} in this thread, of {commits}");
    log.close().await.expect("closed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_was_answered_before_the_end_is_there_and_nothing_comes_after_it() {
    let place = tempfile::tempdir().expect("a directory");
    let dir = place.path().join("data");
    let mut stored = 0;
    for _ in 0..20 {
        let log = open(&dir, "never");
        let publishers: Vec<_> = (0..4)
            .map(|_| {
                let log = log.clone();
                tokio::spawn(async move {
                    let mut stored = 0;
                    loop {
                        match log.append(made("t", 100)).await {
                            Ok(_) => stored += 1,
                            Err(Error::Closed(_)) => return stored,
                            Err(other) => panic!("{other:?}"),
                        }
                    }
                })
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(10)).await;
        log.close().await.expect("closed");
        // The directory is free: another process may have it by now.
        let next = open(&dir, "never");
        for publisher in publishers {
            stored += publisher.await.expect("no panic");
        }
        assert_eq!(seqs(&*next, "t").await, (1..=stored).collect::<Vec<u64>>());
        next.close().await.expect("closed");
    }
    assert!(stored > 1_000, "{stored}");
}
