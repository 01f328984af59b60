//! `promethean config`: which values count, and where each was said. Secrets are never shown.

use std::borrow::Cow;
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
            layers.notes.iter().for_each(|note| out::done(&note.to_string()));
            if json { out::line(&format!("{:#}", as_json(&layers))) } else { out::bytes(as_toml(&layers).as_bytes()) }
        }
    }
}

/// What may be shown of a value.
fn shown<'a>(setting: &Setting, said: &'a Said) -> Cow<'a, str> {
    match setting.value {
        _ if setting.secret && !said.text.is_empty() => REDACTED.into(),
        "URL" => without_secrets(&said.text).into(),
        _ => said.text.as_str().into(),
    }
}

const REDACTED: &str = "[redacted]";

/// The URL with its password, query and fragment hidden.
fn without_secrets(url: &str) -> String {
    let (front, hidden) = match url.find(['?', '#']) {
        Some(at) => (&url[..at], &url[at..=at]),
        None => (url, ""),
    };
    let (scheme, rest) = front.split_once("://").map_or(("", front), |(scheme, rest)| (scheme, rest));
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let mut out = if scheme.is_empty() { String::new() } else { format!("{scheme}://") };
    match authority.rsplit_once('@') {
        Some((user, host)) => {
            let user = user.split_once(':').map_or(user, |(user, _)| user);
            out.extend([user, ":", REDACTED, "@", host]);
        }
        None => out.push_str(authority),
    }
    out.push_str(path);
    if !hidden.is_empty() {
        out.extend([hidden, REDACTED]);
    }
    out
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
                (format!("{} = {}", setting.name, literal(setting, &shown(setting, said))), said.origin.to_string())
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

#[cfg(test)]
mod tests {
    use super::without_secrets;

    #[test]
    fn a_url_is_shown_without_its_password_and_query() {
        for (url, shown) in [
            ("https://idp.example/keys", "https://idp.example/keys"),
            ("https://idp.example/keys?key=canary&x=1", "https://idp.example/keys?[redacted]"),
            ("https://idp.example#canary", "https://idp.example#[redacted]"),
            ("https://u:canary@h:1/v1?a=canary", "https://u:[redacted]@h:1/v1?[redacted]"),
            ("https://canary@h/p@q", "https://canary:[redacted]@h/p@q"),
            ("http://u:can@ary@h", "http://u:[redacted]@h"),
            ("ws://10.0.0.5:8090", "ws://10.0.0.5:8090"),
            ("u:canary@h", "u:[redacted]@h"),
        ] {
            assert_eq!(without_secrets(url), shown, "{url}");
        }
    }
}
