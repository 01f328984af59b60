//! The validated configuration: typed, complete, and consistent, or an error that names the setting.

mod layers;
mod note;
#[cfg(test)]
mod reference;
mod setting;
mod topics;
mod units;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Duration;

use promethean_bus::Bounds;
use promethean_event::{Topic, limits};
use promethean_gateway::auth::{AuthConfig, Authenticator, Secret};
use promethean_gateway::limits::Rate;
use promethean_gateway::{Caps, EdgeConfig};
use promethean_store::TopicSettings;
use promethean_store::log::{Options, Sync};

use crate::outbox::{OutboxConfig, Place};

pub(crate) use layers::{Environment, File, Layers, Origin, Said};
pub(crate) use note::Note;
pub(crate) use setting::{SETTINGS, Setting};
pub(crate) use units::{bytes, duration};

/// The commented file with every setting and its default.
pub(crate) const DEFAULT_FILE: &str = include_str!("../../promethean.default.toml");

/// A configuration that cannot work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{at}: {reason}")]
pub(crate) struct ConfigError {
    at: String,
    reason: String,
}

impl ConfigError {
    pub(crate) fn new(at: &str, reason: impl Into<String>) -> Self {
        Self { at: at.to_owned(), reason: reason.into() }
    }
}

/// Which engine, with what it needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Engine {
    Log { dir: PathBuf, sync: Sync, compress: bool, open_files: usize },
    Memory,
    Mongo { url: Secret },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

/// Longest `jwt_leeway`.
const MAX_LEEWAY: Duration = Duration::from_secs(3600);

/// Everything `serve` needs to know.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    pub(crate) ws: SocketAddr,
    pub(crate) http: SocketAddr,
    pub(crate) ops: SocketAddr,
    pub(crate) tls: Option<(PathBuf, PathBuf)>,
    pub(crate) auth: AuthConfig,
    pub(crate) engine: Engine,
    /// Where other hubs reach this one.
    pub(crate) advertise: Option<String>,
    pub(crate) edge: EdgeConfig,
    pub(crate) bounds: Bounds,
    pub(crate) max_connections: usize,
    pub(crate) conn_rate: Option<Rate>,
    pub(crate) topic_rate: Option<Rate>,
    pub(crate) log: String,
    pub(crate) log_format: LogFormat,
    pub(crate) audit_log: Option<PathBuf>,
    pub(crate) otlp_endpoint: Option<String>,
    pub(crate) topics: BTreeMap<Topic, TopicSettings>,
    /// Topics with a quota of their own; `None`: no limit.
    pub(crate) topic_rates: BTreeMap<Topic, Option<Rate>>,
    pub(crate) outbox: Option<OutboxConfig>,
    /// True if the hub runs the projector of processes.
    pub(crate) process_projector: bool,
}

