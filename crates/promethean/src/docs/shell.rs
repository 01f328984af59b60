//! Commands as they stand in the pages: the shell can read them, the programs are known, and of our own the arguments
//! are what the binary, its HTTP API and the Makefile know.

use std::process::{Command, Stdio};

use clap::error::ErrorKind;
use clap::{CommandFactory as _, Parser as _};

use super::read;
use crate::args::Args;
use crate::config::SETTINGS;

/// Programs of others: their arguments are theirs.
const OTHERS: &str = "cat cd chmod chown cp docker echo export gh git grep head install journalctl jq kill mkdir mongod mongosh mv npm npx \
    openssl printf redis-cli rm sed seq sleep sudo systemctl systemd-analyze tar tee test touch true useradd \
    wait zstd";

/// Variables of the command line that are no settings.
const VARIABLES: &str = "PROMETHEAN_URL PROMETHEAN_SERVER PROMETHEAN_HTTP PROMETHEAN_OPS PROMETHEAN_CONTEXT PROMETHEAN_TOKEN NO_COLOR SSL_CERT_FILE";

/// A script is right.
pub(super) fn script(text: &str) -> Result<(), String> {
    can_be_read(text)?;
    // A line goes on while its quotes are open, or where it ends with a backslash.
    let mut open = String::new();
    for line in text.lines() {
        open.push_str(line);
        if shlex::split(&open).is_none() {
            open.push('\n');
            continue;
        }
        for words in commands(&std::mem::take(&mut open))? {
            command(&words)?;
        }
    }
    Ok(())
}

/// True if a line begins a command, and is not words about one.
pub(super) fn is_command(line: &str) -> bool {
    let words: Vec<&str> = line.split_whitespace().take(2).collect();
    match words[..] {
        ["curl" | "make" | "cargo", ..] => true,
        ["promethean", name] => Args::command().find_subcommand(name).is_some(),
        _ => false,
    }
}

