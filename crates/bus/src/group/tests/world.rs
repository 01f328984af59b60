//! A log, some consumers and a clock around a dispatcher, with a plain account of what the group has to keep.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use promethean_event::{Draft, Event, EventId, Limits, Millis, Ordered, Sealer, Seq, Topic, payload_of};
use promethean_store::{GroupState, SnapshotState, Start, TopicInfo};

use super::super::{Answer, Command, Deliver, Dispatcher, MAX_UNFINISHED, MemberOptions, Policy, Receipt};
use super::model::{Old, Op};

pub(super) struct World {
    dispatcher: Dispatcher,
    policy: Policy,
    now: Millis,
    log: BTreeMap<Seq, Event>,
    tail: Seq,
    /// The latest events of their keys at the start, for a snapshot start; what is still to be read.
    snapshot: Option<Vec<Event>>,
    cut: Seq,
    members: BTreeMap<u64, MemberOptions>,
    /// The last hand-over of each member whose hand-overs are reported, and the leases that began.
    handed: BTreeMap<u64, Millis>,
    begun: BTreeSet<u64>,
    next_member: u64,

    held: BTreeMap<Seq, Deliver>,
    /// Everything that was ever delivered, for late acks.
    delivered: Vec<Seq>,
    /// The number of every delivery ever, and of the last one of each event since the group was loaded or moved.
    leases: Vec<(Seq, u64)>,
    last_lease: BTreeMap<Seq, u64>,
    /// Leases below this number lie before the last seek; events given out since, if it was in this life of the hub.
    fence: u64,
    given_since: Option<BTreeSet<Seq>>,
    /// Done since the last seek, and saved.
    done: BTreeSet<Seq>,
    /// Failed deliveries of what is not done.
    failed: BTreeMap<Seq, u32>,
    dead: BTreeSet<Seq>,
    /// Highest first delivery since the last restart or seek.
    highest: Seq,
    given_once: BTreeSet<Seq>,
    /// Everything up to here counts as done by the last seek.
    base: Seq,
}

impl World {
    pub(super) fn new(policy: Policy, with_snapshot: bool) -> Self {
        let mut world = Self {
            dispatcher: Dispatcher::new(GroupState::default(), false, 1),
            policy,
            now: Millis(1_000_000),
            log: BTreeMap::new(),
            tail: 0,
            snapshot: None,
            cut: 0,
            members: BTreeMap::new(),
            handed: BTreeMap::new(),
            begun: BTreeSet::new(),
            next_member: 1,
            held: BTreeMap::new(),
            delivered: Vec::new(),
            leases: Vec::new(),
            last_lease: BTreeMap::new(),
            fence: 0,
            given_since: None,
            done: BTreeSet::new(),
            failed: BTreeMap::new(),
            dead: BTreeSet::new(),
            highest: 0,
            given_once: BTreeSet::new(),
            base: 0,
        };
        if with_snapshot {
            for key in [0, 1, 2, 0, 1] {
                world.publish(key);
            }
            world.cut = world.tail;
            world.base = world.cut;
            let snapshot = Some(SnapshotState { cut: world.cut, left: Some(3), ..SnapshotState::default() });
            let state = GroupState { floor: world.cut, snapshot, ..GroupState::default() };
            world.dispatcher = Dispatcher::new(state, false, 1);
            world.dispatcher.on_tail(world.tail);
            world.snapshot = Some(world.latest());
        }
        world
    }

    /// The latest event of every key up to the cut; the fixture's keys 0 to 2 stand at seqs 3 to 5.
    fn latest(&self) -> Vec<Event> {
        let mut all: Vec<Event> =
            self.log.values().filter(|event| (3..=self.cut).contains(&event.seq)).cloned().collect();
        all.sort_by(|one, two| one.key().cmp(&two.key()));
        all
    }

