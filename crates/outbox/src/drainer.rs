//! The drainer: claims rows, hands them to a publisher, writes down what became of them. What it does about failures is
//! decided in [`crate::plan`].
//!
//! Invariants: a row is marked sent only after the publisher said that it is in the log; whatever is cut off, by an
//! error, a stop or a crash, is found again when its lease has run out, and published with the same id.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use promethean_event::Draft;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::plan::{self, Decision, Pace, Policy};
use crate::{Answer, Claim, Failed, Next, OutboxStore, Publisher, Result, Row, Stats};

/// How a drainer works.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Its name in `claimed_by`; unique among all drainers. Made up unless said.
    pub worker: String,
    /// Most rows claimed at a time.
    pub batch_rows: usize,
    /// Most bytes of payload claimed at a time.
    pub batch_bytes: usize,
    /// How long a claim lasts: a drainer that died is noticed after this time.
    pub lease: Duration,
    /// What is done about failures.
    pub policy: Policy,
    /// The longest wait between two looks at an outbox that has nothing to do.
    pub longest_poll: Duration,
    /// Rows that are `sent` are removed once their event is this old (by its `ts`, not by when it was sent).
    pub keep_sent: Duration,
    /// For how long claims are prolonged while the publisher does not answer; then other drainers may take the rows.
    pub patience: Duration,
    /// How long a stop waits for the publisher to answer for the batch that is under way, and then for the database.
    pub grace: Duration,
    /// Ends when every row is published or parked, instead of waiting for more.
    pub until_empty: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            worker: worker(),
            batch_rows: 500,
            batch_bytes: 4 * 1024 * 1024,
            lease: Duration::from_secs(30),
            policy: Policy::default(),
            longest_poll: Duration::from_millis(400),
            keep_sent: Duration::from_secs(24 * 3_600),
            patience: Duration::from_secs(60),
            grace: Duration::from_secs(5),
            until_empty: false,
        }
    }
}

/// The wait after the last row before the next look; doubles up to `longest_poll`.
const SHORTEST_POLL: Duration = Duration::from_millis(5);
/// After how many looks at the longest wait, at the earliest, rows whose lease ran out are taken over again: two seconds.
const REQUEUE_LOOKS: u32 = 5;
/// How often the numbers are read.
const STATS_EVERY: Duration = Duration::from_secs(5);
/// How often rows that were sent long ago are taken away, and how many at a time.
const PURGE_EVERY: Duration = Duration::from_secs(60);
const PURGE_ROWS: usize = 5_000;
/// How often marks are tried before the rows are left to their leases.
const MARK_TRIES: u32 = 5;
/// After how long without an answer for a batch it is said.
const SILENCE: Duration = Duration::from_secs(5);
/// How often blocked rows are logged.
const SAY_EVERY: Duration = Duration::from_secs(60);
/// Longest wait after the database failed.
const LONGEST_STORE_WAIT: Duration = Duration::from_secs(5);

/// Most bytes of `last_err`.
const LONGEST_ERR: usize = 2_000;

fn shorten(err: &mut String) {
    if err.len() > LONGEST_ERR {
        let end = (0..=LONGEST_ERR).rev().find(|at| err.is_char_boundary(*at)).unwrap_or(0);
        err.truncate(end);
        err.push('…');
    }
}

/// A name that no other drainer has: the process, and something random.
fn worker() -> String {
    use std::hash::{BuildHasher as _, Hasher as _};
    let random = std::hash::RandomState::new().build_hasher().finish();
    format!("drainer-{}-{random:016x}", std::process::id())
}

/// What a drainer has done and sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Snapshot {
    /// The outbox as it stood a few seconds ago at most.
    pub stats: Stats,
    /// Rows that this drainer published.
    pub sent: u64,
    /// Tries that failed, those that parked a row among them; not those where nobody was there to take the row.
    pub errors: u64,
    /// Rows that this drainer parked.
    pub parked: u64,
}

#[derive(Debug, Default)]
struct Shared {
    sent: AtomicU64,
    errors: AtomicU64,
    parked: AtomicU64,
    stats: std::sync::Mutex<Stats>,
}

