//! Where each value comes from: flags over environment over `promethean.toml` over defaults.
//!
//! Values are still text here; [`Config`](super::Config) gives them their types. A key that nobody knows is an error.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use super::ConfigError;
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
    /// Whether this wins over `other`: two values of one kind are equals.
    pub(crate) fn outranks(&self, other: &Origin) -> bool {
        let rank = |origin: &Origin| match origin {
            Origin::Default => 0,
            Origin::File(_) => 1,
            Origin::Variable(_) => 2,
            Origin::Flag(_) => 3,
        };
        rank(self) > rank(other)
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
                // An empty variable is as good as none: `WS_TOKEN= promethean serve`.
                let Some(value) = environment(&name).filter(|value| !value.is_empty()) else { continue };
                let text = value.into_string().map_err(|_| ConfigError::new(&name, "is not UTF-8"))?;
                layers.said.insert(setting.name, Said { text, origin: Origin::Variable(name) });
            }
            if let Some(text) = flags.get(setting.name) {
                let said = Said { text: text.clone(), origin: Origin::Flag(setting.flag()) };
                layers.said.insert(setting.name, said);
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
        let table: toml::Table = file.text.parse().map_err(|error: toml::de::Error| at(error.to_string()))?;
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
        let text = text_of(value).map_err(|reason| at(format!("{key}: {reason}")))?;
        self.said.insert(setting.name, Said { text, origin: Origin::File(file.path.clone()) });
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

fn text_of(value: &toml::Value) -> Result<String, String> {
    match value {
        toml::Value::String(text) => Ok(text.clone()),
        toml::Value::Integer(number) => Ok(number.to_string()),
        toml::Value::Boolean(yes) => Ok(yes.to_string()),
        toml::Value::Array(list) => {
            let items = list.iter().map(|item| match item {
                toml::Value::String(text) if !text.contains(',') => Ok(text.as_str()),
                _ => Err("a list holds strings without commas".to_owned()),
            });
            Ok(items.collect::<Result<Vec<_>, _>>()?.join(","))
        }
        _ => Err("must be a string, a whole number, true or false, or a list of strings".into()),
    }
}

fn unknown(key: &str) -> String {
    let known = SETTINGS.iter().map(|setting| setting.name).chain(["topics"]);
    let nearest = known.map(|name| (strsim::jaro_winkler(key, name), name)).max_by(|a, b| a.0.total_cmp(&b.0));
    match nearest {
        Some((likeness, name)) if likeness > 0.8 => format!("unknown key {key:?}; did you mean {name}?"),
        _ => format!("unknown key {key:?}; `promethean config default` lists what there is"),
    }
}
