//! What the commands that speak WebSocket share: connecting, signals, failures as exit codes.

use std::time::Duration;

use promethean_client::{Client, Code, Error, EventId, From, Millis};

use crate::args::HubArgs;
use crate::config::duration;
use crate::exit::{Exit, Failure};

/// Runs a command to its end, or until it is interrupted.
pub(super) fn run<T>(command: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::failed)?;
    runtime.block_on(async {
        tokio::select! {
            done = command => done,
            _ = tokio::signal::ctrl_c() => Err(Failure::new(Exit::Interrupted, "interrupted")),
        }
    })
}

/// Connects as the arguments say.
pub(super) async fn connect(args: &HubArgs) -> Result<Client, Failure> {
    let mut builder = Client::builder(&args.server);
    if let Some(token) = &args.token {
        builder = builder.token(token);
    }
    builder.connect().await.map_err(failure)
}

/// A client's error with its exit code.
pub(super) fn failure(error: Error) -> Failure {
    let exit = match &error {
        Error::Connect { .. } | Error::Lost => Exit::Unreachable,
        _ if error.is_denied() => Exit::Denied,
        _ => match error.code() {
            Some(Code::UnknownId) => Exit::NotFound,
            Some(Code::BadTopic | Code::BadId | Code::BadRequest | Code::BadJson) => Exit::Usage,
            _ => Exit::Failed,
        },
    };
    Failure::new(exit, error)
}

/// A place to start at.
pub(super) fn place(text: &str) -> Result<From, Failure> {
    match text {
        "latest" => Ok(From::Latest),
        "earliest" => Ok(From::Earliest),
        "snapshot" => Ok(From::Snapshot),
        _ => {
            if let Ok(ts) = text.parse() {
                return Ok(From::Ts(Millis(ts)));
            }
            EventId::parse(text).map(From::AfterId).map_err(|_| {
                let remedy = "write latest, earliest, snapshot, an event's id or a time in epoch milliseconds";
                Failure::usage(format!("--from: {text:?} is no place to start; {remedy}"))
            })
        }
    }
}

/// An optional duration of the flag `name`.
pub(super) fn patience(name: &str, text: Option<&str>) -> Result<Option<Duration>, Failure> {
    let read = |text| duration(text).map_err(|reason| Failure::usage(format!("{name}: {reason}")));
    text.map(read).transpose()
}

/// `future`, or exit code 124 after `limit`.
pub(super) async fn within<T>(
    limit: Option<Duration>,
    future: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let Some(limit) = limit else { return future.await };
    let late = |_| Err(Failure::new(Exit::Timeout, format!("nothing within {limit:?}")));
    tokio::time::timeout(limit, future).await.unwrap_or_else(late)
}
