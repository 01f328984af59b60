//! Precedence, origins, refusals, and that the default file says the defaults.

use std::ffi::OsString;
use std::time::Duration;

use super::*;

/// Resolves flags, variables and a file.
fn resolve(flags: &[(&str, &str)], variables: &[(&str, &str)], file: &str) -> Result<(Config, Layers), ConfigError> {
    let flags = flags.iter().map(|(name, text)| (Setting::named(name).expect("a setting").name, (*text).to_owned()));
    let environment = |name: &str| match variables.iter().find(|(this, _)| *this == name) {
        Some((_, value)) => Some(OsString::from(value)),
        None if name == "HOME" => Some("/home/somebody".into()),
        None => None,
    };
    let file = File { path: "promethean.toml".into(), text: file.to_owned() };
    let mut layers = Layers::collect(&flags.collect(), &environment, Some(&file))?;
    let config = Config::resolve(&mut layers, &environment)?;
    Ok((config, layers))
}

fn refused(flags: &[(&str, &str)], variables: &[(&str, &str)], file: &str) -> String {
    resolve(flags, variables, file).expect_err("refused").to_string()
}

#[test]
fn flags_win_over_variables_over_the_file_over_defaults() {
    let port = |flags: &[(&str, &str)], variables: &[(&str, &str)], file: &str| {
        let (config, layers) = resolve(flags, variables, file).expect("good");
        (config.ws.port(), layers.get("ws_port").expect("said").origin.to_string())
    };
    assert_eq!(port(&[], &[], ""), (8090, "default".into()));
    assert_eq!(port(&[], &[], "ws_port = 1"), (1, "promethean.toml".into()));
    assert_eq!(port(&[], &[("WS_PORT", "2")], "ws_port = 1"), (2, "$WS_PORT".into()));
    let both = [("WS_PORT", "2"), ("PROMETHEAN_WS_PORT", "3")];
    assert_eq!(port(&[], &both, "ws_port = 1"), (3, "$PROMETHEAN_WS_PORT".into()));
    assert_eq!(port(&[("ws_port", "4")], &both, "ws_port = 1"), (4, "--ws-port".into()));
    assert_eq!(port(&[], &[("WS_PORT", "")], "ws_port = 1"), (1, "promethean.toml".into()), "empty is not set");
}

#[test]
fn every_setting_has_a_flag_a_variable_and_a_key() {
    for setting in SETTINGS {
        let text = setting.default.unwrap_or("x");
        let environment = |name: &str| (name == setting.variable()).then(|| OsString::from(format!("{text} ")));
        let layers = Layers::collect(&BTreeMap::new(), &environment, None).expect("collected");
        assert_eq!(layers.get(setting.name).expect("said").origin, Origin::Variable(setting.variable()));
        let value = match setting.value {
            "LIST" => "[\"x\"]",
            "PORT" | "N" | "SIZE" => "1",
            "BOOL" => "true",
            _ => "\"x\"",
        };
        let file = File { path: "f".into(), text: format!("{} = {value}", setting.name) };
        let layers = Layers::collect(&BTreeMap::new(), &|_| None, Some(&file)).expect("collected");
        assert_eq!(layers.get(setting.name).expect("said").origin, Origin::File("f".into()));
    }
    for seed in [
        "WS_PORT",
        "HTTP_PORT",
        "OPS_PORT",
        "WS_TOKEN",
        "JWT_SECRET",
        "JWT_JWKS_URL",
        "JWT_AUD",
        "JWT_ISS",
        "MONGO_URL",
    ] {
        assert!(SETTINGS.iter().any(|setting| setting.seed == Some(seed)), "{seed}");
    }
}

#[test]
fn an_unknown_key_is_an_error_with_a_suggestion() {
    let refused_key = refused(&[], &[], "ws_prot = 1");
    assert!(refused_key.contains("ws_prot") && refused_key.contains("did you mean ws_port?"), "{refused_key}");
    assert!(refused(&[], &[], "zzz = 1").contains("promethean config default"));
    assert!(refused(&[], &[], "[topic.a]\npartitions = 1").contains("did you mean topics?"));
}

