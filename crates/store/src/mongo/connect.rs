//! Opening: the checks without which a hub must not start, each with its remedy.

use std::time::Duration;

use mongodb::bson::{Document, doc};
use mongodb::error::{Error as Fault, ErrorKind};
use mongodb::options::{
    Acknowledgment, ClientOptions, ReadConcern, ReadPreference, SelectionCriteria, ServerAddress, WriteConcern,
};
use mongodb::{Client, Database};

use super::fault::{self, brief, code, words};
use super::import::IMPORT;
use super::{META, Options, indexes};

/// The oldest server that the engine is tested to run on.
pub const MINIMUM_VERSION: (u32, u32) = (6, 0);

/// The change stream keeps one for itself; heartbeats, reads and transactions share the others.
const LEAST_CONNECTIONS: u32 = 4;

/// Why the engine could not be opened. Each message names the remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The address cannot be read.
    #[error("MONGO_URL is not an address of MongoDB: {0}; write mongodb://HOST:PORT/DATABASE?replicaSet=NAME")]
    BadUrl(String),
    /// Fewer connections than the hub needs.
    #[error(
        "MONGO_URL says maxPoolSize={0}, and the hub needs {LEAST_CONNECTIONS} connections at least: one stays with the change stream, and heartbeats must not wait for publishes; raise it, or leave it out"
    )]
    FewConnections(u32),
    /// Nobody answers.
    #[error(
        "no MongoDB answers at {hosts}: {why}; is it running, is the address in MONGO_URL right, and does the network let this host through?"
    )]
    Unreachable {
        /// Where it was looked for.
        hosts: String,
        /// What happened.
        why: String,
    },
    /// The password is wrong, or there is none.
    #[error(
        "MongoDB refuses the user of MONGO_URL: {0}; check user, password and authSource (mongodb://USER:PASSWORD@HOST/DATABASE?authSource=admin)"
    )]
    Authentication(String),
    /// A lone server.
    #[error(
        "the MongoDB at {0} is not a member of a replica set, and transactions need one: start mongod with --replSet NAME and run rs.initiate() once (one member is enough)"
    )]
    NotReplicaSet(String),
    /// The set was never begun.
    #[error("the replica set of {0} has not been initiated: run rs.initiate() once in mongosh")]
    NotInitiated(String),
    /// The name in the address is another one's.
    #[error("the replica set at {host} is called {is:?}, MONGO_URL says {said:?}: change replicaSet in MONGO_URL")]
    OtherSet {
        /// Who was asked.
        host: String,
        /// Its name.
        is: String,
        /// The name in the address.
        said: String,
    },
    /// No primary, or one without enough others.
    #[error(
        "the replica set has no majority: {0}; start the members that are down (rs.status() shows them), or take them out of the set"
    )]
    NoMajority(String),
    /// There is a primary, and not the way the address says.
    #[error(
        "the replica set has a primary, {primary}, but it cannot be used as MONGO_URL says: {why}; does this host reach it by that name, and are the options of the address right (tls)?"
    )]
    NotSo {
        /// Where a member says that it is.
        primary: String,
        /// What happened.
        why: String,
    },
    /// What was written would not survive a crash.
    #[error(
        "MongoDB runs without a journal: {0}; start every member with the journal on (remove --nojournal or storage.journal.enabled: false)"
    )]
    NoJournal(String),
    /// The user may not do what the hub does.
    #[error(
        "the user of MONGO_URL may not use the database {database:?}: {why}; grant it: db.grantRolesToUser(USER, [{{role: \"readWrite\", db: {database:?}}}])"
    )]
    NoPermission {
        /// The database.
        database: String,
        /// The server's words.
        why: String,
    },
    /// Too old.
    #[error("MongoDB {0} is too old: the hub needs {min}.{minor} or later; upgrade the replica set", min = MINIMUM_VERSION.0, minor = MINIMUM_VERSION.1)]
    OldServer(String),
    /// An import was cut off.
    #[error(
        "the database {0:?} is half filled: `promethean migrate` fills it, or was cut off; run it again, it goes on where it was"
    )]
    HalfImported(String),
    /// Events that no hub has written.
    #[error(
        "the database {0:?} has events that have no number (seq), as the first version of this hub wrote them: name another database in MONGO_URL, or number them, see docs/mongodb.md, \"A database of the first version\""
    )]
    Unnumbered(String),
    /// Something else.
    #[error("MongoDB cannot be used: {0}")]
    Other(String),
}

