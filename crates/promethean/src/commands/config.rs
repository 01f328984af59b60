//! `promethean config`: which values count, and where each was said. Secrets are never shown.

use std::fmt::Write as _;

use super::out;
use crate::args::ConfigCommand;
use crate::commands::load;
use crate::config::{DEFAULT_FILE, Layers, SETTINGS, Said, Setting};
use crate::exit::Failure;

pub(crate) fn run(command: ConfigCommand) -> Result<(), Failure> {
    match command {
        ConfigCommand::Default => out::bytes(DEFAULT_FILE.as_bytes()),
        ConfigCommand::Show { json, config } => {
            let (_, layers) = load(&config)?;
            if json { out::line(&format!("{:#}", as_json(&layers))) } else { out::bytes(as_toml(&layers).as_bytes()) }
        }
    }
}

/// What may be shown of a value.
fn shown<'a>(setting: &Setting, said: &'a Said) -> &'a str {
    if setting.secret && !said.text.is_empty() { "[redacted]" } else { &said.text }
}

fn as_json(layers: &Layers) -> serde_json::Value {
    let mut all = serde_json::Map::new();
    for setting in SETTINGS {
        let value = match layers.get(setting.name) {
            Some(said) => serde_json::json!({ "value": shown(setting, said), "origin": said.origin.to_string() }),
            None => serde_json::json!({ "value": null, "origin": "default" }),
        };
        all.insert(setting.name.to_owned(), value);
    }
    if let Some(file) = layers.file.as_ref().filter(|_| !layers.topics.is_empty()) {
        let topics = serde_json::to_value(&layers.topics).unwrap_or_default();
        all.insert("topics".into(), serde_json::json!({ "value": topics, "origin": file.display().to_string() }));
    }
    all.into()
}

fn as_toml(layers: &Layers) -> String {
    let mut out = String::new();
    for setting in SETTINGS {
        let (line, origin) = match layers.get(setting.name) {
            Some(said) => {
                (format!("{} = {}", setting.name, literal(setting, shown(setting, said))), said.origin.to_string())
            }
            None => (format!("# {}", setting.name), "not set".to_owned()),
        };
        let _ = writeln!(out, "{line:<44}  # {origin}");
    }
    for (topic, table) in &layers.topics {
        let origin = layers.file.as_ref().map(|file| file.display().to_string()).unwrap_or_default();
        let heading = format!("[topics.{topic:?}]");
        let _ = writeln!(out, "\n{heading:<44}  # {origin}");
        let _ = write!(out, "{}", toml::to_string(table).unwrap_or_default());
    }
    out
}

/// The value as one would write it in the file.
fn literal(setting: &Setting, text: &str) -> String {
    match setting.value {
        "LIST" => {
            let items: Vec<_> = text.split(',').map(str::trim).filter(|item| !item.is_empty()).collect();
            format!("{items:?}")
        }
        "PORT" | "N" | "BOOL" => text.to_owned(),
        _ => format!("{text:?}"),
    }
}
