//! Opening: finds out what is there, replays the journal, and changes nothing before it knows that it may.
//!
//! Replay reads what is unflushed and no more. A last frame that is not whole was never promised and is cut; a bad
//! frame before promised ones is damage, named and not passed over.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use crate::Version;
use crate::log::commit::codec::Reader;
use crate::log::commit::entry::{self, Entry};
use crate::log::commit::journal::{self, Journal, Next, Scan};
use crate::log::commit::writer::{Writer, step};
use crate::log::disk::files::Files;
use crate::log::disk::{Disk, Mode, read_all, replace};
use crate::log::flush::manifest::{self, Manifest, TopicEntry};
use crate::log::open::rebuild;
use crate::log::options::{OpenError, Options};
use crate::log::shared::{Sealed, Shared};

pub(in crate::log) const FORMAT: &str = "FORMAT";
pub(in crate::log) const FORMAT_TEXT: &str = "promethean log 1\n";
pub(in crate::log) const LOCK: &str = "LOCK";
/// Empty; there once the journal has its first file, for as long as nothing is flushed only this says that there is one.
pub(in crate::log) const BEGUN: &str = "JOURNAL";
/// How FORMAT begins while something else than a hub makes the directory; what it is follows.
const UNFINISHED: &str = "unfinished ";
/// The directories in a data directory.
const DIRS: [&str; 3] = ["journal", "topics", "ids"];

type Lock = Box<dyn std::any::Any + Send + std::marker::Sync>;

pub(in crate::log) fn io_error(doing: impl Into<String>) -> impl FnOnce(io::Error) -> OpenError {
    let doing = doing.into();
    move |error| OpenError::Io { doing, error }
}

/// Opens the directory: the shared state with the journal replayed, and the writer that goes on with it.
pub(in crate::log) fn open(mut options: Options) -> Result<(Arc<Shared>, Writer, Lock), OpenError> {
    // The other half is for files that are written, and for directories.
    let open_files = Files::over(options.disk, options.open_files.max(Options::MIN_OPEN_FILES) / 2);
    options.disk = Arc::new(open_files.clone());
    let (disk, dir) = (options.disk.clone(), options.dir.clone());
    let lock = enter(&*disk, &dir)?;
    let manifest = read_manifest(&*disk, &dir)?;
    check_segments(&*disk, &dir, &manifest)?;
    let files = unflushed(&*disk, &dir, manifest.flushed)?;
    let scans = scan_all(&*disk, &files)?;
    // Everything is readable: from here on the directory may be changed.
    let (index, tables, manifest) = rebuild::open_index(&options, manifest)?;
    let version = manifest.version;
    let shared = Arc::new(Shared::new(options, open_files, manifest, index, tables));
    let mut replay = Replay { shared: &shared, version };
    for (at, ((number, path), (bytes, scan))) in files.iter().zip(&scans).enumerate() {
        replay.file(*number, path, bytes, scan)?;
        // Only the last file is written to any more.
        if at + 1 < files.len() {
            replay.seal(*number);
        }
    }
    let version = replay.version;
    retire_flushed(&shared)?;
    let journal = go_on(&mut replay, &files, &scans)?;
    shared.reserve_for(journal.grown_by(0)).map_err(io_error("room could not be reserved in the data directory"))?;
    has_begun(&shared)?;
    let writer = Writer::new(shared.clone(), journal, version);
    Ok((shared, writer, lock))
}

