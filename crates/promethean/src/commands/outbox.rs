//! `promethean outbox`: drains an outbox into a hub, lists its rows, tries parked ones again.

use std::sync::Arc;
use std::time::Duration;

use promethean_outbox::{ClientPublisher, List, OutboxStore, Row, Schema, Snapshot, Status, Which, drain};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tracing_subscriber::EnvFilter;

use super::interrupt::Signals;
use super::out::{self, Table};
use super::{address, hub, logging};
use crate::args::{DrainArgs, OutboxAt, OutboxCommand};
use crate::config::{LogFormat, duration};
use crate::exit::{Exit, Failure};
use crate::outbox::{OutboxConfig, Place, lease, poll};

pub(crate) fn run(command: OutboxCommand) -> Result<(), Failure> {
    match command {
        OutboxCommand::Drain(args) => drained(&args),
        OutboxCommand::List { status, limit, json, outbox } => hub::run(async {
            let store = open(&outbox, Schema::Require).await?;
            let rows = store.list(List { status: status_of(&status)?, limit }).await.map_err(Failure::failed)?;
            show(&rows, json)
        }),
        OutboxCommand::Retry { ids, all, json, outbox } => hub::run(async {
            let store = open(&outbox, Schema::Require).await?;
            // A UUID is the same in both cases; a row has it as it was written.
            let ids = ids.into_iter().flat_map(|id| [id.to_ascii_lowercase(), id.to_ascii_uppercase(), id]).collect();
            let which = if all { Which::All } else { Which::Ids(ids) };
            let retried = store.retry(&which).await.map_err(Failure::failed)?;
            match json {
                true => out::json(&json!({"retried": retried}))?,
                false => out::line(&format!("{retried} rows are pending again"))?,
            }
            match which {
                Which::Ids(_) if retried == 0 => {
                    let remedy = "`promethean outbox list` shows those that are";
                    Err(Failure::new(Exit::NotFound, format!("none of these rows is parked; {remedy}")))
                }
                _ => Ok(()),
            }
        }),
    }
}

async fn open(at: &OutboxAt, schema: Schema) -> Result<Arc<dyn OutboxStore>, Failure> {
    let place = Place::parse(&at.url).map_err(|reason| Failure::usage(format!("--outbox: {reason}")))?;
    place.open(&at.table, schema).await
}

fn status_of(text: &str) -> Result<Option<Status>, Failure> {
    match (text, Status::parse(text)) {
        ("all", _) => Ok(None),
        (_, Some(status)) => Ok(Some(status)),
        _ => Err(Failure::usage(format!("--status: {text:?} is none; write pending, claimed, sent, error or all"))),
    }
}

fn show(rows: &[Row], as_json: bool) -> Result<(), Failure> {
    if as_json {
        return rows.iter().try_for_each(|row| out::line(&row_json(row)?));
    }
    let mut table = Table::new(&["ID", "STATUS", "TOPIC", "KEY", "ATTEMPTS", "WHY"]);
    for row in rows {
        let or_none = |text: Option<&str>| text.unwrap_or("-").to_owned();
        let (key, why) = (or_none(row.key.as_deref()), or_none(row.last_err.as_deref()));
        let [id, topic, key] = [&row.id, &row.topic, &key].map(|text| short(text));
        table.row([id, row.status.to_string(), topic, key, row.attempts.to_string(), why]);
    }
    table.print()?;
    if rows.iter().any(|row| row.status == Status::Error) {
        out::hint("promethean outbox retry --all");
    }
    Ok(())
}

/// Most characters of a cell that all rows are aligned to; an id is 36.
const MAX_CELL: usize = 48;

/// A cell that does not make every row as wide as the longest key; `--json` has it whole.
fn short(text: &str) -> String {
    match text.char_indices().nth(MAX_CELL) {
        Some(_) => text.chars().take(MAX_CELL - 1).chain(['…']).collect(),
        None => text.to_owned(),
    }
}

fn row_json(row: &Row) -> Result<String, Failure> {
    let mut object = json!({
        "id": row.id, "status": row.status.as_str(), "topic": row.topic, "key": row.key, "ts": row.ts,
        "attempts": row.attempts, "claimed_by": row.claimed_by, "lease_until": row.lease_until,
        "last_err": row.last_err, "sid": row.sid, "tags": row.tags, "caused_by": row.caused_by,
    });
    if let Value::Object(fields) = &mut object {
        fields.retain(|_, value| !value.is_null() && *value != json!([]));
        if !row.headers.is_empty() {
            let headers = row.headers.iter().map(|(name, value)| (name.clone(), Value::from(value.as_str())));
            fields.insert("headers".into(), Value::Object(headers.collect()));
        }
    }
    // The payload as it is, where it is JSON; as text, where it is not.
    let text = || serde_json::value::to_raw_value(&row.payload);
    let payload = RawValue::from_string(row.payload.clone()).or_else(|_| text()).map_err(Failure::failed)?;
    let head = object.to_string();
    let mut line = Vec::from(&head.as_bytes()[..head.len() - 1]);
    line.extend_from_slice(b",\"payload\":");
    promethean_event::json::write_line(&mut line, payload.get().as_bytes());
    line.push(b'}');
    String::from_utf8(line).map_err(Failure::failed)
}

fn drained(args: &DrainArgs) -> Result<(), Failure> {
    let config = config(args)?;
    logging::start(EnvFilter::new("warn,promethean_outbox=info"), LogFormat::Text, false);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.map_err(Failure::failed)?;
    let ended = runtime.block_on(until_ended(args, &config));
    runtime.shutdown_timeout(Duration::from_millis(200));
    ended
}

