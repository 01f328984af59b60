//! Publishers and stores that fail on demand, and a log that tells what arrived.

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use promethean_bus::{Bus, Topic};
use promethean_event::Draft;
use promethean_outbox::{
    Answer, Answers, BusPublisher, Claim, Failed, List, NewRow, OutboxStore, Pending, Publisher, Row, Settings, Stats,
    Which,
};
use promethean_store::ReadMax;
use promethean_store::memory::Memory;
use tokio::sync::Notify;

/// A database with an outbox.
pub(crate) trait Fixture: Send + Sync + 'static {
    /// A handle as another process would have it.
    fn store(&self) -> Arc<dyn OutboxStore>;
    /// Adds rows in one transaction that commits.
    fn add<'a>(&'a self, rows: &'a [NewRow]) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>>;
    /// Adds rows in a transaction that does not.
    fn add_and_roll_back<'a>(&'a self, rows: &'a [NewRow]) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>>;
    /// Writes a row by hand: id, topic, payload.
    fn write<'a>(&'a self, row: [&'a str; 3]) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>>;
}

/// A row of `topic` with a number as its payload.
pub(crate) fn numbered(topic: &str, key: Option<&str>, number: usize) -> NewRow {
    let row = NewRow::new(topic, &number).expect("a good row");
    match key {
        Some(key) => row.key(key),
        None => row,
    }
}

/// Settings for tests: short leases and waits.
pub(crate) fn quick() -> Settings {
    let mut settings = Settings {
        lease: Duration::from_millis(40),
        longest_poll: Duration::from_millis(10),
        until_empty: true,
        ..Settings::default()
    };
    settings.policy.first_wait = Duration::from_millis(2);
    settings.policy.longest_wait = Duration::from_millis(20);
    settings
}

/// A log of its own.
pub(crate) struct Log {
    pub(crate) bus: Bus,
}

impl Log {
    pub(crate) fn new() -> Self {
        Self { bus: Bus::new(Arc::new(Memory::new()), Default::default()) }
    }

    pub(crate) fn publisher(&self) -> Arc<dyn Publisher> {
        Arc::new(BusPublisher::new(self.bus.clone()))
    }

    /// The key and payload of each event on `topic`, in the order of the log. Ids are unique, or it panics.
    pub(crate) async fn events(&self, topic: &str) -> Vec<(Option<String>, String)> {
        let topic = Topic::parse(topic).expect("a topic");
        let max = ReadMax { events: 100_000, bytes: usize::MAX };
        let events = self.bus.store().read(&topic, 1, max).await.expect("read");
        let ids: HashSet<_> = events.iter().map(|event| event.id).collect();
        assert_eq!(ids.len(), events.len(), "no id twice in the log");
        events.iter().map(|event| (event.key().map(std::borrow::Cow::into_owned), event.payload().to_owned())).collect()
    }
}

/// The numbers of each key, in the order of the log.
pub(crate) fn by_key(events: &[(Option<String>, String)]) -> HashMap<String, Vec<usize>> {
    let mut keys: HashMap<String, Vec<usize>> = HashMap::new();
    for (key, payload) in events {
        keys.entry(key.clone().unwrap_or_default()).or_default().push(payload.parse().expect("a number"));
    }
    keys
}

/// Kills whoever comes to its `left`-th step: that step never returns.
pub(crate) struct Fuse {
    left: AtomicI64,
    blown: Notify,
}

impl Fuse {
    pub(crate) fn after(steps: i64) -> Arc<Self> {
        Arc::new(Self { left: AtomicI64::new(steps), blown: Notify::new() })
    }

    async fn step(&self) {
        if self.left.fetch_sub(1, SeqCst) <= 0 {
            self.blown.notify_one();
            std::future::pending::<()>().await;
        }
    }

    pub(crate) async fn blown(&self) {
        self.blown.notified().await;
    }

    async fn around<T>(&self, work: impl Future<Output = T>) -> T {
        self.step().await;
        let done = work.await;
        self.step().await;
        done
    }
}