#[test]
fn without_auth_the_hub_is_on_loopback_and_refuses_anything_else() {
    let (config, layers) = resolve(&[], &[], "").expect("good");
    assert!([config.ws, config.http, config.ops].iter().all(|addr| addr.ip().is_loopback()));
    assert_eq!(layers.get("bind").expect("inferred").text, "127.0.0.1");
    for good in ["127.0.0.1", "127.0.0.2", "::1", "[::1]", "localhost"] {
        assert!(resolve(&[("bind", good)], &[], "").expect(good).0.ws.ip().is_loopback());
    }
    for bad in ["0.0.0.0", "::", "10.0.0.1"] {
        let why = refused(&[("bind", bad)], &[], "");
        assert!(why.starts_with("--bind:") && why.contains("WS_TOKEN"), "{why}");
    }
    assert!(refused(&[("bind", "hub.example")], &[], "").contains("no IP address"));
}

#[test]
fn with_auth_too_the_hub_is_on_loopback_unless_told_otherwise() {
    for auth in [("WS_TOKEN", "t"), ("JWT_SECRET", "s"), ("JWT_JWKS_URL", "http://127.0.0.1:1/k")] {
        let (config, layers) = resolve(&[], &[auth], "").expect("good");
        assert!([config.ws, config.http, config.ops].iter().all(|addr| addr.ip().is_loopback()), "{auth:?}");
        assert_eq!(layers.get("bind").expect("a default").origin, Origin::Default);
        assert!(!config.is_readable_on_the_network());
        let (config, _) = resolve(&[("bind", "0.0.0.0")], &[auth], "").expect("good");
        assert!(config.ws.ip().is_unspecified() && config.is_readable_on_the_network(), "{auth:?}");
        let (config, _) = resolve(&[("bind", "::")], &[auth], "tls_cert = \"c\"\ntls_key = \"k\"").expect("good");
        assert!(!config.is_readable_on_the_network());
    }
}

#[test]
fn a_secret_that_is_set_and_empty_is_refused_by_its_name() {
    for setting in SETTINGS.iter().filter(|setting| setting.secret || setting.name == "jwt_jwks_url") {
        for empty in ["", " \n"] {
            let variable = setting.seed.map_or_else(|| setting.variable(), str::to_owned);
            let why = refused(&[], &[(&variable, empty)], "");
            assert!(why.starts_with(&format!("${variable}: is set but empty")), "{why}");
            let why = refused(&[], &[], &format!("{} = {empty:?}", setting.name));
            assert!(why.starts_with(&format!("promethean.toml: {}: is set but empty", setting.name)), "{why}");
            let why = refused(&[(setting.name, empty)], &[], "");
            assert!(why.starts_with(&format!("--{}: is set but empty", setting.flag())), "{why}");
        }
    }
    assert!(refused(&[], &[("WS_TOKEN", "")], "ws_token = \"t\"").contains("$WS_TOKEN"), "also beside a full one");
}

#[test]
fn white_space_at_the_ends_of_a_secret_is_no_part_of_it() {
    let (config, layers) = resolve(&[], &[("WS_TOKEN", "to ken\n")], "jwt_secret = \"\\t secret\"").expect("good");
    assert!(config.auth.static_token.expect("a token").equals("to ken"));
    assert!(config.auth.jwt_secret.expect("a secret").equals("secret"));
    let at = |at: &str| Note::Trimmed { at: at.to_owned() };
    assert_eq!(layers.notes, [at("promethean.toml: jwt_secret"), at("$WS_TOKEN")]);
    assert!(resolve(&[], &[("WS_TOKEN", "token")], "").expect("good").1.notes.is_empty());
}

