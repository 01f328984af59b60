//! Quotas: token buckets per connection and per topic. Off unless configured.
//!
//! The per-topic buckets are bounded: at `MAX_TOPICS` those that are full again are forgotten (a fresh one would be
//! the same), and topics for which there is still no room share one bucket.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use governor::clock::{Clock, DefaultClock};
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use parking_lot::Mutex;
use promethean_event::Topic;

/// Most topics that have a bucket of their own.
const MAX_TOPICS: usize = 10_000;

/// So many a second, and so many at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// How fast the bucket fills.
    pub per_second: NonZeroU32,
    /// How much it holds.
    pub burst: NonZeroU32,
}

impl Rate {
    fn quota(self) -> Quota {
        Quota::per_second(self.per_second).allow_burst(self.burst)
    }

    /// After this long without use a bucket is full, whatever was taken.
    fn refill(self) -> Duration {
        Duration::from_secs_f64(f64::from(self.burst.get()) / f64::from(self.per_second.get()))
    }
}

/// Over a quota.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("over the quota of this {of}: {rate} a second, {burst} at once{}", if *.too_many { "; send smaller batches" } else { "" })]
pub struct Limited {
    /// When there is room again.
    pub retry_after: Duration,
    of: &'static str,
    rate: u32,
    burst: u32,
    /// More at once than the bucket ever holds.
    too_many: bool,
}

#[derive(Debug)]
struct Bucket {
    rate: Rate,
    of: &'static str,
    limiter: DefaultDirectRateLimiter,
}

impl Bucket {
    fn new(rate: Rate, of: &'static str) -> Self {
        Self { rate, of, limiter: RateLimiter::direct(rate.quota()) }
    }

    fn take(&self, count: usize) -> Result<(), Limited> {
        let limited = |retry_after, too_many| Limited {
            retry_after,
            of: self.of,
            rate: self.rate.per_second.get(),
            burst: self.rate.burst.get(),
            too_many,
        };
        let Some(count) = NonZeroU32::new(u32::try_from(count).unwrap_or(u32::MAX)) else { return Ok(()) };
        match self.limiter.check_n(count) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(not_until)) => Err(limited(not_until.wait_time_from(DefaultClock::default().now()), false)),
            Err(_more_than_it_holds) => Err(limited(self.rate.refill(), true)),
        }
    }
}

/// The quota of one connection.
#[derive(Debug, Default)]
pub struct ConnectionQuota(Option<Bucket>);

impl ConnectionQuota {
    /// Takes `count` frames out of the bucket: all or none.
    ///
    /// # Errors
    /// Not that many are left; says when they will be.
    pub fn take(&self, count: usize) -> Result<(), Limited> {
        self.0.as_ref().map_or(Ok(()), |bucket| bucket.take(count))
    }
}

/// The quotas of the hub. Cheap to clone; the default has none.
#[derive(Debug, Clone, Default)]
pub struct Quotas {
    connection: Option<Rate>,
    topics: Option<Arc<TopicBuckets>>,
    /// Topics with a rate of their own; `None`: no limit, whatever the others have.
    named: Arc<HashMap<Topic, Option<Bucket>, foldhash::fast::RandomState>>,
}

impl Quotas {
    /// Quotas with these rates; `None` is no limit.
    pub fn new(connection: Option<Rate>, topic: Option<Rate>) -> Self {
        let topics = topic.map(|rate| Arc::new(TopicBuckets::new(rate, MAX_TOPICS)));
        Self { connection, topics, named: Arc::default() }
    }

    /// The same, with rates of single topics in place of the general one; `None` is no limit.
    pub fn with_topics(self, rates: impl IntoIterator<Item = (Topic, Option<Rate>)>) -> Self {
        let bucket = |(topic, rate): (Topic, Option<Rate>)| (topic, rate.map(|rate| Bucket::new(rate, "topic")));
        Self { named: Arc::new(rates.into_iter().map(bucket).collect()), ..self }
    }

    /// True if connections have a quota.
    pub fn limits_connections(&self) -> bool {
        self.connection.is_some()
    }

    /// The quota of a new connection.
    pub fn connection(&self) -> ConnectionQuota {
        ConnectionQuota(self.connection.map(|rate| Bucket::new(rate, "connection")))
    }

    /// Takes `count` events of `topic` out of its bucket: all or none.
    ///
    /// # Errors
    /// Not that many are left; says when they will be.
    pub fn take_topic(&self, topic: &Topic, count: usize) -> Result<(), Limited> {
        if let Some(own) = self.named.get(topic) {
            return own.as_ref().map_or(Ok(()), |bucket| bucket.take(count));
        }
        self.topics.as_ref().map_or(Ok(()), |topics| topics.take(topic, count))
    }
}

#[derive(Debug)]
struct TopicBuckets {
    rate: Rate,
    room: usize,
    buckets: Mutex<Buckets>,
}

#[derive(Debug)]
struct Buckets {
    own: HashMap<Topic, (Bucket, Instant), foldhash::fast::RandomState>,
    /// For topics without room for one of their own.
    shared: Bucket,
    last_sweep: Instant,
}