/// Everything that has to hold before the hub starts.
pub(super) async fn connect(options: &Options) -> Result<(Client, Database, String), OpenError> {
    let parsed = tokio::time::timeout(options.open_limit, ClientOptions::parse(options.url.as_str()));
    let unreachable = |hosts: String, why: String| OpenError::Unreachable { hosts, why };
    let mut client = parsed
        .await
        .map_err(|_| unreachable("the name in MONGO_URL".into(), "looking it up takes too long".into()))?
        .map_err(|fault| bad_url(&fault))?;
    if let Some(few) = client.max_pool_size.filter(|most| *most < LEAST_CONNECTIONS) {
        return Err(OpenError::FewConnections(few));
    }
    let database = client.default_database.clone().unwrap_or_else(|| DEFAULT_DATABASE.to_owned());
    check_name(&database)?;
    let hosts = client.hosts.clone();
    let said = client.repl_set_name.clone();
    // No two hubs alike: by it another hub finds what this one leaves unfinished when it dies.
    let name = client.app_name.as_deref().unwrap_or("promethean");
    let app = format!("{} {:016x}", name.get(..100).unwrap_or(name), fault::random());
    client.app_name = Some(app.clone());
    client.connect_timeout.get_or_insert(Duration::from_secs(5));
    client.server_selection_timeout.get_or_insert(Duration::from_secs(5));
    client.write_concern = Some(write_concern());
    client.read_concern = Some(ReadConcern::majority());
    // Whatever the address says: a secondary knows later than the primary what a majority has.
    client.selection_criteria = Some(SelectionCriteria::ReadPreference(ReadPreference::Primary));
    client.retry_writes = Some(true);
    client.retry_reads = Some(true);
    let client = Client::with_options(client).map_err(|fault| bad_url(&fault))?;
    let database = client.database(&database);
    check_set(&client, &hosts, said.as_deref(), options).await?;
    check_version(&database).await?;
    check_writes(&database).await?;
    check_import(&database, options).await?;
    indexes::ensure(&database).await?;
    Ok((client, database, app))
}

/// The database where the address names none.
const DEFAULT_DATABASE: &str = "promethean";

/// Databases of the server's own: what a hub wrote there would be lost with the member, or in the way.
const RESERVED: [&str; 3] = ["admin", "config", "local"];

/// A database's name is one that MongoDB takes on every system, and is the hub's to fill.
fn check_name(name: &str) -> Result<(), OpenError> {
    let wrong = |why: String| Err(OpenError::BadUrl(why));
    if RESERVED.contains(&name) {
        let remedy = "name one for the hub; where its user is one of admin, add authSource=admin";
        return wrong(format!("the database {name:?} is one of MongoDB's own: {remedy}"));
    }
    if let Some(bad) = name.chars().find(|one| "/\\. \"$*<>:|?\0".contains(*one)) {
        return wrong(format!("a database's name has no {bad:?} in it, and this one is {name:?}"));
    }
    if name.is_empty() || name.len() > 63 {
        return wrong(format!("a database's name has 1 to 63 bytes, and {name:?} has {}", name.len()));
    }
    Ok(())
}

/// What `OK` means: on a majority, in their journals, within a time limit.
pub(super) fn write_concern() -> WriteConcern {
    WriteConcern::builder().w(Acknowledgment::Majority).journal(true).w_timeout(Duration::from_secs(8)).build()
}

fn bad_url(fault: &Fault) -> OpenError {
    match fault.kind.as_ref() {
        ErrorKind::InvalidArgument { message, .. } => OpenError::BadUrl(message.clone()),
        ErrorKind::DnsResolve { message, .. } => {
            OpenError::Unreachable { hosts: "the name in MONGO_URL".into(), why: message.clone() }
        }
        other => OpenError::BadUrl(other.to_string()),
    }
}

/// The message for what MongoDB said, where it is known what it means.
pub(super) fn refusal(fault: &Fault, database: &str) -> OpenError {
    let why = words(fault);
    match fault.kind.as_ref() {
        ErrorKind::Authentication { message, .. } => return OpenError::Authentication(message.clone()),
        ErrorKind::ServerSelection { .. } => return OpenError::NoMajority(why),
        ErrorKind::Io(_) => return OpenError::Unreachable { hosts: "the replica set".to_owned(), why },
        _ => {}
    }
    by_code(code(fault), why, database)
}

