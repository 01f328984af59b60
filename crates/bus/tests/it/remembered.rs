//! A group's patterns outlive its subscribers: what appears on a new topic meanwhile is the group's.

use std::sync::Arc;

use promethean_bus::{Bus, SubscribeOptions};
use promethean_store::memory::Memory;

use crate::common::{drain, group, publish, subscribe};

fn over(store: &Arc<Memory>) -> Bus {
    Bus::new(Arc::clone(store) as _, Default::default())
}

/// After the calling task's millisecond: the time of the first event has to differ from that of the subscription.
fn later() {
    std::thread::sleep(std::time::Duration::from_millis(3));
}

#[tokio::test(start_paused = true)]
async fn a_topic_that_appears_without_a_subscriber_starts_at_its_first_event_also_after_a_restart() {
    let store = Arc::new(Memory::new());
    let bus = over(&store);
    publish(&bus, "p.old", "before").await;
    later();
    drop(subscribe(&bus, "p.*", "g", SubscribeOptions::default()).await);
    publish(&bus, "p.new", 1).await;
    publish(&bus, "p.new", 2).await;
    for n in 0..2 {
        let bus = over(&store);
        publish(&bus, &format!("p.later{n}"), "x").await;
        let bus = over(&store);
        let mut events = subscribe(&bus, "p.*", "g", SubscribeOptions::default()).await;
        let mut seen = drain(&mut events, if n == 0 { 3 } else { 1 }).await;
        seen.sort_unstable();
        assert_eq!(seen, if n == 0 { vec!["\"x\"", "1", "2"] } else { vec!["\"x\""] });
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_there_before_and_other_groups_and_patterns_start_where_they_say() {
    let store = Arc::new(Memory::new());
    let bus = over(&store);
    publish(&bus, "p.old", 0).await;
    later();
    drop(subscribe(&bus, "q.*", "g", SubscribeOptions::default()).await);
    publish(&bus, "p.new", 1).await;
    later();
    // The first subscription to this pattern: what is there is behind it.
    let mut events = subscribe(&bus, "p.*", "g", SubscribeOptions::default()).await;
    let mut others = subscribe(&bus, "p.*", "h", SubscribeOptions::default()).await;
    publish(&bus, "p.old", 2).await;
    publish(&bus, "p.new", 3).await;
    for events in [&mut events, &mut others] {
        let mut seen = drain(events, 2).await;
        seen.sort_unstable();
        assert_eq!(seen, ["2", "3"]);
    }
    assert!(bus.cursors(&crate::common::topic("p.new")).await.expect("read").iter().any(|(of, _)| *of == group("g")));
}
