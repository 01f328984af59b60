//! `promethean context`: hubs by name, and the one that commands use where nothing else is said.
//!
//! Kept in `contexts.toml` of the user's configuration directory, readable by the user alone: it may hold tokens.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::address::{self, Port};
use super::out::{self, Table};
use crate::args::{At, ContextCommand};
use crate::exit::{Exit, Failure};

/// A hub that has a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Context {
    pub(crate) server: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token: Option<String>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Contexts {
    #[serde(skip_serializing_if = "Option::is_none")]
    current: Option<String>,
    contexts: BTreeMap<String, Context>,
}

impl Contexts {
    fn path() -> Result<PathBuf, Failure> {
        let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let dir = variable("XDG_CONFIG_HOME").filter(|dir| dir.is_absolute());
        let dir = dir.or_else(|| variable("HOME").map(|home| home.join(".config")));
        let dir = dir.ok_or_else(|| Failure::usage("no place for contexts: set HOME or XDG_CONFIG_HOME"))?;
        Ok(dir.join("promethean").join("contexts.toml"))
    }

    fn load() -> Result<Self, Failure> {
        let path = Self::path()?;
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(Failure::failed(format!("{} cannot be read: {error}", path.display()))),
        };
        toml::from_str(&text).map_err(|error| {
            let remedy = "mend it, or delete it and set the contexts again";
            Failure::usage(format!("{}: {}; {remedy}", path.display(), error.message()))
        })
    }

    /// Waits until no other process changes the file.
    fn lock() -> Result<std::fs::File, Failure> {
        let path = Self::path()?.with_extension("lock");
        let failed = |error: std::io::Error| Failure::failed(format!("{} cannot be locked: {error}", path.display()));
        std::fs::create_dir_all(path.parent().unwrap_or(&path)).map_err(failed)?;
        let file = std::fs::OpenOptions::new().write(true).create(true).truncate(false).open(&path).map_err(failed)?;
        file.lock().map_err(failed)?;
        Ok(file)
    }

    /// Replaces the file as a whole.
    fn save(&self) -> Result<(), Failure> {
        use std::os::unix::fs::OpenOptionsExt as _;
        let path = Self::path()?;
        let failed = |error: std::io::Error| Failure::failed(format!("{} cannot be written: {error}", path.display()));
        let text = toml::to_string(self).map_err(Failure::failed)?;
        std::fs::create_dir_all(path.parent().unwrap_or(&path)).map_err(failed)?;
        let fresh = path.with_extension(format!("toml.{}", std::process::id()));
        let mut file = std::fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&fresh)
            .map_err(failed)?;
        file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
        std::fs::rename(&fresh, &path).map_err(failed)
    }

    fn get(&self, name: &str) -> Result<&Context, Failure> {
        self.contexts.get(name).ok_or_else(|| {
            let known: Vec<&str> = self.contexts.keys().map(String::as_str).collect();
            let known =
                if known.is_empty() { "there is none yet".to_owned() } else { format!("known: {}", known.join(", ")) };
            Failure::new(
                Exit::NotFound,
                format!("no context {name:?} ({known}); promethean context set {name} --server URL"),
            )
        })
    }
}

/// The context `named`, or the one in use.
pub(super) fn chosen(named: Option<&str>) -> Result<Option<(String, Context)>, Failure> {
    let contexts = match (named, Contexts::path()) {
        // Without a home there is nothing saved.
        (None, Err(_)) => return Ok(None),
        _ => Contexts::load()?,
    };
    match named.map(str::to_owned).or_else(|| contexts.current.clone()) {
        None => Ok(None),
        Some(name) => contexts.get(&name).map(|context| Some((name.clone(), context.clone()))),
    }
}

pub(crate) fn run(command: ContextCommand) -> Result<(), Failure> {
    let changes = !matches!(command, ContextCommand::List { .. } | ContextCommand::Show { .. });
    // Held to the end: what another process saves meanwhile would be lost.
    let _lock = if changes { Some(Contexts::lock()?) } else { None };
    let mut contexts = Contexts::load()?;
    match command {
        ContextCommand::List { json } => return list(&contexts, json),
        ContextCommand::Show { json, at } => return show(&at, json),
        ContextCommand::Set { name, .. } if name.trim().is_empty() => {
            return Err(Failure::usage("NAME: a context needs a name"));
        }
        ContextCommand::Set { name, server, token } => {
            let known = contexts.contexts.get(&name).cloned();
            let server = server.or_else(|| known.as_ref().map(|known| known.server.clone()));
            let server = server.ok_or_else(|| Failure::usage("--server: a new context needs an address"))?;
            let at = At { server: Some(server.clone()), context: None, token: None };
            address::resolve(&at, Port::Ops)?;
            let token = token.or_else(|| known.and_then(|known| known.token)).filter(|token| !token.is_empty());
            contexts.contexts.insert(name.clone(), Context { server, token });
            if contexts.contexts.len() == 1 {
                contexts.current = Some(name.clone());
            }
            contexts.save()?;
            let used = contexts.current.as_deref() == Some(&name);
            out::done(&format!("context {name} saved{}", if used { ", in use" } else { "" }));
            let next = if used { "promethean health".to_owned() } else { format!("promethean context use {name}") };
            out::hint(&next);
        }
        ContextCommand::Use { name } => {
            let server = contexts.get(&name)?.server.clone();
            contexts.current = Some(name.clone());
            contexts.save()?;
            out::done(&format!("using {name}: {server}"));
            out::hint("promethean health");
        }
        ContextCommand::Remove { name } => {
            contexts.get(&name)?;
            contexts.contexts.remove(&name);
            contexts.current = contexts.current.filter(|current| *current != name);
            contexts.save()?;
            out::done(&format!("context {name} removed"));
        }
    }
    Ok(())
}

fn list(contexts: &Contexts, json: bool) -> Result<(), Failure> {
    let current = contexts.current.as_deref();
    if json {
        let rows = contexts.contexts.iter().map(|(name, context)| {
            json!({ "name": name, "server": context.server, "token": context.token.is_some(), "inUse": current == Some(name.as_str()) })
        });
        return out::json(&json!({ "contexts": rows.collect::<Vec<_>>() }));
    }
    let mut table = Table::new(&["NAME", "SERVER", "TOKEN", "IN USE"]);
    for (name, context) in &contexts.contexts {
        let token = if context.token.is_some() { "yes" } else { "no" };
        let used = if current == Some(name.as_str()) { "yes" } else { "no" };
        table.row([name.clone(), context.server.clone(), token.to_owned(), used.to_owned()]);
    }
    table.print()?;
    if contexts.contexts.is_empty() {
        out::hint("promethean context set local --server http://127.0.0.1:8082");
    }
    Ok(())
}

/// Which hub each kind of command would talk to now.
fn show(at: &At, json: bool) -> Result<(), Failure> {
    let mut table = Table::new(&["FOR", "SERVER", "SAID BY", "TOKEN"]);
    let mut rows = Vec::new();
    for (what, port) in [("ws", Port::Ws), ("http", Port::Http), ("ops", Port::Ops)] {
        let target = address::resolve(at, port)?;
        let token = target.token.is_some();
        rows.push(json!({ "for": what, "server": target.server, "saidBy": target.origin, "token": token }));
        table.row([what.to_owned(), target.server, target.origin, (if token { "yes" } else { "no" }).to_owned()]);
    }
    if json { out::json(&json!({ "targets": rows })) } else { table.print() }
}
