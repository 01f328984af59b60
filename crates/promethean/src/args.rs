//! The raw arguments, as clap reads them. What they mean is decided in `config` and `commands`.

mod operate;
mod outbox;

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, FromArgMatches, Parser, Subcommand};

use crate::config::SETTINGS;

pub(crate) use operate::{
    BackupArgs, Confirmed, DeleteArgs, DlqCommand, GroupArgs, GroupCommand, LatestArgs, PurgeArgs, RedriveArgs,
    RestoreArgs, SetArgs, TopicCommand,
};
pub(crate) use outbox::{DrainArgs, OutboxAt, OutboxCommand};

/// An event hub: durable topics, consumer groups, WebSocket and HTTP, in one binary.
#[derive(Debug, Parser)]
#[command(name = "promethean", version, propagate_version = true, max_term_width = 120, after_help = EXIT_CODES)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 ok, 1 failed, 2 usage, 3 unreachable, 4 denied, 5 not found, 124 timeout, \
    130 interrupted";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the hub.
    ///
    /// Prints `promethean ready ws=ADDR http=ADDR ops=ADDR store=NAME` on stdout once every listener is up; logs go to
    /// stderr. SIGTERM and SIGINT end it in order, a second one at once; SIGHUP reads the TLS certificate again.
    Serve(ConfigArgs),
    /// Run a hub with something to see: sample heartbeats, and a page that shows them live.
    ///
    /// A hub like that of `serve`, with the same flags, in a data directory of its own unless one is said. Sample
    /// heartbeats go to heartbeat.received every second; a projector folds them into process.state; /demo on the ops
    /// port shows that table in the browser. Prints where everything is. Started again, it goes on where it was.
    Demo(ConfigArgs),
    /// Show the configuration, or the commented default file.
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Mint a JWT for development, signed with jwt_secret (HS256).
    Token(TokenArgs),
    /// Ask a running hub whether it is ready.
    Health(HealthArgs),
    /// Check a data directory; exits 0 when it is sound, 1 when it is damaged.
    Doctor(DoctorArgs),
    /// Copy a data directory into a MongoDB database: topics, events, groups and settings.
    ///
    /// Ids, seqs, times and bytes stay what they were. Cut off, it goes on where it was when it is run again; hubs do
    /// not start on the database before it has ended. At the end everything is read again on both sides and compared.
    /// The directory is opened as a hub opens it: a last record that a crash left unfinished is cut off, which is told; what
    /// it holds stays. No hub may be running on either.
    Migrate(MigrateArgs),
    /// Publish events: the argument, standard input, or one event a line.
    #[command(name = "pub")]
    Publish(PublishArgs),
    /// Consume a topic as a member of a group: each event is printed, then acked.
    Sub(SubArgs),
    /// Consume up to N events of a group with one HTTP request: each is printed, then acked.
    ///
    /// Ends with 124 when no event came within --wait. For scripts and cron jobs; `sub` keeps a connection.
    Consume(ConsumeArgs),
    /// Watch a topic without a group: nothing is acked, nothing is remembered.
    Tail(TailArgs),
    /// Print events that are in the log; with --group, send a group back to them.
    Replay(ReplayArgs),
    /// Stream topics' events to standard output, one a line, in constant memory.
    Export(ExportArgs),
    /// Publish exported events with their ids; doing it again stores nothing twice that is still there.
    Import(ImportArgs),
    /// Put load on a running hub and measure it.
    ///
    /// Publishes to topics of its own (bench.…), every event acked. The progress bar goes to stderr, the result to
    /// stdout.
    Bench(BenchArgs),
    /// Topics: what there is, their settings, the state of their keys.
    #[command(subcommand)]
    Topic(TopicCommand),
    /// Groups: how they stand, why they do not move, moving them.
    #[command(subcommand)]
    Group(GroupCommand),
    /// Dead letters: looking at them, sending them back.
    #[command(subcommand)]
    Dlq(DlqCommand),
    /// Write everything that a running hub has to a file: events, settings, groups.
    Backup(BackupArgs),
    /// Make a data directory from a backup.
    Restore(RestoreArgs),
    /// Outboxes: rows that services wrote in their own transactions.
    #[command(subcommand)]
    Outbox(OutboxCommand),
    /// Hubs by name, and the one that commands talk to.
    #[command(subcommand)]
    Context(ContextCommand),
    /// Print the manual page, or write one for each command.
    Man {
        /// Write promethean.1, promethean-serve.1 and so on to this directory.
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
    },
    /// Print a completion script for a shell.
    Completions {
        /// Which shell.
        shell: clap_complete::Shell,
    },
}