impl TopicBuckets {
    fn new(rate: Rate, room: usize) -> Self {
        let buckets =
            Buckets { own: HashMap::default(), shared: Bucket::new(rate, "topic"), last_sweep: Instant::now() };
        Self { rate, room, buckets: Mutex::new(buckets) }
    }

    fn take(&self, topic: &Topic, count: usize) -> Result<(), Limited> {
        let now = Instant::now();
        let mut buckets = self.buckets.lock();
        let buckets = &mut *buckets;
        if let Some((bucket, used)) = buckets.own.get_mut(topic) {
            *used = now;
            return bucket.take(count);
        }
        let refill = self.rate.refill();
        // A sweep looks at all of them, so not at every publish.
        if buckets.own.len() >= self.room
            && now.duration_since(buckets.last_sweep) >= refill.min(Duration::from_secs(1))
        {
            buckets.own.retain(|_, (_, used)| now.duration_since(*used) < refill);
            buckets.last_sweep = now;
        }
        if buckets.own.len() >= self.room {
            return buckets.shared.take(count);
        }
        let (bucket, _) = buckets.own.entry(topic.clone()).or_insert_with(|| (Bucket::new(self.rate, "topic"), now));
        bucket.take(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(per_second: u32, burst: u32) -> Rate {
        let some = |n| NonZeroU32::new(n).expect("not zero");
        Rate { per_second: some(per_second), burst: some(burst) }
    }

    fn topic(text: &str) -> Topic {
        Topic::parse(text).expect("a topic")
    }

    #[test]
    fn without_rates_nothing_is_limited() {
        let quotas = Quotas::default();
        assert_eq!(quotas.connection().take(usize::MAX), Ok(()));
        assert_eq!(quotas.take_topic(&topic("a"), usize::MAX), Ok(()));
    }

    #[test]
    fn a_connection_has_its_burst_and_then_waits() {
        let quotas = Quotas::new(Some(rate(1, 3)), None);
        let (one, other) = (quotas.connection(), quotas.connection());
        assert_eq!((one.take(2), one.take(1)), (Ok(()), Ok(())));
        let limited = one.take(1).expect_err("the burst is used up");
        assert!(limited.retry_after > Duration::ZERO && limited.retry_after <= Duration::from_secs(1));
        assert_eq!(other.take(3), Ok(()), "another connection has its own");
    }

    #[test]
    fn a_refused_batch_takes_nothing() {
        let quota = Quotas::new(Some(rate(1, 3)), None).connection();
        assert_eq!(quota.take(2), Ok(()));
        assert!(quota.take(2).is_err());
        assert_eq!(quota.take(1), Ok(()));
    }

    #[test]
    fn more_than_the_burst_at_once_is_told_to_send_less() {
        let limited = Quotas::new(None, Some(rate(10, 3))).take_topic(&topic("a"), 4).expect_err("over the burst");
        assert_eq!(limited.to_string(), "over the quota of this topic: 10 a second, 3 at once; send smaller batches");
        assert!(limited.retry_after > Duration::ZERO);
    }

    #[test]
    fn every_topic_has_its_own_bucket_until_there_is_no_room() {
        let buckets = TopicBuckets::new(rate(1, 2), 2);
        for name in ["a", "b"] {
            assert_eq!(buckets.take(&topic(name), 2), Ok(()));
            assert!(buckets.take(&topic(name), 1).is_err());
        }
        assert_eq!(buckets.take(&topic("c"), 2), Ok(()), "the shared bucket");
        assert!(buckets.take(&topic("d"), 1).is_err(), "d shares it with c");
        assert_eq!(buckets.buckets.lock().own.len(), 2);
    }

    #[test]
    fn a_topic_with_a_rate_of_its_own_does_not_have_that_of_the_others() {
        let own = [(topic("fast"), Some(rate(1, 5))), (topic("free"), None)];
        let quotas = Quotas::new(None, Some(rate(1, 2))).with_topics(own);
        assert_eq!(quotas.take_topic(&topic("fast"), 5), Ok(()));
        assert!(quotas.take_topic(&topic("fast"), 1).is_err());
        assert_eq!(quotas.take_topic(&topic("free"), 1_000), Ok(()));
        assert!(quotas.take_topic(&topic("other"), 3).is_err());
        let alone = Quotas::default().with_topics([(topic("slow"), Some(rate(1, 1)))]);
        assert!(alone.take_topic(&topic("slow"), 2).is_err(), "also where there is no general rate");
        assert_eq!(alone.take_topic(&topic("other"), 2), Ok(()));
    }

    #[test]
    fn buckets_that_are_full_again_make_room() {
        let buckets = TopicBuckets::new(rate(100, 1), 100);
        for n in 0..100 {
            let _ = buckets.take(&topic(&format!("t{n}")), 1);
        }
        assert_eq!(buckets.buckets.lock().own.len(), 100);
        std::thread::sleep(Duration::from_millis(30));
        assert_eq!(buckets.take(&topic("late"), 1), Ok(()));
        assert_eq!(buckets.buckets.lock().own.len(), 1);
    }
}
