//! The arguments of the operator's commands: topics, groups, dead letters, backups.

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
    /// Show the latest event of keys, now or as of a time.
    Latest(LatestArgs),
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
