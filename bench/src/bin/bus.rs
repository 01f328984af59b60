//! The bus in process, on the memory engine: one publisher, one group, every event acked.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;

use promethean_bench::{Bar, begin, end, median, report, sized};
use promethean_bus::{Bus, Draft, From, Group, SubscribeOptions, Topic};
use promethean_store::memory::Memory;
use serde_json::value::RawValue;

#[global_allocator]
static GLOBAL: mimalloc::MiMalloc = mimalloc::MiMalloc;

const BATCH: usize = 500;

fn main() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let payload = RawValue::from_string(format!(r#"{{"fill":"{}"}}"#, "x".repeat(245))).expect("JSON");
    begin("bus in process, memory engine, 256-byte payloads, 1 publisher, 1 group, every event acked; median of 3");
    let events = sized(1_000_000, 2_000);

    let batched = median((0..3).map(|_| runtime.block_on(end_to_end(&payload, events, BATCH))).collect());
    let single = median((0..3).map(|_| runtime.block_on(end_to_end(&payload, events / 2, 1))).collect());
    let mut ok = report("end to end, batches of 500", batched, "events/s", Bar::AtLeast(1_000_000.0));
    ok &= report("end to end, one at a time", single, "events/s", Bar::AtLeast(300_000.0));

    let (publish, deliver) = runtime.block_on(growth(&payload));
    ok &= report("publish: cost at 1 M events / at 10 k", publish, "ratio", Bar::AtMost(1.2));
    ok &= report("delivery: cost at 1 M events / at 10 k", deliver, "ratio", Bar::AtMost(1.2));
    end(ok);
}

fn topic() -> Topic {
    Topic::parse("bench.bus").expect("a topic")
}

fn draft<'a>(topic: &Topic, payload: &'a RawValue) -> Draft<'a> {
    Draft::new(topic.clone(), Cow::Borrowed(payload))
}

async fn publish(bus: &Bus, payload: &RawValue, count: usize, batch: usize) {
    let (topic, mut left) = (topic(), count);
    while left > 0 {
        let now = batch.min(left);
        if now == 1 {
            bus.publish(&draft(&topic, payload)).await.expect("published");
        } else {
            bus.publish_batch((0..now).map(|_| draft(&topic, payload))).await.expect("published");
        }
        left -= now;
    }
}

/// Events a second from the first publish to the last ack.
async fn end_to_end(payload: &RawValue, count: usize, batch: usize) -> f64 {
    let bus = Bus::new(Arc::new(Memory::new()), Default::default());
    let started = Instant::now();
    let publisher = {
        let (bus, payload) = (bus.clone(), payload.to_owned());
        tokio::spawn(async move { publish(&bus, &payload, count, batch).await })
    };
    consume(&bus, "g", count, batch).await;
    publisher.await.expect("published");
    count as f64 / started.elapsed().as_secs_f64()
}

async fn consume(bus: &Bus, group: &str, count: usize, batch: usize) {
    let options = SubscribeOptions { from: From::Earliest, batch_size: 1_000, ..Default::default() };
    let group = Group::parse(group).expect("a group");
    let mut events = bus.subscribe("bench.bus", Some(group), options).await.expect("subscribed");
    let mut seen = 0;
    while seen < count {
        let deliveries = events.next_batch(batch.max(64)).await.expect("open");
        seen += deliveries.len();
        events.ack_all(&deliveries).await.expect("acked");
    }
}

/// How much more a publish, and a delivery with its ack, cost on a topic of a million events than on one of ten
/// thousand. Both topics are new, so that both take memory that the process did not have before; each long run is
/// compared with the short one right beside it, so that a machine that slows down meanwhile does not count.
async fn growth(payload: &RawValue) -> (f64, f64) {
    let (mut publishing, mut delivering) = (Vec::new(), Vec::new());
    for _ in 0..sized(9, 1) {
        let short = cost_at(sized(10_000, 100), payload).await;
        let long = cost_at(sized(1_000_000, 1_000), payload).await;
        publishing.push(long.0 / short.0);
        delivering.push(long.1 / short.1);
    }
    (median(publishing), median(delivering))
}

/// Seconds to publish, and to deliver and ack, the same number of events on a topic of this length.
async fn cost_at(length: usize, payload: &RawValue) -> (f64, f64) {
    let measured = sized(200_000, 2_000);
    let bus = Bus::new(Arc::new(Memory::new()), Default::default());
    publish(&bus, payload, length, BATCH).await;
    let last = bus.store().info(&topic()).await.expect("readable").and_then(|info| info.last).expect("published");
    let started = Instant::now();
    publish(&bus, payload, measured, BATCH).await;
    let publishing = started.elapsed();
    let group = Group::parse("g").expect("a group");
    bus.set_cursor(&topic(), &group, From::AfterId(last.0)).await.expect("moved");
    let started = Instant::now();
    consume(&bus, group.as_str(), measured, BATCH).await;
    (publishing.as_secs_f64(), started.elapsed().as_secs_f64())
}
