//! Every command of every page but the README, typed as a reader would: in a shell, with the real binary, against real
//! hubs, MongoDB and Redis. (The README's are in `readme.rs`, beside what they print.)
//!
//! What a page calls by a name of the reader's world stands for something here: [`World`] says what. What would change
//! this machine changes the world's directory, or a [machine](machine::Machine) made of it: users are added and services
//! run there, npm's packages are built there. What `make` does takes the whole machine: `tests/make` runs it, alone. What
//! cannot be run at all is in [`STAND_INS`].

mod machine;
mod programs;
mod world;

use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use promethean_e2e::transcript::blocks;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::ROOT;
use world::World;

const PATIENCE: Duration = Duration::from_secs(60);

/// Commands that are not run, by their first words, and why.
const STAND_INS: [(&str, &str); 1] =
    [("docker", "there is no engine where the tests run; `scripts/lint-deploy.sh` checks the Dockerfile")];

/// Commands that go on while the next ones are typed, by their first words, and what they say when they can be used.
const BESIDE: [(&str, &str); 1] = [("mongod", "Waiting for connections")];

/// Commands that go on until they are stopped, by their first words.
const ENDLESS: [&str; 6] = [
    "promethean serve",
    "promethean demo",
    "promethean tail",
    "curl -N",
    "promethean outbox drain",
    "npm --prefix dashboard run dev",
];

/// The pages with commands, from the root of the repository.
fn pages() -> Vec<String> {
    let listed = Command::new("git").args(["ls-files", "--", "*.md"]).current_dir(ROOT).output().expect("git runs");
    let listed = String::from_utf8(listed.stdout).expect("text");
    let with_commands = |page: &&str| *page != "README.md" && !blocks(&read(page), "sh").is_empty();
    listed.lines().filter(with_commands).map(str::to_owned).collect()
}

