//! What can happen to a group.

use proptest::prelude::*;

/// One thing that happens. Numbers pick among what there is, modulo.
#[derive(Debug, Clone)]
pub(super) enum Op {
    Publish {
        key: u8,
    },
    Join {
        max_in_flight: usize,
        timeout_ms: u64,
        /// Its leases begin with the hand-over.
        stamps: bool,
    },
    /// Everything that a member was given is handed to its connection.
    HandOver(usize),
    Leave(usize),
    Pause(usize, bool),
    Ack(usize),
    AckWithLease(usize),
    /// An ack of something that was held once, whether it is or not.
    LateAck(usize),
    AckUpTo(usize),
    /// An answer with the lease of any delivery so far, the last one or an older one.
    OldLease(usize, Old),
    /// An answer without a lease of a member that does not hold the event.
    Foreign(usize, Old),
    Nack(usize),
    NackAfter(usize, u64),
    Release(usize),
    Extend(usize, u64),
    Pass(u64),
    Seek(u64),
    /// The events up to here are trimmed away.
    Trim(u64),
    /// The hub dies and comes back with what was saved.
    Restart,
}

/// What is answered under an old lease.
#[derive(Debug, Clone, Copy)]
pub(super) enum Old {
    Ack,
    Nack,
    Extend,
}

pub(super) fn ops() -> impl Strategy<Value = Vec<Op>> {
    let index = 0_usize..8;
    let op = prop_oneof![
        8 => (0_u8..5).prop_map(|key| Op::Publish { key }),
        2 => (1_usize..5, prop_oneof![Just(100_u64), Just(1_000), Just(30_000)], any::<bool>())
            .prop_map(|(max_in_flight, timeout_ms, stamps)| Op::Join { max_in_flight, timeout_ms, stamps }),
        3 => index.clone().prop_map(Op::HandOver),
        1 => index.clone().prop_map(Op::Leave),
        1 => (index.clone(), any::<bool>()).prop_map(|(who, paused)| Op::Pause(who, paused)),
        6 => index.clone().prop_map(Op::Ack),
        2 => index.clone().prop_map(Op::AckWithLease),
        1 => (0_usize..64).prop_map(Op::LateAck),
        1 => index.clone().prop_map(Op::AckUpTo),
        2 => (0_usize..64, prop_oneof![Just(Old::Ack), Just(Old::Nack), Just(Old::Extend)])
            .prop_map(|(which, old)| Op::OldLease(which, old)),
        1 => (index.clone(), prop_oneof![Just(Old::Nack), Just(Old::Extend)])
            .prop_map(|(which, old)| Op::Foreign(which, old)),
        3 => index.clone().prop_map(Op::Nack),
        1 => (index.clone(), 0_u64..5_000).prop_map(|(which, ms)| Op::NackAfter(which, ms)),
        1 => index.clone().prop_map(Op::Release),
        1 => (index, 0_u64..40_000).prop_map(|(which, ms)| Op::Extend(which, ms)),
        3 => prop_oneof![0_u64..200, 0_u64..5_000, Just(31_000)].prop_map(Op::Pass),
        1 => (0_u64..50).prop_map(Op::Seek),
        1 => (0_u64..20).prop_map(Op::Trim),
        1 => Just(Op::Restart),
    ];
    proptest::collection::vec(op, 1..80)
}
