//! The table of settings: the one list that flags, environment, file, help and documentation come from.
//!
//! A setting `a_b` is `--a-b`, `PROMETHEAN_A_B`, `a_b` in `promethean.toml`, and the seed's variable where there was one.

/// One setting.
#[derive(Debug)]
pub(crate) struct Setting {
    /// `ws_port`: the key in the file.
    pub(crate) name: &'static str,
    /// The variable that the first version of the hub used, `WS_PORT`.
    pub(crate) seed: Option<&'static str>,
    /// The default as one would write it; `None`: not set.
    pub(crate) default: Option<&'static str>,
    /// What a value looks like.
    pub(crate) value: &'static str,
    /// Under which heading it stands.
    pub(crate) section: &'static str,
    /// What it does.
    pub(crate) help: &'static str,
    /// True if it must never be shown.
    pub(crate) secret: bool,
}

impl Setting {
    /// `ws-port`
    pub(crate) fn flag(&self) -> String {
        self.name.replace('_', "-")
    }

    /// `PROMETHEAN_WS_PORT`
    pub(crate) fn variable(&self) -> String {
        format!("PROMETHEAN_{}", self.name.to_ascii_uppercase())
    }

    /// True if the flag may stand without a value.
    pub(crate) fn is_switch(&self) -> bool {
        self.value == "BOOL"
    }

    /// True if an empty value is an error: taken as unset, it would open the hub or have it use another store.
    pub(crate) fn must_have_text(&self) -> bool {
        self.secret || self.name == "jwt_jwks_url"
    }

    pub(crate) fn named(name: &str) -> Option<&'static Setting> {
        SETTINGS.iter().find(|setting| setting.name == name)
    }
}

const LISTEN: &str = "Listening";
const AUTH: &str = "Auth";
const STORE: &str = "Storage";
const CLUSTER: &str = "Several hubs";
const OUTBOX: &str = "Outbox";
const PROJECTOR: &str = "Projector";
const LIMITS: &str = "Limits";
const WATCH: &str = "Logs and metrics";

const fn plain(
    section: &'static str,
    name: &'static str,
    value: &'static str,
    default: Option<&'static str>,
    help: &'static str,
) -> Setting {
    Setting { name, seed: None, default, value, section, help, secret: false }
}

const fn seeded(seed: &'static str, setting: Setting) -> Setting {
    Setting { seed: Some(seed), ..setting }
}

const fn secret(setting: Setting) -> Setting {
    Setting { secret: true, ..setting }
}