/// Where the configuration comes from.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct ConfigArgs {
    /// Read this file instead of ./promethean.toml.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) flags: Flags,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Show every value that counts and where it was said; secrets are hidden.
    Show {
        /// As JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        config: ConfigArgs,
    },
    /// Print the default file, ready to be edited.
    Default,
}

#[derive(Debug, clap::Args)]
pub(crate) struct TokenArgs {
    /// The signing secret; else jwt_secret of the environment or the file.
    #[arg(long, value_name = "SECRET")]
    pub(crate) secret: Option<String>,
    /// Whom the token is for.
    #[arg(long, value_name = "NAME", default_value = "dev")]
    pub(crate) sub: String,
    /// What it may do, e.g. publish:heartbeat.* or '*:**'; repeatable.
    #[arg(long, value_name = "SCOPE")]
    pub(crate) scope: Vec<String>,
    /// A JSON file with a policy, {"rules": […]}, instead of scopes.
    #[arg(long, value_name = "FILE", conflicts_with = "scope")]
    pub(crate) policy: Option<PathBuf>,
    /// How long it is good for: 90s, 15m, 12h, 30d.
    #[arg(long, value_name = "DURATION", default_value = "1h")]
    pub(crate) ttl: String,
    /// The audience; else jwt_aud.
    #[arg(long, value_name = "TEXT")]
    pub(crate) aud: Option<String>,
    /// The issuer; else jwt_iss.
    #[arg(long, value_name = "TEXT")]
    pub(crate) iss: Option<String>,
    /// Read this file instead of ./promethean.toml.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct HealthArgs {
    /// The answer as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) hub: HttpArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DoctorArgs {
    /// The data directory. No hub may be running on it.
    pub(crate) dir: PathBuf,
    /// Throw the index away and make it again from the log.
    #[arg(long, conflicts_with = "salvage")]
    pub(crate) rebuild_index: bool,
    /// Copy everything that can still be read into a new directory.
    #[arg(long, value_name = "TO")]
    pub(crate) salvage: Option<PathBuf>,
    /// The report, or what was saved, as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct MigrateArgs {
    /// The data directory of an embedded store.
    #[arg(long, value_name = "DIR")]
    pub(crate) from: PathBuf,
    /// The replica set and the database: mongodb://HOST:PORT/DATABASE?replicaSet=NAME.
    #[arg(long, value_name = "URL", env = "MONGO_URL", hide_env_values = true)]
    pub(crate) to: String,
    /// What was copied, as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Which hub, and as whom.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct At {
    /// The hub's address, best that of its ops port, which answers everything; else $PROMETHEAN_URL, the context in
    /// use, this machine.
    #[arg(long, value_name = "URL")]
    pub(crate) server: Option<String>,
    /// The saved context to use instead; without --server, $PROMETHEAN_CONTEXT names one in place of that in use.
    #[arg(long, value_name = "NAME", conflicts_with = "server")]
    pub(crate) context: Option<String>,
    /// The token to authenticate with.
    #[arg(long, value_name = "TOKEN", env = "PROMETHEAN_TOKEN", hide_env_values = true)]
    pub(crate) token: Option<String>,
}

/// A hub's HTTP or ops port.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct HttpArgs {
    #[command(flatten)]
    pub(crate) at: At,
    /// How long to wait for the hub to say something.
    #[arg(long, value_name = "DURATION", default_value = "30s")]
    pub(crate) timeout: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct PublishArgs {
    /// The topic.
    pub(crate) topic: String,
    /// The payload, JSON; left out or `-`: standard input.
    pub(crate) payload: Option<String>,
    /// Standard input holds one payload a line.
    #[arg(long, conflicts_with_all = ["payload", "id"])]
    pub(crate) ndjson: bool,
    /// The key.
    #[arg(long, value_name = "TEXT")]
    pub(crate) key: Option<String>,
    /// The id, a UUID; published again, the event stays once.
    #[arg(long, value_name = "UUID")]
    pub(crate) id: Option<String>,
    /// A header; repeatable.
    #[arg(long, value_name = "NAME=VALUE")]
    pub(crate) header: Vec<String>,
    /// A tag; repeatable.
    #[arg(long, value_name = "TEXT")]
    pub(crate) tag: Vec<String>,
    /// Each answer as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Give up after this long.
    #[arg(long, value_name = "DURATION")]
    pub(crate) timeout: Option<String>,
    #[command(flatten)]
    pub(crate) at: At,
}

