//! Dead letters on a store that is slow or refuses: slowness holds up nothing else, and a failure is retried and told.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use promethean_bus::{Bus, HoldingState, SubscribeOptions};
use promethean_store::memory::Memory;
use promethean_store::suite::{Call, Watched, Watcher};
use promethean_store::{Error, ReadMax};
use tokio::sync::watch;

use crate::common::{earliest, group, next, nothing, publish, subscribe, topic};

/// What becomes of appends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Appends {
    Work,
    Wait,
    Fail,
}

struct Desk {
    appends: watch::Sender<Appends>,
    count: AtomicUsize,
}

struct Seen(Arc<Desk>);

impl Watcher for Seen {
    async fn before(&self, call: Call) {
        if call == Call::Append {
            self.0.count.fetch_add(1, Ordering::SeqCst);
            let _ = self.0.appends.subscribe().wait_for(|appends| *appends != Appends::Wait).await;
        }
    }

    fn refuses(&self, call: Call, _: Option<&promethean_bus::Topic>) -> Option<Error> {
        let fails = call == Call::Append && *self.0.appends.borrow() == Appends::Fail;
        fails.then(|| Error::Refused("no space".to_owned()))
    }
}

async fn hub(events: usize) -> (Bus, Arc<Desk>) {
    let desk = Arc::new(Desk { appends: watch::channel(Appends::Work).0, count: AtomicUsize::new(0) });
    let store = Watched { store: Memory::new(), watcher: Seen(Arc::clone(&desk)) };
    let bus = Bus::new(Arc::new(store), Default::default());
    for n in 0..events {
        publish(&bus, "t", n).await;
    }
    (bus, desk)
}

fn once() -> SubscribeOptions {
    SubscribeOptions { max_attempts: 1, ack_timeout: Duration::from_secs(1), ..earliest() }
}

/// The seqs of the events in the letters.
async fn letters(bus: &Bus) -> Vec<u64> {
    let letters = bus.store().read(&topic("dlq.t"), 1, ReadMax::events(10_000)).await.expect("readable");
    let seq = |letter: &promethean_bus::Event| {
        letter.payload_as::<serde_json::Value>().expect("JSON")["original"]["seq"].as_u64().expect("a seq")
    };
    letters.iter().map(seq).collect()
}

#[tokio::test(start_paused = true)]
async fn answers_and_deliveries_go_on_while_a_dead_letter_is_being_written() {
    let (bus, desk) = hub(3).await;
    let options = SubscribeOptions { max_in_flight: 1, ..once() };
    let mut events = subscribe(&bus, "t", "g", options).await;
    desk.appends.send_replace(Appends::Wait);
    next(&mut events).await.nack("no").await.expect("nacked");
    for n in 1..3 {
        let delivery = next(&mut events).await;
        assert_eq!(delivery.event().payload(), n.to_string());
        let acked = tokio::time::timeout(Duration::from_millis(500), delivery.ack()).await;
        acked.expect("answered at once").expect("acked");
    }
    assert!(letters(&bus).await.is_empty());
    let status = bus.group_status(&topic("t"), &group("g")).await.expect("readable").expect("a group");
    assert_eq!(status.unfinished.iter().map(|one| one.state).collect::<Vec<_>>(), [HoldingState::Dying]);
    desk.appends.send_replace(Appends::Work);
    nothing(&mut events, Duration::from_secs(60)).await;
    assert_eq!(letters(&bus).await, [1]);
    assert_eq!(bus.lag(&topic("t"), &group("g")).await.expect("readable").events, 0);
}

#[tokio::test(start_paused = true)]
async fn many_dead_letters_take_few_appends_and_keep_their_order() {
    const MANY: usize = 2_000;
    let (bus, desk) = hub(MANY).await;
    let options = SubscribeOptions { max_in_flight: MANY, ..once() };
    let mut events = subscribe(&bus, "t", "g", options).await;
    let mut taken = Vec::new();
    while taken.len() < MANY {
        taken.extend(events.next_batch(MANY).await.expect("open"));
    }
    let before = desk.count.load(Ordering::SeqCst);
    nothing(&mut events, Duration::from_secs(60)).await;
    assert_eq!(letters(&bus).await, (1..=MANY as u64).collect::<Vec<_>>());
    let appends = desk.count.load(Ordering::SeqCst) - before;
    assert!(appends <= 8, "{appends} appends");
}

#[tokio::test(start_paused = true)]
async fn a_dead_letter_that_cannot_be_written_is_tried_again_and_the_status_says_why() {
    let (bus, desk) = hub(1).await;
    let mut events = subscribe(&bus, "t", "g", once()).await;
    desk.appends.send_replace(Appends::Fail);
    next(&mut events).await.nack("no").await.expect("nacked");
    nothing(&mut events, Duration::from_secs(600)).await;
    let status = bus.group_status(&topic("t"), &group("g")).await.expect("readable").expect("a group");
    assert!(status.letters_failing.is_some_and(|why| why.contains("no space")));
    assert!(desk.count.load(Ordering::SeqCst) < 40, "with backoff");
    desk.appends.send_replace(Appends::Work);
    nothing(&mut events, Duration::from_secs(60)).await;
    assert_eq!(letters(&bus).await, [1]);
    let status = bus.group_status(&topic("t"), &group("g")).await.expect("readable").expect("a group");
    assert_eq!((status.letters_failing, status.lag), (None, 0));
}