    fn info(&self) -> TopicInfo {
        let (topic, events) = (Topic::parse("t").expect("a topic"), self.tail);
        TopicInfo { topic, events, bytes: 0, first_seq: 1, last_seq: self.tail, last: None }
    }

    fn publish(&mut self, key: u8) {
        self.tail += 1;
        let topic = Topic::parse("t").expect("a topic");
        let mut draft = Draft::new(topic, std::borrow::Cow::Owned(payload_of(&self.tail).expect("JSON")));
        draft.options.key = ["a", "b", "c"].get(usize::from(key)).map(|key| (*key).into());
        let mut sealer = Sealer::new(Limits::default());
        let id = EventId::derived(&[&self.tail.to_le_bytes()]);
        sealer.seal(&draft, id, self.now, 16, 0).expect("valid");
        let event = sealer.finish().remove(0).at(self.tail);
        assert_ne!(event.body, Bytes::new());
        self.log.insert(self.tail, event);
        self.dispatcher.on_tail(self.tail);
    }

    pub(super) fn step(&mut self, op: &Op) {
        let mut out = Vec::new();
        match *op {
            Op::Publish { key } => self.publish(key),
            Op::Join { max_in_flight, timeout_ms, stamps } => self.join(max_in_flight, timeout_ms, stamps),
            Op::HandOver(who) => self.hand_over(who),
            Op::Leave(who) => {
                if let Some(&id) = pick(&self.members.keys().copied().collect::<Vec<_>>(), who) {
                    self.members.remove(&id);
                    let begun = std::mem::take(&mut self.begun);
                    self.fail_held(|deliver| deliver.member == id && begun.contains(&deliver.lease));
                    self.begun = begun;
                    self.held.retain(|_, deliver| deliver.member != id);
                    self.dispatcher.on_leave(id, self.now, &mut out);
                }
            }
            Op::Pause(who, paused) => {
                if let Some(&id) = pick(&self.members.keys().copied().collect::<Vec<_>>(), who) {
                    assert!(self.dispatcher.on_pause(id, paused));
                }
            }
            Op::Ack(which) => self.answer(which, &Answer::Ack, false, &mut out),
            Op::AckWithLease(which) => self.answer(which, &Answer::Ack, true, &mut out),
            Op::LateAck(which) => self.late_ack(which, &mut out),
            Op::AckUpTo(which) => self.ack_up_to(which),
            Op::OldLease(which, old) => self.old_lease(which, old, &mut out),
            Op::Foreign(which, old) => self.foreign(which, old, &mut out),
            Op::Nack(which) => self.answer(which, &nack(None, false), true, &mut out),
            Op::NackAfter(which, ms) => {
                self.answer(which, &nack(Some(Duration::from_millis(ms)), false), false, &mut out)
            }
            Op::Release(which) => self.answer(which, &nack(None, true), true, &mut out),
            Op::Extend(which, ms) => {
                self.answer(which, &Answer::Extend { by: Some(Duration::from_millis(ms)) }, true, &mut out)
            }
            Op::Pass(ms) => self.now = self.now + Duration::from_millis(ms),
            Op::Seek(to) => self.seek(to % (self.tail + 1)),
            Op::Trim(before) => {
                self.log.retain(|seq, _| *seq >= before.min(self.dispatcher.cursor().0) || *seq > before)
            }
            Op::Restart => self.restart(),
        }
        self.settle(out);
        self.check();
    }

    fn join(&mut self, max_in_flight: usize, timeout_ms: u64, stamps: bool) {
        let id = self.next_member;
        self.next_member += 1;
        let options = MemberOptions { max_in_flight, ack_timeout: Duration::from_millis(timeout_ms), batch_size: 3 };
        if self.members.is_empty() {
            // Another policy may be read in anew from the saved state.
            self.highest = 0;
            self.given_once.clear();
            self.reopen_snapshot();
        }
        self.dispatcher.on_join(id, options, self.policy.clone()).expect("the same policy");
        self.members.insert(id, options);
        if stamps {
            self.dispatcher.on_stamps(id);
            self.handed.insert(id, Millis(0));
        }
    }

