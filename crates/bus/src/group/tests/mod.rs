//! The dispatcher against a model: any interleaving of what can happen to a group keeps what a group promises.

mod answers;
mod desk;
mod hand_over;
mod late_reads;
mod model;
mod snapshot;
mod world;

use proptest::prelude::*;
use proptest::strategy::ValueTree as _;

use model::{Op, ops};
use promethean_event::{Filter, Ordered};
use world::World;

fn policy() -> impl Strategy<Value = super::Policy> {
    let ordered = prop_oneof![Just(Ordered::None), Just(Ordered::Key), Just(Ordered::Topic)];
    let max_attempts = prop_oneof![Just(0_u32), Just(1), Just(3)];
    let filter = prop_oneof![
        3 => Just(Filter::default()),
        1 => Just(Filter { keys: vec!["a".to_owned(), "b".to_owned()], ..Filter::default() }),
    ];
    (ordered, max_attempts, filter).prop_map(|(ordered, max_attempts, filter)| super::Policy {
        ordered,
        max_attempts,
        filter,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    /// Nothing is lost, nothing acked comes again, one holder at most, bounds and order hold, and the cursor is the
    /// contiguous floor: checked after every step, in `World`. In the end everything can be finished.
    #[test]
    fn a_group_keeps_its_promises_whatever_happens(policy in policy(), ops in ops(), snapshot in any::<bool>()) {
        let mut world = World::new(policy, snapshot);
        for op in &ops {
            world.step(op);
        }
        world.finish_everything();
    }
}

/// A long run in one piece, deeper than the short random ones get.
#[test]
fn a_long_run_keeps_the_promises_and_the_memory_bounded() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut world = World::new(super::Policy { max_attempts: 3, ..Default::default() }, false);
    for _ in 0..300 {
        let ops = ops().new_tree(&mut runner).expect("a strategy").current();
        for op in ops.iter().filter(|op| !matches!(op, Op::Seek(_))) {
            world.step(op);
        }
    }
    world.finish_everything();
}
