//! The binary: arguments, configuration, and the commands that put the parts together.
//!
//! `args` (raw) → `config` (validated) → `commands`; `compose` is the only place that names an engine.

mod allocator;
mod args;
mod bound;
#[cfg(feature = "mongo")]
mod cluster;
mod commands;
mod compose;
mod config;
#[cfg(test)]
mod docs;
mod exit;
mod notify;
mod outbox;

use std::process::ExitCode;

use clap::Parser;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    match commands::run(args::Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            commands::show(&failure);
            ExitCode::from(failure.exit as u8)
        }
    }
}