    fn hand_over(&mut self, who: usize) {
        let known: Vec<u64> = self.handed.keys().copied().filter(|id| self.members.contains_key(id)).collect();
        let Some(&id) = pick(&known, who) else { return };
        let timeout = self.members[&id].ack_timeout;
        // Hand-overs that lie close together may count as one, at the later time.
        if self.now.since(self.handed[&id]) < timeout / 50 {
            return;
        }
        self.handed.insert(id, self.now);
        self.dispatcher.on_handed(id, self.dispatcher.next_lease() - 1, self.now);
        for deliver in self.held.values_mut().filter(|deliver| deliver.member == id) {
            if self.begun.insert(deliver.lease) {
                deliver.deadline = self.now + timeout;
            }
        }
    }

    /// As a store opens it: a key that was written after the cut is not in it any more.
    fn reopen_snapshot(&mut self) {
        self.snapshot = (self.cut > 0).then(|| {
            let all = self.latest();
            all.into_iter().filter(|event| !self.is_superseded(event)).collect()
        });
    }

    fn is_superseded(&self, event: &Event) -> bool {
        self.log.range(self.cut + 1..).any(|(_, later)| later.key() == event.key())
    }

    fn fail_held(&mut self, which: impl Fn(&Deliver) -> bool) {
        let failed: Vec<Seq> = self.held.iter().filter(|(_, deliver)| which(deliver)).map(|(seq, _)| *seq).collect();
        for seq in failed {
            self.held.remove(&seq);
            *self.failed.entry(seq).or_default() += 1;
        }
    }

    fn answer(&mut self, which: usize, answer: &Answer, with_lease: bool, out: &mut Vec<Command>) {
        let held: Vec<Deliver> = self.held.values().copied().collect();
        let Some(deliver) = pick(&held, which) else { return };
        let seq = deliver.seq;
        let (by, lease) = (deliver.member, with_lease.then_some(deliver.lease));
        if with_lease {
            let stale =
                self.dispatcher.on_answer(by, self.log_id(seq), Some(deliver.lease + 1_000_000), answer, self.now, out);
            assert_eq!(stale, Receipt::LeaseLost, "a foreign lease was taken");
        }
        let receipt = self.dispatcher.on_answer(by, self.log_id(seq), lease, answer, self.now, out);
        assert_eq!(receipt, Receipt::Done);
        self.account(seq, answer);
    }

    /// An answer to what is held counts.
    fn account(&mut self, seq: Seq, answer: &Answer) {
        match answer {
            Answer::Ack => self.is_done(seq),
            Answer::Nack { release, .. } => {
                self.held.remove(&seq);
                *self.failed.entry(seq).or_default() += u32::from(!release);
            }
            Answer::Extend { by } => {
                let by =
                    by.unwrap_or(Duration::from_secs(30)).clamp(Duration::from_secs(1), Duration::from_secs(12 * 3600));
                if let Some(deliver) = self.held.get_mut(&seq) {
                    deliver.deadline = self.now + by;
                    self.begun.insert(deliver.lease);
                }
            }
        }
    }

    fn log_id(&self, seq: Seq) -> EventId {
        EventId::derived(&[&seq.to_le_bytes()])
    }

    fn is_done(&mut self, seq: Seq) {
        self.held.remove(&seq);
        self.failed.remove(&seq);
        self.done.insert(seq);
    }

    fn late_ack(&mut self, which: usize, out: &mut Vec<Command>) {
        let Some(&seq) = pick(&self.delivered, which) else { return };
        if self.dispatcher.on_answer(0, self.log_id(seq), None, &Answer::Ack, self.now, out) == Receipt::NotInFlight {
            if let Some(event) = self.log.get(&seq).filter(|_| self.dispatcher.needs_key(seq)) {
                self.dispatcher.on_snapshot_ack(event);
            }
            self.dispatcher.on_late_ack(seq, self.log_id(seq), Millis(0));
        }
        // An ack of a delivery from before a seek does nothing.
        if self.given_since.as_ref().is_none_or(|given| given.contains(&seq)) {
            self.is_done(seq);
        }
    }

