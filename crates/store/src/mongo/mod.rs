//! The distributed engine: a MongoDB replica set, with any number of hubs in front of it.
//!
//! | collection | a document | written by |
//! |---|---|---|
//! | `events` | an event (`document.rs`), the seed's names | an append; removed by trims |
//! | `counters` | `{_id: topic, next, events, bytes, lastId, lastTs, settings, created, deleted, deletions}` | the last write of an append; `lives.rs` |
//! | `trims` | `{_id: topic, events, bytes, compacted}`: what was removed | retention, compaction, trims |
//! | `cursors` | `{_id: "topic::group", lastId, lastTs, seq, version, state}`, the seed's names | groups |
//! | `hubs` | `cluster/mod.rs` | hubs that share the database |
//! | `meta` | `{_id: "promethean", format}`, `{_id: "cluster", secret}`, `{_id: "import"}` during one | whoever opens |
//!
//! Writes are `w: majority, j: true`, reads are `majority`, of the primary, and never older than what this hub has heard of
//! (`seen.rs`); every request has a time limit. The data's way: `append.rs`
//! (queue → `plan.rs` → `transaction.rs`) → `follow.rs` (wake-up) → `read.rs`, `keys.rs`; `groups.rs`; `maintain.rs`.

mod append;
mod clock;
mod cluster;
mod connect;
mod document;
mod fault;
mod follow;
mod groups;
mod import;
mod indexes;
mod keys;
mod lives;
mod maintain;
mod orphans;
mod pins;
mod plan;
mod read;
mod seen;
mod tails;
mod transaction;
mod transcode;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mongodb::bson::{Document, doc};
use mongodb::{Client, Database};
use parking_lot::Mutex;
use promethean_event::{Event, EventId, Group, Millis, NewEvent, Seq, Topic};
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::{
    Counts, Error, EventLog, GroupState, GroupStore, KeySnapshot, Outcome, Page, Pending, Pin, Place, Ranges, ReadMax,
    Result, Save, Saved, Seek, Start, Store, Tail, TopicInfo, TopicSettings, Version,
};
use append::Appends;
use clock::Clock;
pub use cluster::Cluster;
pub use connect::{MINIMUM_VERSION, OpenError};
pub use import::Target;
use seen::Seen;
use tails::Tails;

const EVENTS: &str = "events";
const COUNTERS: &str = "counters";
const TRIMS: &str = "trims";
const CURSORS: &str = "cursors";
const HUBS: &str = "hubs";
const META: &str = "meta";

/// How the engine is opened.
#[derive(Clone)]
pub struct Options {
    /// `mongodb://HOST:PORT/DATABASE?replicaSet=NAME`; without a database, `promethean`.
    pub url: String,
    /// How long looking for the set may take.
    pub open_limit: Duration,
    /// How often retention and compaction look; `None`: only when they are asked to.
    pub maintenance: Option<Duration>,
    /// True if this is the import that fills the database; others are refused until it has ended.
    pub import: bool,
}

impl Options {
    /// The defaults, at this address.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            open_limit: Duration::from_secs(10),
            maintenance: Some(Duration::from_secs(30)),
            import: false,
        }
    }
}

/// What the engine's parts share.
struct Shared {
    client: Client,
    database: Database,
    /// What the server calls this process's connections.
    app: String,
    tails: Tails,
    clock: Clock,
    seen: Seen,
    appends: Appends,
    closed: AtomicBool,
    /// Why MongoDB does not answer, while it does not.
    away: Mutex<Option<String>>,
    /// Topics and groups, as of the last look.
    counted: Mutex<Counts>,
}

impl Shared {
    fn open(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::Closed("the hub is shutting down".to_owned()));
        }
        Ok(())
    }
}

/// Ends the background when the last handle goes.
struct Background(Vec<AbortHandle>);

impl Drop for Background {
    fn drop(&mut self) {
        self.0.iter().for_each(AbortHandle::abort);
    }
}

/// The engine on MongoDB. Cheap to clone: clones share one connection pool.
#[derive(Clone)]
pub struct Mongo {
    shared: Arc<Shared>,
    background: Arc<Background>,
}