impl Shared {
    fn snapshot(&self) -> Snapshot {
        Snapshot {
            stats: *self.stats.lock().unwrap_or_else(std::sync::PoisonError::into_inner),
            sent: self.sent.load(Relaxed),
            errors: self.errors.load(Relaxed),
            parked: self.parked.load(Relaxed),
        }
    }
}

/// Drains `store` into `publisher` until it is stopped. Needs a Tokio runtime.
///
/// Any number of drainers may work on one outbox, in one process or in many.
pub fn drain(store: Arc<dyn OutboxStore>, publisher: Arc<dyn Publisher>, settings: Settings) -> Drainer {
    let shared = Arc::new(Shared::default());
    let (stop, stopped) = watch::channel(false);
    let grace = settings.grace;
    let worker =
        Worker { store, publisher, settings, shared: Arc::clone(&shared), stopped, said: std::sync::Mutex::default() };
    Drainer { task: Some(tokio::spawn(worker.run())), stop, shared, grace }
}

/// A drainer that runs. Dropping it cuts it off: what it had claimed is free again when the lease has run out.
#[derive(Debug)]
#[must_use = "dropping it ends it"]
pub struct Drainer {
    task: Option<JoinHandle<Option<String>>>,
    stop: watch::Sender<bool>,
    shared: Arc<Shared>,
    grace: Duration,
}

impl Drainer {
    /// What it has done and sees.
    pub fn snapshot(&self) -> Snapshot {
        self.shared.snapshot()
    }

    /// Ends it in order: the batch under way is finished or given back. Where the database does not answer, it is cut
    /// off after twice the grace.
    pub async fn stop(mut self) -> Snapshot {
        self.stop.send_replace(true);
        if timeout(2 * self.grace, self.ended()).await.is_err() {
            tracing::warn!("the outbox does not answer: what was claimed is free again when the lease has run out");
        }
        self.shared.snapshot()
    }

    /// Resolves when it has ended by itself: `None` when there is nothing left (`until_empty`), else why.
    pub async fn ended(&mut self) -> Option<String> {
        let Some(task) = &mut self.task else { return None };
        let ended = task.await;
        self.task = None;
        ended.unwrap_or_else(|error| Some(format!("the drainer was cut off: {error}")))
    }
}

impl Drop for Drainer {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

struct Worker {
    store: Arc<dyn OutboxStore>,
    publisher: Arc<dyn Publisher>,
    settings: Settings,
    shared: Arc<Shared>,
    stopped: watch::Receiver<bool>,
    /// When a blocked row was last logged.
    said: std::sync::Mutex<Option<Instant>>,
}

/// What one round did.
enum Turn {
    Worked,
    /// Nobody took the rows: wait.
    Away(Duration),
    /// There is nothing to claim now.
    Idle,
    /// The publisher has ended.
    Closed(String),
}

/// When the things that are done now and then are due.
struct Chores {
    requeue: Instant,
    stats: Instant,
    purge: Instant,
}

impl Worker {
    async fn run(self) -> Option<String> {
        let now = Instant::now();
        let mut chores = Chores { requeue: now, stats: now, purge: now + PURGE_EVERY / 4 };
        let mut pace = Pace::new(SHORTEST_POLL, self.settings.longest_poll);
        let (mut away, mut broken) = (0_u32, 0_u32);
        while !*self.stopped.borrow() {
            let turn = match self.chores(&mut chores).await {
                Ok(()) => self.turn(away).await,
                Err(error) => Err(error),
            };
            broken = if turn.is_ok() { 0 } else { broken.saturating_add(1) };
            match turn {
                Ok(Turn::Worked) => {
                    away = 0;
                    pace.busy();
                }
                Ok(Turn::Away(wait)) => {
                    away = away.saturating_add(1);
                    self.rest(wait).await;
                }
                Ok(Turn::Idle) if self.settings.until_empty && self.is_empty().await => return None,
                Ok(Turn::Idle) => {
                    let store = Arc::clone(&self.store);
                    tokio::select! {
                        () = self.rest(pace.idle()) => {}
                        // A row that is being added may be committed a moment later.
                        () = store.woken() => {
                            pace.busy();
                            self.rest(pace.idle()).await;
                        }
                    }
                }
                Ok(Turn::Closed(reason)) => {
                    tracing::error!(reason, "the outbox is no longer drained: the publisher has ended");
                    let _ = self.read_stats().await;
                    return Some(reason);
                }
                Err(error) => {
                    tracing::warn!(%error, "the outbox cannot be used; trying again");
                    self.rest(self.settings.policy.wait(broken).min(LONGEST_STORE_WAIT)).await;
                }
            }
        }
        let _ = self.read_stats().await;
        None
    }

