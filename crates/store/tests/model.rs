//! Random operations on the embedded engine and on the memory engine, with reopens in between: they agree.

use std::sync::Arc;
use std::time::Duration;

use promethean_event::{EventId, Group, Millis, NewEvent};
use promethean_store::log::disk::test::TestDisk;
use promethean_store::log::{Log, Options};
use promethean_store::memory::Memory;
use promethean_store::suite::{Make, event, id, read_all, topic};
use promethean_store::{
    Compaction, EventLog, GroupState, GroupStore, Outcome, Saved, Seek, Store, TopicSettings, Version,
};
use proptest::prelude::*;

const TOPICS: [&str; 3] = ["a", "b", "c"];

#[derive(Debug, Clone)]
enum Op {
    Append(Vec<Make>),
    Save(usize, u64),
    StaleSave(usize),
    Forget(usize),
    Trim(usize, u64),
    Compact(usize, bool),
    Maintain(u64),
    Reopen,
}

fn make() -> impl Strategy<Value = Make> {
    let key = proptest::option::of(prop_oneof!["[a-c]", Just("k\"\\é".to_owned())]);
    let payload = prop_oneof![
        2 => (0_usize..120).prop_map(|size| format!("\"{}\"", "x".repeat(size))),
        1 => Just("null".to_owned()),
    ];
    (0_usize..3, key, payload, proptest::option::weighted(0.3, 1_u128..30), 0_u64..50, 0_u32..3).prop_map(
        |(name, key, payload, id, ts, unit)| {
            let mut made = event(TOPICS[name]).payload(payload).ts(ts).appended(1_000).unit(unit);
            if let Some(key) = key {
                made = made.key(key);
            }
            if let Some(id) = id {
                made = made.id(id);
            }
            made
        },
    )
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => proptest::collection::vec(make(), 0..12).prop_map(Op::Append),
        2 => (0_usize..3, 0_u64..9).prop_map(|(name, floor)| Op::Save(name, floor)),
        1 => (0_usize..3).prop_map(Op::StaleSave),
        1 => (0_usize..3).prop_map(Op::Forget),
        1 => (0_usize..3, 0_u64..20).prop_map(|(name, before)| Op::Trim(name, before)),
        1 => (0_usize..3, any::<bool>()).prop_map(|(name, on)| Op::Compact(name, on)),
        2 => prop_oneof![Just(2_000_u64), Just(1 << 40)].prop_map(Op::Maintain),
        2 => Just(Op::Reopen),
    ]
}

struct Both {
    memory: Memory,
    log: Log,
    disk: TestDisk,
    /// The versions of the groups: each engine has its own.
    versions: [(Version, Version); 3],
    ids: Vec<EventId>,
}

fn open(disk: &TestDisk) -> Log {
    let mut options = Options::new("/data");
    (options.journal_bytes, options.segment_bytes, options.block_bytes) = (4 << 10, 2 << 10, 512);
    (options.disk, options.maintenance) = (Arc::new(disk.clone()), None);
    Log::open(options).expect("opens")
}

impl Both {
    async fn append(&mut self, events: Vec<NewEvent>) {
        self.ids.extend(events.iter().map(|event| event.id));
        let (one, two) = (self.memory.append(events.clone()).await, self.log.append(events).await);
        let (one, two) = (one.expect("appended"), two.expect("appended"));
        assert_eq!(one, two);
        let refused = |outcome: &&Outcome| matches!(outcome, Outcome::DuplicateId { .. });
        assert_eq!(one.iter().filter(refused).count(), two.iter().filter(refused).count());
    }

    async fn save(&mut self, name: usize, floor: u64, stale: bool) {
        let group = Group::parse("g").expect("a group");
        let state = GroupState { floor, ..GroupState::default() };
        let off = u64::from(stale) * 1_000;
        let (one, two) = self.versions[name];
        let one = self.memory.compare_and_set(&topic(TOPICS[name]), &group, one + off, state.clone()).await;
        let two = self.log.compare_and_set(&topic(TOPICS[name]), &group, two + off, state).await;
        match (one.expect("answered"), two.expect("answered")) {
            (Saved::Yes(one), Saved::Yes(two)) => self.versions[name] = (one, two),
            (one, two) => assert_eq!((one, two, stale), (Saved::Conflict, Saved::Conflict, true)),
        }
    }

