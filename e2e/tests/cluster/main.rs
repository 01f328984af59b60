//! Several hubs in front of one MongoDB: the real binaries, a real replica set.

mod contract;
mod failover;
mod load;
mod pair;