    /// Waits, or until somebody says stop.
    async fn rest(&self, wait: Duration) {
        tokio::select! {
            () = sleep(wait) => {}
            () = self.stop_asked() => {}
        }
    }

    /// Resolves when somebody has said stop.
    async fn stop_asked(&self) {
        // The sender is gone only with the drainer.
        let _ = self.stopped.clone().wait_for(|stop| *stop).await;
    }

    /// Each is due again before it is tried: one that fails, for lack of a permission say, does not end the draining.
    async fn chores(&self, chores: &mut Chores) -> Result<()> {
        let now = Instant::now();
        if now >= chores.requeue {
            // However short the lease is: an idle drainer has to get by with few questions.
            let every = (self.settings.lease / 4).max(self.settings.longest_poll * REQUEUE_LOOKS);
            chores.requeue = now + every.max(Duration::from_millis(10));
            let requeued = self.store.requeue_expired().await?;
            if requeued > 0 {
                tracing::info!(rows = requeued, "rows of a drainer that did not answer are taken over");
            }
        }
        if now >= chores.stats {
            chores.stats = now + STATS_EVERY;
            self.read_stats().await?;
        }
        if now >= chores.purge {
            chores.purge = now + PURGE_EVERY;
            let purged = self.store.purge_sent(self.settings.keep_sent, PURGE_ROWS).await?;
            if purged >= PURGE_ROWS as u64 {
                // There is more: go on soon, but not before the rows that wait.
                chores.purge = now + Duration::from_secs(1);
            }
        }
        Ok(())
    }

    async fn read_stats(&self) -> Result<Stats> {
        let stats = self.store.stats().await?;
        *self.shared.stats.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = stats;
        Ok(stats)
    }

    async fn is_empty(&self) -> bool {
        self.read_stats().await.is_ok_and(|stats| stats.pending + stats.claimed == 0)
    }

    /// Claims a batch and sees it through. `away`: batches in a row that nobody took.
    async fn turn(&self, away: u32) -> Result<Turn> {
        let Settings { batch_rows, batch_bytes, lease, ref worker, ref policy, .. } = self.settings;
        let claim = Claim { rows: batch_rows.max(1), bytes: batch_bytes.max(1), lease, worker };
        let rows = self.store.claim_batch(claim).await;
        let unreadable = self.store.take_parked();
        self.shared.errors.fetch_add(unreadable, Relaxed);
        self.shared.parked.fetch_add(unreadable, Relaxed);
        let rows = rows?;
        if rows.is_empty() {
            return Ok(Turn::Idle);
        }
        let answers = self.publish(&rows).await;
        self.write_down(&rows, &answers).await?;
        let closed = answers.iter().find_map(|answer| match answer {
            Answer::Closed(reason) => Some(reason.clone()),
            _ => None,
        });
        if let Some(reason) = closed {
            return Ok(Turn::Closed(reason));
        }
        Ok(plan::pause(&answers, away + 1, policy).map_or(Turn::Worked, Turn::Away))
    }

    /// An answer for each row: rows that are no events are refused here, the others by the publisher.
    async fn publish(&self, rows: &[Row]) -> Vec<Answer> {
        let mut answers: Vec<Option<Answer>> = Vec::with_capacity(rows.len());
        let mut drafts: Vec<Draft<'_>> = Vec::with_capacity(rows.len());
        for row in rows {
            match row.draft() {
                Ok(draft) => {
                    drafts.push(draft);
                    answers.push(None);
                }
                Err(invalid) => answers.push(Some(invalid.into())),
            }
        }
        let mut published = match drafts.is_empty() {
            true => Vec::new().into_iter(),
            false => self.published(rows, &drafts).await.into_iter(),
        };
        let missing = || Answer::Failed("the publisher gave no answer".to_owned());
        answers.into_iter().map(|answer| answer.or_else(|| published.next()).unwrap_or_else(missing)).collect()
    }

