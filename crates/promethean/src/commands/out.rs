//! What people see: tables on standard output, talk on standard error, colours and hints on a terminal only.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use indicatif::{HumanCount, ProgressBar, ProgressFinish, ProgressState, ProgressStyle};
use serde::Serialize;

use super::print;
use crate::exit::Failure;

/// True if to colour: a terminal, and nobody has asked for none (<https://no-color.org>).
fn colours(terminal: bool, variable: impl Fn(&str) -> Option<String>) -> bool {
    terminal
        && variable("NO_COLOR").is_none_or(|value| value.is_empty())
        && variable("TERM").is_none_or(|term| term != "dumb")
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// True if standard error is coloured.
pub(crate) fn stderr_is_coloured() -> bool {
    colours(std::io::stderr().is_terminal(), variable)
}

/// Text in an ANSI style, where standard error is coloured.
fn on_stderr(style: &str, text: &str) -> String {
    painted(stderr_is_coloured(), style, text)
}

fn painted(coloured: bool, style: &str, text: &str) -> String {
    if coloured { format!("\x1b[{style}m{text}\x1b[0m") } else { text.to_owned() }
}

/// A line on standard error. Where it cannot be written, the exit code still tells.
fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Why a command did not work.
pub(crate) fn failure(failure: &Failure) {
    say(&format!("{} {failure}", on_stderr("31", "promethean:")));
}

/// Wipes out the bar that somebody else draws, where the process ends in the middle of it.
pub(super) fn clear_bar() {
    if std::io::stderr().is_terminal() {
        let _ = write!(std::io::stderr(), "\r\x1b[K");
    }
}

/// Says on standard error that something is done.
pub(super) fn done(text: &str) {
    say(text);
}

/// The next step, for people: only on a terminal.
pub(super) fn hint(next: &str) {
    if std::io::stderr().is_terminal() {
        say(&on_stderr("2", &format!("next: {next}")));
    }
}

/// A value as one line of JSON on standard output.
pub(super) fn json<T: Serialize + ?Sized>(value: &T) -> Result<(), Failure> {
    line(&serde_json::to_string(value).map_err(Failure::failed)?)
}

/// A line on standard output.
pub(super) fn line(text: &str) -> Result<(), Failure> {
    bytes(format!("{text}\n").as_bytes())
}

/// A line before a verdict, which is the exit code and counts also where nobody reads the line.
pub(super) fn report(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => print::written(written),
    }
}

/// Bytes on standard output, as they are.
pub(super) fn bytes(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    print::written(out.write_all(bytes).and_then(|()| out.flush()))
}

/// Columns under headings. Numbers stand to the right.
pub(super) struct Table {
    headings: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(super) fn new(headings: &[&str]) -> Self {
        Self { headings: headings.iter().map(|text| (*text).to_owned()).collect(), rows: Vec::new() }
    }

    pub(super) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().map(|cell| plain(&cell)).collect());
    }

    /// Prints it; a table without rows says so on standard error.
    pub(super) fn print(&self) -> Result<(), Failure> {
        if self.rows.is_empty() {
            done("nothing there");
            return Ok(());
        }
        let coloured = colours(std::io::stdout().is_terminal(), variable);
        bytes(self.render(coloured).as_bytes())
    }

    fn render(&self, coloured: bool) -> String {
        let width = |column: usize| {
            let cells = std::iter::once(&self.headings).chain(&self.rows).filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.headings.len()).map(width).collect();
        let number = |text: &str| text.starts_with(|c: char| c.is_ascii_digit()) && text.parse::<f64>().is_ok();
        let right = |column: usize| self.rows.iter().all(|row| row.get(column).is_none_or(|cell| number(cell)));
        let mut out = String::new();
        for (index, row) in std::iter::once(&self.headings).chain(&self.rows).enumerate() {
            let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
                if right(column) { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
            });
            let text = cells.collect::<Vec<_>>().join("  ");
            out.push_str(&painted(coloured && index == 0, "1", text.trim_end()));
            out.push('\n');
        }
        out
    }
}

/// Without control characters: what a publisher wrote must not drive the operator's terminal.
pub(super) fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// `1.4 MiB`.
pub(super) fn size(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (bytes as f64, 0);
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", units[unit]) }
}

/// `12,345/s`, `0.3/s`.
fn rate(state: &ProgressState, out: &mut dyn std::fmt::Write) {
    let rate = state.per_sec();
    let _ = if rate < 10.0 { write!(out, "{rate:.1}/s") } else { write!(out, "{}/s", HumanCount(rate as u64)) };
}

/// A bar on standard error, on a terminal only; without a length it only counts.
pub(super) fn progress(length: Option<u64>, unit: &str) -> ProgressBar {
    // What is done, of how much, how fast.
    let (done, all, speed) = match unit {
        "bytes" => ("{binary_bytes}", "/{binary_total_bytes}".to_owned(), "{binary_bytes_per_sec}"),
        _ => ("{human_pos}", format!("/{{human_len}} {unit}"), "{rate}"),
    };
    let (bar, template) = match length {
        Some(length) => (ProgressBar::new(length), format!("{{wide_bar}} {done}{all}, {speed}, {{elapsed}}")),
        None => (ProgressBar::new_spinner(), format!("{{spinner}} {done}, {speed}, {{elapsed}}")),
    };
    // Gone with the work, however that ends.
    let bar = bar.with_finish(ProgressFinish::AndClear);
    match ProgressStyle::with_template(&template) {
        Ok(style) => bar.with_style(style.with_key("rate", rate)),
        Err(_) => bar,
    }
}

/// A sign on standard error that something is under way whose length nobody knows; on a terminal only.
pub(super) fn working(what: &'static str) -> ProgressBar {
    let bar = ProgressBar::new_spinner().with_message(what).with_finish(ProgressFinish::AndClear);
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_for_terminals_and_for_those_who_want_them() {
        let with = |name: &'static str, value: &'static str| move |this: &str| (this == name).then(|| value.to_owned());
        assert!(colours(true, |_| None) && colours(true, with("NO_COLOR", "")));
        assert!(!colours(false, |_| None));
        assert!(!colours(true, with("NO_COLOR", "1")) && !colours(true, with("TERM", "dumb")));
        assert_eq!((painted(true, "1", "a").as_str(), painted(false, "1", "a").as_str()), ("\x1b[1ma\x1b[0m", "a"));
    }

    #[test]
    fn columns_are_as_wide_as_they_must_be_and_numbers_stand_right() {
        let mut table = Table::new(&["NAME", "LAG", "AGE"]);
        table.row(["a".into(), "7".into(), "1 s".into()]);
        table.row(["long\x1b[31m".into(), "1234".into(), "12 s".into()]);
        let plain = "NAME        LAG  AGE\na             7  1 s\nlong\u{fffd}[31m  1234  12 s\n";
        assert_eq!(table.render(false), plain);
        assert!(table.render(true).starts_with("\x1b[1mNAME"));
    }

    #[test]
    fn sizes_are_shown_as_people_say_them() {
        for (bytes, text) in [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 30, "3.0 GiB")] {
            assert_eq!(size(bytes), text);
        }
    }
}