fn read(page: &str) -> String {
    std::fs::read_to_string(Path::new(ROOT).join(page)).unwrap_or_else(|error| panic!("{page}: {error}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_commands_of_every_page_work() {
    let (mut wrong, mut run, mut made, mut stood_in) = (Vec::new(), 0, 0, Vec::new());
    let pages = pages();
    assert!(pages.iter().any(|page| page == "docs/guide/state.md"), "the pages were not found: {pages:?}");
    for page in pages {
        let text = read(&page);
        let world = World::new(&text).await;
        let mut beside = Vec::new();
        for (first, block) in blocks(&text, "sh") {
            for (line, command) in lines(first, &block) {
                if starts(&command, "make") {
                    made += 1;
                    continue;
                }
                if let Some((words, _)) = STAND_INS.iter().find(|(words, _)| starts(&command, words)) {
                    stood_in.push(*words);
                    continue;
                }
                run += 1;
                let typed = match BESIDE.iter().find(|(words, _)| starts(&command, words)) {
                    Some((_, ready)) => Beside::start(&world, &command, ready).map(|one| beside.push(one)),
                    None => type_in(&world, &command),
                };
                if let Err(why) = typed {
                    wrong.push(format!("{page}:{line}: {command}\n{why}\n{}", world.journal()));
                }
            }
        }
        wrong.extend(world.check(&page).await.err().map(|why| format!("{page}: {why}")));
    }
    println!("{run} commands were run, {made} are left to tests/make, {} were not run", stood_in.len());
    assert!(wrong.is_empty(), "{} of {run} commands:\n{}", wrong.len(), wrong.join("\n\n"));
    assert!(run + made >= 100, "only {run} commands were run, and {made} are left to tests/make");
    assert!(stood_in.len() <= 2, "{} commands were not run: {stood_in:?}", stood_in.len());
    for (words, why) in STAND_INS {
        assert!(stood_in.contains(&words), "no page says `{words}` any more, which was not run because {why}");
    }
}

/// The commands of a block, each with its line on the page: one goes on while the shell cannot read it yet.
fn lines(first: usize, block: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut open: Option<(usize, String)> = None;
    for (line, text) in (first..).zip(block.lines()) {
        let (began, mut command) = open.take().unwrap_or((line, String::new()));
        command.push_str(text);
        let whole = !command.ends_with('\\') && readable(&command);
        match whole {
            true if command.trim().is_empty() || command.trim_start().starts_with('#') => {}
            true => found.push((began, command)),
            false => open = Some((began, format!("{command}\n"))),
        }
    }
    assert!(open.is_none(), "a command that does not end: {open:?}");
    found
}

fn readable(command: &str) -> bool {
    let checked = Command::new("bash").args(["-n", "-c", command]).output().expect("bash runs");
    checked.status.success()
}

/// True if a command begins with these words, behind a change of folder, variables and `sudo`.
fn starts(command: &str, words: &str) -> bool {
    let mut rest = command.trim_start();
    if rest.starts_with("cd ") {
        rest = rest.split_once(" && ").map_or("", |(_, rest)| rest);
    }
    while let Some((word, after)) = rest.split_once(' ')
        && (word == "sudo" || word.split_once('=').is_some_and(|(name, _)| is_name(name)))
    {
        rest = after.trim_start();
    }
    rest.strip_prefix(words).is_some_and(|after| after.is_empty() || after.starts_with([' ', '/']))
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_uppercase() || c == '_')
}

/// Runs a command to its end, or until it has said something and is told to stop.
fn type_in(world: &World, command: &str) -> Result<(), String> {
    let said = world.dir().join("said");
    let file = File::create(&said).expect("a file");
    let mut shell = world.shell();
    shell.args(["-o", "pipefail", "-c", &world.stands_for(command)]).process_group(0);
    shell.stdout(file.try_clone().expect("a handle")).stderr(file);
    let mut child = shell.spawn().expect("bash starts");
    let endless = ENDLESS.iter().any(|words| starts(command, words)) && !command.contains("--once");
    let ended = if endless { speak_and_stop(&mut child, &said) } else { wait(&mut child) };
    let status = ended.map_err(|why| format!("{why}; it said:\n{}", text(&said)))?;
    let fine = status.success() || (endless && [Some(130), Some(143), None].contains(&status.code()));
    if fine { Ok(()) } else { Err(format!("{status}; it said:\n{}", text(&said))) }
}

/// A command that goes on. Dropping it ends its input, which ends it.
struct Beside(Child);

impl Beside {
    /// Starts it and waits until it says so.
    fn start(world: &World, command: &str, ready: &str) -> Result<Self, String> {
        let said = world.dir().join("beside");
        let file = File::create(&said).expect("a file");
        let mut shell = world.shell();
        shell.args(["-c", &world.stands_for(command)]).process_group(0).stdin(Stdio::piped());
        shell.stdout(file.try_clone().expect("a handle")).stderr(file);
        let mut beside = Self(shell.spawn().expect("bash starts"));
        let started = Instant::now();
        while !text(&said).contains(ready) {
            if let Some(status) = beside.0.try_wait().expect("waitable") {
                return Err(format!("{status}; it said:\n{}", text(&said)));
            }
            if started.elapsed() > PATIENCE {
                return Err(format!("it did not say {ready:?} but:\n{}", text(&said)));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(beside)
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

fn text(file: &PathBuf) -> String {
    std::fs::read(file).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

/// Waits until it has said something, and ends it. Not with SIGINT: where the tests themselves were started in the
/// background, programs that do not ask for it never see it.
fn speak_and_stop(child: &mut Child, said: &PathBuf) -> Result<ExitStatus, String> {
    let started = Instant::now();
    while text(said).trim().is_empty() {
        if let Some(status) = child.try_wait().expect("waitable") {
            return Err(format!("it ended by itself with {status}"));
        }
        if started.elapsed() > PATIENCE {
            signal(child, Signal::KILL);
            let _ = child.wait();
            return Err("it said nothing".into());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    signal(child, Signal::TERM);
    wait(child)
}

fn wait(child: &mut Child) -> Result<ExitStatus, String> {
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("waitable") {
            return Ok(status);
        }
        if started.elapsed() > PATIENCE {
            signal(child, Signal::KILL);
            let _ = child.wait();
            return Err("it did not end".into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn signal(child: &Child, signal: Signal) {
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let _ = group.map(|group| kill_process_group(group, signal));
}

#[test]
fn a_command_is_whole_when_the_shell_can_read_it() {
    let block = "one 'a\nb' \\\n  | two\n\n# nothing\nthree  # said\n";
    let found = lines(10, block);
    assert_eq!(found, [(10, "one 'a\nb' \\\n  | two".to_owned()), (15, "three  # said".to_owned())]);
    assert!(starts("A=b sudo make x", "make") && starts("scripts/a.sh", "scripts") && starts("cd a && npm ci", "npm"));
    assert!(!starts("makefile", "make") && !starts("promethean tail-f", "promethean tail"));
}