    /// Hands the drafts over and prolongs the leases until there is an answer, or a stop was asked for long enough ago.
    async fn published(&self, rows: &[Row], drafts: &[Draft<'_>]) -> Vec<Answer> {
        let Settings { lease, patience, grace, ref worker, .. } = self.settings;
        let ids: Vec<String> = rows.iter().map(|row| row.id.clone()).collect();
        let mut publishing = self.publisher.publish(drafts);
        let started = Instant::now();
        let (mut renewal, mut deadline) = (started + lease / 3, None);
        let mut silent = false;
        loop {
            tokio::select! {
                biased;
                answers = &mut publishing => {
                    if silent {
                        tracing::info!(waited = ?started.elapsed(), "the hub has answered");
                    }
                    return answers;
                }
                () = sleep_until(started + SILENCE), if !silent => {
                    silent = true;
                    tracing::warn!(rows = drafts.len(), "the hub has not answered for a while; the rows wait for it");
                }
                () = sleep_until(renewal), if started.elapsed() < patience => {
                    renewal = Instant::now() + lease / 3;
                    if let Err(error) = self.store.extend(&ids, worker, lease).await {
                        tracing::warn!(%error, "claims could not be prolonged; others may take the rows");
                    }
                }
                () = self.stop_asked(), if deadline.is_none() => deadline = Some(Instant::now() + grace),
                () = sleep_until(deadline.unwrap_or(started)), if deadline.is_some() => {
                    let reason = "the drainer was stopped before the answer came: the outcome is unknown";
                    let unknown = Answer::Unavailable { reason: reason.to_owned(), retry_after: None };
                    return vec![unknown; drafts.len()];
                }
            }
        }
    }

    /// Warns at most once a minute: rows may wait for days.
    fn say_blocked(&self, row: &Row, reason: &str) {
        let mut said = self.said.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if said.is_none_or(|at| at.elapsed() >= SAY_EVERY) {
            *said = Some(Instant::now());
            tracing::warn!(id = row.id, topic = row.topic, reason, "the hub takes no such row now; it waits");
        }
    }

    async fn write_down(&self, rows: &[Row], answers: &[Answer]) -> Result<()> {
        let (mut sent, mut failed) = (Vec::new(), Vec::new());
        let (mut errors, mut parked) = (0, 0);
        for (row, answer) in rows.iter().zip(answers) {
            match plan::decide(row.attempts, answer, &self.settings.policy) {
                Decision::Sent => sent.push(row.id.clone()),
                Decision::NotSent { mut err, next } => {
                    err.iter_mut().for_each(shorten);
                    errors += u64::from(matches!(next, Next::Later(_) | Next::Park));
                    if next == Next::Park {
                        parked += 1;
                        let reason = err.as_deref().unwrap_or_default();
                        tracing::warn!(id = row.id, topic = row.topic, reason, "a row of the outbox is parked");
                    }
                    if let (Answer::Blocked(reason), Next::Wait(_)) = (answer, next) {
                        self.say_blocked(row, reason);
                    }
                    failed.push(Failed { id: row.id.clone(), err, next });
                }
            }
        }
        if !sent.is_empty() {
            self.again(|| self.store.mark_sent(&sent)).await?;
            self.shared.sent.fetch_add(sent.len() as u64, Relaxed);
        }
        if !failed.is_empty() {
            self.again(|| self.store.mark_error(&failed, &self.settings.worker)).await?;
            self.shared.errors.fetch_add(errors, Relaxed);
            self.shared.parked.fetch_add(parked, Relaxed);
        }
        Ok(())
    }

    /// A mark that fails is tried again: without it the rows come a second time, which costs more.
    async fn again<'a>(&self, mark: impl Fn() -> crate::Pending<'a, ()>) -> Result<()> {
        for failures in 1.. {
            match mark().await {
                Err(error) if failures < MARK_TRIES => {
                    tracing::debug!(%error, "a mark failed; trying again");
                    sleep(self.settings.policy.wait(failures)).await;
                }
                done => return done,
            }
        }
        Ok(())
    }
}
