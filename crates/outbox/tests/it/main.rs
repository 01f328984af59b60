//! The outbox against real databases: `law.rs` is what every store keeps, one named test per case and store.

mod client;
mod crash;
mod drainer;
mod failover;
mod fakes;
mod law;
mod mongo;
mod old_tables;
mod once;
mod random;
mod sqlite;
