//! The audit log: every accepted and refused authentication, every `forbidden`, every change by an operator.
//!
//! Lines go to the log target `audit`, and as NDJSON to the file of `audit_log`. Lines that strangers can cause are limited
//! (module `limit`); changes are not. Nothing here ever holds a token: reasons are the messages that the client got.

mod http;
mod limit;

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use promethean_event::Millis;
use serde::Serialize;
use serde_json::Value;

use crate::auth::{Identity, Refusal};
use crate::rejection::Rejection;
use crate::seldom::Seldom;
pub(crate) use http::{Slot, around};
use limit::Limit;

/// How often one client may cause the same line: a connection or a refusal.
const SECOND: Duration = Duration::from_secs(1);
/// Over HTTP every request authenticates: one line a minute for a client and its token.
const MINUTE: Duration = Duration::from_secs(60);

/// Where audit lines go.
#[derive(Debug, Default)]
pub struct Audit {
    file: Option<Mutex<File>>,
    limit: Mutex<Limit>,
}

/// The other side of a connection or request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Client<'a> {
    pub(crate) peer: Option<SocketAddr>,
    /// `ws` or `http`.
    pub(crate) via: &'static str,
    pub(crate) sub: Option<&'a str>,
}

/// One line.
#[derive(Debug, Serialize)]
struct Line<'a> {
    ts: Millis,
    /// `auth`, `access`, or the method and path of a change.
    action: &'a str,
    /// `accepted`, `refused`, `forbidden`, `done` or `failed`.
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sub: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    peer: Option<SocketAddr>,
    via: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    topic: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    old: Option<&'a Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    new: Option<&'a Value>,
    /// Lines like this one, or beyond the hub's limit, that were left out since the last.
    #[serde(skip_serializing_if = "is_zero")]
    left_out: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl<'a> Line<'a> {
    fn new(client: Client<'a>, action: &'a str, outcome: &'static str) -> Self {
        let Client { peer, via, sub } = client;
        Self {
            ts: Millis::now(),
            action,
            outcome,
            code: None,
            reason: None,
            sub,
            peer,
            via,
            topic: None,
            group: None,
            old: None,
            new: None,
            left_out: 0,
        }
    }
}

impl Audit {
    /// Also appends to the file at `path`, which is created with mode 0600.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn to_file(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
        Ok(Self { file: Some(Mutex::new(file)), limit: Mutex::default() })
    }

    /// An `AUTH`, or the token of an upgrade.
    pub(crate) fn authenticated(&self, client: Client<'_>, result: Result<&Identity, &Refusal>) {
        match result {
            Ok(identity) => {
                let client = Client { sub: identity.sub.as_deref(), ..client };
                self.limited(SECOND, Line::new(client, "auth", "accepted"));
            }
            Err(refusal) => self.refused(client, refusal.code.as_str(), &refusal.msg),
        }
    }

    /// A request over HTTP that was let in.
    fn let_in(&self, client: Client<'_>) {
        self.limited(MINUTE, Line::new(client, "auth", "accepted"));
    }

    fn refused(&self, client: Client<'_>, code: &str, reason: &str) {
        let line = Line { code: Some(code), reason: Some(reason), ..Line::new(client, "auth", "refused") };
        self.limited(SECOND, line);
    }

    /// A `forbidden`.
    pub(crate) fn forbidden(&self, client: Client<'_>, rejection: &Rejection) {
        let (code, reason) = (Some(rejection.code.as_str()), Some(rejection.msg.as_str()));
        self.limited(SECOND, Line { code, reason, ..Line::new(client, "access", "forbidden") });
    }

    /// Writes the line, unless the same client caused the same one less than `every` ago.
    fn limited(&self, every: Duration, mut line: Line<'_>) {
        let same = (line.action, line.outcome, line.code, line.sub, line.peer.map(|peer| peer.ip()));
        let Some(left_out) = self.limit.lock().pass(&same, every, Instant::now()) else { return };
        line.left_out = left_out;
        self.write(&line);
    }

    fn write(&self, line: &Line<'_>) {
        let text = |value: Option<&Value>| value.map(Value::to_string);
        let (peer, left_out) = (line.peer.map(tracing::field::display), (line.left_out > 0).then_some(line.left_out));
        let (old, new) = (text(line.old), text(line.new));
        tracing::info!(
            target: "audit", action = line.action, outcome = line.outcome, code = line.code, reason = line.reason,
            sub = line.sub, peer, via = line.via, topic = line.topic, group = line.group, old, new, left_out
        );
        let Some(file) = &self.file else { return };
        let written = serde_json::to_vec(line).map_err(io::Error::from).and_then(|mut text| {
            text.push(b'\n');
            // One write a line: with O_APPEND a rotated file (copytruncate) has whole lines.
            file.lock().write_all(&text)
        });
        static TOLD: Seldom = Seldom::new();
        if let Err(error) = written
            && TOLD.may(Instant::now())
        {
            tracing::error!(%error, "the audit log cannot be written");
        }
    }
}
