//! The drainer's decisions: synchronous functions of what happened, tested without a database or a runtime.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use promethean_event::{Draft, Topic};

use crate::{Answer, Next, Row};

/// How failures are treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// Tries before a row is parked; at least 1.
    pub max_attempts: u32,
    /// The wait after the first failure; it doubles.
    pub first_wait: Duration,
    /// The longest wait.
    pub longest_wait: Duration,
}

impl Default for Policy {
    fn default() -> Self {
        Self { max_attempts: 10, first_wait: Duration::from_millis(100), longest_wait: Duration::from_secs(60) }
    }
}

impl Policy {
    /// The wait after failure number `failures` (from 1).
    pub fn wait(&self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1).min(31);
        self.first_wait.saturating_mul(1 << doublings).min(self.longest_wait)
    }
}

/// What is to be done about a row that was handed to the publisher.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Mark it as sent.
    Sent,
    /// Write down that it was not.
    NotSent {
        /// The reason, where there is a new one.
        err: Option<String>,
        /// What becomes of it.
        next: Next,
    },
}

/// The decision about a row that was claimed for the `attempts`-th time.
pub fn decide(attempts: u32, answer: &Answer, policy: &Policy) -> Decision {
    let not_sent = |err: &str, next| Decision::NotSent { err: Some(err.to_owned()), next };
    match answer {
        Answer::Stored => Decision::Sent,
        Answer::Refused(reason) => not_sent(reason, Next::Park),
        Answer::Failed(reason) if attempts >= policy.max_attempts.max(1) => {
            not_sent(&format!("given up after {attempts} attempts: {reason}"), Next::Park)
        }
        Answer::Failed(reason) => not_sent(reason, Next::Later(policy.wait(attempts))),
        Answer::Blocked(reason) => not_sent(reason, Next::Wait(policy.longest_wait.min(LONGEST_PAUSE))),
        Answer::Unavailable { reason, .. } | Answer::Closed(reason) => not_sent(reason, Next::Release),
        Answer::Held => Decision::NotSent { err: None, next: Next::Release },
    }
}

/// How long the drainer as a whole has to wait before it claims again, because the hub was away or took none of the rows;
/// `failures` batches in a row were not taken.
pub fn pause<'a>(answers: impl IntoIterator<Item = &'a Answer>, failures: u32, policy: &Policy) -> Option<Duration> {
    let (mut longest, mut blocked, mut stored) = (None, false, false);
    let wait = policy.wait(failures.max(1)).min(LONGEST_PAUSE);
    for answer in answers {
        match answer {
            Answer::Unavailable { retry_after, .. } => longest = longest.max(Some(retry_after.unwrap_or(wait))),
            Answer::Blocked(_) => blocked = true,
            Answer::Stored => stored = true,
            _ => {}
        }
    }
    longest.or((blocked && !stored).then_some(wait))
}

/// A hub that comes back is noticed within this time.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The wait between looks at an outbox that has nothing to do: from short to long, so that idling costs few queries and
/// a row that follows another is seen at once.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    shortest: Duration,
    longest: Duration,
    next: Duration,
}

impl Pace {
    /// From `shortest`, doubling, to `longest`.
    pub fn new(shortest: Duration, longest: Duration) -> Self {
        Self { shortest: shortest.min(longest), longest, next: shortest.min(longest) }
    }

    /// There was something to do, or somebody said so.
    pub fn busy(&mut self) {
        self.next = self.shortest;
    }

    /// There was nothing: how long to wait.
    pub fn idle(&mut self) -> Duration {
        let wait = self.next;
        self.next = (wait * 2).min(self.longest);
        wait
    }
}

/// What is left of a claim that another drainer was at too, for stores that cannot claim many rows at one stroke: of each
/// key the rows before the first that was not won. Returns those, and the won ones that have to be given back.
pub fn unbroken(rows: Vec<Row>, won: impl Fn(&Row) -> bool) -> (Vec<Row>, Vec<Row>) {
    let (mut kept, mut given_back) = (Vec::new(), Vec::new());
    let mut broken: HashSet<String> = HashSet::new();
    for row in rows {
        match (won(&row), row.key.as_ref().is_some_and(|key| broken.contains(key))) {
            (true, false) => kept.push(row),
            (true, true) => given_back.push(row),
            (false, _) => broken.extend(row.key),
        }
    }
    (kept, given_back)
}

