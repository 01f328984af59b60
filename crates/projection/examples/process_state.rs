//! The seed's projector inside a program: heartbeats become `process.state`, `alive` or `stale`, and a second start
//! goes on where the first one was.
//!
//! `cargo run -p promethean-projection --features bus --example process_state`

use std::borrow::Cow;
use std::sync::Arc;

use promethean_bus::{Bus, Draft, Topic};
use promethean_event::{Millis, payload_of};
use promethean_projection::bus::Projector;
use promethean_projection::process::{HEARTBEATS, Heartbeat, Processes, Status};
use promethean_store::memory::Memory;

async fn heartbeat(bus: &Bus, name: &str, at: Millis) -> Result<(), Box<dyn std::error::Error>> {
    let beat =
        Heartbeat { pid: 1234, name: name.into(), host: "local".into(), cpu_pct: 12.5, mem_mb: 220.0, sid: None };
    let mut draft = Draft::new(Topic::parse(HEARTBEATS)?, Cow::Owned(payload_of(&beat)?));
    draft.options.ts = Some(at);
    bus.publish(&draft).await?;
    Ok(())
}

fn show(projector: &Projector<Processes>) {
    for (process, state) in projector.states().iter() {
        println!("{process}: {:?}, last seen at {}", state.status, state.last_seen_ts);
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Any store will do: the memory engine here, the embedded log in a program that must not lose anything.
    let bus = Bus::new(Arc::new(Memory::new()), Default::default());
    for second in 0..3 {
        heartbeat(&bus, "stt", Millis(second * 1_000)).await?;
    }
    heartbeat(&bus, "tts", Millis(20_000)).await?;

    let mut projector = Projector::open(&bus, Processes::settings(), Processes::default()).await?;
    projector.catch_up().await?;
    projector.tick(Millis(21_000)).await?;
    show(&projector);
    drop(projector);

    println!("started again:");
    let mut projector = Projector::open(&bus, Processes::settings(), Processes::default()).await?;
    heartbeat(&bus, "stt", Millis(22_000)).await?;
    projector.catch_up().await?;
    show(&projector);
    assert!(projector.states().iter().all(|(_, state)| state.status == Status::Alive));
    assert_eq!(projector.position().seq, 5);
    Ok(())
}
