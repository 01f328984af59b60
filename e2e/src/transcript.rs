//! A page's transcript, run as a reader would: every `$ command` of its `console` blocks, in order, in one shell, and
//! what it prints beside what the page says.
//!
//! A page shows real output, so what differs from run to run matches by its kind: ids (the same id on the page is the
//! same id in the run, another another), times, decimals (durations, rates), and how wide a column is. Nothing else.

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

/// How long a command may take, and what it prints may take to come.
const PATIENCE: Duration = Duration::from_secs(60);
const MARK: &str = "--- the end of a command ---";

/// A command of a page and the lines that stand under it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The line of the page, from 1.
    pub line: usize,
    /// What is typed.
    pub command: String,
    /// What the page says that it prints.
    pub printed: Vec<String>,
}

/// The blocks of a page whose fence says `language`, each with the line of its first line.
pub fn blocks(page: &str, language: &str) -> Vec<(usize, String)> {
    let (mut found, mut open): (Vec<(usize, String)>, Option<bool>) = (Vec::new(), None);
    for (index, line) in page.lines().enumerate() {
        match (line.strip_prefix("```"), open) {
            (Some(_), Some(_)) => open = None,
            (Some(fence), None) => {
                open = Some(fence == language);
                if fence == language {
                    found.push((index + 2, String::new()));
                }
            }
            (None, Some(true)) => {
                if let Some((_, text)) = found.last_mut() {
                    text.push_str(line);
                    text.push('\n');
                }
            }
            _ => {}
        }
    }
    found
}

/// The commands of a page's `console` blocks.
pub fn steps(page: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    for (first, block) in blocks(page, "console") {
        for (index, line) in block.lines().enumerate() {
            match (line.strip_prefix("$ "), steps.last_mut()) {
                (Some(command), _) => {
                    steps.push(Step { line: first + index, command: command.to_owned(), printed: Vec::new() });
                }
                (None, Some(step)) => step.printed.push(line.to_owned()),
                (None, None) => panic!("line {}: output before any command", first + index),
            }
        }
    }
    steps
}

/// A shell that lives through a whole page.
#[derive(Debug)]
pub struct Shell {
    child: Child,
    stdin: ChildStdin,
    out: Arc<Mutex<String>>,
    /// How far `out` has been looked at.
    read: usize,
    known: Known,
}

impl Shell {
    /// Starts `bash` in `dir` with nothing but these variables.
    pub fn start(dir: &Path, variables: &[(&str, String)]) -> Self {
        let mut command = Command::new("bash");
        command.args(["--noprofile", "--norc"]).current_dir(dir).env_clear().process_group(0);
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("bash starts");
        let mut stdin = child.stdin.take().expect("piped");
        stdin.write_all(b"exec 2>&1\n").expect("written");
        let (out, mut from) = (Arc::new(Mutex::new(String::new())), child.stdout.take().expect("piped"));
        let into = Arc::clone(&out);
        std::thread::spawn(move || {
            let mut buffer = [0; 8192];
            while let Ok(count @ 1..) = from.read(&mut buffer) {
                let text = String::from_utf8_lossy(&buffer[..count]);
                into.lock().unwrap_or_else(PoisonError::into_inner).push_str(&text);
            }
        });
        Self { child, stdin, out, read: 0, known: Known::default() }
    }