impl Config {
    /// Gives the values their types and checks what they say together. What follows from other values is put into
    /// `layers`, so that `config show` tells what counts.
    pub(crate) fn resolve(layers: &mut Layers, environment: Environment<'_>) -> Result<Self, ConfigError> {
        let read = Reader(layers);
        let auth = AuthConfig {
            static_token: read.text("ws_token").map(Secret::new),
            jwt_secret: read.text("jwt_secret").map(Secret::new),
            jwks_url: read.text("jwt_jwks_url").map(str::to_owned),
            audience: read.text("jwt_aud").map(str::to_owned),
            issuer: read.text("jwt_iss").map(str::to_owned),
            leeway: read.leeway()?,
            default_scopes: read.list("default_scopes"),
            cluster_secret: read.text("cluster_secret").map(Secret::new),
        };
        let advertise = read.text("advertise").map(str::to_owned);
        if advertise.as_ref().is_some_and(|url| !url.starts_with("ws://") && !url.starts_with("wss://")) {
            return Err(read.wrong("advertise", "must begin with ws:// or wss://, e.g. ws://10.0.0.5:8090"));
        }
        let ip = read.bind(auth.is_open())?;
        let tls = match (read.text("tls_cert"), read.text("tls_key")) {
            (Some(cert), Some(key)) => Some((cert.into(), key.into())),
            (None, None) => None,
            (Some(_), None) => return Err(read.wrong("tls_cert", "needs tls_key too")),
            (None, Some(_)) => return Err(read.wrong("tls_key", "needs tls_cert too")),
        };
        let edge = EdgeConfig {
            allowed_origins: read.list("allowed_origins"),
            max_event_bytes: read.size("max_event_bytes")?,
            max_frame_bytes: read.size("max_frame_bytes")?,
            max_buffered_bytes: read.buffers("max_buffered_bytes")?,
            max_connection_bytes: read.size("max_connection_bytes")?,
            caps: read.caps()?,
            max_subscriptions: read.count("max_subscriptions")?,
            max_connection_patterns: read.count("max_connection_patterns")?,
            metrics_max_series: read.count("metrics_max_series")?,
            metrics_public: read.yes("metrics_public")?,
            auto_create: read.yes("auto_create")?,
            ..EdgeConfig::default()
        };
        if edge.max_frame_bytes < edge.max_event_bytes {
            return Err(read.wrong("max_frame_bytes", "must not be smaller than max_event_bytes"));
        }
        if edge.max_buffered_bytes < 2 * edge.max_frame_bytes {
            return Err(read.wrong("max_buffered_bytes", "must be at least twice max_frame_bytes"));
        }
        let log_format = match read.text("log_format") {
            None | Some("text") => LogFormat::Text,
            Some("json") => LogFormat::Json,
            Some(_) => return Err(read.wrong("log_format", "is neither text nor json")),
        };
        let topics = topics::parse(&layers.topics, layers.file.as_deref())?;
        let mut config = Self {
            ws: SocketAddr::new(ip, read.port("ws_port")?),
            http: SocketAddr::new(ip, read.port("http_port")?),
            ops: SocketAddr::new(ip, read.port("ops_port")?),
            tls,
            auth,
            engine: Engine::Memory,
            advertise,
            edge,
            max_connections: read.count("max_connections")?,
            bounds: Bounds {
                topics: read.count("max_topics")?,
                groups: read.count("max_groups")?,
                patterns: read.count("max_patterns")?,
            },
            conn_rate: read.rate("conn_rate", "conn_burst")?,
            topic_rate: read.rate("topic_rate", "topic_burst")?,
            log: read.text("log").unwrap_or("info").to_owned(),
            log_format,
            audit_log: read.text("audit_log").map(PathBuf::from),
            otlp_endpoint: read.text("otlp_endpoint").map(str::to_owned),
            topics: topics.settings,
            topic_rates: topics.rates,
            outbox: read.outbox()?,
            process_projector: read.yes("process_projector")?,
        };
        // Checks the address of the keys and the default scopes.
        Authenticator::new(&config.auth).map_err(|error| read.wrong(error.setting, error.reason))?;
        config.engine = engine(layers, environment)?;
        Ok(config)
    }

    /// True if tokens and events cross the network in clear text.
    pub(crate) fn is_readable_on_the_network(&self) -> bool {
        let everywhere = [self.ws, self.http, self.ops];
        self.tls.is_none() && everywhere.iter().any(|address| !address.ip().is_loopback())
    }
}

/// Reads values out of the layers; errors name where the value was said.
struct Reader<'a>(&'a Layers);