#[test]
fn a_value_of_the_wrong_type_in_the_file_is_an_error_for_every_setting() {
    for setting in SETTINGS {
        let (right, wrong): (&str, &[&str]) = match setting.value {
            "LIST" => ("[\"a\"]", &["\"a\"", "1", "true", "[1]", "1.5", "{ a = 1 }"]),
            "PORT" | "N" => ("1", &["\"1\"", "[1]", "true", "1.5", "{ a = 1 }"]),
            "BOOL" => ("true", &["\"true\"", "1", "[true]", "{ a = 1 }"]),
            "SIZE" => ("\"1MiB\"", &["[1]", "true", "1.5", "{ a = 1 }"]),
            _ => ("\"x\"", &["[\"canary\"]", "1", "true", "1.5", "{ a = 1 }", "2026-11-19"]),
        };
        let layers = |value: &str| {
            let file = File { path: "f".into(), text: format!("{} = {value}", setting.name) };
            Layers::collect(&BTreeMap::new(), &|_| None, Some(&file)).map_err(|error| error.to_string())
        };
        layers(right).expect(setting.name);
        for wrong in wrong {
            let why = layers(wrong).expect_err(wrong);
            assert!(why.starts_with(&format!("f: {}: ", setting.name)) && !why.contains("canary"), "{why}");
        }
    }
}

#[test]
fn a_syntax_error_tells_the_place_and_not_the_line() {
    for (file, place) in [
        ("jwt_secret = \"canary", "line 1, column"),
        ("ws_port = 1\n  jwt_secret = canary\n", "line 2, column"),
        ("ws_token = \"canary\"\nws_token = \"canary\"\n", "line 2, column"),
        ("ws_token = \"canary\\q\"", "line 1, column"),
        ("ws_token = \"canary\" canary", "line 1, column"),
        ("canary", "line 1, column"),
        ("ws_token = 'canary\n'", "line 2, column"),
    ] {
        let why = refused(&[], &[], file);
        assert!(why.starts_with(&format!("promethean.toml: {place}")), "{why}");
        assert!(!why.replace("key `canary`", "").contains("canary") && !why.contains('\n'), "{why}");
    }
}

#[test]
fn an_unknown_variable_of_the_hubs_is_noted_with_the_nearest_name() {
    let notes = |names: &[&str]| Note::unknown_variables(names.iter().map(|&name| name.to_owned()));
    let known = SETTINGS.iter().map(Setting::variable);
    assert!(Note::unknown_variables(known).is_empty());
    assert!(notes(&["PROMETHEAN_URL", "PROMETHEAN_TOKEN", "PROMETHEAN_PORT_8090_TCP", "WS_PROT"]).is_empty());
    let said: Vec<String> = notes(&["PROMETHEAN_WS_PROT", "PROMETHEAN_SYNK"]).iter().map(ToString::to_string).collect();
    assert!(said[0].contains("$PROMETHEAN_WS_PROT") && said[0].contains("mean PROMETHEAN_WS_PORT?"), "{said:?}");
    assert!(said[1].contains("mean PROMETHEAN_SYNC?"), "{said:?}");
}

#[test]
fn the_engine_is_the_one_that_was_said_last() {
    let engine = |flags: &[(&str, &str)], variables: &[(&str, &str)], file: &str| {
        resolve(flags, variables, file).expect("good").0.engine
    };
    let dir = "/home/somebody/.local/share/promethean".into();
    let log = Engine::Log { dir, sync: Sync::Always, compress: false, open_files: 512 };
    let mongo = Engine::Mongo { url: Secret::new("mongodb://m") };
    let url = ("MONGO_URL", "mongodb://m");
    assert_eq!(engine(&[], &[], ""), log);
    assert_eq!(engine(&[], &[("PROMETHEAN_STORE", "memory")], ""), Engine::Memory);
    assert_eq!(engine(&[], &[url], ""), mongo);
    assert_eq!(engine(&[], &[url], "store = \"log\""), mongo, "the environment wins over the file");
    assert_eq!(engine(&[], &[url, ("PROMETHEAN_STORE", "memory")], ""), Engine::Memory, "said in so many words");
    assert_eq!(engine(&[("store", "memory")], &[url], ""), Engine::Memory);
    assert!(refused(&[("store", "mongo")], &[], "").contains("MONGO_URL"));
    assert!(refused(&[("store", "redis")], &[], "").contains("log, memory or mongo"));
}

