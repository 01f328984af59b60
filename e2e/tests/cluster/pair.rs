//! Two hubs on one database.

use promethean_e2e::{Hub, Setup, Wire};
use promethean_testmongo::Scratch;
use serde_json::{Value, json};

pub(crate) struct Pair {
    pub(crate) a: Hub,
    pub(crate) b: Hub,
    _scratch: Scratch,
}

impl Pair {
    /// Starts them. Blocks: a thread of its own does it.
    pub(crate) async fn start() -> Self {
        let started = tokio::task::spawn_blocking(|| {
            let scratch = Scratch::new();
            let setup = Setup::mongo(scratch.url());
            Self::of(setup.start(), setup.start(), scratch)
        });
        started.await.expect("two hubs")
    }

    /// These two, and their database.
    pub(crate) fn of(a: Hub, b: Hub, scratch: Scratch) -> Self {
        Self { a, b, _scratch: scratch }
    }

    /// A connection to each.
    pub(crate) async fn connect(&self) -> (Wire, Wire) {
        (Wire::connect(self.a.ws).await, Wire::connect(self.b.ws).await)
    }
}

pub(crate) async fn publish(wire: &mut Wire, topic: &str, payload: Value) -> Value {
    wire.ok(json!({"op": "PUBLISH", "topic": topic, "payload": payload})).await
}

pub(crate) async fn subscribe(wire: &mut Wire, topic: &str, group: &str, opts: Value) -> Value {
    wire.ok(json!({"op": "SUBSCRIBE", "topic": topic, "group": group, "opts": opts})).await
}

/// The next delivery: its payload, its id and its `ctx`.
pub(crate) async fn event(wire: &mut Wire) -> (Value, String, Value) {
    let frame = wire.expect("EVENT").await;
    let id = frame["event"]["id"].as_str().expect("an id").to_owned();
    (frame["event"]["payload"].clone(), id, frame["ctx"].clone())
}

pub(crate) async fn ack(wire: &mut Wire, topic: &str, group: &str, id: &str) {
    wire.ok(json!({"op": "ACK", "topic": topic, "group": group, "id": id})).await;
}
