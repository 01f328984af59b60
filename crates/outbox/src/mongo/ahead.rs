//! What a worker has read ahead of its claims: one read fetches the rows of several batches, and each claim after it is
//! only the one command that takes the next of them. Synchronous and without a database; `outbox.rs` carries it out.
//!
//! Why the order of a key holds: what one read returns of a key are its first unfinished rows, without a gap. A plan goes
//! on only when everything that was taken of it is marked as sent, and what is sent stays so. So a row's earlier ones are
//! either finished or in the same batch, as with a claim that reads for itself, however old the plan is. Whatever else
//! happens (a row that was not published or not taken, an error, a lost answer, a claim before the marks), the plan is
//! dropped, and the next claim reads.
//!
//! Reading ahead does not pay where another drainer takes the rows first. After a loss a worker reads one batch at a
//! time, and tries more only after a number of claims that lost nothing, twice as many after each loss.

use std::collections::{HashSet, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use promethean_event::Millis;

use crate::{Claim, Row, Status};

/// Most batches that one read fetches.
const BATCHES: usize = 8;
/// Most bytes that a worker keeps.
const BYTES: usize = 8 * 1024 * 1024;
/// How old a plan may get, and at most half a lease: a row that came after the read waits no longer for its turn.
const LONGEST: Duration = Duration::from_secs(2);
/// Most claims without a loss that it takes before a worker reads ahead again.
const MOST_WINS: u32 = 64;
/// Most workers of a process that read ahead. Where there are more, the one that claimed longest ago has to read.
const WORKERS: usize = 8;

/// The workers that claim through one handle of an outbox and its clones, the latest last.
#[derive(Default)]
pub(super) struct Workers(Mutex<Vec<(String, Ahead)>>);

impl Workers {
    /// Does `work` on what this worker has read ahead.
    pub(super) fn of<T>(&self, worker: &str, work: impl FnOnce(&mut Ahead) -> T) -> T {
        let mut workers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (name, mut ahead) = match workers.iter().position(|(name, _)| name == worker) {
            Some(place) => workers.remove(place),
            None => (worker.to_owned(), Ahead::default()),
        };
        let done = work(&mut ahead);
        if workers.len() >= WORKERS {
            workers.remove(0);
        }
        workers.push((name, ahead));
        // What nobody may claim any more is not kept: its worker may have ended.
        let now = Instant::now();
        workers.iter_mut().for_each(|(_, ahead)| ahead.forget_old(now));
        done
    }

    /// Does `work` on what each worker has read ahead.
    pub(super) fn each(&self, work: impl Fn(&mut Ahead)) {
        let mut workers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        workers.iter_mut().for_each(|(_, ahead)| work(ahead));
    }
}

/// How much a read may fetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reach {
    pub(super) rows: usize,
    pub(super) bytes: usize,
}

/// Rows that were read as of one moment, in order.
pub(super) struct Read {
    pub(super) rows: Vec<Row>,
    /// It saw as much as it may: there may be more.
    pub(super) full: bool,
    /// When it was asked for, by this machine's clock, which only measures how long ago that is.
    pub(super) asked: Instant,
    /// The time of the read, by the server's clock.
    pub(super) now: Millis,
}

/// What one worker has read ahead, and how far it reads.
pub(super) struct Ahead {
    plan: Option<Plan>,
    /// Batches that the next read fetches.
    depth: usize,
    /// Reads in a row that fetched one batch and lost nothing.
    wins: u32,
    /// How many of them it takes before it reads ahead.
    needed: u32,
    /// The mean size of the rows of the last read: what is read ahead is to be kept, not thrown away.
    mean: usize,
    /// How often plans were dropped: one that is out at that moment does not come back.
    dropped: u64,
}

/// The rows of a read that are not claimed yet. It is out of [`Ahead`] while a batch of it is being claimed: a claim that
/// is cut off leaves none.
pub(super) struct Plan {
    rows: VecDeque<Row>,
    full: bool,
    asked: Instant,
    now: Millis,
    /// Rows of it that are claimed and not marked as sent.
    in_flight: HashSet<String>,
    /// How often plans had been dropped when this one was made.
    dropped: u64,
}

