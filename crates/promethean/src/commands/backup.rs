//! `promethean backup` and `promethean restore`: everything that a running hub has, and a data directory made of it.
//!
//! A backup file has its name only once it is whole: it is written beside it, read again with every checksum, synced.

use std::fs::{File, OpenOptions};
use std::io::{BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use promethean_store::backup::{self, Totals};

use super::address::Port;
use super::fetch::{Answer, Peer};
use super::{interrupt, out, print};
use crate::args::{BackupArgs, RestoreArgs};
use crate::exit::Failure;

pub(crate) fn backup(args: &BackupArgs) -> Result<(), Failure> {
    let peer = Peer::new(&args.hub, Port::Ops)?;
    let path = &args.file;
    if path.as_os_str() == "-" {
        let mut stdout = std::io::stdout().lock();
        return copy(peer.get("/backup", &[])?, &mut |part| print::written(stdout.write_all(part)));
    }
    if path.exists() {
        return Err(Failure::usage(format!("{} is there already: name another file", path.display())));
    }
    let answer = peer.get("/backup", &[])?;
    let mut name = path.as_os_str().to_owned();
    name.push(".partial");
    let partial = Path::new(&name);
    let written = write(answer, partial, path);
    if written.is_err() {
        // A part of a backup is none.
        let _ = std::fs::remove_file(partial);
    }
    told(&written?, args.json, &format!("in {}", path.display()))?;
    if !args.json {
        out::hint(&format!("promethean restore {} DIR", path.display()));
    }
    Ok(())
}

/// Writes it to `partial`, reads it again, and gives it its name.
fn write(answer: Answer, partial: &Path, path: &Path) -> Result<Totals, Failure> {
    let failed = |error: std::io::Error| Failure::failed(format!("{} cannot be written: {error}", path.display()));
    let make = || OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(partial);
    let mut file = interrupt::making(partial, make).map_err(failed)?;
    copy(answer, &mut |part| file.write_all(part).map_err(failed))?;
    file.sync_all().map_err(failed)?;
    let whole = File::open(partial).map_err(failed)?;
    let totals = backup::verify(BufReader::with_capacity(256 * 1024, whole)).map_err(Failure::failed)?;
    interrupt::settled(|| std::fs::rename(partial, path)).map_err(failed)?;
    Ok(totals)
}

fn copy(mut answer: Answer, write: &mut dyn FnMut(&[u8]) -> Result<(), Failure>) -> Result<(), Failure> {
    let bar = out::progress(None, "bytes");
    let mut buffer = vec![0; 256 * 1024];
    loop {
        let count = answer.read(&mut buffer)?;
        if count == 0 {
            bar.finish_and_clear();
            return Ok(());
        }
        write(buffer.get(..count).unwrap_or_default())?;
        bar.inc(count as u64);
    }
}

pub(crate) fn restore(args: &RestoreArgs) -> Result<(), Failure> {
    let input: Box<dyn Read> = if args.file.as_os_str() == "-" {
        Box::new(std::io::stdin().lock())
    } else {
        let failed = |error| Failure::failed(format!("{} cannot be read: {error}", args.file.display()));
        Box::new(File::open(&args.file).map_err(failed)?)
    };
    let bar = out::progress(None, "bytes");
    let input = BufReader::with_capacity(256 * 1024, bar.wrap_read(input));
    let (dir, before) = (args.dir.clone(), names(&args.dir));
    interrupt::leaving(move || left_behind(&dir, before));
    let totals = promethean_store::log::restore(input, &args.dir);
    interrupt::settled(|| ());
    bar.finish_and_clear();
    let totals = totals.map_err(|error| Failure::failed(format!("{error}{}", left_behind(&args.dir, before))))?;
    told(&totals, args.json, &format!("in {}", args.dir.display()))?;
    if !args.json {
        out::hint(&format!("promethean serve --data-dir {}", args.dir.display()));
    }
    Ok(())
}

/// How many names a directory has; none where there is no directory.
fn names(dir: &Path) -> Option<usize> {
    std::fs::read_dir(dir).ok().map(Iterator::count)
}

/// What has to go before another try: only what this restore made, where the directory had `before` names.
fn left_behind(dir: &Path, before: Option<usize>) -> String {
    let now = names(dir).unwrap_or(0);
    match before {
        None if now > 0 => format!("; delete {} before another try", dir.display()),
        Some(0) if now > 0 => format!("; delete what is in {} now before another try", dir.display()),
        _ => String::new(),
    }
}

fn told(totals: &Totals, json: bool, place: &str) -> Result<(), Failure> {
    if json {
        return out::json(totals);
    }
    let Totals { topics, groups, events } = totals;
    out::line(&format!("{topics} topics, {events} events and {groups} groups {place}"))
}
