//! Every code block of every page is checked by somebody, and every link leads somewhere.
//!
//! `CHECKS` is the list of languages and of who checks them: most here, with the parsers that the hub itself uses; Rust
//! as doc tests, TypeScript and Sibilant by tests elsewhere, whose presence is checked here. A block in any other language
//! fails; one without is commands, or nothing that could be one. What is only read here is run elsewhere, against the real
//! binary: commands by `e2e/tests/it/guides`, the README as a whole by `e2e/tests/it/readme.rs`.

mod deploy;
mod operations;
mod shell;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use promethean_event::frame::{Answer, decode};
use promethean_gateway::auth::Policy;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::config::{Config, ConfigError, File, Layers};

/// A fenced block of a page.
#[derive(Debug)]
struct Block {
    /// The page, from the root of the repository.
    page: String,
    /// Where its text begins, from 1.
    line: usize,
    /// What stands behind the fence: `rust,no_run`.
    info: String,
    text: String,
}

impl Block {
    fn language(&self) -> &str {
        self.info.split([',', ' ']).next().unwrap_or_default()
    }
}

/// Says why a block is wrong.
type Check = fn(&Block) -> Result<(), String>;

/// Who checks which language.
const CHECKS: &[(&str, Check)] = &[
    ("rust", is_doc_test),
    ("toml", |block| configuration(&block.text, &[("WS_TOKEN", "token")]).map(drop).map_err(|error| error.to_string())),
    ("json", json),
    ("sh", |block| shell::script(&block.text)),
    ("console", transcript),
    ("ts", |block| checked_by(block, "sdk/typescript/test/docs.test.ts")),
    ("lisp", |block| checked_by(block, "sdk/sibilant/test/sugar.test.js")),
    ("text", no_commands),
    ("", |block| if shell::is_command(&block.text) { shell::script(&block.text) } else { no_commands(block) }),
];

/// The root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The files below `dir` whose names end so, from the root of the repository; not what is built or installed.
fn files(dir: &str, ending: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut dirs = vec![PathBuf::from(dir)];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(root().join(&dir)).expect("a directory") {
            let entry = entry.expect("an entry");
            let name = entry.file_name().into_string().expect("a name");
            let path = dir.join(&name);
            if entry.file_type().expect("a type").is_dir() {
                if !["target", "node_modules", "dist", ".git"].contains(&name.as_str()) {
                    dirs.push(path);
                }
            } else if name.ends_with(ending) {
                found.push(path.to_str().expect("text").trim_start_matches("./").to_owned());
            }
        }
    }
    found.sort();
    found
}

/// Every page with its text.
fn pages() -> Vec<(String, String)> {
    let pages = files(".", ".md");
    assert!(pages.len() > 30, "the pages were not found");
    pages.into_iter().map(|page| (page.clone(), read(&page))).collect()
}

