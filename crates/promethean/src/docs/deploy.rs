//! What is in `deploy/`: the unit and the Dockerfile start the binary in a way that it understands, and the example
//! configurations are configurations.

use super::{configuration, read, root, shell};
use crate::config::{Engine, SETTINGS};

/// The values of a key in a unit file.
fn of_unit(key: &str) -> Vec<String> {
    let unit = read("deploy/promethean.service");
    let values = unit.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    values.map(str::to_owned).collect()
}

#[test]
fn the_unit_starts_the_hub_with_flags_that_it_has() {
    let start = of_unit("ExecStart");
    let words: Vec<String> = start[0].split(' ').map(str::to_owned).collect();
    shell::arguments(&words).expect("the binary takes it");
    assert_eq!((words[0].as_str(), words[1].as_str(), start.len()), ("/usr/local/bin/promethean", "serve", 1));
    assert_eq!(of_unit("Type"), ["notify"]);
    assert_eq!(of_unit("LimitCORE"), ["0"], "a core dump holds tokens and events");
    assert_eq!(of_unit("ExecReload"), ["/bin/kill -HUP $MAINPID"]);
    assert_eq!(of_unit("RestartPreventExitStatus"), [(crate::exit::Exit::Usage as u8).to_string()]);
    // Every line is a comment, a heading, or a key with its value; the same key twice only where systemd adds up.
    let unit = read("deploy/promethean.service");
    let mut keys = Vec::new();
    for line in unit.lines().filter(|line| !line.is_empty() && !line.starts_with(['#', '['])) {
        let (key, _) = line.split_once('=').unwrap_or_else(|| panic!("{line}"));
        assert!(key.chars().all(|c| c.is_ascii_alphanumeric()), "{line}");
        assert!(key == "SystemCallFilter" || !keys.contains(&key), "{key} is there twice");
        keys.push(key);
    }
    for key in [
        "NoNewPrivileges",
        "ProtectSystem",
        "ProtectHome",
        "PrivateTmp",
        "SystemCallFilter",
        "WatchdogSec",
        "MemoryMax",
    ] {
        assert!(keys.contains(&key), "{key}");
    }
}

#[test]
fn the_unit_of_the_hub_keeps_its_log_where_systemd_says() {
    let state = format!("/var/lib/{}", of_unit("StateDirectory")[0]);
    let (config, _) = configuration("", &[("STATE_DIRECTORY", &state)]).expect("good");
    assert!(matches!(config.engine, Engine::Log { dir, .. } if dir.to_str() == Some("/var/lib/promethean")));
}

/// The words of an instruction in the exec form, `CMD ["promethean", "serve"]`.
fn of_image(instruction: &str) -> Vec<String> {
    let file = read("deploy/Dockerfile");
    let line = file.lines().find(|line| line.starts_with(instruction)).unwrap_or_else(|| panic!("{instruction}"));
    let list = line.find('[').map(|at| &line[at..]).unwrap_or_else(|| panic!("not the exec form: {line}"));
    serde_json::from_str(list).expect("a list")
}

#[test]
fn the_image_starts_the_hub_and_asks_for_its_health_with_arguments_that_it_has() {
    let start = [of_image("ENTRYPOINT"), of_image("CMD")].concat();
    assert_eq!(start, ["promethean", "serve"]);
    shell::arguments(&start).expect("the binary takes it");
    let health = of_image("HEALTHCHECK");
    assert_eq!(health[..2], ["promethean", "health"]);
    shell::arguments(&health).expect("the binary takes it");
    let file = read("deploy/Dockerfile");
    let user = file.lines().rfind(|line| line.starts_with("USER ")).expect("a user");
    assert!(!user.contains("root") && !user.starts_with("USER 0"), "{user}");
    let words = file.lines().filter_map(|line| line.strip_prefix("ENV ")).flat_map(|line| line.split(' '));
    let variables = words.filter_map(|word| word.split_once('=')).filter(|(name, _)| name.starts_with("PROMETHEAN_"));
    let variables: Vec<(&str, &str)> = variables.collect();
    for (variable, _) in &variables {
        shell::known_variable(variable).expect("the hub reads it");
    }
    let token = ("WS_TOKEN", "a-long-random-token");
    let (config, _) = configuration("", &[&variables[..], &[token]].concat()).expect("good");
    assert!(config.ws.ip().is_unspecified(), "its ports are reached from outside the container");
    configuration("", &variables).expect_err("without a token it does not start");
}

