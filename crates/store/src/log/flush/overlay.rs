//! A file whose changes stay in memory: redb repairs what it opens, and a check must not change anything.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use redb::StorageBackend;

use crate::log::disk::File;

const PAGE: u64 = 4096;

/// The bytes of a file, with what was written laid over them.
#[derive(Debug)]
pub(super) struct Overlay {
    file: Arc<dyn File>,
    changed: Mutex<Changed>,
}

#[derive(Debug)]
struct Changed {
    len: u64,
    /// Bytes of the file that show through; behind them there are zeros.
    below: u64,
    pages: BTreeMap<u64, Box<[u8]>>,
}

impl Overlay {
    pub(super) fn new(file: Arc<dyn File>) -> io::Result<Self> {
        let len = file.len()?;
        Ok(Self { file, changed: Mutex::new(Changed { len, below: len, pages: BTreeMap::new() }) })
    }

    fn read_below(&self, below: u64, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let there = usize::try_from(below.saturating_sub(offset)).unwrap_or(usize::MAX).min(out.len());
        let (there, zeros) = out.split_at_mut(there);
        zeros.fill(0);
        if there.is_empty() { Ok(()) } else { self.file.read_at(offset, there) }
    }
}

impl StorageBackend for Overlay {
    fn len(&self) -> io::Result<u64> {
        Ok(self.changed.lock().len)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let changed = self.changed.lock();
        let end = offset + out.len() as u64;
        if end > changed.len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.read_below(changed.below, offset, out)?;
        for (page, bytes) in changed.pages.range(offset / PAGE..end.div_ceil(PAGE)) {
            let start = page * PAGE;
            let (from, to) = (start.max(offset), (start + PAGE).min(end));
            let at = |base: u64, seq: u64| usize::try_from(seq - base).unwrap_or(usize::MAX);
            out[at(offset, from)..at(offset, to)].copy_from_slice(&bytes[at(start, from)..at(start, to)]);
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut changed = self.changed.lock();
        if len < changed.len {
            // A page that is cut begins with what it had.
            changed.pages.split_off(&len.div_ceil(PAGE));
            if let Some(page) = changed.pages.get_mut(&(len / PAGE)) {
                page[usize::try_from(len % PAGE).unwrap_or(0)..].fill(0);
            }
            changed.below = changed.below.min(len);
        }
        changed.len = len;
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut changed = self.changed.lock();
        let (mut offset, mut data) = (offset, data);
        while !data.is_empty() {
            let (page, start) = (offset / PAGE, usize::try_from(offset % PAGE).unwrap_or(0));
            let (part, rest) = data.split_at(data.len().min(PAGE as usize - start));
            if !changed.pages.contains_key(&page) {
                let mut bytes = vec![0; PAGE as usize].into_boxed_slice();
                self.read_below(changed.below, page * PAGE, &mut bytes)?;
                changed.pages.insert(page, bytes);
            }
            if let Some(bytes) = changed.pages.get_mut(&page) {
                bytes[start..start + part.len()].copy_from_slice(part);
            }
            (offset, data) = (offset + part.len() as u64, rest);
        }
        changed.len = changed.len.max(offset);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::disk::{Disk as _, Mode, Real};

    #[test]
    fn what_is_written_is_read_and_the_file_stays_as_it_is() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("file");
        let mut expected: Vec<u8> = (0..20_000_u32).map(|n| (n % 251) as u8).collect();
        std::fs::write(&path, &expected).expect("written");
        let before = expected.clone();
        let over = Overlay::new(Real.open(&path, Mode::Read).expect("opens")).expect("opens");
        let same = |expected: &[u8]| {
            assert_eq!(over.len().expect("known"), expected.len() as u64);
            for (from, to) in [(0, expected.len()), (4_000, 4_200), (4_096, 8_192), (8_191, 12_300)] {
                let mut read = vec![9; to - from];
                over.read(from as u64, &mut read).expect("read");
                assert_eq!(read, expected[from..to]);
            }
        };
        same(&expected);
        for (at, len) in [(4_090, 10_usize), (8_192, 4_096), (19_990, 10), (5_000, 5_000)] {
            over.write(at as u64, &vec![7; len]).expect("written");
            expected[at..at + len].fill(7);
            same(&expected);
        }
        for len in [13_000, 30_000] {
            over.set_len(len as u64).expect("set");
            expected.resize(len, 0);
            same(&expected);
        }
        assert!(over.read(29_999, &mut [0; 2]).is_err());
        assert_eq!(std::fs::read(&path).expect("read"), before);
    }
}