/// The shell's own opinion.
fn can_be_read(text: &str) -> Result<(), String> {
    let output = Command::new("sh").args(["-n", "-c", text]).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("sh: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("sh -n: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}

/// The commands of a line, each as its words: pipes and lists taken apart, redirections left out, and what stands in
/// `$(…)` as a command of its own.
fn commands(line: &str) -> Result<Vec<Vec<String>>, String> {
    let (mut rest, mut outer, mut found) = (line, String::new(), Vec::new());
    while let Some((before, inner)) = rest.split_once("$(") {
        let (inner, after) = inner.split_once(')').ok_or_else(|| format!("{line}: $( without )"))?;
        found.extend(commands(inner)?);
        outer.push_str(before);
        outer.push_str("substituted");
        rest = after;
    }
    outer.push_str(rest);
    let words = shlex::split(&outer).ok_or_else(|| format!("{line}: quotes that do not end"))?;
    let mut words = words.into_iter().peekable();
    let mut current = Vec::new();
    while let Some(word) = words.next() {
        match word.as_str() {
            "|" | "&&" | "||" | ";" | "&" => found.extend(Some(std::mem::take(&mut current)).filter(|c| !c.is_empty())),
            ">" | ">>" | "<" | "2>" => drop(words.next()),
            "2>&1" => {}
            _ => current.push(word),
        }
    }
    found.extend(Some(current).filter(|words| !words.is_empty()));
    Ok(found)
}

fn command(words: &[String]) -> Result<(), String> {
    let is_variable = |word: &&String| word.split_once('=').is_some_and(|(name, _)| is_name(name));
    let variables: Vec<&String> = words.iter().take_while(is_variable).collect();
    let words = &words[variables.len()..];
    let words = if words.first().is_some_and(|word| word == "sudo") { unprivileged(&words[1..]) } else { words };
    let Some(program) = words.first() else { return Ok(()) };
    match program.as_str() {
        "promethean" | "target/release/promethean" | "/usr/local/bin/promethean" => {
            for variable in variables {
                known_variable(variable.split('=').next().unwrap_or_default())?;
            }
            arguments(words)
        }
        "curl" => addresses(words),
        "make" => targets(words),
        "cargo" => examples(words),
        other if OTHERS.split(' ').any(|known| known == other) => Ok(()),
        other => {
            Err(format!("{other} is a program that nobody knows: OTHERS in src/docs/shell.rs lists those of others"))
        }
    }
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// What `sudo` runs.
fn unprivileged(words: &[String]) -> &[String] {
    match words.first().map(String::as_str) {
        Some("-u") => &words[2.min(words.len())..],
        _ => words,
    }
}

/// A variable that the hub or the command line reads.
pub(super) fn known_variable(name: &str) -> Result<(), String> {
    let of_setting = SETTINGS.iter().any(|setting| setting.variable() == name || setting.seed == Some(name));
    if of_setting || VARIABLES.split(' ').any(|known| known == name) {
        Ok(())
    } else {
        Err(format!("{name} is a variable that nobody reads"))
    }
}

/// Arguments that the binary takes; asking for help counts.
pub(super) fn arguments(words: &[String]) -> Result<(), String> {
    match Args::try_parse_from(words) {
        Err(error) if ![ErrorKind::DisplayHelp, ErrorKind::DisplayVersion].contains(&error.kind()) => {
            Err(format!("{}: {}", words.join(" "), error.to_string().trim()))
        }
        _ => Ok(()),
    }
}

/// Addresses of a hub have paths and parameters that the hub answers.
fn addresses(words: &[String]) -> Result<(), String> {
    let document = promethean_gateway::ops::openapi();
    let paths = document["paths"].as_object().ok_or("no paths")?;
    for word in words {
        let rest = word.strip_prefix("http://").or_else(|| word.strip_prefix("https://")).unwrap_or(word);
        let Some((host, path)) = rest.split_once('/') else { continue };
        if !["8081", "8082"].iter().any(|port| host.ends_with(&format!(":{port}"))) {
            continue;
        }
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let segments: Vec<&str> = path.split('/').collect();
        let same = |known: &&String| {
            let known: Vec<&str> = known.trim_start_matches('/').split('/').collect();
            known.len() == segments.len() && known.iter().zip(&segments).all(|(k, s)| k.starts_with('{') || k == s)
        };
        let Some(known) = paths.keys().find(same) else { return Err(format!("/{path} is no path of the hub")) };
        let operations = paths[known].as_object().into_iter().flat_map(|operations| operations.values());
        let taken: Vec<&str> = operations
            .flat_map(|operation| operation["parameters"].as_array().into_iter().flatten())
            .filter_map(|parameter| parameter["name"].as_str())
            .collect();
        for name in query.split('&').filter_map(|pair| pair.split('=').next()).filter(|name| !name.is_empty()) {
            if !taken.contains(&name) {
                return Err(format!("{known} takes no {name}; it takes {}", taken.join(", ")));
            }
        }
    }
    Ok(())
}

/// Targets that the Makefile has.
fn targets(words: &[String]) -> Result<(), String> {
    let makefile = read("Makefile");
    let asked = words[1..].iter().filter(|word| !word.contains('=') && !word.starts_with('-'));
    for target in asked {
        if !makefile.lines().any(|line| line.starts_with(&format!("{target}:"))) {
            return Err(format!("the Makefile has no target {target}"));
        }
    }
    Ok(())
}

/// Examples that are there.
fn examples(words: &[String]) -> Result<(), String> {
    for pair in words.windows(2).filter(|pair| pair[0] == "--example") {
        let file = format!("examples/{}.rs", pair[1]);
        if !super::files("crates", ".rs").iter().any(|path| path.ends_with(&file)) {
            return Err(format!("there is no example {}", pair[1]));
        }
    }
    Ok(())
}
