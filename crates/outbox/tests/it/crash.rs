//! A drainer that is killed before and after every single call it makes: nothing missing, nothing twice, in order.

use std::sync::Arc;

use promethean_outbox::{NewRow, Publisher, Settings, Status, drain};

use crate::fakes::{Fixture, Fragile, Fuse, Log, by_key, numbered, quick};
use crate::sqlite::Sqlite;

/// Kills a drainer at its `step`-th failpoint; whether it got that far.
async fn killed_at(fixture: &dyn Fixture, log: &Log, settings: Settings, step: i64) -> bool {
    let fuse = Fuse::after(step);
    let store = Fragile { fuse: Arc::clone(&fuse), inner: fixture.store() };
    let publisher = Fragile { fuse: Arc::clone(&fuse), inner: log.publisher() };
    let publisher: Arc<dyn Publisher> = Arc::new(publisher);
    let mut drainer = drain(Arc::new(store), publisher, settings);
    let killed = tokio::select! {
        ended = drainer.ended() => {
            assert_eq!(ended, None);
            false
        }
        () = fuse.blown() => true,
    };
    drop(drainer);
    killed
}

/// Tries every failpoint there is, each with `rows` of its own.
pub(crate) async fn at_every_step(fixture: &dyn Fixture, rows: usize, settings: &dyn Fn() -> Settings) {
    let mut steps = 0;
    for step in 0.. {
        let (log, topic) = (Log::new(), format!("t{step}"));
        let row = |number: usize| numbered(&topic, Some(&format!("{step}-{}", number % 3)), number);
        for some in (0..rows).map(row).collect::<Vec<NewRow>>().chunks(rows / 10) {
            fixture.add(some).await;
        }
        let bad = format!("{step:08x}-7d3b-7cc2-8b1a-3f0e2c9a4b5d");
        fixture.write([&bad, "no topic", "1"]).await;
        let killed = killed_at(fixture, &log, settings(), step).await;
        let mut drainer = drain(fixture.store(), log.publisher(), settings());
        assert_eq!(drainer.ended().await, None);
        let events = log.events(&topic).await;
        assert_eq!(events.len(), rows, "killed at {step}");
        assert!(by_key(&events).values().all(|numbers| numbers.is_sorted()), "killed at {step}: {events:?}");
        let parked = promethean_outbox::List { status: Some(Status::Error), limit: 1_000 };
        let parked = fixture.store().list(parked).await.expect("listed");
        assert!(parked.iter().any(|row| row.id == bad), "killed at {step}: the bad row is parked");
        if !killed {
            break;
        }
        steps = step + 1;
    }
    assert!(steps >= 20, "there were {steps} failpoints");
}

#[tokio::test]
async fn a_drainer_killed_at_any_step_loses_nothing_doubles_nothing_and_keeps_the_order() {
    at_every_step(&Sqlite::new(), 10, &small).await;
}

/// Short leases, small batches.
pub(crate) fn small() -> Settings {
    Settings { batch_rows: 4, ..quick() }
}