/// Makes the directory or recognises it, and locks it.
fn enter(disk: &dyn Disk, dir: &Path) -> Result<Lock, OpenError> {
    let read_only = |error: io::Error| match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            OpenError::ReadOnly { dir: dir.to_owned(), error }
        }
        _ => OpenError::Io { doing: format!("{} could not be opened", dir.display()), error },
    };
    match disk.list(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => disk.create_dir(dir).map_err(read_only)?,
        names => drop(names.map_err(read_only)?),
    }
    recognise(disk, dir, read_only)?;
    let lock = disk.lock(&dir.join(LOCK)).map_err(read_only)?;
    let lock = lock.ok_or_else(|| OpenError::InUse { dir: dir.to_owned() })?;
    // A directory of another owner keeps its mode: the hub may still use it.
    let _ = disk.make_private(dir);
    // Again, for now nobody else can be making it.
    if !recognise(disk, dir, read_only)? {
        for name in DIRS {
            disk.create_dir(&dir.join(name)).map_err(read_only)?;
        }
        Manifest::default().write(disk, dir).map_err(read_only)?;
        if let Some(parent) = dir.parent() {
            // The directory itself has to survive as well; where its parent cannot be opened, nothing can be done.
            let _ = disk.sync_dir(parent);
        }
        finish(disk, dir).map_err(read_only)?;
    }
    Ok(lock)
}

