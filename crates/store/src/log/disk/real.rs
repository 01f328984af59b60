//! The real disk.

use std::any::Any;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{FlockOperation, flock};

use super::{Disk, File, Mode, is_read_only};

/// Mode of new files: events are for the hub's user alone.
const FILE_MODE: u32 = 0o600;
/// Mode of new directories.
const DIR_MODE: u32 = 0o700;

/// Files of the operating system.
#[derive(Debug, Clone, Copy, Default)]
pub struct Real;

impl Disk for Real {
    fn open(&self, path: &Path, mode: Mode) -> io::Result<Arc<dyn File>> {
        let mut options = fs::OpenOptions::new();
        options.read(true).mode(FILE_MODE);
        match mode {
            Mode::Read => {}
            Mode::Write => {
                options.write(true);
            }
            Mode::Create => {
                options.write(true).create(true).truncate(true);
            }
        }
        Ok(Arc::new(RealFile {
            file: options.open(path)?,
            #[cfg(target_os = "linux")]
            heeds_dsync: std::sync::OnceLock::new(),
        }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(DIR_MODE).create(path)
    }

    fn make_private(&self, dir: &Path) -> io::Result<()> {
        let mode = fs::metadata(dir)?.permissions().mode();
        if mode & 0o077 == 0 {
            return Ok(());
        }
        fs::set_permissions(dir, fs::Permissions::from_mode(mode & !0o077))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    }

    fn len(&self, path: &Path) -> io::Result<u64> {
        Ok(fs::metadata(path)?.len())
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        fs::File::open(dir)?.sync_all()
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn Any + Send + Sync>>> {
        let mut options = fs::OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(FILE_MODE);
        exclusive(options.open(path)?)
    }

    fn lock_to_read(&self, path: &Path) -> io::Result<Option<Box<dyn Any + Send + Sync>>> {
        match self.lock(path) {
            Err(error) if is_read_only(&error) => match fs::File::open(path) {
                Ok(file) => exclusive(file),
                Err(_) => Ok(Some(Box::new(()))),
            },
            locked => locked,
        }
    }

    fn parallel(&self) -> usize {
        16
    }
}

fn exclusive(file: fs::File) -> io::Result<Option<Box<dyn Any + Send + Sync>>> {
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(Box::new(file))),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// A file of the operating system.
#[derive(Debug)]
struct RealFile {
    file: fs::File,
    /// The file system makes a write with `RWF_DSYNC` durable. Asked of files that are written to that way only.
    #[cfg(target_os = "linux")]
    heeds_dsync: std::sync::OnceLock<bool>,
}

impl File for RealFile {
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(out, offset)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write_all_at(data, offset)
    }

    /// Without writing it, where the file system can.
    #[cfg(target_os = "linux")]
    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        use rustix::io::Errno;
        match rustix::fs::fallocate(&self.file, rustix::fs::FallocateFlags::empty(), offset, len) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                super::write_zeros(&|at, zeros| self.write_at(at, zeros), offset, len)
            }
            allocated => Ok(allocated?),
        }
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    /// What is said not to be needed is written out at once, and stays in memory until it is. (`sync_file_range` is the
    /// call that was made for it, and none that safe code can reach.)
    #[cfg(target_os = "linux")]
    fn start_writing(&self, offset: u64, len: u64) {
        use rustix::fs::{Advice, fadvise};
        let _ = fadvise(&self.file, offset, std::num::NonZeroU64::new(len), Advice::DontNeed);
    }

    #[cfg(target_os = "linux")]
    fn write_through(&self, offset: u64, data: &[u8]) -> io::Result<usize> {
        use rustix::io::{Errno, ReadWriteFlags, pwritev2};
        let mut durable = 0;
        while durable < data.len() && *self.heeds_dsync.get_or_init(|| heeds_dsync(&self.file)) {
            let rest = io::IoSlice::new(&data[durable..]);
            match pwritev2(&self.file, &[rest], offset + durable as u64, ReadWriteFlags::DSYNC) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => durable += written,
                Err(Errno::INTR) => {}
                // A system that does not know the call or the flag: nothing is written then.
                Err(Errno::NOSYS | Errno::OPNOTSUPP) => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(durable)
    }
}

/// True if a write with `RWF_DSYNC` is durable when it returns. Some file systems take the flag and ignore it (9p, FUSE
/// with direct I/O), so it has to be one that is known.
#[cfg(target_os = "linux")]
fn heeds_dsync(file: &fs::File) -> bool {
    const EXT4: u64 = 0xEF53;
    const XFS: u64 = 0x5846_5342;
    const BTRFS: u64 = 0x9123_683E;
    const F2FS: u64 = 0xF2F5_2010;
    let kind = rustix::fs::fstatfs(file).ok().and_then(|system| u64::try_from(system.f_type).ok());
    matches!(kind, Some(EXT4 | XFS | BTRFS | F2FS))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).expect("there").permissions().mode() & 0o777
    }

    #[test]
    fn what_it_creates_is_for_its_user_alone() {
        let dir = tempfile::tempdir().expect("a directory");
        let (below, file, lock) = (dir.path().join("a/b"), dir.path().join("file"), dir.path().join("lock"));
        Real.create_dir(&below).expect("made");
        Real.open(&file, Mode::Create).expect("made");
        drop(Real.lock(&lock).expect("made"));
        assert_eq!([mode(&below), mode(below.parent().expect("a"))], [0o700, 0o700]);
        assert_eq!([mode(&file), mode(&lock)], [0o600, 0o600]);
    }

    #[test]
    fn a_directory_that_others_could_enter_is_closed_to_them() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("set");
        Real.make_private(dir.path()).expect("closed");
        assert_eq!(mode(dir.path()), 0o700);
    }
}
