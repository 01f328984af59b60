//! A database of its own on the set that all tests share.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use mongodb::Client;

use crate::{Replica, SHARED, Setup, admin};

/// The address of the set that tests share, without a database.
///
/// # Panics
/// Where there is no MongoDB to be had.
pub fn shared_url() -> String {
    shared().0.clone()
}

/// The address, and whether it is a developer's own server, which has to be left clean.
fn shared() -> &'static (String, bool) {
    static STARTED: OnceLock<(String, bool)> = OnceLock::new();
    static KEPT: OnceLock<Replica> = OnceLock::new();
    STARTED.get_or_init(|| {
        let set = |name: &str| std::env::var(name).ok().filter(|url| !url.is_empty());
        if let Some(url) = set(SHARED) {
            return (url, false);
        }
        if let Some(url) = set("MONGO_URL") {
            return (url, true);
        }
        (KEPT.get_or_init(|| Setup::default().start()).url(""), false)
    })
}

/// A database of its own.
#[derive(Debug)]
pub struct Scratch {
    url: String,
    name: String,
    clean: bool,
}

impl Default for Scratch {
    fn default() -> Self {
        Self::new()
    }
}

impl Scratch {
    /// A new one, empty.
    ///
    /// # Panics
    /// Where there is no MongoDB to be had.
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let (server, clean) = shared();
        let nanos = std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(0, |now| now.as_nanos() % 1_000_000_000_000);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("test_{}_{nanos}_{count}", std::process::id());
        Self { url: with_database(server, &name), name, clean: *clean }
    }

    /// The address, with the database.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The database's name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if self.clean {
            let _ = admin::block(async { Client::with_uri_str(&self.url).await?.database(&self.name).drop().await });
        }
    }
}

/// The address with this database in place of the one it names.
fn with_database(url: &str, database: &str) -> String {
    let (base, options) = url.split_once('?').map_or((url, None), |(base, options)| (base, Some(options)));
    let hosts = base.find("://").map_or(0, |at| at + 3);
    let end = base[hosts..].find('/').map_or(base.len(), |at| hosts + at);
    let options = options.map(|options| format!("?{options}")).unwrap_or_default();
    format!("{}/{database}{options}", &base[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_database_is_put_in_place_of_the_one_there_is() {
        assert_eq!(with_database("mongodb://h:1,i:2/?replicaSet=r", "d"), "mongodb://h:1,i:2/d?replicaSet=r");
        assert_eq!(with_database("mongodb://u:p@h/old?a=b", "d"), "mongodb://u:p@h/d?a=b");
        assert_eq!(with_database("mongodb+srv://h", "d"), "mongodb+srv://h/d");
    }
}