/// True if the directory is a data directory (or one that is to be made: `false`). Everything else is refused.
pub(in crate::log) fn recognise(
    disk: &dyn Disk,
    dir: &Path,
    failed: impl Fn(io::Error) -> OpenError,
) -> Result<bool, OpenError> {
    match read_all(disk, &dir.join(FORMAT)) {
        Ok(found) if found == FORMAT_TEXT.as_bytes() => return Ok(true),
        Ok(found) => {
            let found: String = String::from_utf8_lossy(&found).trim().chars().take(80).collect();
            return Err(match found.strip_prefix(UNFINISHED) {
                Some(what) => OpenError::Unfinished { dir: dir.to_owned(), what: what.to_owned() },
                None => OpenError::Format { dir: dir.to_owned(), found, expected: FORMAT_TEXT.trim() },
            });
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
    }
    match disk.list(dir).map_err(failed)?.into_iter().find(|name| !is_left_by_creation(disk, dir, name)) {
        Some(found) => Err(OpenError::Foreign { dir: dir.to_owned(), found }),
        None => Ok(false),
    }
}

/// True if a creation that was cut short may have left this behind, and so nothing is lost when it is written over.
fn is_left_by_creation(disk: &dyn Disk, dir: &Path, name: &str) -> bool {
    match name {
        LOCK | "FORMAT.new" | "MANIFEST.new" | "lost+found" => true,
        manifest::NAME => Manifest::read(disk, dir).is_ok_and(|found| found == Ok(Manifest::default())),
        _ => DIRS.contains(&name) && disk.list(&dir.join(name)).is_ok_and(|inside| inside.is_empty()),
    }
}

/// Begins a data directory that no hub may open before [`finish`]; `what` says who makes it.
pub(in crate::log) fn begin(disk: &dyn Disk, dir: &Path, what: &str) -> io::Result<()> {
    disk.create_dir(dir)?;
    replace(disk, dir, FORMAT, format!("{UNFINISHED}{what}\n").as_bytes())?;
    DIRS.iter().try_for_each(|name| disk.create_dir(&dir.join(name)))
}

/// Makes it a data directory.
pub(in crate::log) fn finish(disk: &dyn Disk, dir: &Path) -> io::Result<()> {
    replace(disk, dir, FORMAT, FORMAT_TEXT.as_bytes())
}

pub(in crate::log) fn read_manifest(disk: &dyn Disk, dir: &Path) -> Result<Manifest, OpenError> {
    let file = dir.join(manifest::NAME);
    let damaged = |what: &str| OpenError::Damaged { file: file.clone(), offset: 0, what: what.to_owned() };
    let manifest = match Manifest::read(disk, dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(damaged("it is missing")),
        other => other.map_err(io_error(format!("{} could not be read", file.display())))?,
    };
    let manifest = manifest.map_err(damaged)?;
    let numbered = manifest.topics.keys().zip(1..).all(|(number, expected)| *number == expected);
    if numbered { Ok(manifest) } else { Err(damaged("its topics are not numbered one after another")) }
}

fn check_segments(disk: &dyn Disk, dir: &Path, manifest: &Manifest) -> Result<(), OpenError> {
    for (number, topic) in &manifest.topics {
        for meta in &topic.segments {
            let file = meta.path(dir, *number);
            let there = disk.len(&file).is_ok_and(|len| len >= meta.len);
            if !there {
                return Err(OpenError::MissingSegment { dir: dir.to_owned(), file, len: meta.len });
            }
        }
    }
    Ok(())
}

/// The journal files that are not flushed.
pub(in crate::log) fn unflushed(disk: &dyn Disk, dir: &Path, flushed: u64) -> Result<Vec<(u64, PathBuf)>, OpenError> {
    // Before the files are listed: a hub may be making both.
    let begun = flushed > 0 || is_there(disk, &dir.join(BEGUN))?;
    let dir = dir.join("journal");
    let files = journal::files(disk, &dir).map_err(io_error(format!("{} could not be listed", dir.display())))?;
    let files: Vec<_> = files.into_iter().filter(|(number, _)| *number > flushed).collect();
    let numbers = files.iter().map(|(number, _)| *number).chain([u64::MAX]);
    // The next file is durable before one is sealed, and only sealed ones are flushed: there is always one then. Before,
    // there is one once it is said to have begun. (A restore and a salvage leave none.)
    let needed = files.len().max(usize::from(begun));
    for (number, expected) in numbers.zip(flushed + 1..).take(needed) {
        if number != expected {
            let what = "the journal file is missing".to_owned();
            return Err(OpenError::Damaged { file: dir.join(journal::name(expected)), offset: 0, what });
        }
    }
    Ok(files)
}

fn is_there(disk: &dyn Disk, path: &Path) -> Result<bool, OpenError> {
    match disk.len(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        there => there.map(|_| true).map_err(io_error(format!("{} could not be looked at", path.display()))),
    }
}

/// The journal has a file that is durable: from now on there has to be one, also while nothing is flushed. Before
/// anything is promised.
fn has_begun(shared: &Shared) -> Result<(), OpenError> {
    let (disk, dir) = (&*shared.options.disk, &shared.options.dir);
    let path = dir.join(BEGUN);
    if shared.manifest.lock().flushed > 0 || is_there(disk, &path)? {
        return Ok(());
    }
    let made = disk.open(&path, Mode::Create).and_then(|_| disk.sync_dir(dir));
    made.map_err(io_error(format!("{} could not be made", path.display())))
}

/// Reads all files, the last one first: each says where the one before ends.
pub(in crate::log) fn scan_all(disk: &dyn Disk, files: &[(u64, PathBuf)]) -> Result<Vec<(Bytes, Scan)>, OpenError> {
    let mut scans = Vec::with_capacity(files.len());
    let mut sealed_end = None;
    for (number, path) in files.iter().rev() {
        let mut bytes = read_all(disk, path).map_err(io_error(format!("{} could not be read", path.display())))?;
        let scan = journal::scan(&bytes, *number, sealed_end).map_err(|damage| OpenError::Damaged {
            file: path.clone(),
            offset: damage.offset,
            what: damage.what.to_owned(),
        })?;
        sealed_end = Some(scan.previous_end);
        // Events stay in memory as slices of this: not the empty rest of the file.
        bytes.truncate(usize::try_from(scan.end).unwrap_or(usize::MAX));
        bytes.shrink_to_fit();
        scans.push((Bytes::from(bytes), scan));
    }
    scans.reverse();
    Ok(scans)
}

struct Replay<'a> {
    shared: &'a Arc<Shared>,
    version: Version,
}