    /// Without a lease, only the holder can nack or extend.
    fn foreign(&mut self, which: usize, old: Old, out: &mut Vec<Command>) {
        let held: Vec<Seq> = self.held.keys().copied().collect();
        let Some(&seq) = pick(&held, which) else { return };
        let before = (self.dispatcher.state(), self.dispatcher.inspect().collect::<Vec<_>>());
        let receipt = self.dispatcher.on_answer(0, self.log_id(seq), None, &old.answer(), self.now, out);
        assert_eq!(receipt, Receipt::NotInFlight);
        let after = (self.dispatcher.state(), self.dispatcher.inspect().collect::<Vec<_>>());
        assert_eq!(after, before, "an answer of another member changed something");
    }

    /// A lease counts until the event is given out again, also when nobody holds it; then it counts no more, whatever
    /// became of the newer delivery. What is done stays done.
    fn old_lease(&mut self, which: usize, old: Old, out: &mut Vec<Command>) {
        let open: Vec<_> = self.leases.iter().copied().filter(|(seq, _)| !self.done.contains(seq)).collect();
        let Some(&(seq, lease)) = pick(if open.is_empty() { &self.leases } else { &open }, which) else { return };
        let id = self.log_id(seq);
        let again = !self.done.contains(&seq) && self.last_lease.get(&seq).is_some_and(|last| *last != lease);
        let lost = lease < self.fence || again;
        assert_eq!(self.dispatcher.is_lost(id, lease), lost, "the lease {lease} of {seq}");
        let answer = old.answer();
        let held = self.held.contains_key(&seq);
        let before = self.dispatcher.state();
        let receipt = self.dispatcher.on_answer(0, id, Some(lease), &answer, self.now, out);
        assert_eq!(receipt == Receipt::LeaseLost, lost, "the lease {lease} of {seq}");
        match receipt {
            Receipt::Done => self.account(seq, &answer),
            Receipt::LeaseLost => assert_eq!(self.dispatcher.state(), before, "a lost lease changed something"),
            Receipt::NotInFlight => assert!(!held, "{seq} is held under {lease}"),
            Receipt::Forbidden => panic!("a dispatcher knows no tokens"),
        }
    }

    fn ack_up_to(&mut self, which: usize) {
        let live: Vec<Seq> = self.held.keys().copied().filter(|seq| *seq > self.cut).collect();
        let Some(&seq) = pick(&live, which) else { return };
        self.dispatcher.on_ack_up_to(seq, self.log_id(seq), Millis(0)).expect("a live event");
        for done in 1..=seq {
            self.is_done(done);
        }
    }

    fn seek(&mut self, done: Seq) {
        let last = self.log.get(&done).map(|event| (event.id, event.ts));
        self.dispatcher.on_seek(Start { done, last }, None);
        (self.fence, self.given_since) = (self.dispatcher.next_lease(), Some(BTreeSet::new()));
        self.held.clear();
        self.failed.clear();
        self.done.clear();
        self.dead.clear();
        self.given_once.clear();
        self.last_lease.clear();
        (self.highest, self.base, self.cut, self.snapshot) = (0, done, 0, None);
    }

    /// What was held is out of sight; what was saved counts.
    fn restart(&mut self) {
        let state = self.dispatcher.state();
        let bytes = state.encode();
        assert_eq!(GroupState::decode(&bytes).as_ref(), Some(&state));
        self.dispatcher = Dispatcher::new(state, false, self.dispatcher.next_lease().max(self.now.0 * 1_000));
        self.dispatcher.on_tail(self.tail);
        self.members.clear();
        self.held.clear();
        self.given_once.clear();
        self.last_lease.clear();
        self.given_since = None;
        self.highest = 0;
        self.reopen_snapshot();
    }

