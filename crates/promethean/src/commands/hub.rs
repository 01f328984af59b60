//! What the commands that speak WebSocket share: connecting, signals, failures as exit codes.

use std::time::Duration;

use promethean_client::{Client, Code, Error, EventId, From, Millis, Publish, Published};
use promethean_event::rfc3339;

use super::address::{self, Port};
use super::interrupt::Signals;
use crate::args::At;
use crate::config::duration;
use crate::exit::{Exit, Failure};

/// How long a hub that has no room is asked again.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long to wait where the hub does not say.
const A_MOMENT: Duration = Duration::from_secs(1);

/// Runs a command to its end, or until a signal ends it.
pub(super) fn run<T>(command: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    run_with(async |signals| signals.unless(command).await)
}

/// Runs a command that looks after signals itself.
pub(super) fn run_with<T>(command: impl AsyncFnOnce(&mut Signals) -> Result<T, Failure>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::failed)?;
    runtime.block_on(async { command(&mut Signals::new()?).await })
}

/// Connects as the arguments say.
pub(super) async fn connect(at: &At) -> Result<Client, Failure> {
    let target = address::resolve(at, Port::Ws)?;
    let mut builder = Client::builder(&target.server);
    if let Some(token) = &target.token {
        builder = builder.token(token);
    }
    builder.connect().await.map_err(failure)
}

/// True if somebody answered who takes no WebSockets there: the hub's HTTP port, or another server.
fn answered(reason: &str) -> bool {
    reason.contains("404 Not Found")
}

/// A client's error with its exit code.
pub(super) fn failure(error: Error) -> Failure {
    let exit = match error.cause() {
        Error::Connect { reason, .. } if answered(reason) => Exit::Usage,
        Error::Connect { .. } | Error::Lost => Exit::Unreachable,
        _ if error.is_denied() => Exit::Denied,
        _ => match error.code() {
            Some(Code::UnknownId) => Exit::NotFound,
            Some(Code::BadTopic | Code::BadId | Code::BadRequest | Code::BadJson) => Exit::Usage,
            _ => Exit::Failed,
        },
    };
    let remedy = match error.cause() {
        Error::Connect { reason, .. } if address::is_untrusted(reason) => address::TRUST_IT,
        Error::Connect { reason, .. } if answered(reason) => address::NAME_OPS,
        Error::Connect { .. } => address::START_ONE,
        _ if error.is_denied() && error.code() != Some(Code::Forbidden) => address::GIVE_A_TOKEN,
        _ => return Failure::new(exit, error),
    };
    Failure::new(exit, format!("{error}; {remedy}"))
}

/// Publishes the first `most` events. Where the hub has no room it is asked again when it says, at most for 60 s; where it
/// has none then, they are more than it takes at once, and `most` is halved.
pub(super) async fn publish_some(
    client: &Client,
    topic: &str,
    events: &[Publish],
    most: &mut usize,
) -> Result<Vec<Published>, Error> {
    let mut waited = Duration::ZERO;
    loop {
        let part = &events[..events.len().min(*most)];
        let refused = match client.publish_batch(topic, part.to_vec()).await {
            Err(error) if error.code() == Some(Code::RateLimited) => error,
            // None of them would be no progress.
            Ok(sent) if sent.is_empty() => return Err(Error::Lost),
            answered => return answered,
        };
        if waited > Duration::ZERO && part.len() > 1 {
            *most = part.len() / 2;
            continue;
        }
        let pause = refused.retry_after().unwrap_or(A_MOMENT);
        waited += pause.max(Duration::from_millis(1));
        if waited > PATIENCE {
            return Err(refused);
        }
        tokio::time::sleep(pause).await;
    }
}

/// A place in a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    From(From),
    /// The event with this seq, or the first one after it.
    Seq(u64),
}

/// A place to start at, as `--from` has it.
pub(super) fn place(text: &str) -> Result<Place, Failure> {
    let seq = |text: &str| text.parse().map(Place::Seq).ok();
    let found = match text {
        "latest" => Some(Place::From(From::Latest)),
        "earliest" => Some(Place::From(From::Earliest)),
        "snapshot" => Some(Place::From(From::Snapshot)),
        _ => match text.strip_prefix("seq:").or_else(|| text.strip_prefix('#')) {
            Some(number) => seq(number),
            None => time_at(text, Millis::now())
                .map(From::Ts)
                .or_else(|| EventId::parse(text).ok().map(From::AfterId))
                .map(Place::From),
        },
    };
    found.ok_or_else(|| {
        let remedy = "write latest, earliest, snapshot, seq:42, an event's id, epoch milliseconds, a time such as \
                      2026-11-15T12:00:00Z, or how long ago, such as 15m";
        Failure::usage(format!("--from: {text:?} is no place to start; {remedy}"))
    })
}

/// A time of the flag `name`: epoch milliseconds, RFC 3339, or how long ago.
pub(super) fn time(name: &str, text: &str) -> Result<Millis, Failure> {
    time_at(text, Millis::now()).ok_or_else(|| {
        let remedy = "write epoch milliseconds, 2026-11-15T12:00:00Z, or how long ago, such as 15m";
        Failure::usage(format!("{name}: {text:?} is no time; {remedy}"))
    })
}

fn time_at(text: &str, now: Millis) -> Option<Millis> {
    if let Ok(millis) = text.parse() {
        return Some(Millis(millis));
    }
    let ago =
        || duration(text).ok().map(|ago| Millis(now.0.saturating_sub(ago.as_millis().try_into().unwrap_or(u64::MAX))));
    rfc3339::parse(text).or_else(ago)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_and_times_are_read_as_people_write_them() {
        let id = "0199d1c0-7d3b-7cc2-8b1a-3f0e2c9a4b5d";
        for (text, expected) in [
            ("latest", Place::From(From::Latest)),
            ("seq:42", Place::Seq(42)),
            ("#42", Place::Seq(42)),
            ("1731650000123", Place::From(From::Ts(Millis(1_731_650_000_123)))),
            ("2024-11-15T05:53:20.123Z", Place::From(From::Ts(Millis(1_731_650_000_123)))),
            (id, Place::From(From::AfterId(EventId::parse(id).expect("an id")))),
        ] {
            assert_eq!(place(text).expect(text), expected);
        }
        assert_eq!(time_at("15m", Millis(1_000_000)), Some(Millis(100_000)));
        for bad in ["", "seq:", "#x", "yesterday", "-5"] {
            assert!(place(bad).is_err(), "{bad}");
        }
    }
}
