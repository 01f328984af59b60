//! The real disk.

use std::any::Any;
use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{FlockOperation, flock};

use super::{Disk, File, Mode};

/// Files of the operating system.
#[derive(Debug, Clone, Copy, Default)]
pub struct Real;

impl Disk for Real {
    fn open(&self, path: &Path, mode: Mode) -> io::Result<Arc<dyn File>> {
        let mut options = fs::OpenOptions::new();
        options.read(true);
        match mode {
            Mode::Read => {}
            Mode::Write => {
                options.write(true);
            }
            Mode::Create => {
                options.write(true).create(true).truncate(true);
            }
        }
        Ok(Arc::new(options.open(path)?))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        fs::create_dir_all(path)
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
        let file = fs::OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Box::new(file))),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn parallel(&self) -> usize {
        16
    }
}

impl File for fs::File {
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        FileExt::read_exact_at(self, out, offset)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        FileExt::write_all_at(self, data, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        fs::File::set_len(self, len)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }

    #[cfg(target_os = "linux")]
    fn write_durably(&self, mut offset: u64, mut data: &[u8]) -> io::Result<()> {
        use rustix::io::{Errno, ReadWriteFlags, pwritev2};
        while !data.is_empty() {
            match pwritev2(self, &[io::IoSlice::new(data)], offset, ReadWriteFlags::DSYNC) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    offset += written as u64;
                    data = &data[written..];
                }
                Err(Errno::INTR) => {}
                // A system that does not know the call, or a file system that does not know the flag: nothing is
                // written then.
                Err(Errno::NOSYS | Errno::OPNOTSUPP) => {
                    File::write_at(self, offset, data)?;
                    return self.sync();
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}