    /// Carries out commands until there are none.
    fn settle(&mut self, mut out: Vec<Command>) {
        // Expired leases fail in the account as they do in the dispatcher.
        let now = self.now;
        let begun = std::mem::take(&mut self.begun);
        self.fail_held(|deliver| deliver.deadline <= now && begun.contains(&deliver.lease));
        self.begun = begun;
        for _ in 0..10_000 {
            self.dispatcher.poll(self.now, &mut out);
            if out.is_empty() {
                return;
            }
            for command in std::mem::take(&mut out) {
                self.carry_out(command, &mut out);
            }
        }
        panic!("the dispatcher does not come to rest");
    }

    fn carry_out(&mut self, command: Command, out: &mut Vec<Command>) {
        match command {
            Command::Read { from, max, .. } => {
                let events: Vec<Event> = self.log.range(from..).take(max).map(|(_, event)| event.clone()).collect();
                for gap in from..events.first().map_or(self.tail + 1, |event| event.seq) {
                    self.done.insert(gap);
                }
                for event in events.iter().filter(|event| !self.policy.filter.matches(event)) {
                    self.done.insert(event.seq);
                }
                for pair in events.windows(2) {
                    self.done.extend(pair[0].seq + 1..pair[1].seq);
                }
                self.dispatcher.on_read(from, &events, self.now, out);
            }
            Command::ReadSnapshot { max } => {
                let left = self.snapshot.as_mut().expect("a snapshot start");
                let mut events: Vec<Event> = left.drain(..max.min(left.len())).collect();
                let left = if events.is_empty() { self.dispatcher.left_of_snapshot(max) } else { Vec::new() };
                events.extend(left.iter().filter_map(|seq| self.log.get(seq).cloned()));
                for event in events.iter().filter(|event| !self.policy.filter.matches(event)) {
                    self.done.insert(event.seq);
                }
                if left.is_empty() {
                    self.dispatcher.on_snapshot(&events, self.now, out);
                } else {
                    self.dispatcher.on_left_of_snapshot(&left, &events, self.now, out);
                }
            }
            Command::Deliver(deliver) => self.on_deliver(deliver),
            Command::DeadLetter(letter) => {
                assert!(self.policy.max_attempts > 0 && letter.attempts >= self.policy.max_attempts);
                assert!(self.dead.insert(letter.seq), "{} was dead-lettered twice", letter.seq);
                self.dispatcher.on_dead_lettered(letter.seq);
                self.is_done(letter.seq);
            }
        }
    }

    fn on_deliver(&mut self, deliver: Deliver) {
        let seq = deliver.seq;
        assert!(!self.done.contains(&seq), "{seq} is done and was delivered again");
        assert!(seq > self.base || (deliver.snapshot && seq <= self.cut), "{seq} lies before the place of the group");
        assert_eq!(deliver.attempt, self.failed.get(&seq).copied().unwrap_or(0) + 1, "attempts of {seq}");
        assert!(self.policy.max_attempts == 0 || deliver.attempt <= self.policy.max_attempts);
        assert!(deliver.deadline > self.now);
        let options = self.members.get(&deliver.member).expect("a member gets it");
        let holds = self.held.values().filter(|other| other.member == deliver.member).count();
        assert!(holds < options.max_in_flight, "a member holds more than its share");
        let key = |seq: Seq| self.log.get(&seq).and_then(|event| event.key().map(|key| key.into_owned()));
        match self.policy.ordered {
            Ordered::None => {}
            Ordered::Key => {
                let before =
                    (self.base.min(seq) + 1..seq).filter(|one| self.log.contains_key(one) && !self.done.contains(one));
                let same =
                    before.filter(|one| key(*one).is_some() && key(*one) == key(seq)).find(|one| *one > self.base);
                assert_eq!(same, None, "{seq} overtook an earlier event of its key");
            }
            Ordered::Topic => assert!(self.held.is_empty(), "{seq} is out beside another"),
        }
        if self.given_once.insert(seq) {
            let before = self.failed.contains_key(&seq) || deliver.snapshot;
            let in_order = before || seq > self.highest || self.policy.ordered != Ordered::None;
            assert!(in_order, "first delivery of {seq} after {}", self.highest);
            if !before {
                self.highest = self.highest.max(seq);
            }
        }
        self.delivered.push(seq);
        if !self.handed.contains_key(&deliver.member) {
            self.begun.insert(deliver.lease);
        }
        if let Some(given) = &mut self.given_since {
            given.insert(seq);
        }
        self.leases.push((seq, deliver.lease));
        self.last_lease.insert(seq, deliver.lease);
        assert!(self.held.insert(seq, deliver).is_none(), "{seq} has two holders");
    }