/// The fenced blocks of a page.
fn blocks(page: &str, text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<(usize, Block)> = None;
    for (number, line) in (1..).zip(text.lines()) {
        let indent = line.len() - line.trim_start().len();
        let fence = line.trim_start().strip_prefix("```");
        match (&mut open, fence) {
            (None, Some(info)) => {
                let block = Block {
                    page: page.to_owned(),
                    line: number + 1,
                    info: info.trim().to_owned(),
                    text: String::new(),
                };
                open = Some((indent, block));
            }
            (Some(_), Some("")) => blocks.extend(open.take().map(|(_, block)| block)),
            (Some((indent, block)), _) => {
                block.text.push_str(line.get(*indent..).unwrap_or_default());
                block.text.push('\n');
            }
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "{page}: a block that does not end");
    blocks
}

#[test]
fn every_code_block_of_every_page_is_checked() {
    let mut wrong = Vec::new();
    let mut counts = BTreeMap::new();
    for (page, text) in pages() {
        for block in blocks(&page, &text) {
            let check = CHECKS.iter().find(|(language, _)| *language == block.language());
            let checked = match check {
                Some((language, check)) => {
                    *counts.entry(*language).or_insert(0) += 1;
                    check(&block)
                }
                None => Err(format!("nobody checks {:?}: CHECKS in src/docs/mod.rs says who checks what", block.info)),
            };
            if let Err(reason) = checked {
                wrong.push(format!("{}:{}: {reason}", block.page, block.line));
            }
        }
    }
    assert!(wrong.is_empty(), "{} blocks are wrong:\n{}", wrong.len(), wrong.join("\n"));
    // Nobody is on the list for nothing, and the pages were really read.
    for (language, _) in CHECKS.iter().filter(|(language, _)| !language.is_empty()) {
        assert!(counts.contains_key(language), "no block is {language}: {counts:?}");
    }
}

/// The page is included in a crate's documentation, where `cargo test` compiles its blocks, and the block takes part. The
/// first page is a transcript as a whole, with a test of its own, which takes one block.
fn is_doc_test(block: &Block) -> Result<(), String> {
    if block.page == "README.md" {
        let only = read(&block.page).matches("\n```rust").count() <= 1;
        return if only { Ok(()) } else { Err("e2e/build.rs takes the first Rust block only".into()) };
    }
    if block.info.split(',').any(|word| ["ignore", "compile_fail", "text"].contains(&word.trim())) {
        return Err(format!("{:?} is not compiled", block.info));
    }
    let include = format!("#[doc = include_str!(\"../../../{}\")]", block.page);
    let crates = files("crates", "lib.rs");
    match crates.iter().any(|file| read(file).contains(&include)) {
        true => Ok(()),
        false => Err(format!("no crate has {include}, so its Rust is compiled by nobody")),
    }
}

/// What a file with this text and these variables says, through the code that the hub starts with.
fn configuration(text: &str, variables: &[(&str, &str)]) -> Result<(Config, Layers), ConfigError> {
    let environment = |name: &str| match variables.iter().find(|(this, _)| *this == name) {
        Some((_, value)) => Some(OsString::from(value)),
        None => (name == "HOME").then(|| "/home/somebody".into()),
    };
    let file = File { path: "promethean.toml".into(), text: text.to_owned() };
    let mut layers = Layers::collect(&BTreeMap::new(), &environment, Some(&file))?;
    let config = Config::resolve(&mut layers, &environment)?;
    Ok((config, layers))
}

/// One JSON value or several. Frames go through the parsers of hub and client, policies through that of the hub.
fn json(block: &Block) -> Result<(), String> {
    let values = serde_json::Deserializer::from_str(&block.text).into_iter::<Box<RawValue>>();
    for value in values {
        let text = value.map_err(|error| error.to_string())?;
        let value: Value = serde_json::from_str(text.get()).map_err(|error| error.to_string())?;
        match value["op"].as_str() {
            Some("OK" | "ERR" | "EVENT" | "EVENTS") => {
                Answer::parse(text.get()).map_err(|error| format!("no frame of a hub: {error}"))?;
            }
            Some(_) => {
                decode(text.get()).request.map_err(|refused| format!("no frame of a client: {refused}"))?;
            }
            None if value.get("rules").is_some() => {
                Policy::parse(text.get()).map_err(|malformed| format!("no policy: {malformed}"))?;
            }
            None => {}
        }
    }
    Ok(())
}

/// The commands of a transcript are commands, and somebody runs them.
fn transcript(block: &Block) -> Result<(), String> {
    if block.page != "README.md" {
        return Err("only the README's transcripts are run: make it sh".into());
    }
    let commands = block.text.lines().filter_map(|line| line.strip_prefix("$ "));
    let commands: Vec<&str> = commands.collect();
    if commands.is_empty() {
        return Err("a transcript without a command: lines that begin with \"$ \"".into());
    }
    shell::script(&commands.join("\n"))
}

/// Another test reads the blocks of this language from every page, as this one does.
fn checked_by(block: &Block, test: &str) -> Result<(), String> {
    let language = format!("\"{}\"", block.language());
    match root().join(test).is_file() && read(test).contains(&language) {
        true => Ok(()),
        false => Err(format!("{test} does not check {language}")),
    }
}

/// Text is what is not code: no command hides there.
fn no_commands(block: &Block) -> Result<(), String> {
    let is_command = |line: &&str| line.trim_start().starts_with("$ ") || shell::is_command(line.trim_start());
    let command = block.text.lines().find(is_command);
    command.map_or(Ok(()), |line| Err(format!("{line:?} is a command: make the block sh or console")))
}

#[test]
fn every_link_between_pages_leads_somewhere() {
    let mut wrong = Vec::new();
    for (page, text) in pages() {
        let dir = Path::new(&page).parent().expect("a directory").to_owned();
        for target in links(&text) {
            let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
            let file = if path.is_empty() { PathBuf::from(&page) } else { dir.join(path) };
            let there = root().join(&file);
            if !there.exists() {
                wrong.push(format!("{page}: {target}"));
            } else if !anchor.is_empty() && path.ends_with(".md") || path.is_empty() {
                let headings = std::fs::read_to_string(&there).expect("a page");
                if !headings.lines().filter(|line| line.starts_with('#')).any(|line| slug(line) == anchor) {
                    wrong.push(format!("{page}: {target}: no such heading"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "links that lead nowhere:\n{}", wrong.join("\n"));
}

#[test]
fn the_index_leads_to_every_page() {
    let index = read("docs/README.md");
    let listed: Vec<&str> = links(&index).collect();
    for page in files("docs", ".md") {
        let page = page.trim_start_matches("docs/");
        let in_listed_folder = listed.iter().any(|link| link.ends_with('/') && page.starts_with(link));
        assert!(
            page == "README.md" || listed.contains(&page) || in_listed_folder,
            "docs/README.md does not lead to {page}"
        );
    }
}

/// The targets of `[text](target)` that are not on another machine.
fn links(text: &str) -> impl Iterator<Item = &str> {
    text.split("](").skip(1).filter_map(|rest| rest.split(')').next()).filter(|to| !to.contains("://"))
}

/// The anchor of a heading.
fn slug(heading: &str) -> String {
    let words = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = words.chars().filter(|c| c.is_alphanumeric() || *c == ' ' || *c == '-' || *c == '_');
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[test]
fn blocks_are_found_with_their_languages_also_inside_lists() {
    let found = blocks("a.md", "x\n```sh\none\n```\n- y\n  ```rust,no_run\n  fn f() {\n    g()\n  ```\n```\n\n```\n");
    let found: Vec<_> = found.iter().map(|block| (block.language(), block.line, block.text.as_str())).collect();
    assert_eq!(found, [("sh", 3, "one\n"), ("rust", 7, "fn f() {\n  g()\n"), ("", 11, "\n")]);
}

#[test]
fn what_is_wrong_in_a_block_is_found() {
    let check = |info: &str, text: &str| {
        let block = Block { page: "README.md".into(), line: 1, info: info.into(), text: text.into() };
        CHECKS.iter().find(|(language, _)| *language == block.language()).expect("checked").1(&block)
    };
    for (info, text, named) in [
        ("toml", "ws_prot = 1", "did you mean ws_port"),
        ("json", "{\"a\": }", "expected value"),
        ("json", "{\"op\": \"ACK\", \"topic\": \"a\", \"group\": \"g\"}", "one of id"),
        ("json", "{\"op\": \"EVENT\", \"topic\": \"a\"}", "missing field"),
        ("json", "{\"rules\": [{\"effect\": \"perhaps\"}]}", "no policy"),
        ("sh", "promethean serve --no-such-flag", "--no-such-flag"),
        ("sh", "promethean frobnicate", "frobnicate"),
        ("sh", "echo 'half", "sh -n"),
        ("sh", "frobnicate now", "frobnicate"),
        ("sh", "curl localhost:8082/lags", "/lags"),
        ("sh", "curl 'localhost:8082/lag?topik=a'", "topik"),
        ("sh", "NO_SUCH=1 promethean serve", "NO_SUCH"),
        ("sh", "make no-such-target", "no-such-target"),
        ("sh", "a | promethean pubb x", "a is a program"),
        ("console", "what it says", "without a command"),
        ("text", "promethean serve", "is a command"),
        ("sh", "TOKEN=x promethean serve", "TOKEN"),
        ("", "make no-such-target", "no-such-target"),
    ] {
        let why = check(info, text).expect_err(text);
        assert!(why.contains(named), "{text}: {why}");
    }
    for (info, text) in [
        ("toml", "bind = \"0.0.0.0\""),
        ("json", "{\"op\": \"PING\"}\n{\"op\": \"OK\", \"corr\": 1}"),
        ("sh", "WS_TOKEN=$(openssl rand -hex 32) promethean serve --ws-port 0 & # a comment"),
        ("sh", "curl -sN 'http://127.0.0.1:8081/events/orders.*?from=earliest' | jq .id > ids"),
        ("text", "promethean ready ws=127.0.0.1:8090 http=127.0.0.1:8081 ops=127.0.0.1:8082 store=log"),
    ] {
        assert_eq!(check(info, text), Ok(()), "{text}");
    }
}
