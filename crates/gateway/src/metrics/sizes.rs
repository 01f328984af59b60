//! The bytes of topics and the lag of groups, by what the store has saved.
//!
//! A store that is away is waited for [`ANSWERS`], while its answer may take much longer: one question at a time goes on behind
//! a scrape that has given up, and what it brings is shown by the next ones, for a minute. After that the gauges are left
//! out: a number that nobody has checked is worse than none. A store that is slow, on a busy machine say, is waited for as long
//! as it answers about one topic after another: else gauges would be missing, or those of the scrape before.

use std::collections::{BTreeMap, HashSet};
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use futures_util::{StreamExt, stream};
use parking_lot::Mutex;
use promethean_bus::is_hidden;
use promethean_bus::metrics::{GroupName, OTHER};
use promethean_event::{Group, Topic};
use promethean_store::{Error, GroupState, TopicInfo};
use tokio::time::timeout;

use super::{OfGroups, OfTopics};
use crate::Hub;
use crate::http::unreadable;
use crate::ops::ANSWERS;

/// How long an answer is shown that no newer one follows.
const LASTS: Duration = Duration::from_secs(60);
/// Topics that the store is asked for at a time.
const AT_ONCE: usize = 16;

/// What the store said last.
#[derive(Debug, Default)]
pub(crate) struct Sizes {
    /// Held by whoever asks the store.
    turn: Arc<tokio::sync::Mutex<()>>,
    last: Mutex<Option<(Instant, Known)>>,
    /// Topics that the store has answered for, over all questions.
    answered: AtomicU64,
}

/// Bytes by topic, lag by group.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) bytes: OfTopics,
    pub(super) lags: OfGroups,
}

/// As of now, or of the last minute; nothing where the store does not answer.
pub(super) async fn now(hub: &Arc<Hub>) -> Known {
    let asked = async {
        let turn = Arc::clone(&hub.sizes.turn).lock_owned().await;
        let hub = Arc::clone(hub);
        let asking = tokio::spawn(async move {
            let _turn = turn;
            let known =
                ask(&hub).await.inspect_err(|error| tracing::debug!(%error, "no sizes for the metrics")).ok()?;
            *hub.sizes.last.lock() = Some((Instant::now(), known.clone()));
            Some(known)
        });
        asking.await.ok().flatten()
    };
    match while_it_answers(asked, &hub.sizes.answered).await {
        Some(Some(known)) => known,
        Some(None) | None => {
            let last = hub.sizes.last.lock().clone();
            last.filter(|(at, _)| at.elapsed() < LASTS).map(|(_, known)| known).unwrap_or_default()
        }
    }
}

/// Waits for `asked` until nothing was `answered` for a while.
async fn while_it_answers<T>(asked: impl Future<Output = T>, answered: &AtomicU64) -> Option<T> {
    let mut asked = std::pin::pin!(asked);
    loop {
        let before = answered.load(Relaxed);
        match timeout(ANSWERS, &mut asked).await {
            Ok(done) => return Some(done),
            Err(_) if answered.load(Relaxed) == before => return None,
            Err(_) => {}
        }
    }
}

async fn ask(hub: &Hub) -> Result<Known, Error> {
    let (store, counted) = (hub.bus.store(), hub.bus.metrics());
    let most = hub.config.metrics_max_series.max(1);
    let mut topics = Names::new(counted.topics().into_iter().map(|(name, _)| name), most, OTHER.into());
    let other: GroupName = (OTHER.into(), OTHER.into());
    let mut groups = Names::new(counted.groups().into_iter().map(|(name, _)| name), most, other);
    let (mut bytes, mut lags) = (BTreeMap::new(), BTreeMap::new());
    let known = stream::iter(store.known_topics().await?).map(async |topic| {
        let of_topic = of_topic(hub, &topic).await;
        (topic, of_topic)
    });
    let mut known = known.buffered(AT_ONCE);
    while let Some((topic, of_topic)) = known.next().await {
        hub.sizes.answered.fetch_add(1, Relaxed);
        let (info, of_groups) = match of_topic {
            Ok(of_topic) => of_topic,
            // Which is said in the log, and takes nothing from the other topics.
            Err(error @ Error::Damaged(_)) => {
                let _ = unreadable(error);
                continue;
            }
            Err(error) => return Err(error),
        };
        if let Some(info) = &info {
            *bytes.entry(topics.of(topic.as_str().into()).into()).or_default() += info.bytes;
        }
        for (group, state) in of_groups {
            if !is_hidden(&group) {
                let (topic, group) = groups.of((topic.as_str().into(), group.as_str().into()));
                let lag = info.as_ref().map_or(0, |info| state.lag(info));
                *lags.entry((topic.into(), group.into())).or_default() += lag;
            }
        }
    }
    Ok(Known { bytes: bytes.into_iter().collect(), lags: lags.into_iter().collect() })
}

async fn of_topic(hub: &Hub, topic: &Topic) -> Result<(Option<TopicInfo>, Vec<(Group, GroupState)>), Error> {
    let store = hub.bus.store();
    // The groups first: an event that is appended in between counts.
    let groups = store.groups(topic).await?;
    Ok((store.info(topic).await?, groups))
}

/// Which names have series of their own: those that the bus counts by, so that counters and gauges fold the same ones, and
/// of the rest as many as fit.
struct Names<N> {
    own: HashSet<N>,
    room: usize,
    other: N,
}

impl<N: Hash + Eq + Clone> Names<N> {
    fn new(counted: impl Iterator<Item = N>, most: usize, other: N) -> Self {
        let own: HashSet<N> = counted.filter(|name| *name != other).collect();
        Self { room: most.saturating_sub(own.len()), own, other }
    }

    /// What `name` is shown under.
    fn of(&mut self, name: N) -> N {
        if !self.own.contains(&name) {
            if self.room == 0 {
                return self.other.clone();
            }
            self.room -= 1;
            self.own.insert(name.clone());
        }
        name
    }
}
