//! The real binary: what an `OK` promises over `kill -9`, drain, many connections, secrets.

mod connections;
mod crash;
mod drain;
mod scenarios;
mod secrets;
