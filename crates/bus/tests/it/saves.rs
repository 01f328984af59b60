//! Acks while saves take their time: every one is answered, however a save and the next acks fall together.

use std::future::poll_fn;
use std::sync::Arc;
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
