//! `kill -9` of the primary of three under load, with a ledger of what was answered.
//!
//! What was answered is there, at the place that was answered; what was refused is not; what is unknown may be either.
//! A call is of two topics, which may fare differently.
//! `PROMETHEAN_FAILOVERS` says how often (2). At the end the others are killed too: a hub does not start then.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mongodb::bson::{Document, doc};
use mongodb::options::ReadConcern;
use promethean_event::{EventId, Seq};
use promethean_store::mongo::{Mongo, OpenError};
use promethean_store::suite::{event, id, read_all, topic};
use promethean_store::{Error, EventLog as _, Outcome, ReadMax};
use promethean_testmongo::{Replica, Setup};

use crate::refusals::refused;
use crate::{open, run};

const TOPICS: [&str; 2] = ["load", "side"];

#[derive(Default)]
struct Ledger {
    answered: HashMap<EventId, Seq>,
    refused: HashSet<EventId>,
    unknown: HashSet<EventId>,
}

/// Publishes until it is told to end; an event whose fate is unknown is not sent again.
async fn publish(hub: Mongo, writer: u128, ended: Arc<AtomicBool>, count: Arc<AtomicU64>) -> Ledger {
    let mut ledger = Ledger::default();
    for call in 0_u128.. {
        if ended.load(Ordering::Relaxed) {
            break;
        }
        let ids: Vec<_> = (0..3).map(|n| writer * 1_000_000 + call * 3 + n + 1).collect();
        let made = (0..).zip(&ids).map(|(unit, n)| event(TOPICS[unit % 2]).id(*n).unit(unit as u32).new_event());
        let told = hub.append(made.collect()).await;
        let told = told.unwrap_or_else(|error| vec![Outcome::Failed(error); ids.len()]);
        if told.iter().all(|outcome| matches!(outcome, Outcome::Stored(_))) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        for (id, outcome) in ids.into_iter().map(id).zip(told) {
            match outcome {
                Outcome::Stored(stored) => {
                    assert!(!stored.duplicate, "sent once, a duplicate of itself");
                    ledger.answered.insert(id, stored.seq);
                }
                Outcome::Failed(Error::Unknown(_)) => drop(ledger.unknown.insert(id)),
                Outcome::Failed(Error::Refused(_)) => drop(ledger.refused.insert(id)),
                other => panic!("{other:?}"),
            }
        }
    }
    ledger
}

