//! A heartbeat consumer with a typed topic: the payload's type is checked by the compiler.
//!
//! `cargo run -p promethean-bus --example heartbeat`

use std::collections::BTreeMap;
use std::sync::Arc;

use promethean_bus::{Bus, From, Group, PublishOptions, SubscribeOptions, TypedTopic};
use promethean_store::memory::Memory;
use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize, Deserialize)]
struct Heartbeat {
    pid: u32,
    name: String,
    host: String,
    cpu_pct: f64,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let bus = Bus::new(Arc::new(Memory::new()), Default::default());
    let heartbeats: TypedTopic<Heartbeat> = TypedTopic::parse("heartbeat.received")?;

    for tick in 0..6_u32 {
        let heartbeat =
            Heartbeat { pid: 1000 + tick % 2, name: "stt".into(), host: "dev".into(), cpu_pct: f64::from(tick) };
        let key = format!("{}:{}:{}", heartbeat.host, heartbeat.name, heartbeat.pid);
        let options = PublishOptions { key: Some(key.into()), ..Default::default() };
        heartbeats.publish(&bus, &heartbeat, options).await?;
    }

    let options = SubscribeOptions { from: From::Earliest, ..Default::default() };
    let mut events = heartbeats.subscribe(&bus, Some(Group::parse("ops")?), options).await?;
    let mut processes = BTreeMap::new();
    for _ in 0..6 {
        let delivery = events.next().await?;
        match &delivery.payload {
            Ok(heartbeat) => {
                processes.insert(format!("{}:{}:{}", heartbeat.host, heartbeat.name, heartbeat.pid), heartbeat.cpu_pct);
                delivery.ack().await?;
            }
            Err(error) => delivery.nack(error.to_string()).await?,
        }
    }
    for (process, cpu) in &processes {
        println!("{process}: {cpu} % cpu");
    }
    assert_eq!(processes.len(), 2);
    Ok(())
}
