//! Two workers that read ahead, on a model of the collection: whatever they do in whatever order, a row is claimed only
//! when every earlier unfinished one of its key is claimed with it, and the log has each key's rows in order.

use std::collections::{HashMap, HashSet};

use proptest::prelude::*;

use super::*;
use crate::plan::unbroken;

/// A row as a read finds it.
pub(super) fn pending(id: &str, key: Option<&str>) -> Row {
    let row = crate::row::tests::row(id);
    let key = key.map(str::to_owned);
    Row { key, status: Status::Pending, claimed_by: None, lease_until: None, attempts: 0, ..row }
}

const LEASE: Duration = Duration::from_secs(1_000);

/// What one worker does next; each is one command to the database, or the publish between them.
enum Step {
    Read,
    Take(Batch),
    Publish(Vec<Row>),
    MarkSent { sent: Vec<String>, failed: Vec<Fail> },
    MarkFailed(Vec<Fail>),
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Next {
    Park,
    Later,
    Release,
}

type Fail = (String, Next);

struct Worker {
    name: &'static str,
    ahead: Ahead,
    step: Step,
}

impl Worker {
    fn new(name: &'static str) -> Self {
        Self { name, ahead: Ahead::default(), step: Step::Read }
    }
}

/// What happens next to one of the two.
#[derive(Debug, Clone, Copy)]
enum Event {
    /// It goes one step on; `dice` decides what the step brings.
    Go { dice: u64 },
    /// Its leases run out, whatever it is doing.
    Expire,
    /// It is killed, and another one with the same name starts.
    Kill,
    /// Time passes: plans get old, rows that were put off are due.
    Wait(u16),
}

struct World {
    rows: Vec<Row>,
    /// When a row that was put off is due.
    due: HashMap<usize, Instant>,
    clock: Instant,
    log: Vec<usize>,
    workers: [Worker; 2],
    reads: u64,
    read_ahead: usize,
}

/// Some rows are refused each time.
fn poison(row: usize) -> bool {
    row % 13 == 7
}

fn index(id: &str) -> usize {
    id.parse().expect("a number")
}

impl World {
    fn new(keys: &[Option<u8>]) -> Self {
        let row = |(number, key): (usize, &Option<u8>)| {
            let key = key.map(|key| key.to_string());
            pending(&number.to_string(), key.as_deref())
        };
        let rows = keys.iter().enumerate().map(row).collect();
        let workers = [Worker::new("a"), Worker::new("b")];
        Self { rows, due: HashMap::new(), clock: Instant::now(), log: Vec::new(), workers, reads: 0, read_ahead: 0 }
    }

    fn is_due(&self, row: usize) -> bool {
        self.due.get(&row).is_none_or(|due| *due <= self.clock)
    }

    /// As `look` reads: the first rows that are due, without those of keys that are held.
    fn look(&mut self, reach: Reach) -> Read {
        self.reads += 1;
        let held: HashSet<&String> = (0..self.rows.len())
            .filter(|row| match self.rows[*row].status {
                Status::Claimed => true,
                Status::Pending => !self.is_due(*row),
                _ => false,
            })
            .filter_map(|row| self.rows[row].key.as_ref())
            .collect();
        let due = (0..self.rows.len()).filter(|row| self.rows[*row].status == Status::Pending && self.is_due(*row));
        let seen: Vec<&Row> = due.take(reach.rows).map(|row| &self.rows[row]).collect();
        let free = |row: &&&Row| row.key.as_ref().is_none_or(|key| !held.contains(key));
        let rows = seen.iter().filter(free).map(|row| (*row).clone()).collect();
        Read { rows, full: seen.len() >= reach.rows, asked: self.clock, now: Millis(self.reads << 20) }
    }

    /// As `take` updates.
    fn take(&mut self, rows: &[Row], untried: bool) {
        for row in rows {
            let number = index(&row.id);
            let due = self.is_due(number);
            let there = &mut self.rows[number];
            let tried = there.attempts > 0 || there.last_err.is_some();
            if there.status == Status::Pending && due && !(untried && tried) {
                there.status = Status::Claimed;
                there.claimed_by.clone_from(&row.claimed_by);
                there.lease_until = row.lease_until;
                there.attempts += 1;
            }
        }
    }

    fn has(&self, row: &Row) -> bool {
        let there = &self.rows[index(&row.id)];
        let of = |row: &Row| (row.status, row.claimed_by.clone(), row.lease_until);
        of(there) == of(row)
    }