/// The settings, held to the same bounds as the hub's own.
fn config(args: &DrainArgs) -> Result<OutboxConfig, Failure> {
    let wrong = |name: &str, reason: &str| Failure::usage(format!("{name}: {reason}"));
    for (name, is_none) in [("--batch", args.batch == 0), ("--max-attempts", args.max_attempts == 0)] {
        if is_none {
            return Err(wrong(name, "must be a whole number of at least 1"));
        }
    }
    Ok(OutboxConfig {
        place: Place::parse(&args.outbox.url).map_err(|reason| wrong("--outbox", &reason))?,
        table: args.outbox.table.clone(),
        batch: args.batch,
        lease: lease(&args.lease).map_err(|reason| wrong("--lease", &reason))?,
        poll: poll(&args.poll).map_err(|reason| wrong("--poll", &reason))?,
        max_attempts: args.max_attempts,
        keep_sent: duration(&args.keep_sent).map_err(|reason| wrong("--keep-sent", &reason))?,
    })
}

async fn until_ended(args: &DrainArgs, config: &OutboxConfig) -> Result<(), Failure> {
    let mut signals = Signals::new()?;
    let store = tokio::select! {
        opened = config.place.open(&config.table, Schema::Create) => opened?,
        () = signals.next() => return report(&Snapshot::default(), args.json),
    };
    let client = tokio::select! {
        connected = connect(args) => connected?,
        () = signals.next() => return report(&untouched(&*store).await, args.json),
    };
    let mut settings = config.settings();
    settings.until_empty = args.once;
    let mut drainer = drain(store, Arc::new(ClientPublisher::new(client.clone())), settings);
    out::done(&format!("draining {}", config.place.shown()));
    let ended = tokio::select! {
        ended = drainer.ended() => ended,
        () = signals.next() => None,
    };
    let snapshot = drainer.stop().await;
    // What is not confirmed by now was given back.
    let _ = tokio::time::timeout(Duration::from_secs(1), client.close()).await;
    report(&snapshot, args.json)?;
    match ended {
        Some(reason) => {
            let remedy =
                if reason.contains("unauthorized") { format!("; {}", address::GIVE_A_TOKEN) } else { String::new() };
            Err(Failure::new(Exit::Denied, format!("the outbox is no longer drained: {reason}{remedy}")))
        }
        None if args.once && snapshot.stats.parked > 0 => {
            let remedy = "promethean outbox list --status error shows why, promethean outbox retry sends them again";
            Err(Failure::failed(format!("{} rows are parked; {remedy}", snapshot.stats.parked)))
        }
        None => Ok(()),
    }
}

/// What is reported where no hub was reached: all that was there is left. A database that does not answer now keeps nobody
/// from ending.
async fn untouched(store: &dyn OutboxStore) -> Snapshot {
    let stats = tokio::time::timeout(Duration::from_secs(1), store.stats()).await;
    Snapshot { stats: stats.ok().and_then(Result::ok).unwrap_or_default(), ..Snapshot::default() }
}

/// Connects; a hub that is not up yet is waited for, unless the drain is to end by itself.
async fn connect(args: &DrainArgs) -> Result<promethean_client::Client, Failure> {
    let mut wait = Duration::from_millis(100);
    loop {
        match hub::connect(&args.hub).await {
            Err(failure) if failure.exit == Exit::Unreachable && !args.once => {
                out::done(&format!("promethean: {failure}; trying again"));
                tokio::time::sleep(wait).await;
                wait = (wait * 2).min(Duration::from_secs(5));
            }
            done => return done,
        }
    }
}

fn report(snapshot: &Snapshot, as_json: bool) -> Result<(), Failure> {
    let Snapshot { stats, sent, errors, parked } = snapshot;
    if as_json {
        let left = json!({"pending": stats.pending, "claimed": stats.claimed, "parked": stats.parked});
        return out::json(&json!({"sent": sent, "errors": errors, "parked": parked, "left": left}));
    }
    out::done(&format!("{sent} sent, {errors} errors, {parked} parked; {} left", stats.pending + stats.claimed));
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        drain: DrainArgs,
    }

    #[test]
    fn a_long_cell_is_cut_and_one_that_fits_is_not() {
        let (fits, long) = ("é".repeat(MAX_CELL), "é".repeat(2_000));
        assert_eq!(short(&fits), fits);
        assert_eq!(short(&long), format!("{}…", "é".repeat(MAX_CELL - 1)));
    }

    #[test]
    fn a_drain_is_held_to_the_bounds_of_the_hub() {
        let config = |flags: &[&str]| {
            let line = ["drain", "--outbox", "sqlite:a.db"].iter().chain(flags);
            super::config(&Line::parse_from(line).drain)
        };
        assert_eq!(config(&["--lease", "1s", "--batch", "1"]).expect("good").lease, Duration::from_secs(1));
        let settings = |flags: &[&str]| config(flags).expect("good").settings().longest_poll;
        assert_eq!((settings(&[]), settings(&["--poll", "2s"])), (Duration::from_millis(250), Duration::from_secs(2)));
        assert_eq!(config(&["--poll", "1ms"]).expect_err("refused").exit, Exit::Usage);
        for flags in [["--lease", "0s"], ["--lease", "999ms"], ["--batch", "0"], ["--max-attempts", "0"]] {
            let refused = config(&flags).expect_err("refused");
            assert_eq!(refused.exit, Exit::Usage);
            assert!(
                refused.to_string().starts_with(flags[0]) && refused.to_string().contains("at least 1"),
                "{refused}"
            );
        }
    }
}