fn by_code(code: Option<i32>, why: String, database: &str) -> OpenError {
    match code {
        Some(18) => OpenError::Authentication(why),
        Some(13) if why.contains("requires authentication") => {
            OpenError::Authentication(format!("{why}, and MONGO_URL names no user"))
        }
        Some(13 | 8000) => OpenError::NoPermission { database: database.to_owned(), why: brief(&why).to_owned() },
        Some(64 | 100 | 79) => OpenError::NoMajority(why),
        // The primary steps down or ends in the middle of the check: it has lost the others.
        Some(91 | 189 | 10107 | 11600 | 11602 | 13435 | 13436) => OpenError::NoMajority(why),
        Some(2) if why.contains("journal") => OpenError::NoJournal(why),
        Some(73) => OpenError::BadUrl(why),
        // Where looking for them took too long, the index by seq finds them.
        Some(11000) if why.contains("seq: null") => OpenError::Unnumbered(database.to_owned()),
        _ => OpenError::Other(why),
    }
}

/// A primary of a replica set answers; else who does, and what it is.
async fn check_set(
    client: &Client,
    hosts: &[ServerAddress],
    said: Option<&str>,
    options: &Options,
) -> Result<(), OpenError> {
    let admin = client.database("admin");
    let asked = admin.run_command(doc! { "hello": 1 });
    let hello = match tokio::time::timeout(options.open_limit, asked.into_future()).await {
        Ok(Ok(hello)) => hello,
        Ok(Err(fault)) if matches!(fault.kind.as_ref(), ErrorKind::Authentication { .. }) => {
            return Err(refusal(&fault, ""));
        }
        Ok(Err(fault)) => return Err(diagnose(hosts, said, &cause(&fault)).await),
        Err(_) => return Err(diagnose(hosts, said, "no answer in time").await),
    };
    let host = listed(hosts);
    if hello.get_str("msg").is_ok_and(|kind| kind == "isdbgrid") {
        let why = "this is mongos, the router of a sharded cluster; the hub needs a replica set of its own";
        return Err(OpenError::Other(why.to_owned()));
    }
    state(&hello, &host, said)
}

/// What one member's `hello` says against it.
fn state(hello: &Document, host: &str, said: Option<&str>) -> Result<(), OpenError> {
    match hello.get_str("setName") {
        Ok(name) => match said {
            Some(said) if said != name => {
                Err(OpenError::OtherSet { host: host.to_owned(), is: name.to_owned(), said: said.to_owned() })
            }
            _ => Ok(()),
        },
        Err(_) if hello.get_bool("isreplicaset").unwrap_or(false) => Err(OpenError::NotInitiated(host.to_owned())),
        Err(_) => Err(OpenError::NotReplicaSet(host.to_owned())),
    }
}

