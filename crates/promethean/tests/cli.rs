//! The command line as users see it: help, exit codes, and that no secret is shown.

use std::process::{Command, Output};

use promethean_gateway::auth::{Action, AuthConfig, Authenticator, Identity, Secret};

/// The binary in an empty directory with an empty environment, plus `variables`.
fn promethean(variables: &[(&str, &str)], args: &[&str]) -> Output {
    let dir = tempfile::tempdir().expect("a directory");
    promethean_in(dir.path(), variables, args)
}

fn promethean_in(dir: &std::path::Path, variables: &[(&str, &str)], args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_promethean"))
        .args(args)
        .current_dir(dir)
        .env_clear()
        .env("COLUMNS", "110")
        .env("HOME", "/home/somebody")
        .envs(variables.iter().copied())
        .output()
        .expect("the binary runs")
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("text")
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("text")
}

#[test]
fn the_help_of_every_command_is_as_it_was_agreed() {
    // Every command there is, found by its help: a new one fails here until its snapshot is agreed.
    let mut commands: Vec<Vec<String>> = vec![Vec::new()];
    let mut snapshots = std::collections::BTreeSet::new();
    while let Some(command) = commands.pop() {
        let mut args: Vec<&str> = command.iter().map(String::as_str).collect();
        args.push("--help");
        let output = promethean(&[], &args);
        assert!(output.status.success(), "{command:?}");
        let help = stdout(&output);
        if let Some((_, listed)) = help.split_once("Commands:\n") {
            let names = listed.lines().take_while(|line| !line.is_empty());
            let names = names.filter(|line| !line.starts_with("   ")).filter_map(|line| line.split_whitespace().next());
            for name in names.filter(|name| *name != "help") {
                commands.push(command.iter().cloned().chain([name.to_owned()]).collect());
            }
        }
        let name = std::iter::once("help".to_owned()).chain(command).collect::<Vec<_>>().join("-");
        insta::assert_snapshot!(name.clone(), help);
        snapshots.insert(format!("cli__{name}.snap"));
    }
    let kept = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/snapshots")).expect("snapshots");
    for file in kept.map(|file| file.expect("a file").file_name().into_string().expect("a name")) {
        assert!(snapshots.contains(&file) || !file.starts_with("cli__help"), "{file} is of no command");
    }
}

#[test]
fn completions_are_printed_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = promethean(&[], &["completions", shell]);
        assert!(output.status.success() && stdout(&output).contains("ws-port"), "{shell}");
    }
}

#[test]
fn manual_pages_are_printed_and_written_for_every_command() {
    let page = promethean(&[], &["man"]);
    assert!(page.status.success() && stdout(&page).contains(".TH promethean 1"), "{}", stdout(&page));
    let dir = tempfile::tempdir().expect("a directory");
    assert!(promethean_in(dir.path(), &[], &["man", "--dir", "pages"]).status.success());
    for name in ["promethean.1", "promethean-serve.1", "promethean-dlq-redrive.1"] {
        let page = std::fs::read_to_string(dir.path().join("pages").join(name)).expect(name);
        assert!(page.contains(".TH"), "{name}");
    }
}