/// Rows to be claimed, and what is left of the plan if all of them are won.
pub(super) struct Batch {
    pub(super) rows: Vec<Row>,
    /// They were read for an earlier claim: nobody may have tried them since.
    pub(super) untried: bool,
    rest: Plan,
}

impl Default for Ahead {
    fn default() -> Self {
        Self { plan: None, depth: 1, wins: 0, needed: 1, mean: 0, dropped: 0 }
    }
}

impl Ahead {
    /// The next batch of the plan. `None`: there is no plan that may go on, and so the worker has to read.
    pub(super) fn next(&mut self, claim: &Claim<'_>, now: Instant) -> Option<Batch> {
        let plan = self.plan.take()?;
        if !plan.in_flight.is_empty() || plan.age(now) > LONGEST.min(claim.lease / 2) {
            self.forget();
            return None;
        }
        Some(plan.batch(claim, now, true))
    }

    /// How much the worker is to read where it has no plan.
    pub(super) fn reach(&self, claim: &Claim<'_>) -> Reach {
        if self.depth == 1 {
            return Reach { rows: claim.rows, bytes: claim.bytes };
        }
        let bytes = BYTES.max(claim.bytes);
        let fit = (bytes / self.mean.max(1)).max(claim.rows);
        Reach { rows: claim.rows.saturating_mul(self.depth).min(fit), bytes }
    }

    /// The first batch of what was read.
    pub(super) fn read(&mut self, read: Read, claim: &Claim<'_>, now: Instant) -> Batch {
        self.plan = None;
        self.mean = read.rows.iter().map(size).sum::<usize>() / read.rows.len().max(1);
        let Read { rows, full, asked, now: server } = read;
        let plan =
            Plan { rows: rows.into(), full, asked, now: server, in_flight: HashSet::new(), dropped: self.dropped };
        let mut batch = plan.batch(claim, now, false);
        batch.rest.keep_untried();
        // Less than a batch is all there is for this worker, however much others hold.
        let bytes: usize = batch.rows.iter().map(|row| row.payload.len()).sum();
        batch.rest.full &= batch.rows.len() >= claim.rows || bytes >= claim.bytes;
        batch
    }

    /// Each row of the batch is claimed: the plan goes on when they are sent.
    pub(super) fn won(&mut self, rows: &[Row], mut rest: Plan) {
        if rest.dropped != self.dropped {
            return;
        }
        if rest.rows.is_empty() {
            return self.used_up(rest.full);
        }
        rest.in_flight = rows.iter().map(|row| row.id.clone()).collect();
        self.plan = Some(rest);
    }

    /// Another worker got some of them.
    pub(super) fn lost(&mut self) {
        self.forget();
        self.needed = self.needed.saturating_mul(2).min(MOST_WINS);
    }

    /// These are marked as sent; `all`: the mark found each of them, and changed it.
    pub(super) fn sent(&mut self, ids: &[String], all: bool) {
        let Some(plan) = &mut self.plan else { return };
        let ours = ids.iter().filter(|id| plan.in_flight.remove(id.as_str())).count();
        if ours > 0 && !all {
            self.forget();
        }
    }

    /// Something went another way than planned: the next claim reads one batch.
    pub(super) fn forget(&mut self) {
        (self.plan, self.depth, self.wins) = (None, 1, 0);
        self.dropped += 1;
    }

    fn forget_old(&mut self, now: Instant) {
        if self.plan.as_ref().is_some_and(|plan| plan.age(now) > LONGEST) {
            self.forget();
        }
    }

    /// All that was read is claimed, and nothing was lost.
    fn used_up(&mut self, full: bool) {
        if !full {
            self.depth = 1;
            return;
        }
        if self.depth == 1 {
            self.wins = self.wins.saturating_add(1);
            if self.wins < self.needed {
                return;
            }
        } else {
            self.needed = (self.needed / 2).max(1);
        }
        self.depth = (self.depth * 2).min(BATCHES);
    }
}

