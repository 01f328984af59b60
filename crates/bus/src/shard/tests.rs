use std::sync::atomic::{AtomicUsize, Ordering};

use promethean_store::memory::Memory;
use promethean_store::{GroupState, Save, Saved};
use tokio::sync::Notify;

use super::*;

fn group() -> Group {
    Group::parse("g").expect("a group")
}

fn store() -> Arc<dyn Store> {
    Arc::new(Memory::new())
}

fn save(topic: &str) -> Save {
    let topic = promethean_event::Topic::parse(topic).expect("a topic");
    Save { topic, group: group(), expected: 0, state: GroupState::default() }
}

#[tokio::test]
async fn a_group_with_a_backlog_delays_none_of_ten_thousand_by_more_than_a_few_turns() {
    const QUIET: usize = 10_000;
    let (shards, store, turns) = (Shards::new(), store(), Arc::new(AtomicUsize::new(0)));
    let (late, done, news) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
    let began = Arc::new(AtomicUsize::new(usize::MAX));
    let busy = Arc::clone(&turns);
    shards.drive(&store, &group(), |_| async move {
        loop {
            busy.fetch_add(1, Ordering::SeqCst);
            tokio::task::yield_now().await;
        }
    });
    let waiting = Arc::new(AtomicUsize::new(0));
    for _ in 0..QUIET {
        let (turns, late, done, news) = (turns.clone(), late.clone(), done.clone(), news.clone());
        let (began, waiting) = (began.clone(), waiting.clone());
        shards.drive(&store, &group(), |_| async move {
            let mut told = std::pin::pin!(news.notified());
            told.as_mut().enable();
            waiting.fetch_add(1, Ordering::SeqCst);
            told.await;
            let waited = turns.load(Ordering::SeqCst).saturating_sub(began.load(Ordering::SeqCst));
            late.fetch_max(waited, Ordering::SeqCst);
            done.fetch_add(1, Ordering::SeqCst);
        });
    }
    while waiting.load(Ordering::SeqCst) < QUIET {
        tokio::task::yield_now().await;
    }
    began.store(turns.load(Ordering::SeqCst), Ordering::SeqCst);
    news.notify_waiters();
    while done.load(Ordering::SeqCst) < QUIET {
        tokio::task::yield_now().await;
    }
    assert!(late.load(Ordering::SeqCst) <= 4, "{} turns of the busy one", late.load(Ordering::SeqCst));
}

#[tokio::test]
async fn a_panic_ends_its_group_alone_and_saves_have_each_their_outcome() {
    let (shards, store, done) = (Shards::new(), store(), Arc::new(AtomicUsize::new(0)));
    shards.drive(&store, &group(), |_| async { panic!("no") });
    for n in 0..100 {
        let done = Arc::clone(&done);
        shards.drive(&store, &group(), move |saves| async move {
            let saved = saves.save(save(&format!("t{}", n / 2))).await;
            // Of two that save the same, one.
            let expected = if n % 2 == 0 { Saved::Yes(1) } else { Saved::Conflict };
            assert_eq!(saved, Ok(expected));
            done.fetch_add(1, Ordering::SeqCst);
        });
    }
    while done.load(Ordering::SeqCst) < 100 {
        tokio::task::yield_now().await;
    }
}
