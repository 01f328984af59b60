//! What a hub, or several, have promised: `OK`s are kept, and whether the promises were. What was not answered, or was
//! answered with "unknown", is unknown: either is right.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;

use crate::get;

/// What was promised. Clones share one ledger.
#[derive(Debug, Clone, Default)]
pub struct Ledger(Arc<Mutex<Entries>>);

/// The entries of a ledger.
#[derive(Debug, Default)]
pub struct Entries {
    /// Payload → seq, of publishes that were answered.
    pub published: BTreeMap<String, u64>,
    /// Everything that was ever sent.
    pub sent: BTreeSet<String>,
    /// Payloads that came.
    pub delivered: BTreeSet<String>,
    /// Ids whose ack was answered.
    pub acked: BTreeSet<String>,
    /// Answers that left something unknown.
    pub unknown: u64,
    /// Ids that came after their ack had been answered.
    acked_and_came_again: Vec<String>,
}

impl Ledger {
    /// The entries.
    pub fn entries(&self) -> MutexGuard<'_, Entries> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An event came.
    pub fn delivered(&self, event: &Value) -> String {
        let id = event["id"].as_str().expect("an id").to_owned();
        let mut entries = self.entries();
        if entries.acked.contains(&id) {
            entries.acked_and_came_again.push(id.clone());
        }
        entries.delivered.insert(event["payload"].as_str().expect("a string").to_owned());
        id
    }

    /// Every promise is kept: what was answered is there at its place, nothing else appears, no hole. Returns what is
    /// there.
    pub async fn check(&self, http: SocketAddr, topic: &str) -> Vec<Value> {
        let stored = replay(http, topic).await;
        let entries = self.entries();
        assert_eq!(entries.acked_and_came_again, Vec::<String>::new(), "acked, and came again");
        for (index, event) in stored.iter().enumerate() {
            assert_eq!(event["seq"].as_u64(), Some(index as u64 + 1), "seqs are gapless");
            let payload = event["payload"].as_str().expect("a string");
            assert!(entries.sent.contains(payload), "{payload} was never published");
        }
        let by_payload: BTreeMap<&str, u64> =
            stored.iter().filter_map(|event| Some((event["payload"].as_str()?, event["seq"].as_u64()?))).collect();
        assert_eq!(by_payload.len(), stored.len(), "nothing is there twice");
        for (payload, seq) in &entries.published {
            assert_eq!(by_payload.get(payload.as_str()), Some(seq), "{payload} was OKed at {seq}");
        }
        drop(entries);
        stored
    }
}

/// Everything that is on a topic.
pub async fn replay(http: SocketAddr, topic: &str) -> Vec<Value> {
    let (mut events, mut after) = (Vec::new(), String::new());
    loop {
        let from = if after.is_empty() { "from=earliest".to_owned() } else { format!("from=afterId&afterId={after}") };
        let page = get(http, &format!("/replay?topic={topic}&{from}&limit=5000")).await;
        assert_eq!(page.status, 200, "{}", page.text());
        let mut page = page.json();
        events.append(page["events"].as_array_mut().expect("events"));
        match page["next"].as_str() {
            Some(next) => after = next.to_owned(),
            None => return events,
        }
    }
}