/// Where to start, and when to end.
#[derive(Debug, clap::Args)]
pub(crate) struct ReadArgs {
    /// Where to start: latest, earliest, snapshot, an event's id (after it), a time (epoch milliseconds, RFC 3339), or
    /// how long ago (15m).
    #[arg(long, value_name = "PLACE", default_value = "latest")]
    pub(crate) from: String,
    /// End after this many events.
    #[arg(long, value_name = "N")]
    pub(crate) count: Option<u64>,
    /// End with 124 when no event comes for this long.
    #[arg(long, value_name = "DURATION")]
    pub(crate) timeout: Option<String>,
    /// Each event as one line of JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) at: At,
}

#[derive(Debug, clap::Args)]
pub(crate) struct SubArgs {
    /// The topic or pattern (a.*, a.**).
    pub(crate) topic: String,
    /// The group. Where it has been before, it goes on where it was.
    #[arg(long, short, value_name = "NAME")]
    pub(crate) group: String,
    /// Most events held unacked; with --count no more than that, with --no-ack and --count as many.
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub(crate) max_in_flight: usize,
    /// Print only: what was printed goes back to the group when this ends, and does not count as an attempt.
    #[arg(long)]
    pub(crate) no_ack: bool,
    #[command(flatten)]
    pub(crate) read: ReadArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ConsumeArgs {
    /// The topic or pattern (a.*, a.**).
    pub(crate) topic: String,
    /// The group. A group that has consumed before resumes where it was.
    #[arg(long, short, value_name = "NAME")]
    pub(crate) group: String,
    /// Most events, 1 to 1,000.
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub(crate) max: u64,
    /// Wait this long for the first event, at most 60s.
    #[arg(long, value_name = "DURATION")]
    pub(crate) wait: Option<String>,
    /// Where a group without a position starts: latest, earliest, an event's id (after it), a time (epoch milliseconds,
    /// RFC 3339), or how long ago (15m).
    #[arg(long, value_name = "PLACE", default_value = "latest")]
    pub(crate) from: String,
    /// Print only: the events return to the group, without counting an attempt.
    #[arg(long)]
    pub(crate) no_ack: bool,
    /// Each event as one line of JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) hub: HttpArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct TailArgs {
    /// The topic or pattern (a.*, a.**).
    pub(crate) topic: String,
    #[command(flatten)]
    pub(crate) read: ReadArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ReplayArgs {
    /// The topic.
    pub(crate) topic: String,
    /// Where to start: earliest, seq:N, an event's id (after it), a time (epoch milliseconds, RFC 3339), or how long ago
    /// (15m); for a group also latest.
    #[arg(long, value_name = "PLACE", default_value = "earliest")]
    pub(crate) from: String,
    /// Most events.
    #[arg(long, value_name = "N", default_value_t = 100, conflicts_with_all = ["all", "group"])]
    pub(crate) limit: u64,
    /// All events, page by page.
    #[arg(long, conflicts_with = "group")]
    pub(crate) all: bool,
    /// Move this group's cursor there instead of printing; without --yes, only say what would come again.
    #[arg(long, short, value_name = "NAME")]
    pub(crate) group: Option<String>,
    /// Do move the group.
    #[arg(long, requires = "group")]
    pub(crate) yes: bool,
    /// Each event, or the answer, as one line of JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) hub: HttpArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ExportArgs {
    /// The topics, one after another.
    #[arg(required = true, value_name = "TOPIC")]
    pub(crate) topics: Vec<String>,
    /// Where to start: earliest, seq:N, an event's id (after it), a time (epoch milliseconds, RFC 3339), or how long ago
    /// (15m).
    #[arg(long, value_name = "PLACE", default_value = "earliest")]
    pub(crate) from: String,
    /// Only events of this time or later; as --from with a time.
    #[arg(long, value_name = "TIME", conflicts_with = "from")]
    pub(crate) from_ts: Option<String>,
    /// Only events of this time or earlier.
    #[arg(long, value_name = "TIME")]
    pub(crate) to_ts: Option<String>,
    /// Only events with this seq or an earlier one.
    #[arg(long, value_name = "N")]
    pub(crate) to_seq: Option<u64>,
    #[command(flatten)]
    pub(crate) hub: HttpArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ImportArgs {
    /// What promethean export printed; left out or `-`: standard input.
    pub(crate) file: Option<PathBuf>,
    /// Everything to this topic, instead of each event to its own.
    #[arg(long, value_name = "TOPIC")]
    pub(crate) topic: Option<String>,
    /// Leave out lines that can never be stored (too large, nested too deep, no event), say which, and go on.
    #[arg(long)]
    pub(crate) skip: bool,
    /// The result as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) at: At,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ContextCommand {
    /// List the saved contexts.
    List {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Show which hub commands would talk to now, and where that was said.
    Show {
        /// As JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        at: At,
    },
    /// Save a context, or change one; the first one is used at once.
    Set {
        /// Its name.
        name: String,
        /// The hub's address, best that of its ops port.
        #[arg(long, value_name = "URL")]
        server: Option<String>,
        /// The token to authenticate with; empty: none.
        #[arg(long, value_name = "TOKEN")]
        token: Option<String>,
    },
    /// Use a context from now on.
    Use {
        /// Its name.
        name: String,
    },
    /// Forget a context.
    Remove {
        /// Its name.
        name: String,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum BenchMode {
    /// How fast events are published.
    Publish,
    /// How fast events that are there are delivered and acked.
    Subscribe,
    /// Publish, deliver and ack at the same time.
    E2e,
    /// The time from publish to delivery at a fixed rate.
    Latency,
}

#[derive(Debug, clap::Args)]
pub(crate) struct BenchArgs {
    /// What to measure.
    #[arg(value_enum, default_value = "e2e")]
    pub(crate) mode: BenchMode,
    #[command(flatten)]
    pub(crate) at: At,
    /// Publishers, each with a connection of its own.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) clients: usize,
    /// Groups, each with one consumer; every group gets every event; not with publish [default: 1].
    #[arg(long, value_name = "N")]
    pub(crate) groups: Option<usize>,
    /// Topics, published to in turn.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) topics: usize,
    /// Bytes of each payload, at least 32.
    #[arg(long, value_name = "BYTES", default_value_t = 256)]
    pub(crate) payload: usize,
    /// Events in each PUBLISH frame.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) batch: usize,
    /// Events that a publisher sends before it waits for answers, at least a batch [default: 1024].
    #[arg(long, value_name = "N")]
    pub(crate) window: Option<usize>,
    /// Events that a consumer holds unacked (maxInFlight); not with publish [default: 500].
    #[arg(long, value_name = "N")]
    pub(crate) credit: Option<usize>,
    /// How many events; latency runs 10s unless told [default: 1000000].
    #[arg(long, value_name = "N")]
    pub(crate) events: Option<u64>,
    /// For how long, instead of how many.
    #[arg(long, value_name = "DURATION")]
    pub(crate) duration: Option<String>,
    /// Events a second; with latency only [default: 2000].
    #[arg(long, value_name = "N")]
    pub(crate) rate: Option<u64>,
    /// Leave the run's topics and groups on the hub.
    #[arg(long)]
    pub(crate) keep: bool,
    /// The result as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Exit with 1 if fewer events a second go through.
    #[arg(long, value_name = "N")]
    pub(crate) min_rate: Option<f64>,
    /// Exit with 1 if the p99 latency is above this many milliseconds: until the delivery, with publish until the OK;
    /// not with subscribe, whose events are older than the run.
    #[arg(long, value_name = "MS")]
    pub(crate) max_p99: Option<f64>,
}

/// One flag per setting, made from the table.
#[derive(Debug, Clone, Default)]
pub(crate) struct Flags(pub(crate) BTreeMap<&'static str, String>);

impl clap::Args for Flags {
    fn augment_args(mut command: clap::Command) -> clap::Command {
        for setting in SETTINGS {
            let mut variables = vec![setting.variable()];
            variables.extend(setting.seed.map(str::to_owned));
            let default = setting.default.filter(|text| !text.is_empty());
            let default = default.map(|text| format!(" [default: {text}]")).unwrap_or_default();
            let mut arg = Arg::new(setting.name)
                .long(setting.flag())
                .value_name(setting.value)
                .help(format!("{}{default} [env: {}]", setting.help, variables.join(", ")))
                .help_heading(setting.section)
                .action(ArgAction::Set);
            if setting.is_switch() {
                arg = arg.num_args(0..=1).default_missing_value("true");
            }
            command = command.arg(arg);
        }
        command
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Flags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut flags = Self::default();
        flags.update_from_arg_matches(matches)?;
        Ok(flags)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for setting in SETTINGS {
            if let Some(text) = matches.get_one::<String>(setting.name) {
                self.0.insert(setting.name, text.clone());
            }
        }
        Ok(())
    }
}