impl Replay<'_> {
    fn file(&mut self, number: u64, path: &Path, bytes: &Bytes, scan: &Scan) -> Result<(), OpenError> {
        for frame in &scan.frames {
            let mut reader = Reader::within(bytes, frame.clone());
            while !reader.is_empty() {
                let applied = Entry::read(&mut reader).and_then(|entry| self.apply(number, entry));
                applied.ok_or_else(|| OpenError::Damaged {
                    file: path.to_owned(),
                    offset: frame.start as u64,
                    what: "a frame is whole, but its entries do not fit to what is there".to_owned(),
                })?;
            }
        }
        if scan.torn {
            tracing::warn!(file = %path.display(), offset = scan.end, "cut a frame that was not whole; nobody was told that it is durable");
        }
        Ok(())
    }

    fn apply(&mut self, journal: u64, entry: Entry) -> Option<()> {
        let mut topics = self.shared.topics.write();
        let state = |number| topics.number(number).cloned();
        match entry {
            Entry::Topic(number, name) => {
                if topics.next_number() == number && topics.get(&name).is_none() {
                    topics.add(&TopicEntry::new(name));
                } else if state(number)?.name != name {
                    return None;
                }
            }
            Entry::Event(number, seq, held) => {
                let state = state(number)?;
                let mut inner = state.inner.lock();
                if seq != inner.last_seq + 1 {
                    return None;
                }
                self.shared.recent.lock().insert(journal, held.id, (number, seq), held.client);
                inner.push(journal, held);
            }
            Entry::Save(number, group, version, bytes) => {
                self.version = self.version.max(version);
                state(number)?.inner.lock().groups.insert(group, (version, bytes));
            }
            Entry::Forget(number, group, version) => {
                self.version = self.version.max(version);
                state(number)?.inner.lock().groups.remove(&group);
            }
            Entry::Settings(number, settings) => state(number)?.set(settings),
            Entry::Trim(number, before) => {
                let state = state(number)?;
                let mut inner = state.inner.lock();
                inner.hide(before);
            }
            Entry::Create(number) => state(number)?.inner.lock().life.created = true,
            Entry::Delete(number, last_seq, version) => {
                self.version = self.version.max(version);
                let state = state(number)?;
                state.inner.lock().groups.clear();
                state.delete(last_seq);
            }
        }
        Some(())
    }

    /// The file is complete: flushing may take it.
    fn seal(&mut self, journal: u64) {
        let topics = self.shared.topics.read();
        let topics = topics.by_number.iter().map(|state| (state.number, entry::snapshot(state))).collect();
        let sealed = Sealed { journal, version: self.version, topics };
        self.shared.flushing.lock().sealed.push_back(sealed);
    }
}

/// A crash between the manifest and the end of a flush leaves files that are not needed any more.
fn retire_flushed(shared: &Shared) -> Result<(), OpenError> {
    let (disk, dir) = (&*shared.options.disk, shared.options.dir.join("journal"));
    let flushed = shared.manifest.lock().flushed;
    let doing = || io_error(format!("a flushed journal file in {} could not be put away", dir.display()));
    for (number, _) in journal::files(disk, &dir).map_err(doing())? {
        if number <= flushed {
            journal::retire(disk, &dir, number, u64::MAX).map_err(doing())?;
        }
    }
    Ok(())
}

/// The journal file that the writer goes on with.
fn go_on(replay: &mut Replay<'_>, files: &[(u64, PathBuf)], scans: &[(Bytes, Scan)]) -> Result<Journal, OpenError> {
    let options = &replay.shared.options;
    let (disk, dir) = (&*options.disk, &options.dir.join("journal"));
    let doing = || io_error(format!("the journal in {} could not be written to", dir.display()));
    let step = step(options.journal_bytes);
    let (number, previous_end) = match (files.last(), scans.last()) {
        (Some((number, _)), Some((_, scan))) if !scan.holes => {
            return Journal::resume(disk, dir, *number, scan, step).map_err(doing());
        }
        (Some((number, path)), Some((_, scan))) => {
            // Frames behind a hole must not come back to life: what is before it is kept, in its own file.
            tracing::warn!(file = %path.display(), offset = scan.end, "cut frames that were not durable");
            let file = disk.open(path, Mode::Write).map_err(doing())?;
            file.sync().map_err(doing())?;
            (number + 1, scan.end)
        }
        _ => (replay.shared.manifest.lock().flushed + 1, 0),
    };
    let journal = Journal::create(&Next { disk, dir, number, previous_end, step }).map_err(doing())?;
    if let Some((last, _)) = files.last() {
        replay.seal(*last);
    }
    Ok(journal)
}