/// Rows of one topic that may go out together, in order: indexes into the batch.
pub type OfTopic = (Topic, Vec<usize>);

/// Puts a batch into waves, for a publisher that sends each topic for itself: within a wave a key stands in one topic
/// only, so that the topics of a wave may go out at once and the next wave after it, and a key's rows still keep their
/// order.
pub fn waves(drafts: &[Draft<'_>]) -> Vec<Vec<OfTopic>> {
    let mut waves: Vec<Vec<OfTopic>> = Vec::new();
    let mut last: HashMap<&str, (usize, &Topic)> = HashMap::new();
    let mut places: HashMap<(usize, &Topic), usize> = HashMap::new();
    for (index, draft) in drafts.iter().enumerate() {
        let topic = &draft.topic;
        let wave = match draft.options.key.as_deref().map(|key| last.entry(key)) {
            None => 0,
            Some(std::collections::hash_map::Entry::Vacant(entry)) => entry.insert((0, topic)).0,
            Some(std::collections::hash_map::Entry::Occupied(mut entry)) => {
                let (wave, of) = *entry.get();
                let wave = if of == topic { wave } else { wave + 1 };
                entry.insert((wave, topic));
                wave
            }
        };
        if waves.len() <= wave {
            waves.resize_with(wave + 1, Vec::new);
        }
        let place = *places.entry((wave, topic)).or_insert_with(|| {
            waves[wave].push((topic.clone(), Vec::new()));
            waves[wave].len() - 1
        });
        waves[wave][place].1.push(index);
    }
    waves
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use proptest::prelude::*;
    use serde_json::value::RawValue;

    use super::*;

    const POLICY: Policy =
        Policy { max_attempts: 3, first_wait: Duration::from_millis(100), longest_wait: Duration::from_secs(1) };

    fn next(attempts: u32, answer: &Answer) -> Option<Next> {
        match decide(attempts, answer, &POLICY) {
            Decision::Sent => None,
            Decision::NotSent { next, .. } => Some(next),
        }
    }

    #[test]
    fn waits_double_up_to_the_longest() {
        let waits: Vec<u128> = (1..=6).map(|failures| POLICY.wait(failures).as_millis()).collect();
        assert_eq!(waits, [100, 200, 400, 800, 1_000, 1_000]);
        assert_eq!(POLICY.wait(u32::MAX), POLICY.longest_wait);
    }

    #[test]
    fn a_failure_is_tried_again_until_the_attempts_are_used_up() {
        let failed = Answer::Failed("no answer: disk".into());
        assert_eq!(next(1, &failed), Some(Next::Later(Duration::from_millis(100))));
        assert_eq!(next(2, &failed), Some(Next::Later(Duration::from_millis(200))));
        let Decision::NotSent { err: Some(err), next: Next::Park } = decide(3, &failed, &POLICY) else {
            panic!("parked")
        };
        assert!(err.contains("after 3 attempts") && err.contains("disk"), "{err}");
    }

    #[test]
    fn what_the_contract_refuses_is_parked_at_once() {
        assert_eq!(next(1, &Answer::Refused("bad_topic".into())), Some(Next::Park));
    }

    #[test]
    fn a_hub_that_is_away_costs_a_row_no_attempt_however_long_it_takes() {
        let away = Answer::Unavailable { reason: "away".into(), retry_after: None };
        for attempts in [1, 3, 1_000] {
            assert_eq!(next(attempts, &away), Some(Next::Release));
            assert_eq!(next(attempts, &Answer::Held), Some(Next::Release));
            assert_eq!(next(attempts, &Answer::Closed("token".into())), Some(Next::Release));
        }
        assert_eq!(next(1, &Answer::Stored), None);
    }

    #[test]
    fn a_row_that_the_hub_blocks_waits_and_the_drainer_pauses_if_nothing_else_went_out() {
        let blocked = Answer::Blocked("forbidden: no".into());
        for attempts in [1, 3, 1_000] {
            assert_eq!(next(attempts, &blocked), Some(Next::Wait(POLICY.longest_wait)));
        }
        assert_eq!(pause(&[blocked.clone(), Answer::Held], 2, &POLICY), Some(Duration::from_millis(200)));
        assert_eq!(pause(&[blocked, Answer::Stored], 2, &POLICY), None);
    }

    #[test]
    fn the_drainer_pauses_for_a_hub_that_is_away_and_for_nothing_else() {
        let away = |retry_after| Answer::Unavailable { reason: String::new(), retry_after };
        assert_eq!(pause(&[Answer::Stored, Answer::Failed(String::new()), Answer::Held], 1, &POLICY), None);
        assert_eq!(pause(&[away(None), Answer::Stored], 1, &POLICY), Some(Duration::from_millis(100)));
        assert_eq!(pause(&[away(None)], 4, &POLICY), Some(Duration::from_millis(800)));
        let said = Some(Duration::from_secs(7));
        assert_eq!(pause(&[away(None), away(said)], 1, &POLICY), said, "the hub knows best");
        let patient = Policy { longest_wait: Duration::from_secs(60), ..POLICY };
        assert_eq!(pause(&[away(None)], 30, &patient), Some(LONGEST_PAUSE));
    }

    #[test]
    fn idling_gets_slower_and_work_makes_it_quick_again() {
        let mut pace = Pace::new(Duration::from_millis(10), Duration::from_millis(50));
        let waits: Vec<u128> = (0..5).map(|_| pace.idle().as_millis()).collect();
        assert_eq!(waits, [10, 20, 40, 50, 50]);
        pace.busy();
        assert_eq!(pace.idle(), Duration::from_millis(10));
    }

    #[test]
    fn of_a_claim_that_was_won_in_part_a_key_is_kept_up_to_its_first_gap() {
        let row = |id: &str, key: Option<&str>| Row { key: key.map(str::to_owned), ..crate::row::tests::row(id) };
        let k = Some("k");
        let rows = vec![row("1", k), row("2", None), row("3", k), row("4", Some("l")), row("5", k), row("6", None)];
        let (kept, given_back) = unbroken(rows, |row| !["2", "3"].contains(&row.id.as_str()));
        let ids = |rows: &[Row]| -> Vec<String> { rows.iter().map(|row| row.id.clone()).collect() };
        assert_eq!(ids(&kept), ["1", "4", "6"], "a row without a key holds nobody back");
        assert_eq!(ids(&given_back), ["5"]);
    }

    fn draft(topic: &str, key: Option<String>) -> Draft<'static> {
        let null = RawValue::from_string("null".into()).expect("JSON");
        let mut draft = Draft::new(Topic::parse(topic).expect("a topic"), Cow::Owned(null));
        draft.options.key = key.map(Cow::Owned);
        draft
    }

    #[test]
    fn rows_of_one_topic_go_in_one_wave_whatever_their_keys() {
        let drafts: Vec<_> = (0..100).map(|n| draft("a", Some((n % 7).to_string()))).collect();
        let waves = waves(&drafts);
        assert_eq!(waves.len(), 1);
        assert_eq!(waves[0], vec![(Topic::parse("a").expect("a topic"), (0..100).collect())]);
    }

    proptest! {
        #[test]
        fn waves_hold_every_row_once_and_a_keys_rows_in_order(
            rows in proptest::collection::vec((0..3_u8, proptest::option::of(0..4_u8)), 0..60)
        ) {
            let drafts: Vec<_> =
                rows.iter().map(|(topic, key)| draft(&format!("t{topic}"), key.map(|key| key.to_string()))).collect();
            let waves = waves(&drafts);
            let mut all: Vec<usize> = waves.iter().flatten().flat_map(|(_, rows)| rows.clone()).collect();
            for (_, rows) in waves.iter().flatten() {
                prop_assert!(rows.is_sorted(), "a topic's rows of a wave go in order");
            }
            for wave in &waves {
                let mut of_key: HashMap<&str, &Topic> = HashMap::new();
                for (topic, rows) in wave {
                    for key in rows.iter().filter_map(|&row| drafts[row].options.key.as_deref()) {
                        prop_assert_eq!(*of_key.entry(key).or_insert(topic), topic, "one topic of a key in a wave");
                    }
                }
            }
            let order_of = |key: &str| -> Vec<usize> {
                let of_key = |row: &usize| drafts[*row].options.key.as_deref() == Some(key);
                waves.iter().flatten().flat_map(|(_, rows)| rows.iter().copied().filter(of_key)).collect()
            };
            for key in ["0", "1", "2", "3"] {
                prop_assert!(order_of(key).is_sorted());
            }
            all.sort_unstable();
            prop_assert_eq!(all, (0..drafts.len()).collect::<Vec<_>>());
        }
    }
}
