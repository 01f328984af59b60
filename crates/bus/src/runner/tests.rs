//! The memory of groups that wait, and of those that have ended.

use std::collections::HashMap;
use std::mem::size_of_val;
use std::sync::Arc;

use promethean_store::memory::Memory;

use super::*;
use crate::Bus;

#[tokio::test]
async fn a_group_that_waits_takes_little_memory() {
    let bus = Bus::new(Arc::new(Memory::new()), Default::default());
    let (topic, group) = (Topic::parse("t").expect("a topic"), Group::parse("g").expect("a group"));
    let wake = Arc::default();
    let (_handle, inputs) = queue::queue(Arc::clone(&wake));
    let (core, members, saves) = (Arc::clone(&bus.core), HashMap::new(), Arc::default());
    let runner = Runner::new(GroupHost { core, topic, group, inputs, members, wake, saves }, None);
    let group = [std::mem::size_of::<Runner>(), std::mem::size_of::<Dispatcher>(), std::mem::size_of::<Member>()];
    let future = size_of_val(&runner.run_alone());
    let most = group.iter().sum::<usize>() + future;
    assert!(most <= 3_072, "{group:?} and {future} bytes");
}

#[tokio::test]
async fn groups_that_have_ended_leave_no_memory_in_the_registry() {
    const TOPICS: usize = 5_000;
    let bus = Bus::new(Arc::new(Memory::new()), Default::default());
    let mut subscriptions = Vec::new();
    for n in 0..TOPICS {
        let group = Group::parse("g").expect("a group");
        let subscribed = bus.subscribe(&format!("t.{n}"), Some(group), Default::default()).await;
        subscriptions.push(subscribed.expect("subscribed"));
    }
    assert_eq!(bus.core.runner_room().0, TOPICS);
    drop(subscriptions);
    while bus.core.runner_room().0 > 0 {
        tokio::task::yield_now().await;
    }
    let (_, room) = bus.core.runner_room();
    assert!(room <= 1_024, "room for {room}");
}
