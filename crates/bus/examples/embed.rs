//! The bus inside a program: publish, a durable group, a retry, the cursor.
//!
//! `cargo run -p promethean-bus --example embed`

use std::sync::Arc;

use promethean_bus::{Bus, From, Group, SubscribeOptions, Topic};
use promethean_store::memory::Memory;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Any store will do: the memory engine here, the embedded log in a program that must not lose anything.
    let bus = Bus::new(Arc::new(Memory::new()), Default::default());
    let (orders, billing) = (Topic::parse("orders.created")?, Group::parse("billing")?);

    for number in 1..=3 {
        let published = bus.publish_value(&orders, &serde_json::json!({"order": number})).await?;
        println!("published order {number} as seq {}", published.seq);
    }

    let options = SubscribeOptions { from: From::Earliest, ..Default::default() };
    let mut events = bus.subscribe(orders.as_str(), Some(billing.clone()), options).await?;
    let mut done = 0;
    while done < 3 {
        let delivery = events.next().await?;
        println!("attempt {} of {}", delivery.attempt(), delivery.event().payload());
        if delivery.event().seq == 2 && delivery.attempt() == 1 {
            delivery.nack("the card reader hangs").await?;
        } else {
            delivery.ack().await?;
            done += 1;
        }
    }

    let lag = bus.lag(&orders, &billing).await?;
    println!("billing stands at seq {}, {} events behind", lag.cursor.map_or(0, |cursor| cursor.seq), lag.events);
    assert_eq!(lag.events, 0);
    Ok(())
}