/// Waits until so many more calls were answered.
async fn progress(count: &AtomicU64, more: u64) {
    let goal = count.load(Ordering::Relaxed) + more;
    while count.load(Ordering::Relaxed) < goal {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[test]
fn nothing_answered_is_lost_when_the_primary_is_killed_under_load() {
    let cycles: u32 = std::env::var("PROMETHEAN_FAILOVERS").ok().and_then(|text| text.parse().ok()).unwrap_or(2);
    run(60 + 30 * u64::from(cycles), async move {
        let mut replica = Setup::default().members(3).start();
        let url = replica.url("failover");
        let hubs = [open(&url).await, open(&url).await];
        let (ended, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let writers: Vec<_> = (0..4)
            .map(|writer| {
                let hub = hubs[writer % 2].clone();
                tokio::spawn(publish(hub, writer as u128, Arc::clone(&ended), Arc::clone(&count)))
            })
            .collect();
        for _ in 0..cycles {
            progress(&count, 20).await;
            replica = tokio::task::spawn_blocking(move || {
                let primary = replica.primary();
                replica.kill(primary);
                replica.restart(primary);
                replica
            })
            .await
            .expect("no panic");
            progress(&count, 20).await;
        }
        ended.store(true, Ordering::Relaxed);
        let mut ledger = Ledger::default();
        for writer in writers {
            let part = writer.await.expect("no panic");
            ledger.answered.extend(part.answered);
            ledger.refused.extend(part.refused);
            ledger.unknown.extend(part.unknown);
        }
        let mut found = HashMap::new();
        for name in TOPICS {
            let log = read_all(&hubs[0], name).await;
            let seqs: Vec<_> = log.iter().map(|event| event.seq).collect();
            assert_eq!(seqs, (1..=log.len() as u64).collect::<Vec<_>>(), "no hole");
            for event in &log {
                assert_eq!(found.insert(event.id, event.seq), None, "no event twice");
            }
            assert_eq!(read_all(&hubs[1], name).await.len(), log.len());
            let info = hubs[0].info(&topic(name)).await.expect("known").expect("exists");
            assert_eq!((info.events, info.last_seq), (log.len() as u64, log.len() as u64));
        }
        for (id, seq) in &ledger.answered {
            assert_eq!(found.get(id), Some(seq), "{id} was answered {seq}");
        }
        assert!(ledger.refused.iter().all(|id| !found.contains_key(id)), "what was refused is not there");
        let known = found.keys().all(|id| ledger.answered.contains_key(id) || ledger.unknown.contains(id));
        assert!(known, "everything there was answered, or is unknown");
        eprintln!(
            "{cycles} failovers, {} events: {} answered, {} refused, {} unknown",
            found.len(),
            ledger.answered.len(),
            ledger.refused.len(),
            ledger.unknown.len()
        );
        assert!(hubs[0].ready().is_ok());

        let primary = replica.primary();
        (0..3).filter(|member| *member != primary).for_each(|member| replica.kill(member));
        let error = refused(&url).await;
        assert!(matches!(error, OpenError::NoMajority(_)), "{error:?}");
        assert!(error.to_string().contains("rs.status()"), "{error}");
    });
}

#[test]
fn a_hub_says_that_mongodb_is_away_and_that_it_is_back() {
    run(90, async {
        let mut replica = Setup::default().start();
        let hub = open(&replica.url("away")).await;
        promethean_store::suite::append(&hub, &[event("a")]).await;
        replica.kill(0);
        while hub.ready().is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let why = hub.ready().expect_err("away").to_string();
        assert!(why.contains("MongoDB is away"), "{why}");
        let waiting = tokio::spawn({
            let hub = hub.clone();
            async move { promethean_store::suite::append(&hub, &[event("a")]).await }
        });
        replica.restart(0);
        assert_eq!(waiting.await.expect("no panic")[0].seq, 2, "a publish waits for the primary");
        while hub.ready().is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        // The stream was lost with the server: the other way of hearing tells it.
        let other = open(&replica.url("away")).await;
        let mut tail = hub.watch(&topic("a"));
        promethean_store::suite::append(&other, &[event("a")]).await;
        tail.wait_for(|tail| tail.seq == 3).await.expect("the end");
    });
}

/// The primary acknowledges what a majority has, and tells the others a little later that a majority has it. Killed in
/// between, it leaves a new primary whose `majority` reads are older than the acknowledgement. A failpoint of MongoDB's
/// own holds that moment open.
#[test]
fn what_a_new_primary_does_not_know_to_be_safe_yet_is_waited_for_and_not_taken_for_gone() {
    run(180, async {
        let mut replica = Setup::default().members(3).flag("--setParameter").flag("enableTestCommands=1").start();
        let hub = open(&replica.url("behind")).await;
        promethean_store::suite::append(&hub, &[event("t").key("k").id(1)]).await;
        let primary = replica.primary();
        let others: Vec<usize> = (0..3).filter(|member| *member != primary).collect();
        let hold = |replica: &Replica, member, mode: &str| {
            let point = doc! { "configureFailPoint": "disableSnapshotting", "mode": mode };
            replica.command(member, point).expect("a failpoint");
        };
        others.iter().for_each(|member| hold(&replica, *member, "alwaysOn"));
        assert_eq!(promethean_store::suite::append(&hub, &[event("t").key("k").id(2)]).await[0].seq, 2);
        replica.kill(primary);
        let new = replica.primary();
        // Any client that is told nothing gets the old state from it.
        let url = format!("mongodb://127.0.0.1:{}/?directConnection=true", replica.ports()[new]);
        let plain = mongodb::Client::with_uri_str(url).await.expect("a client");
        let events = plain.database("behind").collection::<Document>("events");
        let count = events.count_documents(doc! {}).read_concern(ReadConcern::majority()).await;
        assert_eq!(count.expect("counted"), 1, "the moment is held open");
        let read = tokio::spawn({
            let hub = hub.clone();
            async move {
                let (t, ids, keys) = (topic("t"), [id(2)], ["k".to_owned()]);
                let max = ReadMax::events(10);
                tokio::try_join!(hub.read(&t, 2, max), hub.locate(&ids), hub.latest_by_key(&t, &keys)).expect("read")
            }
        });
        tokio::pin!(read);
        let early = tokio::time::timeout(Duration::from_secs(1), &mut read).await;
        assert!(early.is_err(), "answered with what there was before: {early:?}");
        others.iter().for_each(|member| hold(&replica, *member, "off"));
        let (read, located, latest) = read.await.expect("no panic");
        assert_eq!(read.iter().map(|event| event.seq).collect::<Vec<_>>(), [2]);
        assert_eq!(located[0].as_ref().map(|place| place.seq), Some(2));
        assert_eq!(latest[0].as_ref().map(|event| event.seq), Some(2));
    });
}

/// How long a publish may take that MongoDB does not take: as `docs/mongodb.md` has it, and what a machine is busy with.
const PROMISED: Duration = Duration::from_secs(35);

#[test]
fn a_publish_that_nobody_takes_is_refused_in_time_and_said_not_to_be_stored() {
    run(120, async {
        let mut replica = Setup::default().start();
        let hub = open(&replica.url("away")).await;
        promethean_store::suite::append(&hub, &[event("a")]).await;
        replica.kill(0);
        let began = Instant::now();
        let publish = |n| hub.append(vec![event("a").id(n).new_event()]);
        // The second waits for the first: its time counts all the same.
        let both = tokio::join!(publish(1), publish(2));
        assert!(began.elapsed() < PROMISED, "{:?}", began.elapsed());
        for ended in [both.0, both.1] {
            let error = ended.expect_err("nobody is there");
            assert!(matches!(error, Error::Refused(_)), "{error:?}");
            assert!(error.to_string().contains("nothing was stored"), "{error}");
        }
    });
}

#[test]
fn a_publish_whose_commit_is_not_answered_is_said_to_be_unknown_in_time() {
    run(120, async {
        let replica = Setup::default().flag("--setParameter").flag("enableTestCommands=1").start();
        let hub = open(&replica.url("unanswered")).await;
        promethean_store::suite::append(&hub, &[event("a")]).await;
        let data = doc! { "failCommands": ["commitTransaction"], "blockConnection": true, "blockTimeMS": 90_000 };
        let silent = doc! { "configureFailPoint": "failCommand", "mode": "alwaysOn", "data": data };
        replica.command(0, silent).expect("a failpoint");
        let began = Instant::now();
        let error = hub.append(vec![event("a").id(1).new_event()]).await.expect_err("no answer");
        assert!(began.elapsed() < PROMISED, "{:?}", began.elapsed());
        assert!(matches!(error, Error::Unknown(_)), "{error:?}");
        assert!(error.to_string().contains("the outcome is unknown"), "{error}");
    });
}
