//! The arguments of `promethean outbox`.

use clap::Subcommand;

use super::At;

/// Which outbox.
#[derive(Debug, clap::Args)]
pub(crate) struct OutboxAt {
    /// The database with the outbox: sqlite:PATH, or mongodb://HOST/DATABASE?replicaSet=NAME.
    #[arg(long = "outbox", value_name = "URL", env = "PROMETHEAN_OUTBOX_URL", hide_env_values = true)]
    pub(crate) url: String,
    /// The table or collection.
    #[arg(long, value_name = "NAME", env = "PROMETHEAN_OUTBOX_TABLE", default_value = "outbox")]
    pub(crate) table: String,
}

#[derive(Debug, Subcommand)]
pub(crate) enum OutboxCommand {
    /// Publish the rows of an outbox to a hub, until interrupted.
    ///
    /// Any number of drainers may work on one outbox. SIGTERM and SIGINT end it in order: the batch under way is
    /// finished or given back.
    Drain(DrainArgs),
    /// List rows, the oldest first.
    List {
        /// Of this status: pending, claimed, sent, error; or all.
        #[arg(long, value_name = "STATUS", default_value = "error")]
        status: String,
        /// Most rows.
        #[arg(long, value_name = "N", default_value_t = 100)]
        limit: usize,
        /// Each row as one line of JSON, with its payload.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        outbox: OutboxAt,
    },
    /// Try parked rows again, with their attempts counted anew.
    Retry {
        /// The rows' ids.
        #[arg(value_name = "ID", required_unless_present = "all")]
        ids: Vec<String>,
        /// All that are parked.
        #[arg(long, conflicts_with = "ids")]
        all: bool,
        /// As JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        outbox: OutboxAt,
    },
}

#[derive(Debug, clap::Args)]
pub(crate) struct DrainArgs {
    #[command(flatten)]
    pub(crate) outbox: OutboxAt,
    /// End when every row is published or parked.
    #[arg(long)]
    pub(crate) once: bool,
    /// Most rows claimed at a time.
    #[arg(long, value_name = "N", default_value_t = 500)]
    pub(crate) batch: usize,
    /// How long a claim lasts: a drainer that died is noticed after this time.
    #[arg(long, value_name = "DURATION", default_value = "30s")]
    pub(crate) lease: String,
    /// Longest wait between two looks at an idle outbox.
    #[arg(long, value_name = "DURATION", default_value = "250ms")]
    pub(crate) poll: String,
    /// Tries before a row is parked.
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(crate) max_attempts: u32,
    /// Published rows are removed once their event is this old.
    #[arg(long, value_name = "DURATION", default_value = "24h")]
    pub(crate) keep_sent: String,
    /// What was done, as JSON, at the end.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) hub: At,
}