impl Mongo {
    /// Connects, checks that what the hub promises can be kept there, and makes the indexes.
    ///
    /// # Errors
    /// Why not, with the remedy; within some seconds, also where nobody answers.
    pub async fn open(options: Options) -> std::result::Result<Self, OpenError> {
        let (client, database, app) = connect::connect(&options).await?;
        let name = database.name().to_owned();
        let shared = Arc::new(Shared {
            client,
            database,
            app,
            tails: Tails::new(),
            clock: Clock::default(),
            seen: Seen::default(),
            appends: Appends::new(),
            closed: AtomicBool::new(false),
            away: Mutex::new(None),
            counted: Mutex::default(),
        });
        fault::limited(clock::ask(&shared)).await.map_err(|fault| connect::refusal(&fault, &name))?;
        let stream = follow::stream(&shared).await.map_err(|fault| connect::refusal(&fault, &name))?;
        follow::look(&shared).await.map_err(|fault| connect::refusal(&fault, &name))?;
        let weak = || Arc::downgrade(&shared);
        let mut tasks = vec![
            tokio::spawn(follow::follow(weak(), Some(stream))).abort_handle(),
            tokio::spawn(follow::pulse(weak())).abort_handle(),
            tokio::spawn(keep_counts(weak())).abort_handle(),
        ];
        if let Some(interval) = options.maintenance {
            tasks.push(tokio::spawn(keep_within_bounds(weak(), interval)).abort_handle());
        }
        Ok(Self { shared, background: Arc::new(Background(tasks)) })
    }

    /// The database, for what else lives in it beside the log.
    pub fn database(&self) -> &Database {
        &self.shared.database
    }

    /// The client, for transactions of one's own.
    pub fn client(&self) -> &Client {
        &self.shared.client
    }
}

/// Applies retention and compaction as time passes. Not all hubs at once: each waits a little more or less.
async fn keep_within_bounds(shared: std::sync::Weak<Shared>, interval: Duration) {
    loop {
        let part = fault::random() % 500;
        tokio::time::sleep(interval.mul_f64(0.75 + part as f64 / 1_000.0)).await;
        let Some(shared) = shared.upgrade() else { return };
        if let Err(error) = maintain::maintain(&shared, shared.clock.now()).await {
            tracing::warn!(%error, "retention and compaction wait for the next time");
        }
    }
}

/// Counts topics and groups from time to time, by what the collections know of their size.
async fn keep_counts(shared: std::sync::Weak<Shared>) {
    const EVERY: Duration = Duration::from_secs(10);
    loop {
        let Some(shared) = shared.upgrade() else { return };
        let count = async |name| shared.database.collection::<Document>(name).estimated_document_count().await;
        if let (Ok(topics), Ok(groups)) = (count(COUNTERS).await, count(CURSORS).await) {
            let whole = |count| usize::try_from(count).unwrap_or(usize::MAX);
            *shared.counted.lock() = Counts { topics: whole(topics), groups: whole(groups) };
        }
        drop(shared);
        tokio::time::sleep(EVERY).await;
    }
}

