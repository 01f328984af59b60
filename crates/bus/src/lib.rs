//! The semantics of Promethean: groups, leases, redelivery, dead letters, over any store.
//!
//! # Layout, in the order of an event's way
//!
//! [`Bus`] is the handle. [`Burst`] seals what is published and the store appends it. The `runner` of a (topic,
//! group) feeds the pure [`group::Dispatcher`] and carries its commands out; deliveries go into an [`Inbox`], where a
//! [`Subscription`] (or the gateway, one inbox for a whole connection) takes them. Answers go the way back.
//!
//! ```
//! # tokio_test();
//! # fn tokio_test() { tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime").block_on(async {
//! use promethean_bus::{Bus, SubscribeOptions, From, Group, Topic};
//! use promethean_store::memory::Memory;
//!
//! let bus = Bus::new(std::sync::Arc::new(Memory::new()), Default::default());
//! let topic = Topic::parse("heartbeat.received").expect("a topic");
//! bus.publish_value(&topic, &serde_json::json!({"pid": 1234})).await.expect("published");
//!
//! let options = SubscribeOptions { from: From::Earliest, ..Default::default() };
//! let mut events = bus.subscribe(topic.as_str(), Some(Group::parse("ops").expect("a group")), options).await.expect("subscribed");
//! let delivery = events.next().await.expect("open");
//! assert_eq!(delivery.event().payload(), r#"{"pid":1234}"#);
//! delivery.ack().await.expect("acked");
//! # }) }
//! ```

mod bounds;
mod burst;
mod bus;
mod clock;
mod compaction;
mod credit;
mod dead_letters;
mod error;
mod fan_in;
pub mod group;
mod handler;
mod inbox;
mod lane;
pub mod metrics;
mod patterns;
mod pull;
mod relay;
mod remembered;
mod resume;
mod runner;
mod shard;
mod status;
mod subscription;
mod tail;
mod topics;
mod typed;

pub use bounds::{Bounds, Usage};
pub use burst::{Burst, Placed, Published};
pub use bus::{Bus, BusOptions, Request, TopicGate};
pub use compaction::{COMPACTOR_GROUP, Compacted, Compactor, run_compactors};
pub use dead_letters::{Envelope, Letters, OWN_GROUPS, REDRIVE_GROUP, RedriveTo, Redriven, is_hidden};
pub use error::Error;
pub use group::{Answer, Receipt};
pub use handler::{Handling, Running, only};
pub use inbox::{CONNECTION_BYTES, Given, Inbox, InboxOptions, SubscriptionId};
pub use relay::{
    Cluster, FOREIGN, Origin, Redrive, RelayError, RelayGiven, RelayJoin, Relayed, Relaying, Relays, Remote, SeekTo,
};
pub use status::{GroupStatus, Holding, HoldingState, Lag, MemberStatus};
pub use subscription::{Delivery, Membership, Subscription};
pub use topics::{Purge, TopicSize};
pub use typed::{TypedDelivery, TypedSubscription, TypedTopic};

pub use promethean_event::{
    Code, Cursor, Draft, Event, EventId, Filter, From, Group, Invalid, Limits, Ordered, PublishOptions, Selector,
    SubscribeOptions, Topic, TopicPattern,
};
