//! The real binary: what an `OK` promises over `kill -9`, drain, many connections, secrets.

mod backup;
mod chaos;
mod connections;
mod crash;
mod deploy;
mod drain;
mod guides;
mod mongo;
mod outbox;
mod outbox_mongo;
mod readme;
mod scenarios;
mod secrets;
mod seeds;
mod state;
mod systemd;
mod terminal;

/// The repository.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
