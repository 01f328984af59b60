//! Reads that take their time: a group answers meanwhile, and loses and repeats nothing.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use promethean_bus::{Bus, SubscribeOptions};
use promethean_store::memory::Memory;
use promethean_store::suite::{Call, Watched, Watcher};

use crate::common::{earliest, next, nothing, publish, subscribe};

/// Lets reads hang, or take so long.
#[derive(Default)]
struct Slow {
    hang: AtomicBool,
    takes_ms: u64,
    reads: AtomicUsize,
}

impl Watcher for &'static Slow {
    async fn before(&self, call: Call) {
        if matches!(call, Call::Read | Call::Other) {
            self.reads.fetch_add(1, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(self.takes_ms)).await;
            if self.hang.load(Ordering::SeqCst) {
                std::future::pending::<()>().await;
            }
        }
    }
}

fn slow(takes_ms: u64) -> (Bus, &'static Slow) {
    let watcher: &Slow = Box::leak(Box::new(Slow { takes_ms, ..Slow::default() }));
    (Bus::new(Arc::new(Watched { store: Memory::new(), watcher }), Default::default()), watcher)
}

#[tokio::test(start_paused = true)]
async fn answers_leases_and_members_do_not_wait_for_a_read_that_hangs() {
    let (bus, watcher) = slow(0);
    let options = || SubscribeOptions { ack_timeout: Duration::from_secs(1), ..earliest() };
    let mut events = subscribe(&bus, "t", "g", options()).await;
    publish(&bus, "t", 1).await;
    publish(&bus, "t", 2).await;
    let (first, second) = (next(&mut events).await, next(&mut events).await);
    watcher.hang.store(true, Ordering::SeqCst);
    let before = watcher.reads.load(Ordering::SeqCst);
    publish(&bus, "t", 3).await;
    while watcher.reads.load(Ordering::SeqCst) == before {
        tokio::task::yield_now().await;
    }
    let soon = Duration::from_millis(500);
    tokio::time::timeout(soon, first.ack()).await.expect("answered while a read hangs").expect("acked");
    tokio::time::timeout(soon, second.extend(Duration::from_secs(5))).await.expect("answered").expect("extended");
    let joined = tokio::time::timeout(soon, subscribe(&bus, "t", "g", options())).await;
    drop(joined.expect("joins while a read hangs"));
}

#[tokio::test(start_paused = true)]
async fn a_pattern_with_shared_room_gets_each_event_once_from_a_slow_store() {
    const TOPICS: usize = 4;
    const EVENTS: usize = 12;
    let (bus, watcher) = slow(50);
    for n in 0..EVENTS {
        for topic in 0..TOPICS {
            publish(&bus, &format!("slow.{topic}"), n * TOPICS + topic).await;
        }
    }
    let options = SubscribeOptions { max_in_flight: 3, ack_timeout: Duration::from_secs(5), ..earliest() };
    let mut events = subscribe(&bus, "slow.*", "g", options).await;
    let (mut acked, mut failed) = (BTreeSet::new(), BTreeSet::new());
    while acked.len() < TOPICS * EVENTS {
        let delivery = next(&mut events).await;
        let number: usize = delivery.event().payload_as().expect("a number");
        if number.is_multiple_of(5) && failed.insert(number) {
            assert_eq!(delivery.attempt(), 1);
            delivery.nack_after("again", Duration::from_millis(20)).await.expect("nacked");
        } else {
            assert_eq!(delivery.attempt(), 1 + u32::from(number.is_multiple_of(5)));
            assert!(acked.insert(number), "{number} came again after its ack");
            delivery.ack().await.expect("acked");
        }
    }
    nothing(&mut events, Duration::from_secs(30)).await;
    let reads = watcher.reads.load(Ordering::SeqCst);
    assert!(reads <= 4 * TOPICS * EVENTS, "{reads} reads for {} events", TOPICS * EVENTS);
}
