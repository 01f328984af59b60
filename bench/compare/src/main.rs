//! The same work against Promethean, NATS JetStream, Redis Streams and a hub that stores nothing, in one run.
//!
//! `make bench-compare` installs the servers and runs this. Each server is a process of its own on loopback with new
//! data; each client is a thread of this one, over a connection that all protocols share (`wire`). The systems take
//! turns, round after round, so that a slow moment of the machine meets all of them; the middle of the rounds counts.

mod growth;
mod load;
mod measure;
mod null_hub;
mod report;
mod running;
mod server;
mod systems;
mod wire;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use growth::Growth;
use measure::Plan;
use systems::{Programs, System};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const USAGE: &str = "\
usage: promethean-compare [compare | growth [topics] [groups] [length] | null-hub] [options]

  compare    all systems side by side (the default)
  growth     what more topics, idle groups and a longer topic cost the hub
  null-hub   only the hub that stores nothing

options:
  --only NAMES        these systems, with commas: promethean nats redis null promethean-always nats-always redis-always
  --rounds N          rounds whose median counts (3)
  --seconds N         time of each part that runs by time (2.5)
  --fill N            events in the topic that is consumed (500000)
  --short             as little of everything as there can be: shows that it works, its numbers mean nothing
  --json              print JSON instead of Markdown
  --promethean FILE   the hub (target/release/promethean)
  --nats FILE         the NATS server (target/compare/nats/bin/nats-server)
  --redis FILE        the Redis server (redis-server)
  --dir DIR           where data goes while it runs (target/compare/data)";

struct Options {
    command: String,
    growths: Vec<Growth>,
    systems: Vec<System>,
    rounds: usize,
    plan: Plan,
    json: bool,
    programs: Programs,
    dir: PathBuf,
}

fn options(mut args: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options = Options {
        command: String::from("compare"),
        growths: Vec::new(),
        systems: System::ALL.to_vec(),
        rounds: 3,
        plan: Plan { time: Duration::from_millis(2_500), fill: 500_000, rate: 2_000, step: 1_000_000 },
        json: false,
        programs: Programs {
            nats: "target/compare/nats/bin/nats-server".into(),
            redis: "redis-server".into(),
            promethean: "target/release/promethean".into(),
        },
        dir: "target/compare/data".into(),
    };
    let mut short = false;
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
        let number = |text: String| text.parse::<f64>().ok().filter(|number| *number > 0.0).ok_or(text);
        let whole = |text: String| text.parse::<u64>().ok().filter(|number| *number > 0).ok_or(text);
        match arg.as_str() {
            "compare" | "growth" | "null-hub" => options.command = arg,
            "--only" => {
                let all = value()?;
                let find = |name: &str| {
                    let found = System::ALL.into_iter().find(|system| system.name() == name);
                    found.ok_or_else(|| format!("--only: no system is called {name:?}"))
                };
                options.systems = all.split(',').map(find).collect::<Result<_, _>>()?;
            }
            "--rounds" => options.rounds = whole(value()?).map_err(|text| no_number("--rounds", &text))? as usize,
            "--seconds" => {
                let seconds = number(value()?).map_err(|text| format!("--seconds: {text:?}"))?;
                options.plan.time = Duration::from_secs_f64(seconds);
            }
            "--fill" => options.plan.fill = whole(value()?).map_err(|text| no_number("--fill", &text))?,
            "--short" => short = true,
            "--json" => options.json = true,
            "--promethean" => options.programs.promethean = value()?.into(),
            "--nats" => options.programs.nats = value()?.into(),
            "--redis" => options.programs.redis = value()?.into(),
            "--dir" => options.dir = value()?.into(),
            name => match Growth::parse(name).filter(|_| options.command == "growth") {
                Some(growth) => options.growths.push(growth),
                None => return Err(format!("unknown: {arg}\n{USAGE}")),
            },
        }
    }
    if options.growths.is_empty() {
        options.growths = Growth::ALL.to_vec();
    }
    if short {
        eprintln!("a short run: it shows that this benchmark works, its numbers mean nothing");
        options.rounds = 1;
        options.plan = Plan { time: Duration::from_millis(200), fill: 2_000, rate: 500, step: 2_000 };
    }
    Ok(options)
}

