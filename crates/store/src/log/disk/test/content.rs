//! The bytes of a file, in pages that copies share.

use std::sync::Arc;

const PAGE: usize = 4096;

/// The bytes of a file.
#[derive(Debug, Clone, Default)]
pub(super) struct Content {
    len: u64,
    /// `None`: zeros.
    pages: Vec<Option<Arc<[u8; PAGE]>>>,
}

impl Content {
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Calls `each` with page, place in it, and place in the data, for `len` bytes from `offset` on.
    fn parts(offset: u64, len: usize) -> impl Iterator<Item = (usize, std::ops::Range<usize>, usize)> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let mut done = 0;
        std::iter::from_fn(move || {
            let at = start + done;
            let here = (PAGE - at % PAGE).min(len - done);
            let part = (here > 0).then(|| (at / PAGE, at % PAGE..at % PAGE + here, done));
            done += here;
            part
        })
    }

    pub(super) fn read(&self, offset: u64, out: &mut [u8]) {
        for (page, range, done) in Self::parts(offset, out.len()) {
            let target = &mut out[done..done + range.len()];
            match self.pages.get(page).and_then(Option::as_ref) {
                Some(bytes) => target.copy_from_slice(&bytes[range]),
                None => target.fill(0),
            }
        }
    }

    pub(super) fn write(&mut self, offset: u64, data: &[u8]) {
        self.len = self.len.max(offset + data.len() as u64);
        self.pages.resize(usize::try_from(self.len).unwrap_or(usize::MAX).div_ceil(PAGE), None);
        for (page, range, done) in Self::parts(offset, data.len()) {
            let bytes = self.pages[page].get_or_insert_with(|| Arc::new([0; PAGE]));
            Arc::make_mut(bytes)[range.clone()].copy_from_slice(&data[done..done + range.len()]);
        }
    }

    pub(super) fn set_len(&mut self, len: u64) {
        if len < self.len {
            // What is cut off must read as zeros if the file grows again.
            let rest = usize::try_from(len).unwrap_or(usize::MAX) % PAGE;
            self.pages.truncate(usize::try_from(len).unwrap_or(usize::MAX).div_ceil(PAGE));
            if rest > 0
                && let Some(Some(last)) = self.pages.last_mut()
            {
                Arc::make_mut(last)[rest..].fill(0);
            }
        }
        self.len = len;
        self.pages.resize(usize::try_from(len).unwrap_or(usize::MAX).div_ceil(PAGE), None);
    }
}