impl<'a> Reader<'a> {
    /// The value; an empty one is none.
    fn text(&self, name: &str) -> Option<&'a str> {
        self.0.get(name).map(|said| said.text.as_str()).filter(|text| !text.is_empty())
    }

    fn wrong(&self, name: &str, reason: impl Into<String>) -> ConfigError {
        match self.0.get(name) {
            Some(said) => ConfigError::new(&said.origin.of(name), reason),
            None => ConfigError::new(name, reason),
        }
    }

    fn list(&self, name: &str) -> Vec<String> {
        let items = self.text(name).unwrap_or_default().split(',').map(str::trim);
        items.filter(|item| !item.is_empty()).map(str::to_owned).collect()
    }

    fn parsed<T>(&self, name: &str, parse: impl Fn(&str) -> Result<T, String>) -> Result<T, ConfigError> {
        parse(self.text(name).unwrap_or_default()).map_err(|reason| self.wrong(name, reason))
    }

    fn port(&self, name: &str) -> Result<u16, ConfigError> {
        self.parsed(name, |text| text.parse().map_err(|_| format!("{text:?} is no port; write 0 to 65535")))
    }

    fn count(&self, name: &str) -> Result<usize, ConfigError> {
        self.parsed(name, |text| match text.parse() {
            Ok(0) | Err(_) => Err(format!("{text:?} must be a whole number of at least 1")),
            Ok(count) => Ok(count),
        })
    }

    fn size(&self, name: &str) -> Result<usize, ConfigError> {
        self.parsed(name, |text| match usize::try_from(units::bytes(text)?) {
            // Room for an event's fixed parts, and below what 32-bit offsets can name.
            Ok(size) if (1024..=(1 << 30)).contains(&size) => Ok(size),
            _ => Err(format!("{text} must be between 1KiB and 1GiB")),
        })
    }

    /// A size that is limited by memory alone.
    fn buffers(&self, name: &str) -> Result<usize, ConfigError> {
        self.parsed(name, |text| usize::try_from(units::bytes(text)?).map_err(|_| format!("{text} is too much")))
    }

    fn yes(&self, name: &str) -> Result<bool, ConfigError> {
        self.parsed(name, |text| match text {
            "true" | "1" | "yes" | "on" => Ok(true),
            "" | "false" | "0" | "no" | "off" => Ok(false),
            _ => Err(format!("{text:?} is neither true nor false")),
        })
    }

    fn caps(&self) -> Result<Caps, ConfigError> {
        let max_ack_timeout = self.parsed("max_ack_timeout", |text| match units::duration(text)? {
            time if (limits::MIN_EXTENSION..=limits::MAX_LEASE).contains(&time) => Ok(time),
            _ => Err(format!("{text} must be 1s to 12h")),
        })?;
        let ack_timeout = self.parsed("ack_timeout", |text| match units::duration(text)? {
            time if time < limits::MIN_LEASE => Err(format!("{text} is too short; at least 100ms")),
            time if time > max_ack_timeout => Err(format!("{text} is longer than max_ack_timeout")),
            time => Ok(time),
        })?;
        let max_in_flight = self.count("max_in_flight")?;
        if max_in_flight > limits::MAX_IN_FLIGHT {
            return Err(self.wrong("max_in_flight", format!("must be 1 to {}", limits::MAX_IN_FLIGHT)));
        }
        Ok(Caps { ack_timeout, max_ack_timeout, max_in_flight })
    }

    fn leeway(&self) -> Result<Duration, ConfigError> {
        self.parsed("jwt_leeway", |text| match units::duration(text)? {
            leeway if leeway <= MAX_LEEWAY => Ok(leeway),
            _ => Err(format!("{text} accepts tokens for too long after their end; at most 1h")),
        })
    }

    fn rate(&self, rate: &str, burst: &str) -> Result<Option<Rate>, ConfigError> {
        let number = |name| {
            self.parsed(name, |text: &str| match text {
                "off" => Ok(0),
                _ => text.parse::<u32>().map_err(|_| format!("{text:?} must be a whole number; 0 is no limit")),
            })
        };
        let (per_second, burst_size) = (NonZeroU32::new(number(rate)?), NonZeroU32::new(number(burst)?));
        match (per_second, burst_size) {
            (Some(per_second), burst) => Ok(Some(Rate { per_second, burst: burst.unwrap_or(per_second) })),
            (None, Some(_)) => Err(self.wrong(burst, format!("needs {rate} too"))),
            (None, None) => Ok(None),
        }
    }

    fn outbox(&self) -> Result<Option<OutboxConfig>, ConfigError> {
        let Some(url) = self.text("outbox_url") else {
            // Who says what is so anyway, as `config show` prints it, means no outbox.
            let meant = |setting: &&Setting| {
                let said = self.0.get(setting.name).map(|said| said.text.as_str());
                setting.name.starts_with("outbox_") && said.is_some() && said != setting.default
            };
            return match SETTINGS.iter().find(meant) {
                Some(setting) => Err(self.wrong(setting.name, "needs outbox_url too: without it nothing is drained")),
                None => Ok(None),
            };
        };
        let lease = self.parsed("outbox_lease", crate::outbox::lease)?;
        Ok(Some(OutboxConfig {
            place: Place::parse(url).map_err(|reason| self.wrong("outbox_url", reason))?,
            table: self.text("outbox_table").unwrap_or("outbox").to_owned(),
            batch: self.count("outbox_batch")?,
            lease,
            poll: self.parsed("outbox_poll", crate::outbox::poll)?,
            max_attempts: u32::try_from(self.count("outbox_max_attempts")?).unwrap_or(u32::MAX),
            keep_sent: self.parsed("outbox_keep_sent", units::duration)?,
        }))
    }

    fn bind(&self, open: bool) -> Result<IpAddr, ConfigError> {
        let ip = match self.text("bind") {
            None | Some("localhost") => IpAddr::V4(Ipv4Addr::LOCALHOST),
            Some(text) => text.trim_start_matches('[').trim_end_matches(']').parse().map_err(|_| {
                self.wrong("bind", format!("{text:?} is no IP address; write 127.0.0.1, 0.0.0.0 or ::"))
            })?,
        };
        if open && !ip.is_loopback() {
            let reason = format!(
                "{ip} without auth would let everybody in; set WS_TOKEN, JWT_SECRET or JWT_JWKS_URL, or bind to 127.0.0.1"
            );
            return Err(self.wrong("bind", reason));
        }
        Ok(ip)
    }
}