fn no_number(name: &str, text: &str) -> String {
    format!("{name}: {text:?} is no whole number of at least 1")
}

fn main() -> ExitCode {
    if std::env::args().any(|arg| arg == "--help" || arg == "-h") {
        println!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    let options = match options(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(message) => {
            eprintln!("{message}");
            return ExitCode::from(2);
        }
    };
    // The null hub is one of the servers.
    let done = match options.command.as_str() {
        "null-hub" => null_hub::run(),
        "growth" => running::watch().and_then(|()| grow(&options)),
        _ => running::watch().and_then(|()| compare(&options)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("promethean-compare: {error}");
            ExitCode::FAILURE
        }
    }
}

fn compare(options: &Options) -> io::Result<()> {
    let mut rounds = vec![Vec::new(); options.systems.len()];
    for round in 0..options.rounds {
        for (system, numbers) in options.systems.iter().zip(&mut rounds) {
            let dir = options.dir.join(format!("{}-{round}", system.name()));
            let measured = running::on(&dir, || measure::round(*system, &options.programs, &dir, options.plan));
            let measured =
                measured.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", system.name())))?;
            let [published, consumed, both] =
                [measured.published, measured.consumed, measured.end_to_end].map(report::thousands);
            eprintln!(
                "round {}: {:<18} published {published}/s, consumed {consumed}/s, end to end {both}/s, p99 {:.2} ms, \
                 {:.1} + {:.1} | {:.1} µs of CPU",
                round + 1,
                system.name(),
                measured.p99,
                measured.publish_cpu,
                measured.consume_cpu,
                measured.end_to_end_cpu
            );
            numbers.push(measured);
        }
    }
    let medians = rounds.iter().map(|numbers| measure::medians(numbers));
    let results: report::Results = options.systems.iter().copied().zip(medians).collect();
    let bars = report::bars(&results);
    if options.json {
        let systems: serde_json::Map<_, _> = results
            .iter()
            .map(|(system, numbers)| Ok((system.name().to_owned(), serde_json::to_value(numbers)?)))
            .collect::<io::Result<_>>()?;
        println!("{}", serde_json::json!({"machine": report::machine(), "systems": systems, "bars": bars}));
    } else {
        println!("{}, medians of {} rounds\n", report::machine(), options.rounds);
        println!("{}\n{}", report::table(&results), report::bars_table(&bars));
    }
    Ok(())
}

fn grow(options: &Options) -> io::Result<()> {
    let mut bars = Vec::new();
    for growth in &options.growths {
        let dir = options.dir.join("growth");
        let measured = running::on(&dir, || growth.run(&options.programs, &dir, options.rounds, options.plan));
        bars.extend(measured?);
    }
    if options.json {
        println!("{}", serde_json::json!({"machine": report::machine(), "bars": bars}));
    } else {
        println!("{}\n\n{}", report::machine(), report::bars_table(&bars));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_and_events_are_whole_and_at_least_one() {
        let read = |args: &[&str]| options(args.iter().map(|arg| (*arg).to_owned()));
        let good = read(&["--rounds", "5", "--fill", "7", "--seconds", "0.5"]).expect("good");
        assert_eq!((good.rounds, good.plan.fill, good.plan.time), (5, 7, Duration::from_millis(500)));
        for (name, value) in [("--rounds", "0.5"), ("--rounds", "0"), ("--fill", "0.9"), ("--fill", "-1")] {
            let refused = read(&[name, value]).err().expect("refused");
            assert_eq!(refused, format!("{name}: {value:?} is no whole number of at least 1"));
        }
        let short = read(&["--rounds", "5", "--short"]).expect("good");
        assert_eq!((short.rounds, short.plan.step), (1, 2_000), "a short run is short whatever else is said");
    }
}