    /// Types `command` and waits until it has come back and `printed` is there: what runs in the background prints when
    /// it does.
    ///
    /// # Errors
    /// It failed, or printed something else.
    pub fn run(&mut self, command: &str, printed: &[String]) -> Result<(), String> {
        // A line of its own: what prints no line break ends before it.
        writeln!(self.stdin, "{command}\nprintf '\\n%s %s\\n' '{MARK}' $?").map_err(|error| error.to_string())?;
        let background = command.trim_end().ends_with('&');
        let started = Instant::now();
        loop {
            let came = self.came();
            let matched = self.known.matches(printed, &came.lines);
            let result = match (&came.status, matched) {
                (Some(status), Ok(())) if status == "0" => Some(Ok(())),
                (Some(_), Err(_)) if background && started.elapsed() < PATIENCE => None,
                (Some(status), matched) => Some(Err(format!("exit {status}; {}", matched.err().unwrap_or_default()))),
                (None, _) if started.elapsed() < PATIENCE => None,
                (None, _) => Some(Err("did not come back".to_owned())),
            };
            if let Some(result) = result {
                self.read = came.end;
                return result.map_err(|why| format!("{why}\nprinted:\n{}", came.lines.join("\n")));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// What came since the last command.
    fn came(&self) -> Came {
        let out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        let mut came = Came { lines: Vec::new(), status: None, end: out.len() };
        for line in out.get(self.read..).unwrap_or_default().lines() {
            if let Some(code) = line.strip_prefix(MARK) {
                came.status = Some(code.trim().to_owned());
            // What bash says of a job that was killed; at a prompt it looks different.
            } else if !line.trim().is_empty() && !line.starts_with("bash: line ") {
                came.lines.push(line.to_owned());
            }
        }
        came
    }
}

struct Came {
    lines: Vec<String>,
    /// The exit status, once the command has come back.
    status: Option<String>,
    /// Where in the output this ends.
    end: usize,
}

impl Drop for Shell {
    fn drop(&mut self) {
        // With what it left in the background.
        let group = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        let _ = group.map(|group| kill_process_group(group, Signal::KILL));
        let _ = self.child.wait();
    }
}

/// The ids of the page and those of the run that stand for them.
#[derive(Debug, Default, Clone)]
struct Known {
    here: HashMap<String, String>,
    there: HashMap<String, String>,
}

impl Known {
    /// True if the lines are those of the page; only then ids are remembered.
    fn matches(&mut self, page: &[String], run: &[String]) -> Result<(), String> {
        let page: Vec<&String> = page.iter().filter(|line| !line.trim().is_empty()).collect();
        if page.len() != run.len() {
            return Err(format!("the page has {} lines, the run {}", page.len(), run.len()));
        }
        let mut known = self.clone();
        for (one, other) in page.iter().zip(run) {
            let (one, other) = (tokens(one), tokens(other));
            if one.len() != other.len() || !one.iter().zip(&other).all(|(one, other)| known.same(one, other)) {
                return Err(format!("the page says\n{}\nthe run says\n{}", one.join(" "), other.join(" ")));
            }
        }
        *self = known;
        Ok(())
    }

    fn same(&mut self, page: &str, run: &str) -> bool {
        if !is_id(page) || !is_id(run) {
            return page == run || (kind(page).is_some() && kind(page) == kind(run));
        }
        let here = self.here.entry(page.to_owned()).or_insert_with(|| run.to_owned());
        let there = self.there.entry(run.to_owned()).or_insert_with(|| page.to_owned());
        *here == run && *there == page
    }
}

/// Words and the signs between them; spaces do not count.
fn tokens(line: &str) -> Vec<&str> {
    let is_word = |c: char| c.is_alphanumeric() || matches!(c, '-' | '.' | '_' | ':');
    let (mut tokens, mut rest) = (Vec::new(), line.trim_start());
    while let Some(first) = rest.chars().next() {
        let end = if is_word(first) { rest.find(|c| !is_word(c)).unwrap_or(rest.len()) } else { first.len_utf8() };
        let (token, after) = rest.split_at(end);
        // `"ts":1794759917410` is a colon and a number.
        let (colon, token) = token.strip_prefix(':').map_or(("", token), |token| (":", token));
        tokens.extend([colon, token].into_iter().filter(|part| !part.is_empty()));
        rest = after.trim_start();
    }
    tokens
}

fn is_id(token: &str) -> bool {
    let lengths = [8, 4, 4, 4, 12];
    let parts: Vec<&str> = token.split('-').collect();
    parts.iter().map(|part| part.len()).eq(lengths) && parts.iter().all(|part| is(part, |c| c.is_ascii_hexdigit()))
}

/// What may differ from run to run.
fn kind(token: &str) -> Option<&'static str> {
    let digits = |text: &str| is(text, |c| c.is_ascii_digit());
    let time = token.len() == 24 && token.ends_with('Z') && token.get(10..11) == Some("T");
    if time && token.get(..4).is_some_and(digits) {
        return Some("a time");
    }
    if token.len() == 13 && digits(token) {
        return Some("epoch milliseconds");
    }
    let (whole, part) = token.split_once('.')?;
    (digits(whole) && digits(part)).then_some("a decimal")
}

fn is(text: &str, of: impl Fn(char) -> bool) -> bool {
    !text.is_empty() && text.chars().all(of)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "01a1e006-ff62-76cd-8598-b9ca7facf659";
    const TWO: &str = "01a1e006-ff7a-73da-962d-b8b5115010f1";

    fn matches(known: &mut Known, page: &str, run: &str) -> bool {
        let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        known.matches(&lines(page), &lines(run)).is_ok()
    }

    #[test]
    fn steps_are_commands_with_what_stands_under_them() {
        let page = "# A page\n\n```console\n$ one\nout\n$ two\n```\n\n```ts\n$ no\n```\n\n```console\n$ three\n```\n";
        let found: Vec<_> = steps(page).into_iter().map(|step| (step.line, step.command, step.printed)).collect();
        let out = vec!["out".to_owned()];
        let expected =
            [(4, "one".to_owned(), out), (6, "two".to_owned(), Vec::new()), (14, "three".to_owned(), Vec::new())];
        assert_eq!(found, expected);
        assert_eq!(blocks(page, "ts"), [(10, "$ no\n".to_owned())]);
    }

    #[test]
    fn only_what_differs_from_run_to_run_may_differ() {
        let mut known = Known::default();
        assert!(matches(&mut known, "2026-11-15T16:25:17.410Z a#1 [k] {}", "2027-01-02T03:04:05.678Z a#1 [k] {}"));
        assert!(matches(&mut known, "A  B\n1  0.1 s", "A      B\n1     12.5 s"));
        assert!(matches(&mut known, r#"{"ts":1794759917410}"#, r#"{"ts":1894759917411}"#));
        for (page, run) in [
            ("a#1", "a#2"),
            ("one", "one\ntwo"),
            ("2026-11-15T16:25:17.410Z", "never"),
            ("0.1 s", "0.1 ms"),
            (r#"{"seq":12}"#, r#"{"seq":13}"#),
            ("", "anything"),
        ] {
            assert!(!matches(&mut known, page, run), "{page} {run}");
        }
    }

    #[test]
    fn the_same_id_on_the_page_is_the_same_id_in_the_run() {
        let mut known = Known::default();
        assert!(matches(&mut known, &format!(r#"{{"id":"{ONE}"}}"#), &format!(r#"{{"id":"{TWO}"}}"#)));
        assert!(matches(&mut known, ONE, TWO));
        assert!(!matches(&mut known, ONE, ONE), "it stands for another");
        assert!(!matches(&mut known, TWO, TWO), "that one is taken");
        assert!(!matches(&mut known, ONE, "none"));
    }

    #[test]
    fn a_shell_keeps_what_was_set_and_waits_for_the_background() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = std::env::var("PATH").expect("a PATH");
        let mut shell = Shell::start(dir.path(), &[("PATH", path)]);
        let lines = |text: &str| vec![text.to_owned()];
        shell.run("word=hello; printf %s $word", &lines("hello")).expect("no line break is needed");
        shell.run("(sleep 0.3; echo $word later) &", &lines("hello later")).expect("it comes in time");
        shell.run("sleep 60 &", &[]).expect("nothing is printed");
        shell.run("kill -9 $!", &[]).expect("nothing is printed");
        assert!(shell.run("false", &[]).is_err(), "a command that fails");
        assert!(shell.run("echo other", &lines("hello")).is_err(), "a command that prints something else");
    }
}
