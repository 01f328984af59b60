//! The page of settings, made from the table: `docs/configuration.md` is this text, and a test keeps it so.

use std::fmt::Write as _;

use super::{DEFAULT_FILE, SETTINGS};

const INTRO: &str = "\
# Configuration

`promethean serve` takes flags over environment variables over `promethean.toml` (of the working directory, or
`--config FILE`) over defaults. `promethean config show` tells which value counts and where it was said;
`promethean config default` prints a commented file to start from. An unknown key is an error.
This page is made from the table in `crates/promethean/src/config/setting.rs`.
";

const TOPICS: &str = "\
What is kept of a topic, in the file only; without a table, everything. The strictest bound counts. A bound of 0 is refused:
to have none, leave it out. So is a `snapshot_topic` that has another topic's snapshots, leads back in a circle or begins with
`dlq.`, also where the other topic's settings were made by `promethean topic set`: the hub does not start, and names both. So is
`snapshot = false` beside one of its details; a detail alone means `snapshot = true`.
";

fn render() -> String {
    let mut out = INTRO.to_owned();
    let mut section = "";
    for setting in SETTINGS {
        if setting.section != section {
            section = setting.section;
            let _ =
                write!(out, "\n## {section}\n\n| key | flag | variable | default | effect |\n|---|---|---|---|---|\n");
        }
        let variables: Vec<_> =
            [Some(setting.variable()), setting.seed.map(str::to_owned)].into_iter().flatten().collect();
        let default = setting.default.filter(|text| !text.is_empty());
        let default = default.map(|text| format!("`{text}`")).unwrap_or_default();
        let _ = writeln!(
            out,
            "| `{}` | `--{} {}` | `{}` | {default} | {} |",
            setting.name,
            setting.flag(),
            setting.value,
            variables.join("` `"),
            setting.help.replace('*', r"\*")
        );
    }
    let topics = DEFAULT_FILE.split_once("# Topics -").map_or("", |(_, rest)| rest);
    let example = topics.lines().filter_map(|line| line.strip_prefix("# ").or((line == "#").then_some("")));
    let example: Vec<_> = example.skip_while(|line| !line.starts_with('[')).collect();
    let _ = write!(out, "\n## Topics\n\n{TOPICS}\n```toml\n{}\n```\n", example.join("\n"));
    out
}

#[test]
fn the_page_of_settings_is_up_to_date() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, render()).expect("written");
    }
    let page = std::fs::read_to_string(path).expect("docs/configuration.md");
    assert!(
        page == render(),
        "docs/configuration.md is old: run `UPDATE_DOCS=1 cargo test -p promethean page_of_settings`"
    );
}
