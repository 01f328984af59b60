//! Telling systemd how the hub is: `READY=1`, `STOPPING=1`, `WATCHDOG=1`, one datagram each to `$NOTIFY_SOCKET`.
//!
//! Without the variable nothing is sent. Whatever goes wrong is said in the log and nowhere else: a hub that serves must
//! not end because nobody listens. The variables are not taken out of the environment: the hub starts no other process.

use std::ffi::OsStr;
use std::io;
#[cfg(target_os = "linux")]
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use crate::config::Environment;

/// How long a full queue is waited for. What is said once must arrive: without it systemd would end a hub that is well.
const WAITS: Option<Duration> = Some(Duration::from_secs(5));
const NOT_AT_ALL: Option<Duration> = None;

/// Where the hub's state is told. Clones tell the same place.
#[derive(Debug, Clone, Default)]
pub(crate) struct Notify {
    to: Option<SocketAddr>,
    /// How often systemd wants to hear that the hub lives.
    watchdog: Option<Duration>,
}

impl Notify {
    /// What `NOTIFY_SOCKET`, `WATCHDOG_USEC` and `WATCHDOG_PID` of the environment say.
    pub(crate) fn from(environment: Environment<'_>) -> Self {
        let Some(name) = environment("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else { return Self::default() };
        let to = address(&name);
        if let Err(error) = &to {
            tracing::warn!(socket = ?name, %error, "systemd is not told how the hub is");
        }
        let number = |name: &str| environment(name)?.to_str()?.parse::<u64>().ok();
        // The variables may be another process's, handed down.
        let ours = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let every = number("WATCHDOG_USEC").filter(|usec| ours && *usec > 0).map(Duration::from_micros);
        Self { to: to.ok(), watchdog: every }
    }

    /// Every port is open and the store is recovered.
    pub(crate) fn ready(&self, line: &str) {
        self.send(&format!("READY=1\nSTATUS={line}"), WAITS);
    }

    /// The hub drains.
    pub(crate) fn stopping(&self) {
        self.send("STOPPING=1\nSTATUS=shutting down", WAITS);
    }

    /// Says for ever that the hub lives, twice as often as is wanted. On the runtime that serves: one that hangs says
    /// nothing, and systemd starts the hub anew.
    pub(crate) fn keep_watchdog(&self) {
        let Some(every) = self.watchdog else { return };
        let notify = self.clone();
        tokio::spawn(async move {
            loop {
                notify.send("WATCHDOG=1", NOT_AT_ALL);
                tokio::time::sleep(every / 2).await;
            }
        });
    }

    fn send(&self, state: &str, wait: Option<Duration>) {
        let Some(to) = &self.to else { return };
        let sent = UnixDatagram::unbound().and_then(|socket| {
            // A reader that does not read must not hold the hub up.
            match wait {
                Some(_) => socket.set_write_timeout(wait)?,
                None => socket.set_nonblocking(true)?,
            }
            socket.send_to_addr(state.as_bytes(), to)
        });
        if let Err(error) = sent {
            tracing::warn!(state, %error, "systemd could not be told how the hub is");
        }
    }
}

/// A path, or `@name` in the abstract namespace.
fn address(name: &OsStr) -> io::Result<SocketAddr> {
    match name.as_bytes() {
        #[cfg(target_os = "linux")]
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        [b'/', ..] => SocketAddr::from_pathname(name),
        _ => Err(io::Error::new(io::ErrorKind::Unsupported, "NOTIFY_SOCKET is neither a path nor an abstract name")),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    fn of(variables: &[(&str, &str)]) -> Notify {
        Notify::from(&|name| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value)))
    }

    #[test]
    fn without_the_variable_nobody_is_told() {
        let notify = of(&[("WATCHDOG_USEC", "1000000")]);
        assert!(notify.to.is_none() && notify.watchdog.is_none());
        notify.ready("");
    }

    #[test]
    fn paths_and_abstract_names_are_understood_and_others_are_not() {
        let path = of(&[("NOTIFY_SOCKET", "/run/systemd/notify")]).to.expect("an address");
        assert_eq!(path.as_pathname(), Some("/run/systemd/notify".as_ref()));
        let name = of(&[("NOTIFY_SOCKET", "@promethean/notify")]).to.expect("an address");
        assert_eq!(name.as_abstract_name(), Some(b"promethean/notify".as_slice()));
        for other in ["vsock:2:1234", "notify", ""] {
            assert!(of(&[("NOTIFY_SOCKET", other)]).to.is_none(), "{other:?}");
        }
    }

    #[test]
    fn the_watchdog_of_another_process_is_not_ours() {
        let every =
            |pid: &str| of(&[("NOTIFY_SOCKET", "@a"), ("WATCHDOG_USEC", "3000000"), ("WATCHDOG_PID", pid)]).watchdog;
        assert_eq!(every(&std::process::id().to_string()), Some(Duration::from_secs(3)));
        assert_eq!(every("1"), None);
        assert_eq!(of(&[("NOTIFY_SOCKET", "@a"), ("WATCHDOG_USEC", "0")]).watchdog, None);
    }
}