/// A store or publisher whose every call has a failpoint before and one after it.
pub(crate) struct Fragile<T: ?Sized> {
    pub(crate) fuse: Arc<Fuse>,
    pub(crate) inner: Arc<T>,
}

impl OutboxStore for Fragile<dyn OutboxStore> {
    fn claim_batch<'a>(&'a self, claim: Claim<'a>) -> Pending<'a, Vec<Row>> {
        Box::pin(self.fuse.around(self.inner.claim_batch(claim)))
    }
    fn extend<'a>(&'a self, ids: &'a [String], worker: &'a str, lease: Duration) -> Pending<'a, ()> {
        Box::pin(self.fuse.around(self.inner.extend(ids, worker, lease)))
    }
    fn mark_sent<'a>(&'a self, ids: &'a [String]) -> Pending<'a, ()> {
        Box::pin(self.fuse.around(self.inner.mark_sent(ids)))
    }
    fn mark_error<'a>(&'a self, failed: &'a [Failed], worker: &'a str) -> Pending<'a, ()> {
        Box::pin(self.fuse.around(self.inner.mark_error(failed, worker)))
    }
    fn requeue_expired(&self) -> Pending<'_, u64> {
        Box::pin(self.fuse.around(self.inner.requeue_expired()))
    }
    fn purge_sent(&self, age: Duration, most: usize) -> Pending<'_, u64> {
        Box::pin(self.fuse.around(self.inner.purge_sent(age, most)))
    }
    fn stats(&self) -> Pending<'_, Stats> {
        Box::pin(self.fuse.around(self.inner.stats()))
    }
    fn list(&self, list: List) -> Pending<'_, Vec<Row>> {
        self.inner.list(list)
    }
    fn retry<'a>(&'a self, which: &'a Which) -> Pending<'a, u64> {
        self.inner.retry(which)
    }
}

impl Publisher for Fragile<dyn Publisher> {
    fn publish<'a>(&'a self, drafts: &'a [Draft<'a>]) -> Answers<'a> {
        Box::pin(self.fuse.around(self.inner.publish(drafts)))
    }
}

/// Counts what goes through, and how often each id does.
pub(crate) struct Counting {
    pub(crate) inner: Arc<dyn Publisher>,
    pub(crate) rows: AtomicU64,
    pub(crate) seen: Arc<Mutex<HashMap<String, u32>>>,
}

impl Publisher for Counting {
    fn publish<'a>(&'a self, drafts: &'a [Draft<'a>]) -> Answers<'a> {
        self.rows.fetch_add(drafts.len() as u64, SeqCst);
        let mut seen = self.seen.lock().expect("not poisoned");
        for draft in drafts {
            *seen.entry(draft.options.id.expect("the row's id").to_string()).or_default() += 1;
        }
        self.inner.publish(drafts)
    }
}

/// Answers as a script says, in front of a log; keeps a publisher's contract about keys.
pub(crate) struct Scripted<F> {
    pub(crate) inner: Arc<dyn Publisher>,
    /// The answer for a draft, or `None`: let it through.
    pub(crate) script: F,
}

impl<F: Fn(&Draft<'_>) -> Option<Answer> + Send + Sync + 'static> Publisher for Scripted<F> {
    fn publish<'a>(&'a self, drafts: &'a [Draft<'a>]) -> Answers<'a> {
        Box::pin(async move {
            let mut held: HashSet<&str> = HashSet::new();
            let mut answers = Vec::new();
            for draft in drafts {
                let key = draft.options.key.as_deref();
                let answer = match key.filter(|key| held.contains(key)) {
                    Some(_) => Answer::Held,
                    None => match (self.script)(draft) {
                        Some(answer) => answer,
                        None => self.inner.publish(std::slice::from_ref(draft)).await.remove(0),
                    },
                };
                if answer.holds_its_key() {
                    held.extend(key);
                }
                answers.push(answer);
            }
            answers
        })
    }
}