#[test]
fn the_image_is_built_from_what_is_there_with_a_compiler_that_is_new_enough() {
    let (file, ignored) = (read("deploy/Dockerfile"), read(".dockerignore"));
    let kept: Vec<&str> = ignored.lines().filter_map(|line| line.strip_prefix('!')).collect();
    let mut copied = 0;
    for line in file.lines().filter_map(|line| line.strip_prefix("COPY ")).filter(|line| !line.starts_with("--")) {
        let words: Vec<&str> = line.split(' ').collect();
        for source in &words[..words.len() - 1] {
            assert!(root().join(source).exists(), "COPY {source}: it is not there");
            assert!(kept.iter().any(|kept| source.starts_with(kept)), "COPY {source}: .dockerignore leaves it out");
            copied += 1;
        }
    }
    assert!(copied > 5, "{copied}");
    let workspace: toml::Table = read("Cargo.toml").parse().expect("TOML");
    let oldest = workspace["workspace"]["package"]["rust-version"].as_str().expect("a version").to_owned();
    let image = file.lines().find_map(|line| line.strip_prefix("FROM rust:")?.split('-').next()).expect("an image");
    let number = |version: &str| version.split('.').map(|part| part.parse().expect("a number")).collect::<Vec<u32>>();
    assert!(number(image) >= number(&oldest), "rust:{image} is older than {oldest}");
    for member in workspace["workspace"]["members"].as_array().expect("members") {
        let member = member.as_str().expect("a path");
        assert!(kept.iter().any(|kept| member.starts_with(kept)), "the workspace has {member}, the image does not");
    }
}

#[test]
fn the_example_configurations_are_configurations() {
    let all = super::files("deploy", ".toml");
    assert_eq!(all, ["deploy/cluster.toml", "deploy/event-hub.toml", "deploy/single-node.toml", "deploy/tls.toml"]);
    let [cluster, event_hub, single, tls] = <[String; 4]>::try_from(all).expect("four").map(|file| read(&file));
    let state = ("STATE_DIRECTORY", "/var/lib/promethean");
    let token = ("WS_TOKEN", "a-long-random-token");

    let (config, _) = configuration(&single, &[state, token]).expect("single");
    assert!(matches!(&config.engine, Engine::Log { dir, .. } if dir.to_str() == Some(state.1)), "{:?}", config.engine);
    assert!(config.ws.ip().is_unspecified() && config.tls.is_none() && !config.topics.is_empty());
    let open = configuration(&single, &[state]).expect_err("refused without a token").to_string();
    assert!(open.contains("WS_TOKEN"), "{open}");

    let (config, _) = configuration(&tls, &[state]).expect("tls");
    assert!(config.tls.is_some() && config.auth.jwks_url.is_some() && !config.edge.allowed_origins.is_empty());

    let hub =
        [("JWT_SECRET", "0123456789abcdef0123456789abcdef"), ("PROMETHEAN_OUTBOX_URL", "sqlite:/srv/shop.db"), state];
    let (config, _) = configuration(&event_hub, &hub).expect("event hub");
    let outbox = config.outbox.expect("an outbox").settings();
    assert_eq!((outbox.batch_rows, outbox.longest_poll.as_millis(), outbox.lease.as_secs()), (100, 250, 30));
    assert!(config.process_projector && config.auth.jwt_secret.is_some());
    assert_eq!(config.auth.default_scopes, ["publish:heartbeat.received", "subscribe:process.state"]);
    let names: Vec<&str> = config.topics.keys().map(|topic| topic.as_str()).collect();
    assert_eq!(names, ["heartbeat.received", "kv.set", "process.state"]);

    let secrets = [
        ("JWT_SECRET", "0123456789abcdef0123456789abcdef"),
        ("MONGO_URL", "mongodb://db1.example,db2.example,db3.example/promethean?replicaSet=rs0"),
        ("PROMETHEAN_CLUSTER_SECRET", "another long random secret"),
        ("PROMETHEAN_ADVERTISE", "ws://10.0.0.5:8090"),
    ];
    let (config, _) = configuration(&cluster, &secrets).expect("cluster");
    assert!(matches!(config.engine, Engine::Mongo { .. }) && config.advertise.is_some());
    assert!(configuration(&cluster, &secrets[..1]).is_err(), "without MONGO_URL it must not start on a log");
    assert!(config.auth.cluster_secret.is_some());
}

#[test]
fn no_example_holds_a_secret_and_every_variable_of_the_example_environment_is_read() {
    for file in super::files("deploy", ".toml") {
        let table: toml::Table = read(&file).parse().expect("TOML");
        for setting in SETTINGS.iter().filter(|setting| setting.secret) {
            assert!(!table.contains_key(setting.name), "{file}: {} belongs into the environment", setting.name);
        }
    }
    let environment = read("deploy/environment.example");
    let set = environment.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once('='));
    configuration("", &set.collect::<Vec<_>>()).expect("it starts as it is");
    let lines = environment.lines().map(|line| line.trim_start_matches("# ")).filter(|line| line.contains('='));
    let names: Vec<&str> = lines.filter_map(|line| line.split('=').next()).collect();
    for name in &names {
        shell::known_variable(name).expect("the hub reads it");
    }
    for setting in SETTINGS.iter().filter(|setting| setting.secret) {
        let variable = setting.variable();
        assert!(names.contains(&setting.seed.unwrap_or(&variable)), "{} is not in environment.example", setting.name);
    }
}