/// Every setting, in the order of the default file.
pub(crate) const SETTINGS: &[Setting] = &[
    plain(
        LISTEN,
        "bind",
        "ADDR",
        Some("127.0.0.1"),
        "The address to listen on, e.g. 0.0.0.0 for every address; needs auth beyond loopback",
    ),
    seeded("WS_PORT", plain(LISTEN, "ws_port", "PORT", Some("8090"), "WebSocket port; 0 picks one, equal ports share")),
    seeded("HTTP_PORT", plain(LISTEN, "http_port", "PORT", Some("8081"), "HTTP port; 0 picks one")),
    seeded("OPS_PORT", plain(LISTEN, "ops_port", "PORT", Some("8082"), "Ops and dashboard port; 0 picks one")),
    plain(
        LISTEN,
        "tls_cert",
        "FILE",
        None,
        "PEM certificate chain; with tls_key all listeners use TLS. Read again on SIGHUP",
    ),
    plain(LISTEN, "tls_key", "FILE", None, "PEM private key of the certificate"),
    plain(
        LISTEN,
        "allowed_origins",
        "LIST",
        Some(""),
        "Web pages that may connect besides the hub's own host and loopback, e.g. https://app.example",
    ),
    secret(seeded("WS_TOKEN", plain(AUTH, "ws_token", "TOKEN", None, "A static token that may do everything"))),
    secret(seeded("JWT_SECRET", plain(AUTH, "jwt_secret", "SECRET", None, "The secret of HS256 JWTs"))),
    seeded(
        "JWT_JWKS_URL",
        plain(
            AUTH,
            "jwt_jwks_url",
            "URL",
            None,
            "Where the public keys of RS/PS/ES/EdDSA JWTs are; https unless loopback",
        ),
    ),
    seeded("JWT_AUD", plain(AUTH, "jwt_aud", "TEXT", None, "The audience that a JWT must name")),
    seeded("JWT_ISS", plain(AUTH, "jwt_iss", "TEXT", None, "The issuer that a JWT must name")),
    plain(
        AUTH,
        "jwt_leeway",
        "TIME",
        Some("5s"),
        "Most that the clocks of the hub and of the token's issuer may differ; at most 1h",
    ),
    plain(
        AUTH,
        "default_scopes",
        "LIST",
        Some(""),
        "What a JWT without policy and scopes may do, e.g. publish:heartbeat.*, subscribe:process.**; empty: nothing",
    ),
    plain(STORE, "store", "ENGINE", Some("log"), "log (files in data_dir), memory (nothing survives) or mongo"),
    plain(
        STORE,
        "data_dir",
        "DIR",
        None,
        "Where the log is kept; else $STATE_DIRECTORY, $XDG_DATA_HOME/promethean or ~/.local/share/promethean",
    ),
    plain(
        STORE,
        "sync",
        "WHEN",
        Some("always"),
        "What OK means: always (on disk), an interval such as 100ms (at the latest then), never (the system decides)",
    ),
    plain(
        STORE,
        "compress",
        "BOOL",
        Some("false"),
        "Compress flushed events of the log (lz4): less disk for more work. Existing data stays readable",
    ),
    plain(
        STORE,
        "store_open_files",
        "N",
        Some("512"),
        "Most files that the log keeps open, whatever the number of topics; at least 64",
    ),
    secret(seeded(
        "MONGO_URL",
        plain(STORE, "mongo_url", "URL", None, "A MongoDB replica set; set, it means store = mongo"),
    )),
    plain(
        CLUSTER,
        "advertise",
        "URL",
        None,
        "Where other hubs on the same MongoDB reach this one's WebSocket port, e.g. ws://10.0.0.5:8090; else the address it listens on, or the one it reaches MongoDB from",
    ),
    secret(plain(
        CLUSTER,
        "cluster_secret",
        "SECRET",
        None,
        "What the hubs on one MongoDB prove themselves to each other with; else one that they keep in the database",
    )),
    secret(plain(
        OUTBOX,
        "outbox_url",
        "URL",
        None,
        "An outbox to drain into this hub: sqlite:PATH or mongodb://HOST/DATABASE?replicaSet=NAME",
    )),
    plain(OUTBOX, "outbox_table", "NAME", Some("outbox"), "Its table or collection"),
    plain(OUTBOX, "outbox_batch", "N", Some("500"), "Most rows claimed at a time"),
    plain(
        OUTBOX,
        "outbox_lease",
        "TIME",
        Some("30s"),
        "How long a claim lasts: a drainer that died is noticed after this time",
    ),
    plain(
        OUTBOX,
        "outbox_poll",
        "TIME",
        Some("250ms"),
        "Longest wait between two looks at an idle outbox; at least 5ms",
    ),
    plain(OUTBOX, "outbox_max_attempts", "N", Some("10"), "Tries before a row is parked as error"),
    plain(OUTBOX, "outbox_keep_sent", "TIME", Some("24h"), "Published rows are removed once their event is this old"),
    plain(
        PROJECTOR,
        "process_projector",
        "BOOL",
        Some("false"),
        "Turn heartbeats on heartbeat.received into the state of processes on process.state, inside the hub",
    ),
    plain(LIMITS, "max_event_bytes", "SIZE", Some("1MiB"), "Largest event"),
    plain(LIMITS, "max_frame_bytes", "SIZE", Some("16MiB"), "Largest WebSocket frame and HTTP body"),
    plain(LIMITS, "max_connections", "N", Some("10000"), "Most connections, over all listeners"),
    plain(
        LIMITS,
        "max_buffered_bytes",
        "SIZE",
        Some("256MiB"),
        "Most bytes of half-read frames and bodies, and of answers that are not read, of all connections together",
    ),
    plain(
        LIMITS,
        "max_connection_bytes",
        "SIZE",
        Some("8MiB"),
        "Most bytes of deliveries that wait in the hub for one connection, and one event more",
    ),
    plain(LIMITS, "ack_timeout", "TIME", Some("30s"), "Lease of a delivery where the subscriber names none"),
    plain(
        LIMITS,
        "max_ack_timeout",
        "TIME",
        Some("1h"),
        "Longest lease and extension; longer ones are lowered to it. At least 1s, at most 12h",
    ),
    plain(
        LIMITS,
        "max_in_flight",
        "N",
        Some("10000"),
        "Most unacked events that a subscriber may hold; more is lowered to it. At most 10000",
    ),
    plain(LIMITS, "max_subscriptions", "N", Some("1000"), "Most subscriptions of one connection"),
    plain(
        LIMITS,
        "max_connection_patterns",
        "N",
        Some("1000"),
        "Most patterns of one connection, those in opts.topics included",
    ),
    plain(LIMITS, "max_patterns", "N", Some("100000"), "Most patterns of all subscriptions of the hub"),
    plain(
        LIMITS,
        "max_topics",
        "N",
        Some("1000000"),
        "Most topics of the hub; dead letters and snapshots are not refused",
    ),
    plain(LIMITS, "max_groups", "N", Some("1000000"), "Most groups of the hub, over all topics"),
    plain(LIMITS, "auto_create", "BOOL", Some("true"), "Whether publishing and subscribing to a topic creates it"),
    plain(LIMITS, "conn_rate", "N", Some("0"), "Frames a second that one connection may send; 0 is no limit"),
    plain(LIMITS, "conn_burst", "N", Some("0"), "Frames at once that one connection may send; 0: as many as conn_rate"),
    plain(LIMITS, "topic_rate", "N", Some("0"), "Events a second that one topic takes; 0 is no limit"),
    plain(LIMITS, "topic_burst", "N", Some("0"), "Events at once that one topic takes; 0: as many as topic_rate"),
    plain(WATCH, "log", "FILTER", Some("info"), "What goes to stderr: error, warn, info, debug, trace, or per module"),
    plain(WATCH, "log_format", "FORMAT", Some("text"), "text or json"),
    plain(
        WATCH,
        "audit_log",
        "FILE",
        None,
        "Appends the lines of the log target audit to this file too, as NDJSON: who was let in or refused, what operators changed",
    ),
    plain(WATCH, "metrics_max_series", "N", Some("10000"), "Most label sets of the metrics; others count under _other"),
    plain(WATCH, "metrics_public", "BOOL", Some("false"), "Whether /metrics needs no token"),
    plain(
        WATCH,
        "otlp_endpoint",
        "URL",
        None,
        "An OpenTelemetry collector (OTLP over HTTP) for spans of events that carry a sampled traceparent; needs a build with the feature otel",
    ),
];
