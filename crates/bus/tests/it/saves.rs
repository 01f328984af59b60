//! Acks while saves take their time: every one is answered, however a save and the next acks fall together.

use std::future::{pending, poll_fn};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use promethean_bus::Bus;
use promethean_store::memory::Memory;
use promethean_store::suite::{Call, Watched, Watcher};

use crate::common::{earliest, next, publish, subscribe};

/// Lets each save be looked at so many times before it is done.
struct Slow {
    looks: usize,
}

impl Watcher for Slow {
    async fn before(&self, call: Call) {
        if call == Call::Save {
            turns(self.looks).await;
        }
    }
}

/// Is over after so many turns of the runtime, in each of which every task has its own.
async fn turns(mut left: usize) {
    poll_fn(|cx| {
        if left == 0 {
            return Poll::Ready(());
        }
        left -= 1;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn every_ack_is_answered_however_it_falls_together_with_the_save_before_it() {
    for (looks, apart) in (0..16).flat_map(|looks| (0..32).map(move |apart| (looks, apart))) {
        let bus = Bus::new(Arc::new(Watched { store: Memory::new(), watcher: Slow { looks } }), Default::default());
        let mut events = subscribe(&bus, "t", "g", earliest()).await;
        publish(&bus, "t", 1).await;
        publish(&bus, "t", 2).await;
        let (first, second) = (next(&mut events).await, next(&mut events).await);
        // With the first one, while its save is under way, at its very end, after it.
        let first = tokio::spawn(async move { first.ack().await });
        let second = tokio::spawn(async move {
            turns(apart).await;
            second.ack().await
        });
        for ack in [first, second] {
            let answered = tokio::time::timeout(Duration::from_secs(5), ack).await;
            let answered = answered.unwrap_or_else(|_| panic!("no answer: {looks} looks, {apart} apart"));
            answered.expect("no panic").expect("acked");
        }
    }
}

/// Counts saves, and lets the first so many of them hang.
#[derive(Default)]
struct Counting {
    saves: AtomicUsize,
    hanging: AtomicUsize,
}

impl Watcher for &'static Counting {
    async fn before(&self, call: Call) {
        if call == Call::Save {
            self.saves.fetch_add(1, Ordering::SeqCst);
            let one_less = |hanging: usize| hanging.checked_sub(1);
            if self.hanging.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok() {
                pending::<()>().await;
            }
        }
    }
}

fn counting() -> (Bus, &'static Counting) {
    let watcher: &Counting = Box::leak(Box::default());
    (Bus::new(Arc::new(Watched { store: Memory::new(), watcher }), Default::default()), watcher)
}

#[tokio::test(start_paused = true)]
async fn acks_over_many_topics_are_saved_with_a_few_calls() {
    const TOPICS: usize = 200;
    let (bus, watcher) = counting();
    for n in 0..TOPICS {
        publish(&bus, &format!("many.{n}"), n).await;
    }
    let options = promethean_bus::SubscribeOptions { max_in_flight: TOPICS, ..earliest() };
    let mut events = subscribe(&bus, "many.*", "g", options).await;
    let mut deliveries = Vec::new();
    while deliveries.len() < TOPICS {
        deliveries.extend(events.next_batch(TOPICS).await.expect("open"));
    }
    let before = watcher.saves.load(Ordering::SeqCst);
    events.ack_all(&deliveries).await.expect("acked");
    let saves = watcher.saves.load(Ordering::SeqCst) - before;
    assert!(saves <= TOPICS / 8, "{saves} calls of the store for the acks of {TOPICS} topics");
}

#[tokio::test(start_paused = true)]
async fn a_save_that_hangs_holds_up_no_other_group() {
    let (bus, watcher) = counting();
    let (mut one, mut two) = (subscribe(&bus, "a", "g", earliest()).await, subscribe(&bus, "b", "g", earliest()).await);
    publish(&bus, "a", 1).await;
    publish(&bus, "b", 2).await;
    let (first, second) = (next(&mut one).await, next(&mut two).await);
    watcher.hanging.store(1, Ordering::SeqCst);
    let hanging = tokio::spawn(async move { first.ack().await });
    while watcher.hanging.load(Ordering::SeqCst) > 0 {
        tokio::task::yield_now().await;
    }
    let answered = tokio::time::timeout(Duration::from_secs(5), second.ack()).await;
    answered.expect("answered though another save hangs").expect("acked");
    assert!(!hanging.is_finished(), "its save has not returned");
}