    async fn run(&mut self, op: Op) {
        match op {
            Op::Append(makes) => self.append(makes.iter().map(Make::new_event).collect()).await,
            Op::Save(name, floor) => self.save(name, floor, false).await,
            Op::StaleSave(name) => self.save(name, 0, true).await,
            Op::Forget(name) => {
                let (name, group) = (topic(TOPICS[name]), Group::parse("g").expect("a group"));
                let told = (self.memory.forget(&name, &group).await, self.log.forget(&name, &group).await);
                assert_eq!(told.0.expect("answered"), told.1.expect("answered"));
                self.versions[TOPICS.iter().position(|this| *this == name.as_str()).expect("known")] = (0, 0);
            }
            Op::Trim(name, before) => {
                let name = topic(TOPICS[name]);
                self.memory.trim(&name, before).await.expect("trimmed");
                self.log.trim(&name, before).await.expect("trimmed");
            }
            Op::Compact(name, on) => {
                let compaction = on.then_some(Compaction { tombstone_grace: Duration::from_secs(60) });
                let settings = TopicSettings { compaction, ..TopicSettings::default() };
                self.memory.set_settings(&topic(TOPICS[name]), settings.clone()).await.expect("set");
                self.log.set_settings(&topic(TOPICS[name]), settings).await.expect("set");
            }
            Op::Maintain(now) => {
                self.memory.maintain(Millis(now)).await.expect("maintained");
                self.log.maintain(Millis(now)).await.expect("maintained");
            }
            Op::Reopen => {
                self.log.close().await.expect("closed");
                self.log = open(&self.disk);
            }
        }
    }

    async fn agree(&self) {
        assert_eq!(self.memory.topics().await.expect("listed"), self.log.topics().await.expect("listed"));
        for name in TOPICS {
            assert_eq!(read_all(&self.memory, name).await, read_all(&self.log, name).await, "events of {name}");
            let name = &topic(name);
            let info = (self.memory.info(name).await.expect("known"), self.log.info(name).await.expect("known"));
            let counts = |info: promethean_store::TopicInfo| (info.events, info.first_seq, info.last_seq, info.last);
            assert_eq!(info.0.map(counts), info.1.map(counts), "info of {name}");
            assert_eq!(self.memory.settings(name), self.log.settings(name));
            for to in [Seek::Earliest, Seek::Latest, Seek::Ts(Millis(25)), Seek::Ts(Millis(49))] {
                let found = (self.memory.seek(name, to).await, self.log.seek(name, to).await);
                assert_eq!(found.0.expect("sought"), found.1.expect("sought"), "{to:?} of {name}");
            }
            let keys: Vec<String> = ["a", "b", "c", "k\"\\é", "none"].map(str::to_owned).into();
            let latest = (self.memory.latest_by_key(name, &keys).await, self.log.latest_by_key(name, &keys).await);
            assert_eq!(latest.0.expect("found"), latest.1.expect("found"), "latest of {name}");
            for (after, limit) in [(None, 2), (None, 9), (Some("a"), 1), (Some("b"), 9)] {
                let page = (self.memory.keys(name, after, limit).await, self.log.keys(name, after, limit).await);
                assert_eq!(page.0.expect("paged"), page.1.expect("paged"), "keys of {name} after {after:?}");
            }
            let groups = (self.memory.groups(name).await, self.log.groups(name).await);
            assert_eq!(groups.0.expect("listed"), groups.1.expect("listed"), "groups of {name}");
        }
        let mut ids = self.ids.clone();
        ids.push(id(99));
        let found = (self.memory.locate(&ids).await, self.log.locate(&ids).await);
        assert_eq!(found.0.expect("located"), found.1.expect("located"));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, max_shrink_iters: 300, ..ProptestConfig::default() })]
    #[test]
    fn the_engines_agree_whatever_is_done(ops in proptest::collection::vec(op(), 1..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let disk = TestDisk::new();
            let (memory, log) = (Memory::new(), open(&disk));
            let mut both = Both { memory, log, disk, versions: [(0, 0); 3], ids: Vec::new() };
            for op in ops {
                both.run(op).await;
                both.agree().await;
            }
        });
    }
}
