//! Generated workloads.

use std::time::Duration;

use futures_util::future::join_all;
use promethean_event::{Group, Millis, NewEvent};

use super::Random;
use super::ledger::Ledger;
use crate::log::Log;
use crate::log::disk::test::TestDisk;
use crate::suite::{event, topic};
use crate::{Compaction, EventLog, GroupState, GroupStore, Outcome, Save, Saved, TopicSettings};

/// What a workload does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Appends, acks, settings.
    Plain,
    /// Also trims, and compaction of one topic.
    Shrinking,
    /// As [`Kind::Plain`], and topics are deleted.
    Deleting,
    /// As [`Kind::Plain`], with a journal file that grows while it is written.
    Growing,
}

pub(super) const TOPICS: [&str; 3] = ["a", "b.long.name", "compacted"];
const GROUPS: [&str; 2] = ["g", "h"];
const STEPS: u64 = 24;

fn make(random: &mut Random, unit: u32) -> NewEvent {
    let name = TOPICS[usize::try_from(random.below(3)).unwrap_or(0)];
    let size = usize::try_from(random.below(300)).unwrap_or(0);
    let mut made = event(name).unit(unit).payload(format!("\"{}\"", "x".repeat(size))).ts(random.below(1_000));
    if random.below(2) == 0 {
        made = made.key(format!("k{}", random.below(4)));
        if random.below(6) == 0 {
            made = made.payload("null");
        }
    }
    if random.below(4) == 0 {
        // Now and then an id comes again: on its topic a duplicate, elsewhere refused.
        made = made.id(u128::from(random.below(40)) << 64 | 7);
    }
    made.new_event()
}

/// Does what the seed says, and writes down what was answered.
pub(super) async fn run(log: &Log, disk: &TestDisk, seed: u64, kind: Kind) -> Ledger {
    let (mut ledger, mut random) = (Ledger::default(), Random::new(seed));
    if kind == Kind::Shrinking {
        let compaction = Some(Compaction { tombstone_grace: Duration::from_secs(3600) });
        let settings = TopicSettings { compaction, ..TopicSettings::default() };
        ledger.shrinks = true;
        let _ = log.set_settings(&topic("compacted"), settings).await;
    }
    for _ in 0..STEPS {
        match random.below(12) {
            0..=6 => append(log, disk, &mut random, &mut ledger).await,
            7 | 8 => save(log, disk, &mut random, &mut ledger).await,
            9 => {
                let settings = TopicSettings {
                    partitions: u32::try_from(random.below(99) + 1).unwrap_or(1),
                    ..TopicSettings::default()
                };
                ledger.settings.push((u64::MAX, settings.clone()));
                if log.set_settings(&topic("a"), settings).await.is_ok()
                    && let Some((at, _)) = ledger.settings.last_mut()
                {
                    *at = disk.calls();
                }
            }
            10 if kind == Kind::Shrinking => {
                let name = topic(TOPICS[usize::try_from(random.below(2)).unwrap_or(0)]);
                let before = random.below(ledger.last_seq(&name) + 2);
                let mark = ledger.trimmed.entry(name.clone()).or_default();
                *mark = before.max(*mark);
                let _ = log.trim(&name, before).await;
            }
            10 if kind == Kind::Deleting => {
                let name = topic(TOPICS[usize::try_from(random.below(2)).unwrap_or(0)]);
                ledger.intend_deletion(&name);
                if log.delete(std::slice::from_ref(&name)).await.is_ok() {
                    ledger.deleted(disk.calls(), &name);
                }
            }
            _ => drop(log.maintain(Millis(2_000)).await),
        }
    }
    ledger
}

/// One to three appends at once.
async fn append(log: &Log, disk: &TestDisk, random: &mut Random, ledger: &mut Ledger) {
    let batches: Vec<Vec<NewEvent>> = (0..=random.below(3))
        .map(|_| (0..=random.below(4)).map(|n| make(random, u32::try_from(n / 2).unwrap_or(0))).collect())
        .collect();
    batches.iter().flatten().for_each(|event| ledger.issue(event));
    let told = join_all(batches.iter().map(|batch| log.append(batch.clone()))).await;
    let at = disk.calls();
    for (batch, told) in batches.iter().zip(told) {
        for (event, outcome) in batch.iter().zip(told.into_iter().flatten()) {
            if let Outcome::Stored(one) = outcome {
                ledger.answered(at, &event.topic, one);
            }
        }
    }
}

async fn save(log: &Log, disk: &TestDisk, random: &mut Random, ledger: &mut Ledger) {
    let first = usize::try_from(random.below(2)).unwrap_or(0);
    let group = Group::parse(GROUPS[usize::try_from(random.below(2)).unwrap_or(0)]).expect("a group");
    if random.below(5) == 0 {
        let name = topic(TOPICS[first]);
        let number = ledger.intend(&name, &group, true);
        if log.forget(&name, &group).await.is_ok() {
            ledger.saved(disk.calls(), &name, &group, number);
        }
        return;
    }
    // One state, or those of two topics at once.
    let names =
        if random.below(2) == 0 { vec![topic(TOPICS[first])] } else { vec![topic(TOPICS[0]), topic(TOPICS[1])] };
    let (mut saves, mut numbers) = (Vec::new(), Vec::new());
    for name in names {
        let number = ledger.intend(&name, &group, false);
        let Ok(saved) = log.load(&name, &group).await else { return };
        let expected = saved.map_or(0, |(_, version)| version);
        let state = GroupState { floor: ledger.last_seq(&name), generation: number, ..GroupState::default() };
        saves.push(Save { topic: name.clone(), group: group.clone(), expected, state });
        numbers.push((name, number));
    }
    let outcomes = log.save_many(saves).await.unwrap_or_default();
    for ((name, number), outcome) in numbers.into_iter().zip(outcomes) {
        if matches!(outcome, Ok(Saved::Yes(_))) {
            ledger.saved(disk.calls(), &name, &group, number);
        }
    }
}