impl EventLog for Mongo {
    fn append(&self, events: Vec<NewEvent>) -> Pending<'_, Vec<Outcome>> {
        Box::pin(append::append(&self.shared, events))
    }

    fn read<'a>(&'a self, topic: &'a Topic, from: Seq, max: ReadMax) -> Pending<'a, Vec<Event>> {
        Box::pin(read::read(&self.shared, topic, from, max))
    }

    fn seek<'a>(&'a self, topic: &'a Topic, to: Seek) -> Pending<'a, Option<Start>> {
        Box::pin(read::seek(&self.shared, topic, to))
    }

    fn locate<'a>(&'a self, ids: &'a [EventId]) -> Pending<'a, Vec<Option<Place>>> {
        Box::pin(read::locate(&self.shared, ids))
    }

    fn latest_by_key<'a>(&'a self, topic: &'a Topic, keys: &'a [String]) -> Pending<'a, Vec<Option<Event>>> {
        Box::pin(keys::latest(&self.shared, topic, keys))
    }

    fn keys<'a>(&'a self, topic: &'a Topic, after: Option<&'a str>, limit: usize) -> Pending<'a, Page<Event>> {
        Box::pin(keys::page(&self.shared, topic, after, limit))
    }

    fn key_snapshot<'a>(&'a self, topic: &'a Topic) -> Pending<'a, Box<dyn KeySnapshot>> {
        Box::pin(keys::snapshot(self.clone(), topic))
    }

    fn pin<'a>(&'a self, _topics: &'a [Topic]) -> Pending<'a, Box<dyn Pin>> {
        Box::pin(pins::hold(self.clone()))
    }

    fn watch(&self, topic: &Topic) -> watch::Receiver<Tail> {
        self.shared.tails.watch(topic)
    }

    fn watch_topics(&self) -> watch::Receiver<u64> {
        self.shared.tails.created()
    }

    fn topics(&self) -> Pending<'_, Vec<Topic>> {
        Box::pin(read::topics(&self.shared))
    }

    fn info<'a>(&'a self, topic: &'a Topic) -> Pending<'a, Option<TopicInfo>> {
        Box::pin(read::info(&self.shared, topic))
    }

    fn trim<'a>(&'a self, topic: &'a Topic, before: Seq) -> Pending<'a, ()> {
        Box::pin(maintain::trim(&self.shared, topic, before))
    }

    fn exists(&self, topic: &Topic) -> bool {
        self.shared.tails.exists(topic)
    }

    fn create<'a>(&'a self, topic: &'a Topic) -> Pending<'a, ()> {
        Box::pin(lives::create(&self.shared, topic))
    }

    fn delete<'a>(&'a self, topics: &'a [Topic]) -> Pending<'a, ()> {
        Box::pin(lives::delete(&self.shared, topics))
    }

    fn remove<'a>(&'a self, topic: &'a Topic, seqs: &'a Ranges<()>) -> Pending<'a, ()> {
        Box::pin(maintain::remove_seqs(&self.shared, topic, seqs))
    }

    fn settings(&self, topic: &Topic) -> TopicSettings {
        self.shared.tails.settings(topic)
    }

    fn all_settings(&self) -> Vec<(Topic, TopicSettings)> {
        self.shared.tails.all_settings()
    }

    fn set_settings<'a>(&'a self, topic: &'a Topic, settings: TopicSettings) -> Pending<'a, ()> {
        Box::pin(async move {
            self.shared.open()?;
            let text = serde_json::to_string(&settings).map_err(|error| Error::Refused(error.to_string()))?;
            let counters = self.shared.database.collection::<Document>(COUNTERS);
            let update = doc! { "$set": { "settings": text } };
            fault::patiently("the topic's settings", || async {
                counters.update_one(doc! { "_id": topic.as_str() }, update.clone()).upsert(true).await
            })
            .await?;
            self.shared.tails.set_settings(topic, settings);
            Ok(())
        })
    }

    fn maintain(&self, now: Millis) -> Pending<'_, ()> {
        Box::pin(maintain::maintain(&self.shared, now))
    }

    fn ready(&self) -> Result<()> {
        self.shared.open()?;
        match &*self.shared.away.lock() {
            Some(why) => Err(Error::Refused(format!("MongoDB is away: {why}"))),
            None => Ok(()),
        }
    }
}

impl GroupStore for Mongo {
    fn load<'a>(&'a self, topic: &'a Topic, group: &'a Group) -> Pending<'a, Option<(GroupState, Version)>> {
        Box::pin(groups::load(&self.shared, topic, group))
    }

    fn save_many(&self, saves: Vec<Save>) -> Pending<'_, Vec<Result<Saved>>> {
        Box::pin(groups::save_many(&self.shared, saves))
    }

    fn groups<'a>(&'a self, topic: &'a Topic) -> Pending<'a, Vec<(Group, GroupState)>> {
        Box::pin(groups::groups(&self.shared, topic))
    }

    fn topics_of_groups(&self) -> Pending<'_, Vec<Topic>> {
        Box::pin(groups::topics(&self.shared))
    }

    fn forget<'a>(&'a self, topic: &'a Topic, group: &'a Group) -> Pending<'a, bool> {
        Box::pin(groups::forget(&self.shared, topic, group))
    }
}

impl Store for Mongo {
    fn name(&self) -> &'static str {
        "mongo"
    }

    fn counts(&self) -> Counts {
        *self.shared.counted.lock()
    }

    fn close(&self) -> Pending<'_, ()> {
        Box::pin(async move {
            self.shared.closed.store(true, Ordering::Release);
            self.shared.appends.drained().await;
            self.background.0.iter().for_each(AbortHandle::abort);
            Ok(())
        })
    }

    /// Never: a MongoDB that is away comes back, and nothing was promised meanwhile.
    fn failed(&self) -> std::pin::Pin<Box<dyn Future<Output = String> + Send + '_>> {
        Box::pin(std::future::pending())
    }
}
