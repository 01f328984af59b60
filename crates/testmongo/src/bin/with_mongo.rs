//! `with-mongo COMMAND…`: runs a command with a replica set of one member beside it, for all tests that it starts.

use std::process::{Command, ExitCode};

use promethean_testmongo::{SHARED, Setup};

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    let Some(program) = args.next() else {
        eprintln!("usage: with-mongo COMMAND…");
        return ExitCode::from(2);
    };
    let mut command = Command::new(program);
    command.args(args);
    let there = |name| std::env::var_os(name).is_some_and(|url| !url.is_empty());
    let started = (!there(SHARED) && !there("MONGO_URL")).then(|| Setup::default().start());
    if let Some(replica) = &started {
        command.env(SHARED, replica.url(""));
    }
    match command.status() {
        Ok(status) => ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)),
        Err(error) => {
            eprintln!("with-mongo: the command does not start: {error}");
            ExitCode::from(127)
        }
    }
}