impl Plan {
    fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.asked)
    }

    /// Takes the next batch, at least one row where there is one, as it will look when it is claimed.
    fn batch(mut self, claim: &Claim<'_>, now: Instant, untried: bool) -> Batch {
        let until = self.now + self.age(now).saturating_add(claim.lease);
        let (mut rows, mut bytes) = (Vec::new(), 0);
        while rows.len() < claim.rows && bytes < claim.bytes {
            let Some(mut row) = self.rows.pop_front() else { break };
            bytes += row.payload.len();
            row.status = Status::Claimed;
            row.claimed_by = Some(claim.worker.to_owned());
            row.lease_until = Some(until);
            row.attempts = row.attempts.saturating_add(1);
            rows.push(row);
        }
        Batch { rows, untried, rest: self }
    }

    /// Keeps the first rows, as many as nobody has tried yet and as may be kept. A row that was tried may be tried again
    /// and change any time; one that was not is either as it was read, or tried, which the claim sees.
    fn keep_untried(&mut self) {
        let mut bytes = 0;
        let keep = self.rows.iter().take_while(|row| {
            bytes += size(row);
            row.attempts == 0 && row.last_err.is_none() && bytes <= BYTES
        });
        self.rows.truncate(keep.count());
    }
}

impl Batch {
    /// What is to be claimed, and what is left of the plan.
    pub(super) fn split(self) -> (Vec<Row>, Plan) {
        (self.rows, self.rest)
    }
}

/// What a row takes in memory, near enough.
fn size(row: &Row) -> usize {
    let texts = [&row.id, &row.topic, &row.payload].map(String::len).iter().sum::<usize>();
    let options = [&row.key, &row.sid].into_iter().flatten().map(String::len).sum::<usize>();
    let lists = row.tags.iter().chain(&row.caused_by).map(String::len).sum::<usize>();
    let headers = row.headers.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>();
    size_of::<Row>() + texts + options + lists + headers
}

#[cfg(test)]
mod model;

#[cfg(test)]
mod tests {
    use super::*;

    const CLAIM: Claim<'static> = Claim { rows: 2, bytes: 1 << 20, lease: Duration::from_secs(30), worker: "w" };

    fn rows(numbers: std::ops::Range<u32>) -> Vec<Row> {
        numbers.map(|number| model::pending(&number.to_string(), Some("k"))).collect()
    }

    fn read(rows: Vec<Row>) -> Read {
        Read { rows, full: true, asked: Instant::now(), now: Millis(1_000) }
    }

    fn ids(rows: &[Row]) -> Vec<String> {
        rows.iter().map(|row| row.id.clone()).collect()
    }

    /// Claims a batch whole; its ids.
    fn win(ahead: &mut Ahead, batch: Batch) -> Vec<String> {
        let (rows, rest) = batch.split();
        ahead.won(&rows, rest);
        ids(&rows)
    }

    /// One that has read rows 0 to 7, batches of two, and claimed the first.
    fn begun() -> Ahead {
        let mut ahead = Ahead { depth: 4, ..Ahead::default() };
        let batch = ahead.read(read(rows(0..8)), &CLAIM, Instant::now());
        assert_eq!(win(&mut ahead, batch), ["0", "1"]);
        ahead
    }

    fn next(ahead: &mut Ahead) -> Option<Vec<String>> {
        ahead.next(&CLAIM, Instant::now()).map(|batch| win(ahead, batch))
    }