    /// What has to be true after every step.
    fn check(&self) {
        let (floor, _) = self.dispatcher.cursor();
        let mut expected = self.base;
        while self.done.contains(&(expected + 1)) {
            expected += 1;
        }
        assert_eq!(floor, expected, "the cursor is the contiguous floor");
        assert_eq!(self.dispatcher.in_flight(), self.held.len());
        let unfinished = (self.base + 1..=self.tail).filter(|seq| !self.done.contains(seq)).count() as u64;
        let latest = self.latest();
        let keys = latest.iter().filter(|event| !self.done.contains(&event.seq)).count() as u64;
        let lag = self.dispatcher.lag(Some(&self.info()));
        if self.cut > 0 && (latest.len() < 3 || latest.iter().any(|event| self.is_superseded(event))) {
            // A snapshot may have fewer keys than were counted, until its end.
            assert!(lag >= unfinished, "lag {lag} of {unfinished}");
        } else {
            assert_eq!(lag, unfinished + keys, "lag");
        }
        assert!(self.dispatcher.inspect().count() <= MAX_UNFINISHED + 64);
    }

    /// In the end, a patient consumer gets everything done: nothing was lost.
    pub(super) fn finish_everything(&mut self) {
        for id in self.members.keys() {
            self.dispatcher.on_pause(*id, false);
        }
        self.step(&Op::Join { max_in_flight: 5, timeout_ms: 30_000, stamps: false });
        for _ in 0..20_000 {
            if self.dispatcher.lag(Some(&self.info())) == 0 {
                assert!((self.base + 1..=self.tail).all(|seq| self.done.contains(&seq)), "an event was lost");
                // A key that was written before its event of the snapshot went out comes with what was written.
                let replaced = |event: &Event| self.is_superseded(event) && !self.delivered.contains(&event.seq);
                let fine = |event: &Event| self.done.contains(&event.seq) || replaced(event);
                assert!(self.latest().iter().all(fine), "a key was lost");
                assert!(self.held.is_empty());
                assert_eq!(self.dispatcher.state().unfinished, []);
                return;
            }
            self.step(if self.held.is_empty() { &Op::Pass(31_000) } else { &Op::Ack(0) });
        }
        panic!("not everything could be finished: {:?}", self.dispatcher.inspect().collect::<Vec<_>>());
    }
}

impl Old {
    fn answer(self) -> Answer {
        match self {
            Old::Ack => Answer::Ack,
            Old::Nack => nack(Some(Duration::from_millis(1_500)), false),
            Old::Extend => Answer::Extend { by: Some(Duration::from_secs(2)) },
        }
    }
}

fn nack(delay: Option<Duration>, release: bool) -> Answer {
    Answer::Nack { reason: Some("no".to_owned()), delay, release }
}

fn pick<T>(all: &[T], which: usize) -> Option<&T> {
    all.get(which % all.len().max(1))
}