fn engine(layers: &mut Layers, environment: Environment<'_>) -> Result<Engine, ConfigError> {
    let mongo = layers.get("mongo_url").filter(|said| !said.text.is_empty()).cloned();
    let store = layers.get("store").cloned();
    if let (Some(mongo), Some(store)) = (&mongo, &store)
        && mongo.origin.outranks(&store.origin)
    {
        layers.infer("store", Said { text: "mongo".into(), origin: mongo.origin.clone() });
    }
    let read = Reader(layers);
    match read.text("store").unwrap_or("log") {
        "log" => {
            let (sync, compress) = (read.parsed("sync", str::parse)?, read.yes("compress")?);
            let open_files = read.count("store_open_files")?;
            if open_files < Options::MIN_OPEN_FILES {
                return Err(read.wrong("store_open_files", format!("{open_files} must be at least 64")));
            }
            let (dir, origin) = data_dir(read.text("data_dir"), environment)
                .ok_or_else(|| ConfigError::new("data_dir", "there is no home directory: set PROMETHEAN_DATA_DIR"))?;
            if let Some(origin) = origin {
                layers.infer("data_dir", Said { text: dir.display().to_string(), origin });
            }
            Ok(Engine::Log { dir, sync, compress, open_files })
        }
        "memory" => Ok(Engine::Memory),
        "mongo" => match mongo {
            Some(url) => Ok(Engine::Mongo { url: Secret::new(url.text) }),
            None => Err(read.wrong("store", "mongo needs MONGO_URL")),
        },
        other => Err(read.wrong("store", format!("{other:?} is no engine; write log, memory or mongo"))),
    }
}

/// The directory, and where it was said where it was not said as `data_dir`.
fn data_dir(said: Option<&str>, environment: Environment<'_>) -> Option<(PathBuf, Option<Origin>)> {
    if let Some(dir) = said {
        return Some((dir.into(), None));
    }
    let path = |name: &str| environment(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(state) = path("STATE_DIRECTORY") {
        // systemd separates several with colons; the first is the hub's.
        let first = state.to_str().and_then(|list| list.split(':').next()).map_or(state.clone(), PathBuf::from);
        return Some((first, Some(Origin::Variable("STATE_DIRECTORY".into()))));
    }
    let data = path("XDG_DATA_HOME").filter(|dir| dir.is_absolute());
    let data = data.or_else(|| path("HOME").map(|home| home.join(Path::new(".local/share"))))?;
    Some((data.join("promethean"), Some(Origin::Default)))
}

#[cfg(test)]
mod tests;
