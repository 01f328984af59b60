//! The file seam: everything the engine does to a disk goes through here.
//!
//! Small on purpose, so that the test disk can take the power away at every single call. What a call promises:
//! bytes survive a crash once [`File::sync`] or their [`File::write_durably`] has returned, names once
//! [`Disk::sync_dir`] of their directory has.

pub(in crate::log) mod files;
mod real;
#[cfg(feature = "suite")]
pub mod test;

use std::any::Any;
use std::fmt::Debug;
use std::io;
use std::path::Path;
use std::sync::Arc;

pub use real::Real;

/// How a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// It has to exist.
    Read,
    /// It has to exist.
    Write,
    /// It is made, or emptied.
    Create,
}

/// A place with files.
pub trait Disk: Debug + Send + Sync + 'static {
    /// Opens a file.
    ///
    /// # Errors
    /// The system's.
    fn open(&self, path: &Path, mode: Mode) -> io::Result<Arc<dyn File>>;

    /// Gives a file another name, in place of one that has it.
    ///
    /// # Errors
    /// The system's.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// The system's.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Makes a directory and those above it; one that is there is fine.
    ///
    /// # Errors
    /// The system's.
    fn create_dir(&self, path: &Path) -> io::Result<()>;

    /// Takes a directory's permissions away from all but its owner.
    ///
    /// # Errors
    /// The system's; the caller may not be the owner.
    fn make_private(&self, _dir: &Path) -> io::Result<()> {
        Ok(())
    }

    /// The names in a directory.
    ///
    /// # Errors
    /// The system's.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;

    /// The length of a file.
    ///
    /// # Errors
    /// The system's.
    fn len(&self, path: &Path) -> io::Result<u64>;

    /// Makes the names in a directory durable.
    ///
    /// # Errors
    /// The system's.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;

    /// Takes the lock file `path`, until what is returned is dropped; `None`: another process has it.
    ///
    /// # Errors
    /// The system's.
    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn Any + Send + Sync>>>;

    /// As [`Self::lock`], for one who only reads: where nothing can be written, nobody else writes either.
    ///
    /// # Errors
    /// The system's.
    fn lock_to_read(&self, path: &Path) -> io::Result<Option<Box<dyn Any + Send + Sync>>> {
        match self.lock(path) {
            Err(error) if is_read_only(&error) => Ok(Some(Box::new(()))),
            locked => locked,
        }
    }

    /// How many calls may usefully run at once.
    fn parallel(&self) -> usize {
        1
    }
}

/// An open file.
pub trait File: Debug + Send + Sync {
    /// Fills `out` from `offset` on.
    ///
    /// # Errors
    /// The system's; `UnexpectedEof` when the file is too short.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()>;

    /// Writes all of `data` at `offset`.
    ///
    /// # Errors
    /// The system's; some of it may have been written then.
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()>;

    /// Cuts the file, or fills it with zeros up to `len`.
    ///
    /// # Errors
    /// The system's.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// The length.
    ///
    /// # Errors
    /// The system's.
    fn len(&self) -> io::Result<u64>;

    /// True if the file is empty.
    ///
    /// # Errors
    /// The system's.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Makes `len` bytes from `offset` on take up space, which has zeros where the file had nothing.
    ///
    /// # Errors
    /// The system's; some of it may take up space then.
    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        write_zeros(&|at, zeros| self.write_at(at, zeros), offset, len)
    }

    /// Makes the bytes durable.
    ///
    /// # Errors
    /// The system's. What was not durable before may be lost then, whatever a later call says.
    fn sync(&self) -> io::Result<()>;

    /// Asks for these bytes to go to the disk soon, and does not wait: where many files are synced after it, they share
    /// what the file system does for each. A hint; it promises nothing.
    fn start_writing(&self, offset: u64, len: u64) {
        let _ = (offset, len);
    }

    /// Writes `data` at `offset` so that it is durable at once, where the system has a call for that. Returns how many
    /// bytes are: fewer than all where it has none.
    ///
    /// # Errors
    /// As of [`Self::write_at`] and [`Self::sync`].
    fn write_through(&self, offset: u64, data: &[u8]) -> io::Result<usize> {
        let _ = (offset, data);
        Ok(0)
    }

    /// Writes all of `data` at `offset` and makes these bytes durable, in one call where the system has one. What was
    /// written elsewhere in the file and not synced need not be durable afterwards.
    ///
    /// # Errors
    /// As of [`Self::write_at`] and [`Self::sync`].
    fn write_durably(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let durable = self.write_through(offset, data)?;
        if durable < data.len() {
            self.write_at(offset + durable as u64, &data[durable..])?;
            self.sync()?;
        }
        Ok(())
    }
}

/// Writes `len` zeros from `offset` on.
fn write_zeros(write_at: &dyn Fn(u64, &[u8]) -> io::Result<()>, offset: u64, len: u64) -> io::Result<()> {
    const ZEROS: &[u8] = &[0; 64 << 10];
    let (mut at, end) = (offset, offset + len);
    while at < end {
        let piece = ZEROS.len().min(usize::try_from(end - at).unwrap_or(usize::MAX));
        write_at(at, &ZEROS[..piece])?;
        at += piece as u64;
    }
    Ok(())
}

/// True if the system says that nothing may be written.
pub(super) fn is_read_only(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
}

/// Reads a whole file around sectors that cannot be read: zeros are in their place, and where they are is returned.
pub(super) fn read_around(disk: &dyn Disk, path: &Path) -> io::Result<(Vec<u8>, Vec<u64>)> {
    const SECTOR: usize = 4096;
    let file = disk.open(path, Mode::Read)?;
    let mut bytes = vec![0; usize::try_from(file.len()?).map_err(io::Error::other)?];
    let mut bad = Vec::new();
    if file.read_at(0, &mut bytes).is_ok() {
        return Ok((bytes, bad));
    }
    for (large, chunk) in bytes.chunks_mut(256 * SECTOR).enumerate() {
        let start = (large * 256 * SECTOR) as u64;
        if file.read_at(start, chunk).is_ok() {
            continue;
        }
        for (small, sector) in chunk.chunks_mut(SECTOR).enumerate() {
            let offset = start + (small * SECTOR) as u64;
            if file.read_at(offset, sector).is_err() {
                sector.fill(0);
                bad.push(offset);
            }
        }
    }
    Ok((bytes, bad))
}

/// Reads a whole file.
pub(super) fn read_all(disk: &dyn Disk, path: &Path) -> io::Result<Vec<u8>> {
    let file = disk.open(path, Mode::Read)?;
    let mut bytes = vec![0; usize::try_from(file.len()?).map_err(io::Error::other)?];
    file.read_at(0, &mut bytes)?;
    Ok(bytes)
}

/// Puts `bytes` under `name` in `dir`, durably and all at once: readers see the old file or the new one.
pub(super) fn replace(disk: &dyn Disk, dir: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let fresh = dir.join(format!("{name}.new"));
    let file = disk.open(&fresh, Mode::Create)?;
    file.write_at(0, bytes)?;
    file.sync()?;
    disk.rename(&fresh, &dir.join(name))?;
    disk.sync_dir(dir)
}
