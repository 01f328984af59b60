//! A replica set.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use mongodb::bson::{Document, doc};
use mongodb::options::Credential;

use crate::admin;
use crate::member::{Member, folder, script};

const NAME: &str = "rs0";

/// How to start MongoDB.
#[derive(Debug, Clone)]
pub struct Setup {
    members: usize,
    set: bool,
    initiate: bool,
    user: Option<(String, String)>,
    flags: Vec<String>,
}

impl Default for Setup {
    fn default() -> Self {
        Self { members: 1, set: true, initiate: true, user: None, flags: Vec::new() }
    }
}

impl Setup {
    /// With so many members.
    #[must_use]
    pub fn members(mut self, members: usize) -> Self {
        self.members = members;
        self
    }

    /// A lone server: no set at all.
    #[must_use]
    pub fn standalone(mut self) -> Self {
        self.set = false;
        self
    }

    /// A set that nobody has initiated.
    #[must_use]
    pub fn uninitiated(mut self) -> Self {
        self.initiate = false;
        self
    }

    /// With authentication, and this user, who may do everything.
    #[must_use]
    pub fn user(mut self, name: &str, password: &str) -> Self {
        self.user = Some((name.to_owned(), password.to_owned()));
        self
    }

    /// With a flag of `mongod`.
    #[must_use]
    pub fn flag(mut self, flag: &str) -> Self {
        self.flags.push(flag.to_owned());
        self
    }

    /// Starts it and waits for a primary.
    ///
    /// # Panics
    /// Where there is no MongoDB to be had.
    pub fn start(self) -> Replica {
        static PREPARED: OnceLock<()> = OnceLock::new();
        PREPARED.get_or_init(|| {
            let done = Command::new(script()).arg("prepare").status().expect("scripts/mongo.sh runs");
            assert!(done.success(), "no MongoDB for the tests: scripts/mongo.sh prepare failed");
        });
        Replica::start(self)
    }
}

/// A set of its own. Dropping it ends its members and removes their data.
#[derive(Debug)]
pub struct Replica {
    members: Vec<Member>,
    credential: Option<Credential>,
    user: Option<(String, String)>,
    set: bool,
    dir: PathBuf,
}

impl Replica {
    fn start(setup: Setup) -> Self {
        let dir = folder();
        std::fs::create_dir_all(&dir).expect("a folder below target");
        let mut flags = setup.flags;
        if setup.set {
            flags.extend(["--replSet".to_owned(), NAME.to_owned()]);
        }
        if setup.user.is_some() {
            flags.push("--auth".to_owned());
            if setup.set {
                flags.extend(["--keyFile".to_owned(), key_file(&dir)]);
            }
        }
        // All at once: each takes some seconds to get up.
        let members = std::thread::scope(|scope| {
            let starting: Vec<_> = (0..setup.members)
                .map(|number| {
                    let (dir, flags) = (dir.join(number.to_string()), &flags);
                    scope.spawn(move || Member::start(dir, flags))
                })
                .collect();
            starting.into_iter().map(|one| one.join().expect("a member starts")).collect()
        });
        let mut replica = Self { members, credential: None, user: None, set: setup.set, dir };
        if replica.set && setup.initiate {
            replica.initiate();
        }
        if let Some((name, password)) = setup.user {
            replica.create_user(&name, &password);
        }
        replica
    }

    fn initiate(&self) {
        let members: Vec<_> = (0..)
            .zip(&self.members)
            .map(|(id, member)| doc! { "_id": id, "host": format!("127.0.0.1:{}", member.port) })
            .collect();
        let settings = doc! { "electionTimeoutMillis": 2000, "heartbeatIntervalMillis": 500 };
        let config = doc! { "_id": NAME, "members": members, "settings": settings };
        let done = admin::command(self.members[0].port, None, doc! { "replSetInitiate": config });
        done.expect("the set begins");
        self.primary();
    }

    /// The first user comes in over loopback without a password.
    fn create_user(&mut self, name: &str, password: &str) {
        let port = self.members[if self.set { self.primary() } else { 0 }].port;
        let create = doc! { "createUser": name, "pwd": password, "roles": ["root"] };
        admin::command(port, None, create).expect("the first user");
        let credential = Credential::builder().username(name.to_owned()).password(password.to_owned()).build();
        self.credential = Some(credential);
        self.user = Some((name.to_owned(), password.to_owned()));
    }

    /// The address of the set (or of the lone server), with the database and, where there is one, the user.
    pub fn url(&self, database: &str) -> String {
        let user = self.user.as_ref().map(|(name, password)| format!("{name}:{password}@")).unwrap_or_default();
        self.url_as(&user, database)
    }

    /// The same without a user.
    pub fn url_without_user(&self, database: &str) -> String {
        self.url_as("", database)
    }

    /// The same as another user.
    pub fn url_of(&self, name: &str, password: &str, database: &str) -> String {
        self.url_as(&format!("{name}:{password}@"), database)
    }

    fn url_as(&self, user: &str, database: &str) -> String {
        let hosts: Vec<_> = self.members.iter().map(|member| format!("127.0.0.1:{}", member.port)).collect();
        let mut options = Vec::new();
        if self.set {
            options.push(format!("replicaSet={NAME}"));
        }
        if !user.is_empty() {
            options.push("authSource=admin".to_owned());
        }
        format!("mongodb://{user}{}/{database}?{}", hosts.join(","), options.join("&"))
    }

    /// The ports of the members.
    pub fn ports(&self) -> Vec<u16> {
        self.members.iter().map(|member| member.port).collect()
    }

    /// The member that is primary, once there is one.
    ///
    /// # Panics
    /// When none is elected within a minute.
    pub fn primary(&self) -> usize {
        admin::until("a primary is elected", || {
            let is_primary = |member: &Member| {
                admin::command(member.port, None, doc! { "hello": 1 })
                    .is_ok_and(|hello| hello.get_bool("isWritablePrimary").unwrap_or(false))
            };
            self.members.iter().position(is_primary).ok_or_else(|| "none yet".to_owned())
        })
    }

    /// A command to one member, as the user there is.
    ///
    /// # Errors
    /// The server's.
    pub fn command(&self, member: usize, command: Document) -> Result<Document, mongodb::error::Error> {
        admin::command(self.members[member].port, self.credential.as_ref(), command)
    }

    /// `kill -9` of one member.
    pub fn kill(&mut self, member: usize) {
        self.members[member].kill();
    }

    /// Starts a killed member again.
    pub fn restart(&mut self, member: usize) {
        self.members[member].restart();
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.members.clear();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// What the members of a set with authentication know each other by.
fn key_file(dir: &std::path::Path) -> String {
    use std::os::unix::fs::PermissionsExt as _;
    let path = dir.join("key");
    std::fs::write(&path, "cHJvbWV0aGVhbi10ZXN0cw==").expect("a key file");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("a key file");
    path.display().to_string()
}