    fn not_sent(&mut self, (id, next): &Fail, worker: &str) {
        let number = index(id);
        let row = &mut self.rows[number];
        if row.status != Status::Claimed || row.claimed_by.as_deref() != Some(worker) {
            return;
        }
        (row.claimed_by, row.lease_until) = (None, None);
        row.status = if *next == Next::Park { Status::Error } else { Status::Pending };
        match next {
            Next::Release => row.attempts -= 1,
            Next::Later => drop(self.due.insert(number, self.clock + Duration::from_millis(700))),
            Next::Park => row.last_err = Some("refused".into()),
        }
    }

    /// The contract of a claim: each row is this worker's, and its key's earlier ones are finished or with it.
    fn check(&self, claimed: &[Row], untried: bool) {
        for (place, row) in claimed.iter().enumerate() {
            assert!(self.has(row), "{} is not {:?}'s", row.id, row.claimed_by);
            assert!(!untried || row.attempts == self.rows[index(&row.id)].attempts, "{} is out of date", row.id);
            let unfinished = (0..index(&row.id)).filter(|earlier| {
                let earlier = &self.rows[*earlier];
                row.key.is_some()
                    && earlier.key == row.key
                    && matches!(earlier.status, Status::Pending | Status::Claimed)
            });
            for earlier in unfinished {
                assert!(
                    claimed[..place].iter().any(|row| index(&row.id) == earlier),
                    "{} is claimed without {earlier}, which comes before it",
                    row.id
                );
            }
        }
    }

    /// Publishes in order; after a failure the rest of the key is held. What each row's mark is to be.
    fn publish(&mut self, rows: &[Row], mut dice: u64) -> Step {
        let (mut sent, mut failed, mut held) = (Vec::new(), Vec::new(), HashSet::new());
        for row in rows {
            let number = index(&row.id);
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let next = match (dice >> 40) % 32 {
                _ if row.key.as_ref().is_some_and(|key| held.contains(key)) => Next::Release,
                _ if poison(number) => Next::Park,
                0 => Next::Later,
                1 => Next::Release,
                _ => {
                    self.log.push(number);
                    sent.push(row.id.clone());
                    continue;
                }
            };
            if next != Next::Park {
                held.extend(row.key.clone());
            }
            failed.push((row.id.clone(), next));
        }
        Step::MarkSent { sent, failed }
    }

    fn go(&mut self, who: usize, dice: u64) {
        let name = self.workers[who].name;
        let claim = Claim { rows: 1 + (dice % 3) as usize, bytes: 1 << 20, lease: LEASE, worker: name };
        // Some commands get no answer.
        let lost = dice.is_multiple_of(23);
        self.workers[who].step = match std::mem::replace(&mut self.workers[who].step, Step::Read) {
            Step::Read => {
                let ahead = &mut self.workers[who].ahead;
                let batch = match ahead.next(&claim, self.clock) {
                    Some(batch) => {
                        self.read_ahead += 1;
                        batch
                    }
                    None => {
                        // Order may not depend on how far a worker reads.
                        ahead.depth = 1 + (dice >> 8) as usize % BATCHES;
                        let reach = ahead.reach(&claim);
                        let read = self.look(reach);
                        self.workers[who].ahead.read(read, &claim, self.clock)
                    }
                };
                if batch.rows.is_empty() { Step::Read } else { Step::Take(batch) }
            }
            Step::Take(batch) => {
                let (untried, (rows, rest)) = (batch.untried, batch.split());
                self.take(&rows, untried);
                let ahead = &mut self.workers[who].ahead;
                if lost {
                    ahead.forget();
                    self.take(&rows, untried);
                }
                let taken = rows.iter().filter(|row| self.has(row)).count();
                let ahead = &mut self.workers[who].ahead;
                let rows = if taken == rows.len() {
                    if !lost {
                        ahead.won(&rows, rest);
                    }
                    rows
                } else {
                    ahead.lost();
                    let (kept, back) = unbroken(rows, |row| self.has(row));
                    back.iter().for_each(|row| self.not_sent(&(row.id.clone(), Next::Release), name));
                    kept
                };
                self.check(&rows, untried);
                if rows.is_empty() { Step::Read } else { Step::Publish(rows) }
            }
            Step::Publish(rows) => self.publish(&rows, dice),
            Step::MarkSent { sent, failed } => {
                let mut matched = 0;
                // The mark was not made and the drainer gave up, or it was and the answer is lost.
                let made = !lost || dice.is_multiple_of(2);
                for id in sent.iter().filter(|_| made) {
                    let row = &mut self.rows[index(id)];
                    matched += usize::from(row.status != Status::Sent);
                    (row.status, row.claimed_by, row.lease_until) = (Status::Sent, None, None);
                }
                let all = matched == sent.len() && !lost;
                self.workers.iter_mut().for_each(|worker| worker.ahead.sent(&sent, all));
                if failed.is_empty() || lost { Step::Read } else { Step::MarkFailed(failed) }
            }
            Step::MarkFailed(failed) => {
                self.workers[who].ahead.forget();
                failed.iter().filter(|_| !lost).for_each(|failed| self.not_sent(failed, name));
                Step::Read
            }
        };
    }

