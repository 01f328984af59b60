//! One address is enough: `--server`, `PROMETHEAN_URL`, and contexts that are saved.

use std::path::Path;
use std::process::Output;

use super::{Hub, binary, json_lines};

fn run(home: &Path, variables: &[(&str, &str)], args: &[&str]) -> Output {
    binary(variables).env("HOME", home).args(args).output().expect("the command runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn the_ops_address_is_enough_for_every_command() {
    let hub = Hub::start(&[]);
    let home = tempfile::tempdir().expect("a directory");
    let url = [("PROMETHEAN_URL", hub.ops.as_str())];
    for args in
        [&["pub", "a", "1"][..], &["replay", "a"], &["export", "a"], &["health"], &["tail", "a", "--count", "0"]]
    {
        let output = run(home.path(), &url, args);
        assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
        let flag = run(home.path(), &[], &[args, &["--server", &hub.ops]].concat());
        assert!(flag.status.success(), "{args:?}: {}", text(&flag.stderr));
    }
    let wrong = run(home.path(), &[], &["replay", "a", "--server", &hub.ws]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(text(&wrong.stderr).contains("ops address"), "{}", text(&wrong.stderr));
}

#[test]
fn a_saved_context_is_used_until_something_nearer_says_otherwise() {
    let hub = Hub::start(&[("WS_TOKEN", "sesame")]);
    let home = tempfile::tempdir().expect("a directory");
    let set = ["context", "set", "here", "--server", &hub.ops, "--token", "sesame"];
    assert!(run(home.path(), &[], &set).status.success());
    assert!(run(home.path(), &[], &["context", "set", "nowhere", "--server", "http://127.0.0.1:1"]).status.success());
    assert!(run(home.path(), &[], &["pub", "a", "1"]).status.success(), "the first one is used at once");
    assert!(run(home.path(), &[], &["context", "use", "nowhere"]).status.success());
    assert_eq!(run(home.path(), &[], &["replay", "a"]).status.code(), Some(3));
    assert!(run(home.path(), &[], &["replay", "a", "--context", "here"]).status.success());
    assert!(run(home.path(), &[("PROMETHEAN_CONTEXT", "here")], &["replay", "a"]).status.success());
    assert_eq!(run(home.path(), &[], &["replay", "a", "--context", "other"]).status.code(), Some(5));

    let listed = run(home.path(), &[], &["context", "list", "--json"]);
    let listed = json_lines(&text(&listed.stdout)).remove(0);
    assert_eq!((&listed["contexts"][0]["name"], &listed["contexts"][1]["inUse"]), (&"here".into(), &true.into()));
    for args in [&["context", "list"][..], &["context", "list", "--json"], &["context", "show"]] {
        let output = run(home.path(), &[], args);
        assert!(!text(&output.stdout).contains("sesame"), "{args:?}");
        assert!(text(&output.stdout).contains("127.0.0.1:1"), "{args:?}: {}", text(&output.stdout));
    }
    let file = home.path().join(".config/promethean/contexts.toml");
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&file).expect("the file").permissions());
    assert_eq!(mode & 0o777, 0o600, "it holds tokens");

    // A saved token is not sent to another address.
    let elsewhere = run(home.path(), &[], &["replay", "a", "--server", &hub.ops]);
    assert_eq!(elsewhere.status.code(), Some(4), "{}", text(&elsewhere.stderr));
    assert!(text(&elsewhere.stderr).contains("--token"), "{}", text(&elsewhere.stderr));
    assert!(run(home.path(), &[], &["context", "remove", "here"]).status.success());
    std::fs::write(&file, "nonsense").expect("written");
    let broken = run(home.path(), &[], &["replay", "a"]);
    assert_eq!(broken.status.code(), Some(2));
    assert!(text(&broken.stderr).contains("contexts.toml"), "{}", text(&broken.stderr));
}

#[test]
fn a_context_has_a_name() {
    let home = tempfile::tempdir().expect("a directory");
    for name in ["", " "] {
        let refused = run(home.path(), &[], &["context", "set", name, "--server", "http://127.0.0.1:1"]);
        assert_eq!(refused.status.code(), Some(2), "{}", text(&refused.stderr));
        assert!(text(&refused.stderr).contains("NAME"), "{}", text(&refused.stderr));
        assert_eq!(run(home.path(), &[], &["context", "use", name]).status.code(), Some(5));
    }
    let listed = run(home.path(), &[], &["context", "list", "--json"]);
    assert_eq!(text(&listed.stdout), "{\"contexts\":[]}\n");
}

#[test]
fn contexts_that_are_set_at_the_same_time_are_all_saved() {
    let home = tempfile::tempdir().expect("a directory");
    let set = |n: usize| {
        let name = format!("c{n}");
        let mut set = binary(&[]);
        set.env("HOME", home.path()).args(["context", "set", &name, "--server", "http://127.0.0.1:1"]);
        set.stderr(std::process::Stdio::null()).spawn().expect("it runs")
    };
    for mut child in (0..8).map(set).collect::<Vec<_>>() {
        assert!(child.wait().expect("ended").success());
    }
    let listed = run(home.path(), &[], &["context", "list", "--json"]);
    let listed = json_lines(&text(&listed.stdout)).remove(0);
    assert_eq!(listed["contexts"].as_array().map(Vec::len), Some(8), "{listed}");
}
