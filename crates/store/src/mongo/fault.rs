//! What MongoDB's errors mean, and waiting with a limit.

use std::future::Future;
use std::time::{Duration, Instant};

use mongodb::error::{
    Error as Fault, ErrorKind, TRANSIENT_TRANSACTION_ERROR, UNKNOWN_TRANSACTION_COMMIT_RESULT, WriteFailure,
};

use crate::{Error, Result};

/// One request to the server.
pub(super) const REQUEST: Duration = Duration::from_secs(10);
/// An operation of the store, with all its retries: longer than an election.
pub(super) const OPERATION: Duration = Duration::from_secs(30);

/// Codes of a server that is not, or no longer, the one to ask: an election, a shutdown, a lost connection, a time limit.
const AWAY: [i32; 17] = [6, 7, 64, 89, 91, 112, 134, 189, 262, 290, 9001, 10107, 11600, 11602, 13435, 13436, 50];

/// The server's code.
pub(super) fn code(fault: &Fault) -> Option<i32> {
    match fault.kind.as_ref() {
        ErrorKind::Command(error) => Some(error.code),
        ErrorKind::Write(WriteFailure::WriteError(error)) => Some(error.code),
        ErrorKind::Write(WriteFailure::WriteConcernError(error)) => Some(error.code),
        ErrorKind::InsertMany(error) => {
            let write = error.write_errors.as_ref().and_then(|errors| errors.first()).map(|error| error.code);
            write.or_else(|| error.write_concern_error.as_ref().map(|error| error.code))
        }
        _ => None,
    }
}

/// The server's words without the command that they are about: its session, its signature and the events in it are not
/// for whoever reads the message.
pub(super) fn words(fault: &Fault) -> String {
    brief(&told(fault)).to_owned()
}

/// What stands before the command.
pub(super) fn brief(words: &str) -> &str {
    words.split(" to execute command").next().unwrap_or_default()
}

fn told(fault: &Fault) -> String {
    match fault.kind.as_ref() {
        ErrorKind::Command(error) => error.message.clone(),
        ErrorKind::Write(WriteFailure::WriteError(error)) => error.message.clone(),
        ErrorKind::Write(WriteFailure::WriteConcernError(error)) => error.message.clone(),
        ErrorKind::InsertMany(error) => match (&error.write_errors, &error.write_concern_error) {
            (Some(errors), _) if !errors.is_empty() => errors[0].message.clone(),
            (_, Some(error)) => error.message.clone(),
            _ => fault.to_string(),
        },
        ErrorKind::ServerSelection { message, .. } => {
            format!("no primary answers: {}", message.split("Topology:").next().unwrap_or(message).trim())
        }
        other => other.to_string(),
    }
}

/// A unique index has the value already.
pub(super) fn is_duplicate(fault: &Fault) -> bool {
    code(fault) == Some(11000)
}

/// Another attempt may fare better: nobody is to blame but the moment.
pub(super) fn is_away(fault: &Fault) -> bool {
    if fault.contains_label(TRANSIENT_TRANSACTION_ERROR) || fault.contains_label(UNKNOWN_TRANSACTION_COMMIT_RESULT) {
        return true;
    }
    match fault.kind.as_ref() {
        ErrorKind::Io(_) | ErrorKind::ServerSelection { .. } | ErrorKind::ConnectionPoolCleared { .. } => true,
        _ => code(fault).is_some_and(|code| AWAY.contains(&code)),
    }
}

/// One request, with a time limit of its own.
pub(super) async fn within<T>(
    limit: Duration,
    request: impl IntoFuture<Output = mongodb::error::Result<T>>,
) -> mongodb::error::Result<T> {
    let late = |_| {
        let message = format!("MongoDB did not answer within {} s", limit.as_secs());
        Err(Fault::from(std::io::Error::new(std::io::ErrorKind::TimedOut, message)))
    };
    tokio::time::timeout(limit, request.into_future()).await.unwrap_or_else(late)
}

/// One request, with the usual time limit.
pub(super) async fn limited<T>(
    request: impl IntoFuture<Output = mongodb::error::Result<T>>,
) -> mongodb::error::Result<T> {
    within(REQUEST, request).await
}

/// Asks until there is an answer: through an election, not beyond [`OPERATION`]. For what may be asked twice.
pub(super) async fn patiently<T, F, R>(what: &str, request: F) -> Result<T>
where
    F: FnMut() -> R,
    R: Future<Output = mongodb::error::Result<T>>,
{
    let asked = before(Instant::now() + OPERATION, request).await;
    asked.map_err(|fault| Error::Refused(format!("{what}: MongoDB says: {}", words(&fault))))
}

/// The same with an end that is given. At the end, what was wrong before the time was short is told.
pub(super) async fn before<T, F, R>(end: Instant, mut request: F) -> mongodb::error::Result<T>
where
    F: FnMut() -> R,
    R: Future<Output = mongodb::error::Result<T>>,
{
    let (mut round, mut known) = (0, None);
    loop {
        let left = left(end);
        match within(left.min(REQUEST), request()).await {
            Err(fault) if is_away(&fault) => {
                if known.is_none() || left >= REQUEST {
                    known = Some(fault);
                }
            }
            ended => return ended,
        }
        pause(round).await;
        round += 1;
        if let Some(known) = known.take_if(|_| Instant::now() >= end) {
            return Err(known);
        }
    }
}

/// How much time there is until then.
pub(super) fn left(end: Instant) -> Duration {
    end.saturating_duration_since(Instant::now())
}

/// The longest wait between two attempts.
pub(super) const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// Waits a little before the next attempt: 2 to 4 ms first, doubling to half a second, never at the same time as others.
pub(super) async fn pause(round: u32) {
    let longest = u64::try_from(LONGEST_PAUSE.as_millis()).unwrap_or(u64::MAX);
    let most = (4_u64 << round.min(7)).min(longest);
    tokio::time::sleep(Duration::from_millis(most / 2 + random() % (most / 2 + 1))).await;
}

/// Any number.
pub(super) fn random() -> u64 {
    use std::hash::{BuildHasher as _, Hasher as _};
    std::hash::RandomState::new().build_hasher().finish()
}

/// 16 bytes that nobody else has.
pub(super) fn nonce() -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&random().to_le_bytes());
    bytes[8..].copy_from_slice(&random().to_le_bytes());
    // A UUIDv4, as the field says.
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_what_was_refused_the_command_is_not_told() {
        let whole = "not authorized on d to execute command { insert: \"events\", lsid: { id: UUID(\"1\") }, $clusterTime: \
                     { signature: { hash: BinData(0, 00) } } }";
        assert_eq!(brief(whole), "not authorized on d");
        assert_eq!(brief("E11000 duplicate key error"), "E11000 duplicate key error");
        assert_eq!(words(&Fault::from(std::io::Error::other(whole))), "I/O error: not authorized on d");
    }
}