    fn of(numbers: &[&str]) -> Vec<String> {
        numbers.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_plan_goes_on_when_all_that_was_taken_of_it_is_sent() {
        let mut ahead = begun();
        ahead.sent(&of(&["0", "1"]), true);
        assert_eq!(next(&mut ahead), Some(of(&["2", "3"])));
        ahead.sent(&of(&["3"]), true);
        ahead.sent(&of(&["2", "99"]), true);
        assert_eq!(next(&mut ahead), Some(of(&["4", "5"])));
    }

    #[test]
    fn a_plan_ends_at_a_claim_before_the_marks() {
        let mut ahead = begun();
        ahead.sent(&of(&["0"]), true);
        assert_eq!(next(&mut ahead), None, "row 1 is in flight");
        ahead.sent(&of(&["1"]), true);
        assert_eq!(next(&mut ahead), None, "and the plan is gone");
    }

    #[test]
    fn a_plan_ends_with_a_mark_that_went_wrong_a_failure_a_loss_and_its_time() {
        let ends = |what: &str, end: fn(&mut Ahead)| {
            let mut ahead = begun();
            end(&mut ahead);
            ahead.sent(&of(&["0", "1"]), true);
            assert_eq!(next(&mut ahead), None, "{what}");
            assert_eq!(ahead.reach(&CLAIM).rows, 2, "{what}: one batch");
        };
        ends("a mark that found fewer", |ahead| ahead.sent(&of(&["0"]), false));
        ends("a row that was not published", Ahead::forget);
        ends("a row that another got", Ahead::lost);
        let mut ahead = begun();
        ahead.sent(&of(&["0", "1"]), true);
        assert!(ahead.next(&CLAIM, Instant::now() + LONGEST).is_none(), "too old");
        let mut ahead = begun();
        ahead.sent(&of(&["0", "1"]), true);
        let short = Claim { lease: Duration::from_millis(100), ..CLAIM };
        assert!(ahead.next(&short, Instant::now() + Duration::from_millis(60)).is_none(), "half a lease");
    }

    #[test]
    fn a_mark_of_other_rows_changes_nothing() {
        let mut ahead = begun();
        ahead.sent(&of(&["7", "99"]), false);
        ahead.sent(&of(&["0", "1"]), true);
        assert_eq!(next(&mut ahead), Some(of(&["2", "3"])));
    }

    #[test]
    fn a_claim_that_is_cut_off_leaves_no_plan() {
        let mut ahead = begun();
        ahead.sent(&of(&["0", "1"]), true);
        drop(ahead.next(&CLAIM, Instant::now()));
        assert_eq!(next(&mut ahead), None);
    }

    #[test]
    fn a_plan_that_is_out_when_something_goes_wrong_does_not_come_back() {
        let mut ahead = begun();
        ahead.sent(&of(&["0", "1"]), true);
        let batch = ahead.next(&CLAIM, Instant::now()).expect("a batch");
        // Another drainer of the process gives up leases that ran out.
        ahead.forget();
        let ids = win(&mut ahead, batch);
        ahead.sent(&ids, true);
        assert_eq!(next(&mut ahead), None);
        assert_eq!(ahead.reach(&CLAIM).rows, 2);
    }

    #[test]
    fn a_batch_looks_as_it_will_when_it_is_claimed_with_its_lease_from_now() {
        let mut ahead = begun();
        ahead.sent(&of(&["0", "1"]), true);
        let asked = ahead.plan.as_ref().map(|plan| plan.asked).expect("a plan");
        let batch = ahead.next(&CLAIM, asked + Duration::from_millis(500)).expect("a batch");
        assert!(batch.untried);
        let row = &batch.rows[0];
        assert_eq!((row.status, row.claimed_by.as_deref(), row.attempts), (Status::Claimed, Some("w"), 1));
        assert_eq!(row.lease_until, Some(Millis(31_500)));
    }

    #[test]
    fn rows_that_were_tried_before_are_not_kept_for_later_nor_what_follows_them() {
        for change in [|row: &mut Row| row.attempts = 1, |row: &mut Row| row.last_err = Some("away".into())] {
            let mut all = rows(0..8);
            change(&mut all[1]);
            change(&mut all[5]);
            let mut ahead = Ahead { depth: 4, ..Ahead::default() };
            let batch = ahead.read(read(all), &CLAIM, Instant::now());
            assert_eq!(ids(&batch.rows), ["0", "1"], "the first batch takes any");
            assert_eq!(ids(batch.split().1.rows.make_contiguous()), ["2", "3", "4"]);
        }
    }

    #[test]
    fn what_is_kept_is_bounded_in_bytes() {
        let large = |id: u32| Row { payload: "x".repeat(1 << 20), ..model::pending(&id.to_string(), None) };
        let mut ahead = Ahead { depth: 8, ..Ahead::default() };
        let batch = ahead.read(read((0..20).map(large).collect()), &CLAIM, Instant::now());
        assert_eq!((batch.rows.len(), batch.rest.rows.len()), (1, 7), "a batch of a mebibyte, and less than eight");
        let reach = ahead.reach(&CLAIM);
        assert_eq!(reach, Reach { rows: 7, bytes: BYTES }, "it reads no more than it may keep");
        let patient = Claim { bytes: 2 * BYTES, rows: 100, ..CLAIM };
        assert_eq!(ahead.reach(&patient), Reach { rows: 100, bytes: 2 * BYTES }, "or a batch");
    }

    /// Reads as much as it may, claims and marks all of it; how many batches that were.
    fn round(ahead: &mut Ahead) -> usize {
        let many = u32::try_from(ahead.reach(&CLAIM).rows).expect("few");
        let mut batch = Some(ahead.read(read(rows(0..many)), &CLAIM, Instant::now()));
        let mut batches = 0;
        while let Some(some) = batch {
            let ids = win(ahead, some);
            ahead.sent(&ids, true);
            batches += 1;
            batch = ahead.next(&CLAIM, Instant::now());
        }
        batches
    }

    #[test]
    fn it_reads_further_with_success_up_to_eight_batches_and_one_after_a_loss() {
        let mut ahead = Ahead::default();
        let rounds = |ahead: &mut Ahead, count: usize| (0..count).map(|_| round(ahead)).collect::<Vec<_>>();
        assert_eq!(rounds(&mut ahead, 6), [1, 2, 4, 8, 8, 8]);
        ahead.lost();
        assert_eq!(rounds(&mut ahead, 5), [1, 1, 2, 4, 8], "twice as many single ones as before");
        for _ in 0..20 {
            ahead.lost();
        }
        let singles = rounds(&mut ahead, 65);
        assert_eq!(singles.iter().filter(|batches| **batches == 1).count(), 64);
        assert_eq!(singles.last(), Some(&2));
    }

    #[test]
    fn where_less_than_a_batch_waits_it_reads_one() {
        let mut ahead = Ahead { depth: 8, ..Ahead::default() };
        let batch = ahead.read(Read { full: false, ..read(rows(0..5)) }, &CLAIM, Instant::now());
        let ids = win(&mut ahead, batch);
        ahead.sent(&ids, true);
        while let Some(ids) = next(&mut ahead) {
            ahead.sent(&ids, true);
        }
        assert_eq!(ahead.reach(&CLAIM).rows, CLAIM.rows);
        // It saw many, of keys that others hold.
        let mut ahead = Ahead::default();
        let batch = ahead.read(read(rows(0..1)), &CLAIM, Instant::now());
        win(&mut ahead, batch);
        assert_eq!(ahead.reach(&CLAIM).rows, CLAIM.rows);
    }

    #[test]
    fn of_many_workers_the_one_that_claimed_longest_ago_has_to_read() {
        let workers = Workers::default();
        for worker in 0..WORKERS {
            workers.of(&worker.to_string(), |ahead| *ahead = begun());
        }
        workers.of("0", |ahead| assert!(ahead.plan.is_some()));
        workers.of("one more", |ahead| assert!(ahead.plan.is_none()));
        workers.each(|ahead| ahead.sent(&of(&["0", "1"]), true));
        assert_eq!(workers.of("0", next), Some(of(&["2", "3"])));
        assert_eq!(workers.of("2", next), Some(of(&["2", "3"])));
        assert_eq!(workers.of("1", next), None);
        assert_eq!(workers.0.lock().expect("not poisoned").len(), WORKERS);
    }

    #[test]
    fn the_plan_of_a_worker_that_ended_goes_with_the_next_claim_of_another() {
        let Some(long_ago) = Instant::now().checked_sub(2 * LONGEST) else { return };
        let workers = Workers::default();
        workers.of("gone", |ahead| {
            *ahead = begun();
            ahead.plan.as_mut().expect("a plan").asked = long_ago;
        });
        workers.of("other", |_| ());
        workers.each(|ahead| assert!(ahead.plan.is_none()));
    }
}
