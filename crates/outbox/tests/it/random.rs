//! Random histories: several drainers, random failures and kills, against what has to be true in the end.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use promethean_outbox::{Answer, List, Publisher, Settings, Status, drain};

use crate::fakes::{Fixture, Log, Scripted, by_key, numbered, quick};
use crate::sqlite::Sqlite;

/// SplitMix64: a seed tells the whole history.
struct Random(u64);

impl Random {
    fn next(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % below
    }
}

/// What the contract refuses it refuses every time.
fn refusal(draft: &promethean_event::Draft<'_>) -> Option<Answer> {
    draft.payload.get().ends_with('7').then(|| Answer::Refused("too_large: as always".into()))
}

/// A publisher that fails at random, and sometimes loses the answer of what it stored.
fn shaky(log: &Log, random: Arc<Mutex<Random>>) -> Arc<dyn Publisher> {
    struct Losing(Arc<dyn Publisher>, Arc<Mutex<Random>>);
    impl Publisher for Losing {
        fn publish<'a>(&'a self, drafts: &'a [promethean_event::Draft<'a>]) -> promethean_outbox::Answers<'a> {
            Box::pin(async move {
                let answers = self.0.publish(drafts).await;
                let lost = self.1.lock().expect("not poisoned").next(5) == 0;
                let unknown = Answer::Unavailable { reason: "the answer was lost".into(), retry_after: None };
                if lost { vec![unknown; drafts.len()] } else { answers }
            })
        }
    }
    let dice = Arc::clone(&random);
    let script = move |draft: &promethean_event::Draft<'_>| {
        if let Some(refused) = refusal(draft) {
            return Some(refused);
        }
        match dice.lock().expect("not poisoned").next(12) {
            0 => Some(Answer::Failed("publish_failed: dice".into())),
            1 => Some(Answer::Unavailable { reason: "dice".into(), retry_after: None }),
            _ => None,
        }
    };
    Arc::new(Losing(Arc::new(Scripted { inner: log.publisher(), script }), random))
}

pub(crate) async fn histories(fixture: &dyn Fixture, seeds: std::ops::Range<u64>, rows: usize) {
    for seed in seeds {
        let random = Arc::new(Mutex::new(Random(seed)));
        let roll = |below| random.lock().expect("not poisoned").next(below);
        let (log, topic) = (Log::new(), format!("s{seed}"));
        let mut drainers = Vec::new();
        for number in 0..rows {
            fixture.add(&[numbered(&topic, Some(&format!("{seed}-{}", roll(4))), number)]).await;
            if roll(8) == 0 {
                let mut settings = Settings { until_empty: false, batch_rows: 1 + roll(5) as usize, ..quick() };
                settings.policy.max_attempts = 1_000;
                drainers.push(drain(fixture.store(), shaky(&log, Arc::clone(&random)), settings));
            }
            if drainers.len() > 1 && roll(6) == 0 {
                // Cut off wherever it is.
                drop(drainers.swap_remove(roll(drainers.len() as u64) as usize));
            }
            tokio::time::sleep(Duration::from_micros(roll(3_000))).await;
        }
        drop(drainers);
        let steady = Arc::new(Scripted { inner: log.publisher(), script: refusal });
        drain(fixture.store(), steady, quick()).ended().await;
        let store = fixture.store();
        let left = store.stats().await.expect("read");
        assert_eq!(left.pending + left.claimed, 0, "seed {seed}");
        let events = log.events(&topic).await;
        let listed = store.list(List { status: None, limit: 1_000_000 }).await.expect("listed");
        let of_seed: HashMap<usize, Status> = listed
            .iter()
            .filter(|row| row.topic == topic)
            .map(|row| (row.payload.parse().expect("a number"), row.status))
            .collect();
        let published: HashSet<usize> = events.iter().map(|(_, number)| number.parse().expect("a number")).collect();
        for number in 0..rows {
            match of_seed[&number] {
                Status::Sent => assert!(published.contains(&number), "seed {seed}: {number} is not in the log"),
                Status::Error => assert_eq!(number % 10, 7, "seed {seed}: {number} is parked"),
                other => panic!("seed {seed}: {number} is {other}"),
            }
        }
        for (key, numbers) in by_key(&events) {
            assert!(numbers.is_sorted(), "seed {seed}, key {key}: {numbers:?}");
        }
        assert!(published.len() > rows / 2, "seed {seed}: most arrive");
    }
}

#[tokio::test]
async fn random_failures_and_kills_leave_every_row_published_once_in_order_or_parked() {
    histories(&Sqlite::new(), 0..12, 40).await;
}
