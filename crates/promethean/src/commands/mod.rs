//! What each command does.

mod address;
mod backup;
mod bench;
mod completions;
mod config;
mod consume;
mod context;
mod demo;
mod dlq;
mod doctor;
mod export;
mod fetch;
mod group;
mod health;
mod hub;
mod import;
mod interrupt;
mod logging;
mod man;
#[cfg(feature = "mongo")]
mod migrate;
mod out;
mod outbox;
mod output;
mod print;
mod projector;
mod publish;
mod remove;
mod replay;
mod seek;
mod serve;
mod subscribe;
mod token;
mod topic;

use std::path::{Path, PathBuf};

use crate::args::{Args, Command, ConfigArgs};
use crate::config::{Config, ConfigError, File, Layers, Note};
use crate::exit::Failure;

pub(crate) use out::{failure as show, stderr_is_coloured};

/// Does what was asked for.
pub(crate) fn run(args: Args) -> Result<(), Failure> {
    use Command::{Demo, Import, Outbox, Publish, Serve, Sub, Tail};
    // These look after signals themselves.
    if !matches!(args.command, Serve(_) | Demo(_) | Publish(_) | Sub(_) | Tail(_) | Import(_) | Outbox(_)) {
        interrupt::watch()?;
    }
    match args.command {
        Command::Serve(config) => {
            let (config, layers) = load(&config)?;
            serve::run(&config, &layers.notes, false)
        }
        Command::Demo(config) => demo::run(&config),
        Command::Config(command) => config::run(command),
        Command::Token(args) => token::run(args),
        Command::Health(args) => health::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        #[cfg(feature = "mongo")]
        Command::Migrate(args) => migrate::run(&args),
        #[cfg(not(feature = "mongo"))]
        Command::Migrate(_) => Err(Failure::failed("this build has no MongoDB engine")),
        Command::Publish(args) => publish::run(args),
        Command::Sub(args) => subscribe::sub(&args),
        Command::Tail(args) => subscribe::tail(&args),
        Command::Consume(args) => consume::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Export(args) => export::run(&args),
        Command::Import(args) => import::run(&args),
        Command::Topic(command) => topic::run(command),
        Command::Group(command) => group::run(&command),
        Command::Dlq(command) => dlq::run(&command),
        Command::Backup(args) => backup::backup(&args),
        Command::Restore(args) => backup::restore(&args),
        Command::Outbox(command) => outbox::run(command),
        Command::Context(command) => context::run(command),
        Command::Bench(args) => bench::run(&args),
        Command::Man { dir } => man::run(dir.as_deref()),
        Command::Completions { shell } => completions::run(shell),
    }
}

/// The configuration, and where each value was said.
fn load(args: &ConfigArgs) -> Result<(Config, Layers), ConfigError> {
    let environment = |name: &str| std::env::var_os(name);
    let mut layers = Layers::collect(&args.flags.0, &environment, find_file(args.config.as_deref())?.as_ref())?;
    let config = Config::resolve(&mut layers, &environment)?;
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    layers.notes.extend(Note::unknown_variables(names));
    Ok((config, layers))
}

/// The file that was named, or `promethean.toml` of the working directory where there is one.
fn find_file(named: Option<&Path>) -> Result<Option<File>, ConfigError> {
    let path = named.map_or_else(|| PathBuf::from("promethean.toml"), Path::to_path_buf);
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(Some(File { path, text })),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && named.is_none() => Ok(None),
        Err(error) => Err(ConfigError::new(&path.display().to_string(), format!("cannot be read: {error}"))),
    }
}
