//! Where each value comes from: flags over environment over `promethean.toml` over defaults.
//!
//! Values are still text here; [`Config`](super::Config) gives them their types. A key that nobody knows is an error.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use promethean_event::nearest;

use super::ConfigError;
use super::note::Note;
use super::setting::{SETTINGS, Setting};

/// Where a value was said. Later ones win.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Origin {
    Default,
    File(PathBuf),
    Variable(String),
    Flag(String),
}

impl Origin {
    /// True if this wins over `other`: two values of one kind are equals.
    pub(crate) fn outranks(&self, other: &Origin) -> bool {
        let rank = |origin: &Origin| match origin {
            Origin::Default => 0,
            Origin::File(_) => 1,
            Origin::Variable(_) => 2,
            Origin::Flag(_) => 3,
        };
        rank(self) > rank(other)
    }

    /// Names the place of the setting `name`: the flag, the variable, or file and key.
    pub(crate) fn of(&self, name: &str) -> String {
        match self {
            Origin::Flag(_) | Origin::Variable(_) => self.to_string(),
            Origin::File(path) => format!("{}: {name}", path.display()),
            Origin::Default => name.to_owned(),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::File(path) => path.display().fmt(f),
            Origin::Variable(name) => write!(f, "${name}"),
            Origin::Flag(name) => write!(f, "--{name}"),
        }
    }
}

/// A value that was said somewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Said {
    pub(crate) text: String,
    pub(crate) origin: Origin,
}

/// The environment: a function, so that tests have their own.
pub(crate) type Environment<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// A configuration file that was found.
#[derive(Debug, Clone)]
pub(crate) struct File {
    pub(crate) path: PathBuf,
    pub(crate) text: String,
}

/// The values that count, by name, and the file's `[topics]`.
#[derive(Debug, Clone, Default)]
pub(crate) struct Layers {
    said: BTreeMap<&'static str, Said>,
    /// Warnings about what was said.
    pub(crate) notes: Vec<Note>,
    pub(crate) topics: toml::Table,
    pub(crate) file: Option<PathBuf>,
}

impl Layers {
    pub(crate) fn collect(
        flags: &BTreeMap<&'static str, String>,
        environment: Environment<'_>,
        file: Option<&File>,
    ) -> Result<Self, ConfigError> {
        let mut layers = match file {
            Some(file) => Self::from_file(file)?,
            None => Self::default(),
        };
        for setting in SETTINGS {
            let variables = [setting.seed.map(str::to_owned), Some(setting.variable())];
            for name in variables.into_iter().flatten() {
                let Some(value) = environment(&name) else { continue };
                // An empty variable is unset, except where that would open the hub.
                if value.is_empty() && !setting.must_have_text() {
                    continue;
                }
                let text = value.into_string().map_err(|_| ConfigError::new(&name, "is not UTF-8"))?;
                layers.put(setting, Said { text, origin: Origin::Variable(name) })?;
            }
            if let Some(text) = flags.get(setting.name) {
                layers.put(setting, Said { text: text.clone(), origin: Origin::Flag(setting.flag()) })?;
            }
            if let Some(default) = setting.default {
                let default = || Said { text: default.to_owned(), origin: Origin::Default };
                layers.said.entry(setting.name).or_insert_with(default);
            }
        }
        Ok(layers)
    }

    fn from_file(file: &File) -> Result<Self, ConfigError> {
        let at = |reason: String| ConfigError::new(&file.path.display().to_string(), reason);
        let table: toml::Table = file.text.parse().map_err(|error| at(syntax(&file.text, &error)))?;
        let mut layers = Self { file: Some(file.path.clone()), ..Self::default() };
        for (key, value) in table {
            if key == "topics" {
                layers.topics = match value {
                    toml::Value::Table(topics) => topics,
                    _ => return Err(at("topics must be tables: [topics.\"orders.created\"]".into())),
                };
                continue;
            }
            // A table is its settings' common beginning: [outbox] url is outbox_url.
            if let (toml::Value::Table(table), "outbox") = (&value, key.as_str()) {
                for (rest, value) in table {
                    layers.say(file, &format!("{key}_{rest}"), value)?;
                }
                continue;
            }
            layers.say(file, &key, &value)?;
        }
        Ok(layers)
    }

    fn say(&mut self, file: &File, key: &str, value: &toml::Value) -> Result<(), ConfigError> {
        let at = |reason: String| ConfigError::new(&file.path.display().to_string(), reason);
        let setting = Setting::named(key).ok_or_else(|| at(unknown(key)))?;
        let text = text_of(setting, value).map_err(|reason| at(format!("{key}: {reason}")))?;
        self.put(setting, Said { text, origin: Origin::File(file.path.clone()) })
    }

    /// Puts a value in. White space at the ends of a secret is no part of it; an empty secret is refused.
    fn put(&mut self, setting: &'static Setting, mut said: Said) -> Result<(), ConfigError> {
        if setting.must_have_text() {
            let trimmed = said.text.trim();
            let at = || said.origin.of(setting.name);
            if trimmed.is_empty() {
                return Err(ConfigError::new(&at(), "is set but empty; give it a value, or leave it out"));
            }
            if trimmed.len() < said.text.len() {
                self.notes.push(Note::Trimmed { at: at() });
                said.text = trimmed.to_owned();
            }
        }
        self.said.insert(setting.name, said);
        Ok(())
    }

    /// The value that counts for `name`, if any was said.
    pub(crate) fn get(&self, name: &str) -> Option<&Said> {
        self.said.get(name)
    }

    /// Puts a value in that follows from others.
    pub(crate) fn infer(&mut self, name: &'static str, said: Said) {
        self.said.insert(name, said);
    }
}

/// Where and why TOML cannot be read, without its text: the line may hold a secret.
fn syntax(text: &str, error: &toml::de::Error) -> String {
    let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
    let (line, column) =
        (before.matches('\n').count() + 1, before.chars().rev().take_while(|c| *c != '\n').count() + 1);
    format!("line {line}, column {column}: {}", error.message().replace('\n', "; "))
}

fn text_of(setting: &Setting, value: &toml::Value) -> Result<String, String> {
    match (setting.value, value) {
        ("LIST", toml::Value::Array(list)) => {
            let items = list.iter().map(|item| match item {
                toml::Value::String(text) if !text.contains(',') => Ok(text.as_str()),
                _ => Err("a list holds strings without commas".to_owned()),
            });
            Ok(items.collect::<Result<Vec<_>, _>>()?.join(","))
        }
        ("PORT" | "N" | "SIZE", toml::Value::Integer(number)) => Ok(number.to_string()),
        ("BOOL", toml::Value::Boolean(yes)) => Ok(yes.to_string()),
        ("LIST", _) => Err("must be a list of strings, such as [\"a\", \"b\"]".into()),
        ("PORT" | "N", _) => Err("must be a whole number without quotes".into()),
        ("BOOL", _) => Err("must be true or false without quotes".into()),
        (_, toml::Value::String(text)) => Ok(text.clone()),
        ("SIZE", _) => Err("must be a size, such as 1048576 or \"1MiB\"".into()),
        _ => Err("must be text in quotes".into()),
    }
}

fn unknown(key: &str) -> String {
    match nearest(key, SETTINGS.iter().map(|setting| setting.name).chain(["topics"])) {
        Some(name) => format!("unknown key {key:?}; did you mean {name}?"),
        None => format!("unknown key {key:?}; `promethean config default` lists what there is"),
    }
}
