//! The arguments of the operator's commands: topics, groups, dead letters, backups.

use std::path::PathBuf;

use clap::Subcommand;

use super::HttpArgs;

#[derive(Debug, Subcommand)]
pub(crate) enum TopicCommand {
    /// List the topics with their sizes and rates.
    List {
        /// As JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        hub: HttpArgs,
    },
    /// Show a topic: counts, settings, groups.
    Show {
        /// The topic.
        topic: String,
        /// As JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        hub: HttpArgs,
    },
    /// Change what is kept of a topic, and how it is spread; `none` takes a bound away.
    ///
    /// Counts at once and stays over restarts. For a topic that has a table in the hub's configuration file, the file
    /// counts again at the next start.
    Set(Box<SetArgs>),
    /// Create a topic, with settings where flags name some; a topic that exists stays.
    Create(Box<SetArgs>),
    /// Delete a topic: its events, settings and the positions of its groups. Without --yes, asks on a terminal, else only
    /// says what would go.
    Delete(DeleteArgs),
    /// Remove events of a topic and keep the topic. Without --yes, asks on a terminal, else only says how many would go.
    Purge(PurgeArgs),
    /// Show the latest event of keys, now or as of a time.
    Latest(LatestArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct SetArgs {
    /// The topic. It need not exist yet.
    pub(crate) topic: String,
    /// Partitions that `partition` counts over.
    #[arg(long, value_name = "N")]
    pub(crate) partitions: Option<u32>,
    /// Remove events older than this (12h, 30d), or none.
    #[arg(long, value_name = "DURATION", conflicts_with = "retention_days")]
    pub(crate) max_age: Option<String>,
    /// The same in days, or none.
    #[arg(long, value_name = "N", alias = "retentionDays")]
    pub(crate) retention_days: Option<String>,
    /// Remove the oldest events beyond this size (10GiB), or none.
    #[arg(long, value_name = "SIZE")]
    pub(crate) max_bytes: Option<String>,
    /// Remove the oldest events beyond this many, or none.
    #[arg(long, value_name = "N")]
    pub(crate) max_events: Option<String>,
    /// The largest event (64KiB), or none for the hub's limit.
    #[arg(long, value_name = "SIZE")]
    pub(crate) max_event_bytes: Option<String>,
    /// Where the key of an event stands in its payload if the publisher names none, as a JSON Pointer (/order/id); or none.
    #[arg(long, value_name = "POINTER")]
    pub(crate) key_path: Option<String>,
    /// Keep only the latest event of each key.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub(crate) compaction: Option<bool>,
    /// How long a tombstone stays in a compacted topic; none: the default, 24h.
    #[arg(long, value_name = "DURATION")]
    pub(crate) tombstone_grace: Option<String>,
    /// Keep the state by key on a topic of its own.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub(crate) snapshot: Option<bool>,
    /// That topic; none: TOPIC.snapshot.
    #[arg(long, value_name = "TOPIC", alias = "snapshotTopic")]
    pub(crate) snapshot_topic: Option<String>,
    /// How often what changed is written there; none: the default, 30s.
    #[arg(long, value_name = "DURATION")]
    pub(crate) snapshot_interval: Option<String>,
    /// Only these keys; repeatable. none alone: all keys. A key that is called none can be set through the
    /// configuration or PUT /settings.
    #[arg(long, value_name = "KEY")]
    pub(crate) snapshot_key: Vec<String>,
    /// The settings as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) hub: HttpArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DeleteArgs {
    /// The topic.
    pub(crate) topic: String,
    /// Its dead letters too.
    #[arg(long)]
    pub(crate) dlq: bool,
    #[command(flatten)]
    pub(crate) how: Confirmed,
}

#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("which").required(true).args(["before_seq", "before", "key"]))]
pub(crate) struct PurgeArgs {
    /// The topic.
    pub(crate) topic: String,
    /// Events with a smaller seq.
    #[arg(long, value_name = "SEQ")]
    pub(crate) before_seq: Option<u64>,
    /// Events of an earlier time: epoch milliseconds, RFC 3339, or how long ago (15m).
    #[arg(long, value_name = "TIME")]
    pub(crate) before: Option<String>,
    /// Events with this key; repeatable.
    #[arg(long, value_name = "TEXT")]
    pub(crate) key: Vec<String>,
    #[command(flatten)]
    pub(crate) how: Confirmed,
}

/// How a command is carried out that removes something.
#[derive(Debug, clap::Args)]
pub(crate) struct Confirmed {
    /// Only say what would go.
    #[arg(long, conflicts_with = "yes")]
    pub(crate) dry_run: bool,
    /// Do it without asking.
    #[arg(long)]
    pub(crate) yes: bool,
    /// The answer as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) hub: HttpArgs,
}

/// A group on a topic.
#[derive(Debug, clap::Args)]
pub(crate) struct GroupArgs {
    /// The topic.
    pub(crate) topic: String,
    /// The group.
    pub(crate) group: String,
    /// As JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) hub: HttpArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum GroupCommand {
    /// List the groups: members, lag, what is in flight.
    List {
        /// Only groups of this topic.
        topic: Option<String>,
        /// As JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        hub: HttpArgs,
    },
    /// Show a group: where it stands, and who holds which events.
    Show(GroupArgs),
    /// Say why a group does not move.
    Explain(GroupArgs),
    /// Move a group's cursor; without --yes, only say what would come again.
    Seek {
        /// Where to: earliest, latest, seq:N, an event's id (after it), a time (epoch milliseconds, RFC 3339), or how
        /// long ago (15m).
        #[arg(long, value_name = "PLACE")]
        from: String,
        /// Do it.
        #[arg(long)]
        yes: bool,
        /// Create the group if it does not exist. Without it, that is exit code 5.
        #[arg(long)]
        create: bool,
        #[command(flatten)]
        group: GroupArgs,
    },
    /// Forget a group that has no members: its next subscriber begins anew.
    Forget {
        /// Do it.
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        group: GroupArgs,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum DlqCommand {
    /// List the topics that have dead letters, or a topic's letters, newest first.
    List {
        /// The topic whose events they were.
        topic: Option<String>,
        /// Most letters.
        #[arg(long, value_name = "N", default_value_t = 20)]
        limit: u64,
        /// Go on after this letter.
        #[arg(long, value_name = "ID", requires = "topic")]
        after: Option<String>,
        /// As JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        hub: HttpArgs,
    },
    /// Show one dead letter: the event, who gave it up, and why.
    Show {
        /// The letter's id.
        id: String,
        /// As JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        hub: HttpArgs,
    },
    /// Redrive dead letters to the group that failed, each once: by id, those that fit every filter, or all.
    Redrive(RedriveArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct RedriveArgs {
    /// The topic whose events they were.
    pub(crate) topic: String,
    /// Letters' ids.
    #[arg(value_name = "ID")]
    pub(crate) ids: Vec<String>,
    /// Only letters of this group.
    #[arg(long, short, value_name = "NAME")]
    pub(crate) group: Option<String>,
    /// Only letters whose event had this key.
    #[arg(long, value_name = "TEXT")]
    pub(crate) key: Option<String>,
    /// Only letters whose error has this in it.
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
    /// Only letters of this time or later: epoch milliseconds, RFC 3339, or how long ago (15m).
    #[arg(long, value_name = "TIME")]
    pub(crate) since: Option<String>,
    /// Only letters of this time or earlier.
    #[arg(long, value_name = "TIME")]
    pub(crate) until: Option<String>,
    /// Most letters.
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<u64>,
    /// All of them.
    #[arg(long, conflicts_with_all = ["ids", "group", "key", "reason", "since", "until"])]
    pub(crate) all: bool,
    /// Publish copies to the topic, for every group.
    #[arg(long)]
    pub(crate) to_topic: bool,
    /// Only say how many fit.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Go ahead where more than one group gets events again.
    #[arg(long, short)]
    pub(crate) yes: bool,
    /// The answer as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) hub: HttpArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct LatestArgs {
    /// The topic.
    pub(crate) topic: String,
    /// A key; repeatable. Left out: all live keys.
    #[arg(long, value_name = "TEXT")]
    pub(crate) key: Vec<String>,
    /// As of this time: epoch milliseconds, RFC 3339, or how long ago (15m).
    #[arg(long, value_name = "TIME")]
    pub(crate) at: Option<String>,
    /// Only keys after this one.
    #[arg(long, value_name = "KEY", conflicts_with = "key")]
    pub(crate) after: Option<String>,
    /// Most keys.
    #[arg(long, value_name = "N", default_value_t = 100, conflicts_with = "key")]
    pub(crate) limit: u64,
    /// The hub's answer as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) hub: HttpArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct BackupArgs {
    /// The file to write; it must not exist yet. `-`: standard output.
    pub(crate) file: PathBuf,
    /// What it has, as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) hub: HttpArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RestoreArgs {
    /// A file that promethean backup wrote; `-`: standard input.
    pub(crate) file: PathBuf,
    /// The data directory to make; it must be empty or not exist.
    pub(crate) dir: PathBuf,
    /// What was restored, as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}
