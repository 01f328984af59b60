//! Crashes and faults on the test disk for as long as it is told, with a new seed each time.
//!
//! `cargo run --release -p promethean-store --features suite --example torture -- --seconds N [--seed S]`
//!
//! Each line names the seed; `--seed S --seconds 0` repeats exactly that one.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use promethean_event::Millis;
use promethean_store::log::Sync;
use promethean_store::log::disk::test::Fault;
use promethean_store::log::torture::{Kind, crash_everywhere, fail_everywhere, fail_in_recovery};

fn argument(name: &str) -> Option<u64> {
    let mut args = std::env::args().skip_while(|arg| arg != name);
    args.nth(1).and_then(|value| value.parse().ok())
}

fn round(seed: u64) -> Result<(u64, u64), String> {
    let kind = [Kind::Plain, Kind::Shrinking, Kind::Growing, Kind::Deleting][usize::try_from(seed % 4).unwrap_or(0)];
    let sync = match seed % 5 {
        0 => Sync::Never,
        1 => Sync::Interval(Duration::from_millis(1)),
        _ => Sync::Always,
    };
    let crashes = crash_everywhere(seed, kind, sync)?;
    let fault = [Fault::Eio, Fault::Short, Fault::Full(0), Fault::Full(30)][usize::try_from(seed % 4).unwrap_or(0)];
    Ok((crashes, fail_everywhere(seed, kind, fault)? + fail_in_recovery(seed, kind, fault)?))
}

fn main() -> ExitCode {
    let limit = Duration::from_secs(argument("--seconds").unwrap_or(60));
    let first = argument("--seed").unwrap_or(Millis::now().0);
    let (start, mut crashes, mut faults) = (Instant::now(), 0, 0);
    for seed in first.. {
        println!("seed {seed}");
        match round(seed) {
            Ok((more, failed)) => (crashes, faults) = (crashes + more, faults + failed),
            Err(wrong) => {
                eprintln!("WRONG: {wrong}");
                return ExitCode::FAILURE;
            }
        }
        if start.elapsed() >= limit {
            break;
        }
    }
    println!("{crashes} crash points and {faults} faults in {:?}: nothing lost", start.elapsed());
    ExitCode::SUCCESS
}
