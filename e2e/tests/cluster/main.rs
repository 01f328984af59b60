//! Several hubs in front of one MongoDB: the real binaries, a real replica set.

mod contract;
mod cut;
mod failover;
mod load;
mod pair;
mod tls;
mod way;