    /// The leases of one worker run out. The other one's process makes its rows pending again: this one is not told.
    fn expire(&mut self, who: usize) {
        let name = self.workers[who].name;
        for row in self.rows.iter_mut().filter(|row| row.claimed_by.as_deref() == Some(name)) {
            (row.status, row.claimed_by, row.lease_until) = (Status::Pending, None, None);
        }
    }

    fn on(&mut self, who: usize, event: Event) {
        match event {
            Event::Go { dice } => self.go(who, dice),
            Event::Expire => self.expire(who),
            Event::Kill => self.workers[who] = Worker::new(self.workers[who].name),
            Event::Wait(millis) => self.clock += Duration::from_millis(u64::from(millis)),
        }
    }

    /// One worker goes on alone until there is nothing left.
    fn finish(&mut self) {
        for dice in 1..10_000 {
            if self.rows.iter().all(|row| matches!(row.status, Status::Sent | Status::Error)) {
                return;
            }
            self.on(1, Event::Expire);
            self.on(0, Event::Wait(100));
            if matches!(self.workers[0].step, Step::Read) {
                self.on(0, Event::Expire);
            }
            self.on(0, Event::Go { dice: dice * 7 });
        }
        panic!("it comes to no end");
    }

    fn check_log(&self) {
        let (mut seen, mut last) = (HashSet::new(), HashMap::new());
        // An id that the log has is passed over.
        for number in self.log.iter().copied().filter(|number| seen.insert(*number)) {
            if let Some(key) = &self.rows[number].key {
                let before = last.insert(key, number);
                assert!(before.is_none_or(|before| before < number), "{before:?} before {number}: {:?}", self.log);
            }
        }
        for (number, row) in self.rows.iter().enumerate() {
            assert_eq!(row.status == Status::Sent, self.log.contains(&number), "row {number}");
            assert_eq!(row.status == Status::Error, poison(number), "row {number}");
        }
    }
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        40 => any::<u64>().prop_map(|dice| Event::Go { dice }),
        1 => Just(Event::Expire),
        1 => Just(Event::Kill),
        2 => (0..1_500_u16).prop_map(Event::Wait),
    ]
}

/// The two take turns of a few events, so that one gets far enough to read ahead before the other comes.
fn turns() -> impl Strategy<Value = Vec<(usize, Vec<Event>)>> {
    proptest::collection::vec((0..2_usize, proptest::collection::vec(event(), 1..30)), 1..20)
}

fn keys() -> impl Strategy<Value = Vec<Option<u8>>> {
    proptest::collection::vec(proptest::option::weighted(0.9, 0..6_u8), 1..80)
}

fn run(keys: &[Option<u8>], turns: Vec<(usize, Vec<Event>)>) -> World {
    let mut world = World::new(keys);
    for (who, events) in turns {
        events.into_iter().for_each(|event| world.on(who, event));
    }
    world
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn two_workers_that_read_ahead_keep_the_order_of_each_key(keys in keys(), turns in turns()) {
        let mut world = run(&keys, turns);
        world.finish();
        world.check_log();
    }
}

/// The model is worth something only if plans are used in it, also while another worker is about.
#[test]
fn the_histories_of_the_model_read_ahead() {
    use proptest::strategy::ValueTree as _;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut read_ahead = 0;
    for _ in 0..200 {
        let (keys, turns) = (keys(), turns()).new_tree(&mut runner).expect("a history").current();
        read_ahead += run(&keys, turns).read_ahead;
    }
    assert!(read_ahead > 1_000, "{read_ahead} batches of 200 histories were read ahead");
}