#[test]
fn wrong_arguments_and_wrong_settings_exit_2() {
    for args in [
        &["serve", "--no-such-flag"][..],
        &["no-such-command"],
        &[],
        &["serve", "--ws-port", "x"],
        &["serve", "--bind", "0.0.0.0"],
        &["serve", "--config", "missing.toml"],
        &["serve", "--store", "memory", "--log", "a=b=c"],
        &["token"],
        &["token", "--secret", "s", "--scope", "read:a"],
        &["token", "--secret", "s", "--ttl", "long"],
        &["health", "--server", "nowhere"],
    ] {
        let output = promethean(&[], args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", stderr(&output));
        assert!(stdout(&output).is_empty() && !output.stderr.is_empty(), "{args:?}");
    }
}

#[test]
fn listening_beyond_loopback_without_auth_is_refused_with_the_remedy() {
    let output = promethean(&[("PROMETHEAN_BIND", "0.0.0.0")], &["serve"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("$PROMETHEAN_BIND") && stderr(&output).contains("WS_TOKEN"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_mongodb_that_is_not_there_is_told_without_the_password() {
    let output = promethean(&[("MONGO_URL", "mongodb://user:canary@127.0.0.1:1")], &["serve"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(stderr(&output).contains("no MongoDB answers at 127.0.0.1:1") && !stderr(&output).contains("canary"));
}

#[test]
fn config_show_tells_origins_and_hides_secrets() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = "http_port = 1\nallowed_origins = [\"https://a\"]\n[topics.\"a.b\"]\nretentionDays = 3\n";
    std::fs::write(dir.path().join("promethean.toml"), file).expect("written");
    let secrets = [
        ("WS_TOKEN", "canary"),
        ("JWT_SECRET", "canary"),
        ("MONGO_URL", "mongodb://u:canary@h"),
        ("JWT_JWKS_URL", "https://idp.example/keys?key=canary"),
        ("PROMETHEAN_OTLP_ENDPOINT", "http://u:canary@127.0.0.1:1"),
    ];
    let text = promethean_in(dir.path(), &secrets, &["config", "show", "--ops-port", "2"]);
    let text = stdout(&text);
    for line in [
        "http_port = 1 # promethean.toml",
        "ops_port = 2 # --ops-port",
        "ws_port = 8090 # default",
        "ws_token = \"[redacted]\" # $WS_TOKEN",
        "allowed_origins = [\"https://a\"] # promethean.toml",
        "store = \"mongo\" # $MONGO_URL",
        "jwt_jwks_url = \"https://idp.example/keys?[redacted]\" # $JWT_JWKS_URL",
        "otlp_endpoint = \"http://u:[redacted]@127.0.0.1:1\" # $PROMETHEAN_OTLP_ENDPOINT",
        "bind = \"127.0.0.1\" # default",
        "# tls_cert # not set",
        "[topics.\"a.b\"] # promethean.toml",
        "retentionDays = 3",
    ] {
        let squeezed: Vec<_> = text.lines().map(|l| l.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert!(squeezed.iter().any(|squeezed| squeezed == line), "{line} is not in\n{text}");
    }
    assert!(!text.contains("canary"));

    let json = promethean_in(dir.path(), &secrets, &["config", "show", "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).expect("json");
    assert_eq!(json["http_port"], serde_json::json!({"value": "1", "origin": "promethean.toml"}));
    assert_eq!(json["topics"]["value"]["a.b"]["retentionDays"], 3);
    assert!(!json.to_string().contains("canary"));
}

#[test]
fn what_config_show_prints_is_a_configuration_file() {
    let dir = tempfile::tempdir().expect("a directory");
    let shown = promethean_in(dir.path(), &[], &["config", "show"]);
    std::fs::write(dir.path().join("promethean.toml"), &shown.stdout).expect("written");
    let again = promethean_in(dir.path(), &[], &["config", "show"]);
    assert!(again.status.success(), "{}", stderr(&again));
    let default = promethean_in(dir.path(), &[], &["config", "default"]);
    std::fs::write(dir.path().join("promethean.toml"), &default.stdout).expect("written");
    assert!(promethean_in(dir.path(), &[], &["config", "show"]).status.success());
}

fn identity(config: &AuthConfig, token: &str) -> Option<Identity> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let auth = Authenticator::new(config).expect("a good configuration");
    runtime.block_on(auth.authenticate(Some(token.trim()))).ok()
}

#[test]
fn a_minted_token_is_one_that_the_hub_takes() {
    let variables = [("JWT_SECRET", "s3cret"), ("JWT_AUD", "hub"), ("JWT_ISS", "me")];
    let output = promethean(&variables, &["token", "--sub", "ci", "--scope", "publish:a.*", "--scope", "subscribe:b"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let config = AuthConfig {
        jwt_secret: Some(Secret::new("s3cret")),
        audience: Some("hub".into()),
        issuer: Some("me".into()),
        ..AuthConfig::default()
    };
    let identity = identity(&config, &stdout(&output)).expect("accepted");
    assert_eq!(identity.sub.as_deref(), Some("ci"));
    let topic = |name| promethean_event::Topic::parse(name).expect("a topic");
    assert!(identity.policy.allows(Action::Publish, &topic("a.x"), None));
    assert!(identity.policy.allows(Action::Subscribe, &topic("b"), None));
    assert!(!identity.policy.allows(Action::Publish, &topic("b"), None));
}

#[test]
fn a_scope_without_a_topic_pattern_is_not_minted() {
    for scope in ["publish", "*", ""] {
        let output = promethean(&[("JWT_SECRET", "s")], &["token", "--scope", scope]);
        assert_eq!(output.status.code(), Some(2), "{scope:?}: {}", stdout(&output));
        assert!(stderr(&output).contains("has no topic pattern; write"), "{}", stderr(&output));
    }
}

#[test]
fn a_minted_token_carries_a_policy_and_ends_when_it_was_told_to() {
    let dir = tempfile::tempdir().expect("a directory");
    let policy = r#"{"rules":[{"effect":"allow","action":"admin","topics":["a"]}]}"#;
    std::fs::write(dir.path().join("policy.json"), policy).expect("written");
    let args = ["token", "--secret", "s", "--policy", "policy.json", "--ttl", "2h"];
    let output = promethean_in(dir.path(), &[], &args);
    let config = AuthConfig { jwt_secret: Some(Secret::new("s")), ..AuthConfig::default() };
    let identity = identity(&config, &stdout(&output)).expect("accepted");
    assert!(identity.policy.allows(Action::Admin, &promethean_event::Topic::parse("a").expect("a topic"), None));
    let left = identity.exp.expect("an end").since(promethean_event::Millis::now()).as_secs();
    assert!((7_100..=7_200).contains(&left), "{left}");
    std::fs::write(dir.path().join("policy.json"), r#"{"rules":[{}]}"#).expect("written");
    assert_eq!(promethean_in(dir.path(), &[], &args).status.code(), Some(2));
}

#[test]
fn health_says_when_nobody_is_there() {
    let output = promethean(&[], &["health", "--server", "http://127.0.0.1:1"]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
}

#[test]
fn health_says_when_it_takes_too_long() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", silent.local_addr().expect("an address"));
    let output = promethean(&[], &["health", "--server", &url, "--timeout", "200ms"]);
    assert_eq!(output.status.code(), Some(124), "{}", stderr(&output));
}