fn listed(hosts: &[ServerAddress]) -> String {
    hosts.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// No primary was found: asks each host by itself why.
async fn diagnose(hosts: &[ServerAddress], said: Option<&str>, why: &str) -> OpenError {
    let mut last = why.to_owned();
    for host in hosts {
        let direct = ClientOptions::builder()
            .hosts(vec![host.clone()])
            .direct_connection(true)
            .connect_timeout(Duration::from_secs(2))
            .server_selection_timeout(Duration::from_secs(2))
            .build();
        let Ok(client) = Client::with_options(direct) else { continue };
        let admin = client.database("admin");
        let asked = admin.run_command(doc! { "hello": 1 });
        match tokio::time::timeout(Duration::from_secs(3), asked.into_future()).await {
            Ok(Ok(hello)) => {
                return match state(&hello, &host.to_string(), said) {
                    Err(error) => error,
                    Ok(()) => match hello.get_str("primary") {
                        Ok(primary) => OpenError::NotSo { primary: primary.to_owned(), why: why.to_owned() },
                        Err(_) => OpenError::NoMajority(format!("{host} is up, but there is no primary")),
                    },
                };
            }
            Ok(Err(fault)) => last = reason(&fault),
            Err(_) => last = "no answer".to_owned(),
        }
    }
    OpenError::Unreachable { hosts: listed(hosts), why: last }
}

/// What a member's connection failed with inside a failed server selection; else the server's words.
fn cause(fault: &Fault) -> String {
    let text = fault.to_string();
    let inner = text.split_once(", Error: ").map(|(_, inner)| inner.split(" }").next().unwrap_or(inner));
    let inner = inner.map(|inner| inner.trim_start_matches("Kind: ").split(", labels:").next().unwrap_or(inner));
    inner.map_or_else(|| words(fault), str::to_owned)
}

/// The cause inside a failed server selection, without the topology around it.
fn reason(fault: &Fault) -> String {
    let text = fault.to_string();
    for known in ["Connection refused", "timed out", "No route to host", "failed to lookup address", "not known"] {
        if text.contains(known) {
            return known.to_owned();
        }
    }
    words(fault)
}

async fn check_version(database: &Database) -> Result<(), OpenError> {
    let info = fault::limited(database.run_command(doc! { "buildInfo": 1 })).await;
    let info = info.map_err(|fault| refusal(&fault, database.name()))?;
    let version = info.get_str("version").unwrap_or("0.0").to_owned();
    if parse_version(&version) < MINIMUM_VERSION { Err(OpenError::OldServer(version)) } else { Ok(()) }
}

fn parse_version(text: &str) -> (u32, u32) {
    let mut numbers = text.split('.').map(|part| part.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// A write as the hub's writes are: shows permission, majority and journal at once.
async fn check_writes(database: &Database) -> Result<(), OpenError> {
    let meta = database.collection::<Document>(META);
    // One that changes nothing would wait for nobody.
    let format = doc! { "$set": { "format": 1 }, "$currentDate": { "opened": true } };
    let written = fault::limited(meta.update_one(doc! { "_id": "promethean" }, format).upsert(true)).await;
    match written {
        Ok(_) => Ok(()),
        // Two hubs that start at once.
        Err(fault) if fault::is_duplicate(&fault) => Ok(()),
        Err(fault) => Err(refusal(&fault, database.name())),
    }
}

/// Half a log is not served.
async fn check_import(database: &Database, options: &Options) -> Result<(), OpenError> {
    let meta = database.collection::<Document>(META);
    let begun = fault::limited(meta.find_one(doc! { "_id": IMPORT })).await;
    match begun.map_err(|fault| refusal(&fault, database.name()))? {
        Some(_) if !options.import => Err(OpenError::HalfImported(database.name().to_owned())),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        assert!(parse_version("7.0.15") >= MINIMUM_VERSION && parse_version("10.2.0-rc1") >= MINIMUM_VERSION);
        assert!(parse_version("5.0.31") < MINIMUM_VERSION && parse_version("nonsense") < MINIMUM_VERSION);
    }

    #[test]
    fn every_refusal_of_the_server_has_its_remedy() {
        let say = |code, why: &str| by_code(Some(code), why.to_owned(), "prom").to_string();
        let denied =
            say(13, "not authorized on prom to execute command { update: \"meta\", lsid: { id: UUID(\"1\") } }");
        assert!(denied.contains("grantRolesToUser") && denied.contains(": not authorized on prom; grant"), "{denied}");
        assert!(say(13, "Command insert requires authentication").contains("names no user"));
        assert!(say(18, "Authentication failed.").contains("authSource"));
        assert!(say(64, "waiting for replication timed out").contains("rs.status()"));
        assert!(say(11602, "operation was interrupted").contains("no majority"));
        assert!(say(100, "Not enough data-bearing nodes").contains("no majority"));
        assert!(say(2, "cannot use 'j' option when a host does not have journaling enabled").contains("--nojournal"));
        assert!(say(73, "Invalid database name").contains("write mongodb://HOST"));
        let twice = "E11000 duplicate key error collection: prom.events index: topic_1_seq_1 dup key: { topic: \"a\", seq: null }";
        assert!(say(11000, twice).contains("A database of the first version"));
        assert!(say(1, "what nobody expected").contains("what nobody expected"));
        assert!(OpenError::OldServer("4.4.1".into()).to_string().contains("6.0 or later"));
    }

    #[test]
    fn a_databases_name_is_one_that_mongodb_takes_and_leaves_to_us() {
        for name in ["promethean", "Prom-1_é", "administration", &"d".repeat(63)] {
            assert_eq!(check_name(name), Ok(()), "{name}");
        }
        for name in
            ["", "bad.db", "a b", "a/b", "a\\b", "a$b", "a\"b", "a\0b", "a:b", "admin", "local", &"d".repeat(64)]
        {
            assert!(matches!(check_name(name), Err(OpenError::BadUrl(_))), "{name}");
        }
    }

    #[test]
    fn what_a_lone_member_says_of_itself_is_understood() {
        let said = Some("rs0");
        assert_eq!(state(&doc! { "setName": "rs0" }, "h:1", said), Ok(()));
        assert_eq!(state(&doc! {}, "h:1", said), Err(OpenError::NotReplicaSet("h:1".into())));
        let begun = state(&doc! { "isreplicaset": true }, "h:1", said);
        assert_eq!(begun, Err(OpenError::NotInitiated("h:1".into())));
        let other = state(&doc! { "setName": "rs1" }, "h:1", said).expect_err("another set");
        assert!(other.to_string().contains("\"rs1\"") && other.to_string().contains("\"rs0\""));
    }
}