#[test]
fn the_data_directory_follows_the_order_of_the_contract() {
    let dir = |variables: &[(&str, &str)]| match resolve(&[], variables, "").expect("good").0.engine {
        Engine::Log { dir, .. } => dir.display().to_string(),
        other => panic!("{other:?}"),
    };
    let (xdg, state) = (("XDG_DATA_HOME", "/xdg"), ("STATE_DIRECTORY", "/state/one:/state/two"));
    assert_eq!(dir(&[]), "/home/somebody/.local/share/promethean");
    assert_eq!(dir(&[xdg]), "/xdg/promethean");
    assert_eq!(dir(&[xdg, state]), "/state/one");
    assert_eq!(dir(&[xdg, state, ("PROMETHEAN_DATA_DIR", "/said")]), "/said");
}

#[test]
fn the_log_may_have_64_files_open_or_more() {
    let engine = |said| resolve(&[("store_open_files", said)], &[], "").map(|config| config.0.engine);
    assert!(matches!(engine("64"), Ok(Engine::Log { open_files: 64, .. })));
    assert!(refused(&[("store_open_files", "63")], &[], "").contains("at least 64"));
}

#[test]
fn segments_are_compressed_where_that_is_said() {
    for (said, expected) in [("true", true), ("false", false)] {
        let engine = resolve(&[("compress", said)], &[], "").expect("good").0.engine;
        assert!(matches!(engine, Engine::Log { compress, .. } if compress == expected), "{said}: {engine:?}");
    }
}

#[test]
fn sync_is_always_an_interval_or_never() {
    let sync = |text| match resolve(&[("sync", text)], &[], "").expect("good").0.engine {
        Engine::Log { sync, .. } => sync,
        other => panic!("{other:?}"),
    };
    assert_eq!(sync("always"), Sync::Always);
    assert_eq!(sync("never"), Sync::Never);
    assert_eq!(sync("100ms"), Sync::Interval(Duration::from_millis(100)));
    for bad in ["sometimes", "0ms", "100", "2d"] {
        assert!(refused(&[("sync", bad)], &[], "").contains("--sync"), "{bad}");
    }
}

#[test]
fn quotas_are_off_by_default_and_a_burst_follows_its_rate() {
    let (config, _) = resolve(&[], &[], "").expect("good");
    assert_eq!((config.conn_rate, config.topic_rate), (None, None));
    let (config, _) = resolve(&[], &[], "conn_rate = 5\ntopic_rate = 10\ntopic_burst = 20").expect("good");
    let rate = |rate: Option<Rate>| rate.map(|rate| (rate.per_second.get(), rate.burst.get()));
    assert_eq!((rate(config.conn_rate), rate(config.topic_rate)), (Some((5, 5)), Some((10, 20))));
    assert!(refused(&[], &[], "conn_burst = 5").contains("needs conn_rate"));
}

#[test]
fn bad_values_are_refused_where_they_were_said() {
    for (flags, variables, file, named) in [
        (&[("ws_port", "70000")][..], &[][..], "", "--ws-port: \"70000\" is no port"),
        (&[], &[("WS_PORT", "abc")], "", "$WS_PORT: \"abc\" is no port"),
        (&[("jwt_leeway", "2h")], &[], "", "--jwt-leeway: 2h accepts tokens"),
        (&[], &[], "http_port = -1", "promethean.toml: http_port"),
        (&[], &[], "max_connections = 0", "at least 1"),
        (&[], &[], "max_event_bytes = \"10\"", "between 1KiB and 1GiB"),
        (&[], &[], "max_frame_bytes = \"2KiB\"", "max_event_bytes"),
        (&[], &[], "tls_cert = \"c\"", "tls_key"),
        (&[], &[], "metrics_public = \"true\"", "true or false without quotes"),
        (&[("metrics_public", "perhaps")], &[], "", "neither true nor false"),
        (&[], &[], "log_format = \"xml\"", "text nor json"),
        (&[], &[], "ws_port = 1.5", "whole number"),
        (&[], &[], "default_scopes = [\"read:a\"]", "read:a"),
        (&[], &[("JWT_JWKS_URL", "http://idp.example/k")], "", "$JWT_JWKS_URL"),
        (&[], &[], "ws_port = ", "promethean.toml"),
        (&[], &[], "[topics.\"a b\"]", "a b"),
    ] {
        let why = refused(flags, variables, file);
        assert!(why.contains(named), "{why} should say {named}");
    }
}

