//! Writes the data directory that later versions have to open, see `tests/format.rs`.
//!
//! `cargo run -p promethean-store --features suite --example fixture -- DIR`

use promethean_event::{Group, Millis};
use promethean_store::log::{Log, Options};
use promethean_store::suite::{append, event, topic};
use promethean_store::{Compaction, EventLog, GroupState, GroupStore, Store, TopicSettings};

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let Some(dir) = std::env::args().nth(1) else {
        eprintln!("usage: fixture DIR");
        std::process::exit(2);
    };
    let mut options = Options::new(dir);
    (options.journal_bytes, options.segment_bytes, options.block_bytes) = (4 << 10, 4 << 10, 1 << 10);
    let log = Log::open(options.clone()).expect("a new directory");
    let settings = TopicSettings { partitions: 4, compaction: Some(Compaction::default()), ..TopicSettings::default() };
    log.set_settings(&topic("state.snapshot"), settings).await.expect("set");
    let write = async |log: &Log, first: u128| {
        for n in first..first + 10 {
            let keyed = event("state.snapshot").key(format!("k{}", n % 3)).payload(format!("{{\"n\": {n}}}"));
            append(log, &[event("orders.created").id(n).ts(n as u64 * 1_000), keyed]).await;
        }
    };
    write(&log, 1).await;
    log.maintain(Millis(2_000)).await.expect("flushed");
    write(&log, 11).await;
    log.trim(&topic("orders.created"), 3).await.expect("trimmed");
    let group = Group::parse("billing").expect("a group");
    let state = GroupState { floor: 12, ..GroupState::default() };
    log.compare_and_set(&topic("orders.created"), &group, 0, state).await.expect("saved");
    log.close().await.expect("closed");
    drop(log);
    options.compress = true;
    let log = Log::open(options).expect("opens");
    log.maintain(Millis(2_000)).await.expect("flushed");
    write(&log, 21).await;
    log.close().await.expect("closed");
}