#[test]
fn the_outbox_is_a_table_or_single_settings() {
    let table = "[outbox]\nurl = \"sqlite:/a.db\"\nlease = \"5s\"\nmax_attempts = 3";
    let single = "outbox_url = \"sqlite:/a.db\"\noutbox_lease = \"5s\"\noutbox_max_attempts = 3";
    for file in [table, single] {
        let outbox = resolve(&[], &[], file).expect("good").0.outbox.expect("an outbox");
        assert_eq!(outbox.place, Place::Sqlite("/a.db".into()));
        assert_eq!((outbox.lease, outbox.max_attempts, outbox.batch), (Duration::from_secs(5), 3, 500));
        assert_eq!(outbox.table, "outbox");
    }
    let (config, _) = resolve(&[], &[("PROMETHEAN_OUTBOX_URL", "mongodb://u:canary@h/d")], "").expect("good");
    assert!(!format!("{config:?}").contains("canary"));
    assert!(resolve(&[], &[], "").expect("good").0.outbox.is_none());
    for (file, named) in [
        ("[outbox]\nurl = \"shop.db\"", "sqlite:PATH"),
        ("[outbox]\nurl = \"sqlite:a\"\nlease = \"10ms\"", "at least 1s"),
        ("[outbox]\nurls = \"x\"", "did you mean outbox_url"),
        ("[outbox]\nbatch = 7", "outbox_batch: needs outbox_url"),
        ("outbox = 1", "unknown key"),
    ] {
        let why = refused(&[], &[], file);
        assert!(why.contains(named), "{why} should say {named}");
    }
}

#[test]
fn a_refusal_never_shows_a_secret() {
    let secrets = [("WS_TOKEN", "canary"), ("JWT_SECRET", "canary"), ("MONGO_URL", "mongodb://u:canary@h")];
    let (config, _) = resolve(&[], &secrets, "").expect("good");
    assert!(!format!("{config:?}").contains("canary"));
    assert!(!refused(&[("ws_port", "x")], &secrets, "").contains("canary"));
}

#[test]
fn lists_are_read_from_a_file_and_from_text() {
    let (config, _) = resolve(&[], &[], "allowed_origins = [\"https://a\", \"https://b\"]").expect("good");
    assert_eq!(config.edge.allowed_origins, ["https://a", "https://b"]);
    let (config, _) = resolve(&[("allowed_origins", "https://a, https://b,")], &[], "").expect("good");
    assert_eq!(config.edge.allowed_origins, ["https://a", "https://b"]);
}

#[test]
fn the_default_file_says_the_defaults() {
    let file = File { path: "promethean.default.toml".into(), text: DEFAULT_FILE.to_owned() };
    let from_file = Layers::collect(&BTreeMap::new(), &|_| None, Some(&file)).expect("the default file is good");
    let from_table = Layers::collect(&BTreeMap::new(), &|_| None, None).expect("defaults");
    for setting in SETTINGS {
        let text = |layers: &Layers| layers.get(setting.name).map(|said| said.text.clone());
        assert_eq!(text(&from_file), text(&from_table), "{}", setting.name);
        let stands = |line: &str| line.starts_with(&format!("{} = ", setting.name));
        assert!(
            DEFAULT_FILE.lines().any(|line| stands(line.trim_start_matches("# "))),
            "{} is not in the default file",
            setting.name
        );
        if let Some(Said { origin, .. }) = from_file.get(setting.name) {
            assert_ne!(*origin, Origin::Default, "{} has a default that the file does not say", setting.name);
        }
    }
    assert!(from_file.topics.is_empty());
}

#[test]
fn the_examples_of_the_default_file_work_when_uncommented() {
    let is_example = |rest: &&str| rest.starts_with('[') || rest.split(' ').nth(1) == Some("=");
    let lines = DEFAULT_FILE.lines().map(|line| line.strip_prefix("# ").filter(is_example).unwrap_or(line));
    let uncommented: String = lines.flat_map(|line| [line, "\n"]).collect();
    let uncommented = uncommented.replace("store = \"log\"\n", "store = \"memory\"\n");
    let (config, _) = resolve(&[], &[], &uncommented).expect("good");
    assert_eq!((config.topics.len(), config.topic_rates.len()), (3, 1));
}
