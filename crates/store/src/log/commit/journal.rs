//! The journal: every commit is one frame at the end of one file.
//!
//! ```text
//!  file   = header (4096 bytes) · frame · frame · … · zeros, or frames of the file's former life
//!  header = "PRMTHJNL" · version:u32 · 0:u32 · number:u64 · salt:u64 · previous_end:u64 · crc:u32
//!  frame  = "FRM1" · crc:u32 · len:u32 · 0:u32 · index:u64 · synced:u64 · payload (len bytes) · zeros up to 8
//! ```
//!
//! Invariants: a file has its final name only after its header is durable. Each life of a file has its own random
//! salt, which every frame's checksum takes in: frames of a former life, and payloads made to look like frames,
//! are not frames. `synced` says how far the file was durable when the frame was written, so that recovery can tell
//! a frame that was never promised (cut it) from one that was (damage). `previous_end` says where the file before
//! ends, so that a lost end is seen.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::log::commit::codec::{u32_at, u64_at};
use crate::log::disk::{Disk, File, Mode};

const MAGIC: &[u8; 8] = b"PRMTHJNL";
const VERSION: u32 = 1;
const FRAME: &[u8; 4] = b"FRM1";
/// Where the first frame is.
pub(in crate::log) const FIRST: u64 = 4096;
/// Bytes of a frame before its payload.
pub(in crate::log) const FRAME_HEAD: usize = 32;
/// Where no frame begins.
const NO_FRAME: &[u8] = &[0; 8];
/// A file that waits for its next life.
pub(in crate::log) const SPARE: &str = "spare";

/// The name of a journal file.
pub(in crate::log) fn name(number: u64) -> String {
    format!("{number:08}.wal")
}

/// The number in a journal file's name.
pub(in crate::log) fn number(name: &str) -> Option<u64> {
    name.strip_suffix(".wal")?.parse().ok()
}

/// The file that frames are written to.
#[derive(Debug)]
pub(in crate::log) struct Journal {
    file: Arc<dyn File>,
    pub(in crate::log) number: u64,
    salt: u64,
    /// Where the next frame goes.
    pub(in crate::log) offset: u64,
    /// Bytes that are there already: writing over them does not grow the file.
    allocated: u64,
    /// Frames that have got their place.
    frames: u64,
    /// Durable up to here.
    synced: u64,
    /// How much the file grows at once.
    step: u64,
    /// It grew, and has not been synced as a whole since.
    grown: bool,
}

/// Where a frame is to be written.
pub(in crate::log) struct Place {
    file: Arc<dyn File>,
    offset: u64,
    /// The file grew before it.
    grown: bool,
}

impl Place {
    /// Writes the frame and makes it durable.
    pub(in crate::log) fn write_durably(&self, frame: &[u8]) -> io::Result<()> {
        if !self.grown {
            return self.file.write_durably(self.offset, frame);
        }
        // The space after it too: else every frame there would wait for the file system to find it some.
        self.file.write_at(self.offset, frame)?;
        self.file.sync()
    }
}

/// What a new file is made from.
pub(in crate::log) struct Next<'a> {
    pub(in crate::log) disk: &'a dyn Disk,
    pub(in crate::log) dir: &'a Path,
    pub(in crate::log) number: u64,
    pub(in crate::log) previous_end: u64,
    pub(in crate::log) step: u64,
}

impl Journal {
    /// Starts a file, from the spare one where there is one.
    pub(in crate::log) fn create(next: &Next<'_>) -> io::Result<Self> {
        let Next { disk, dir, number, previous_end, step } = *next;
        let spare = dir.join(SPARE);
        let file = match disk.open(&spare, Mode::Write) {
            Ok(file) => {
                // Not the first frame of its former life: it would look like one that was cut short.
                file.write_at(FIRST, NO_FRAME)?;
                file
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let file = disk.open(&spare, Mode::Create)?;
                file.write_at(0, &vec![0; usize::try_from(FIRST + step).map_err(io::Error::other)?])?;
                file
            }
            Err(error) => return Err(error),
        };
        let salt = RandomState::new().build_hasher().finish();
        let mut header = Vec::with_capacity(64);
        header.extend_from_slice(MAGIC);
        header.extend_from_slice(&VERSION.to_le_bytes());
        header.extend_from_slice(&0_u32.to_le_bytes());
        for field in [number, salt, previous_end] {
            header.extend_from_slice(&field.to_le_bytes());
        }
        header.extend_from_slice(&crc32fast::hash(&header).to_le_bytes());
        file.write_at(0, &header)?;
        file.sync()?;
        disk.rename(&spare, &dir.join(name(number)))?;
        disk.sync_dir(dir)?;
        let allocated = file.len()?;
        Ok(Self { file, number, salt, offset: FIRST, allocated, frames: 0, synced: FIRST, step, grown: false })
    }

    /// Goes on with a file where recovery found its end.
    pub(in crate::log) fn resume(disk: &dyn Disk, dir: &Path, number: u64, scan: &Scan, step: u64) -> io::Result<Self> {
        let file = disk.open(&dir.join(name(number)), Mode::Write)?;
        // What recovery took over is promised from now on, whatever mode wrote it, and so is its name.
        file.sync()?;
        disk.sync_dir(dir)?;
        let (allocated, frames) = (file.len()?, scan.frames.len() as u64);
        let (salt, end) = (scan.salt, scan.end);
        Ok(Self { file, number, salt, offset: end, allocated, frames, synced: end, step, grown: false })
    }

    /// Makes sure that `bytes` more, and `spare` after them, need no new space.
    pub(in crate::log) fn reserve(&mut self, bytes: u64, spare: u64) -> io::Result<()> {
        let need = self.offset + bytes + spare;
        while self.allocated < need {
            let chunk = self.step.clamp(4096, 4 << 20);
            self.file.write_at(self.allocated, &vec![0; usize::try_from(chunk).map_err(io::Error::other)?])?;
            self.allocated += chunk;
            self.grown = true;
        }
        Ok(())
    }

    /// True if `bytes` more fit into what is allocated already.
    pub(in crate::log) fn fits(&self, bytes: u64) -> bool {
        self.offset + bytes <= self.allocated
    }

    /// Writes one frame.
    pub(in crate::log) fn write(&mut self, frame: &mut Vec<u8>) -> io::Result<()> {
        let place = self.place(frame)?;
        place.file.write_at(place.offset, frame)
    }

    /// Gives a frame its head and its place, where it is to be written next: where that fails, nothing may be written
    /// after it. `frame` begins with [`FRAME_HEAD`] bytes of room for its head.
    pub(in crate::log) fn place(&mut self, frame: &mut Vec<u8>) -> io::Result<Place> {
        let len = frame.len() - FRAME_HEAD;
        let mut head = [0; FRAME_HEAD];
        head[..4].copy_from_slice(FRAME);
        head[8..12].copy_from_slice(&u32::try_from(len).map_err(io::Error::other)?.to_le_bytes());
        head[16..24].copy_from_slice(&self.frames.to_le_bytes());
        head[24..32].copy_from_slice(&self.synced.to_le_bytes());
        frame[..FRAME_HEAD].copy_from_slice(&head);
        let crc = checksum(self.salt, &frame[8..]);
        frame[4..8].copy_from_slice(&crc.to_le_bytes());
        frame.resize(frame.len().next_multiple_of(8), 0);
        let place = Place { file: self.file.clone(), offset: self.offset, grown: std::mem::take(&mut self.grown) };
        self.offset += frame.len() as u64;
        self.allocated = self.allocated.max(self.offset);
        self.frames += 1;
        Ok(place)
    }

    /// The file, for a sync. What was written before it is durable once it has succeeded: see [`Self::synced_up_to`].
    pub(in crate::log) fn handle(&self) -> Arc<dyn File> {
        self.file.clone()
    }

    /// Bytes that the file would have with `bytes` more.
    pub(in crate::log) fn grown_by(&self, bytes: u64) -> u64 {
        self.allocated.max(self.offset + bytes)
    }

    /// Everything before `offset` is durable.
    pub(in crate::log) fn synced_up_to(&mut self, offset: u64) {
        self.synced = self.synced.max(offset);
    }

    /// Says that nothing was begun after the last frame: what is there is of the file's former life. Only so that the
    /// next start does not take it for a frame that was cut short.
    pub(in crate::log) fn mark_end(&self) -> io::Result<()> {
        if self.fits(NO_FRAME.len() as u64) { self.file.write_at(self.offset, NO_FRAME) } else { Ok(()) }
    }

    /// True if something is written that is not durable.
    pub(in crate::log) fn is_dirty(&self) -> bool {
        self.synced < self.offset
    }

    /// True if there is no frame yet.
    pub(in crate::log) fn is_empty(&self) -> bool {
        self.frames == 0
    }
}

/// Keeps a flushed file for its next life, or removes it when one is kept already.
pub(in crate::log) fn retire(disk: &dyn Disk, dir: &Path, number: u64, keep: u64) -> io::Result<()> {
    let (old, spare) = (dir.join(name(number)), dir.join(SPARE));
    let short = disk.len(&old)? > keep;
    if short || disk.len(&spare).is_ok() {
        disk.remove(&old)?
    } else {
        disk.rename(&old, &spare)?
    }
    disk.sync_dir(dir)
}

/// All journal files, by number.
pub(in crate::log) fn files(disk: &dyn Disk, dir: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut files: Vec<_> = disk.list(dir)?.iter().filter_map(|name| Some((number(name)?, dir.join(name)))).collect();
    files.sort();
    Ok(files)
}

/// What is in a journal file.
#[derive(Debug)]
pub(in crate::log) struct Scan {
    salt: u64,
    /// Where the file before this one ends.
    pub(in crate::log) previous_end: u64,
    /// The payloads, as places in the file.
    pub(in crate::log) frames: Vec<Range<usize>>,
    /// Where the last whole frame ends.
    pub(in crate::log) end: u64,
    /// There are frames behind a hole: not promised to anyone, and the file must not be written to any more.
    pub(in crate::log) holes: bool,
    /// There is the beginning of a frame after the end.
    pub(in crate::log) torn: bool,
}

/// A place that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::log) struct Damage {
    pub(in crate::log) offset: u64,
    pub(in crate::log) what: &'static str,
}

/// Reads a journal file. `sealed_end`: where the next file says that this one ends.
pub(in crate::log) fn scan(bytes: &[u8], number: u64, sealed_end: Option<u64>) -> Result<Scan, Damage> {
    let header = bytes.get(..44).unwrap_or_default();
    if header.len() < 44 || &header[..8] != MAGIC || crc32fast::hash(&header[..40]) != u32_at(header, 40) {
        return Err(Damage { offset: 0, what: "the header of the journal file is not whole" });
    }
    if u32_at(header, 8) != VERSION || u64_at(header, 16) != number {
        return Err(Damage { offset: 0, what: "the journal file is of another version or has another file's name" });
    }
    let (salt, previous_end) = (u64_at(header, 24), u64_at(header, 32));
    let limit = sealed_end.map_or(bytes.len(), |end| usize::try_from(end).unwrap_or(usize::MAX));
    let (mut at, mut frames) = (FIRST as usize, Vec::new());
    while at < limit
        && let Some((payload, _, index)) = frame_at(bytes, at, salt)
        && index == frames.len() as u64
    {
        at = payload.end.next_multiple_of(8);
        frames.push(payload);
    }
    let end = at as u64;
    let lost = Damage { offset: end, what: "a frame that was durable does not have its checksum" };
    if let Some(sealed) = sealed_end {
        if sealed != end {
            return Err(lost);
        }
        return Ok(Scan { salt, previous_end, frames, end, holes: false, torn: false });
    }
    let (mut holes, mut later) = (false, at + 8);
    while let Some(found) = find(bytes, later) {
        if let Some((_, synced, index)) = frame_at(bytes, found, salt)
            && index >= frames.len() as u64
        {
            if synced > end {
                return Err(lost);
            }
            holes = true;
        }
        later = found + 8;
    }
    let torn = bytes.get(at..at + FRAME_HEAD).is_some_and(|head| {
        let synced = u64_at(head, 24);
        &head[..4] == FRAME && u64_at(head, 16) == frames.len() as u64 && (FIRST..=end).contains(&synced)
    });
    Ok(Scan { salt, previous_end, frames, end, holes, torn })
}

/// The payloads of all whole frames of a journal file, in order, whatever is between them.
pub(in crate::log) fn salvage(bytes: &[u8]) -> Vec<Range<usize>> {
    let (salt, mut frames, mut at) = (u64_at(bytes, 24), Vec::new(), FIRST as usize);
    while let Some(found) = find(bytes, at) {
        at = match frame_at(bytes, found, salt) {
            Some((payload, ..)) => {
                frames.push(payload.clone());
                payload.end.next_multiple_of(8)
            }
            None => found + 8,
        };
    }
    frames
}

/// Mends a header in which one bit is wrong: its checksum says which. Without its salt no frame could be read.
pub(in crate::log) fn mend_header(bytes: &mut [u8]) {
    let Some(header) = bytes.get_mut(..44) else { return };
    let whole = |header: &[u8]| crc32fast::hash(&header[..40]) == u32_at(header, 40);
    if whole(header) {
        return;
    }
    for bit in 0..44 * 8 {
        header[bit / 8] ^= 1 << (bit % 8);
        if whole(header) {
            return;
        }
        header[bit / 8] ^= 1 << (bit % 8);
    }
}

/// The next place from `at` on that might be a frame.
fn find(bytes: &[u8], at: usize) -> Option<usize> {
    let (words, _) = bytes.get(at..)?.as_chunks::<8>();
    words.iter().position(|word| word.starts_with(FRAME)).map(|index| at + index * 8)
}

/// The frame at `at`: its payload, `synced` and index.
fn frame_at(bytes: &[u8], at: usize, salt: u64) -> Option<(Range<usize>, u64, u64)> {
    let head = bytes.get(at..at + FRAME_HEAD)?;
    if &head[..4] != FRAME {
        return None;
    }
    let payload = at + FRAME_HEAD..at + FRAME_HEAD + u32_at(head, 8) as usize;
    let covered = bytes.get(at + 8..payload.end)?;
    (checksum(salt, covered) == u32_at(head, 4)).then(|| (payload, u64_at(head, 24), u64_at(head, 16)))
}

fn checksum(salt: u64, covered: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&salt.to_le_bytes());
    hasher.update(covered);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::disk::{Real, read_all};

    /// A journal file with frames of many sizes, about `bytes` long, and where the frames' payloads are.
    fn sample(bytes: u64) -> (Vec<u8>, Vec<Vec<u8>>) {
        let dir = tempfile::tempdir().expect("a directory");
        let next = Next { disk: &Real, dir: dir.path(), number: 7, previous_end: 99, step: 4096 };
        let mut journal = Journal::create(&next).expect("created");
        let mut payloads = Vec::new();
        while journal.offset < bytes {
            let size = (payloads.len() * 131) % 3000 + 1;
            let payload: Vec<u8> = (0..size).map(|n| (n * 7 + payloads.len()) as u8).collect();
            let mut frame = vec![0; FRAME_HEAD];
            frame.extend_from_slice(&payload);
            journal.write(&mut frame).expect("written");
            journal.handle().sync().expect("synced");
            journal.synced_up_to(journal.offset);
            payloads.push(payload);
        }
        (read_all(&Real, &dir.path().join(name(7))).expect("read"), payloads)
    }

    /// The frames found are the first ones, byte for byte; or damage is reported.
    fn check(bytes: &[u8], payloads: &[Vec<u8>]) -> Option<usize> {
        let scan = scan(bytes, 7, None).ok()?;
        assert!(scan.frames.len() <= payloads.len(), "a frame that was never written");
        for (found, payload) in scan.frames.iter().zip(payloads) {
            assert!(bytes[found.clone()] == payload[..], "wrong bytes");
        }
        Some(scan.frames.len())
    }

    #[test]
    fn every_byte_prefix_is_a_whole_prefix_of_frames() {
        let (bytes, payloads) = sample(64 << 10);
        let (mut most, mut end) = (0, FIRST as usize);
        for cut in 0..bytes.len() {
            let found = check(&bytes[..cut], &payloads);
            if cut < 44 {
                assert_eq!(found, None, "a header that is not whole is reported");
                continue;
            }
            let found = found.expect("a cut file is not damaged");
            assert!(found >= most, "a longer prefix has fewer frames");
            if found > most {
                end += (FRAME_HEAD + payloads[most].len()).next_multiple_of(8);
                assert!(cut + 8 > end && found == most + 1, "a frame was found before it was whole");
            }
            most = found;
        }
        assert_eq!(most, payloads.len());
    }

    #[test]
    fn every_single_flipped_bit_is_cut_or_reported_and_never_served() {
        let (mut bytes, payloads) = sample(64 << 10);
        let last = bytes.len() - FRAME_HEAD - payloads.last().map_or(0, Vec::len);
        let (mut reported, mut cut, mut harmless) = (0, 0, 0);
        for at in 0..bytes.len() {
            for bit in 0..8 {
                bytes[at] ^= 1 << bit;
                match check(&bytes, &payloads) {
                    None => reported += 1,
                    Some(found) if found == payloads.len() => harmless += 1,
                    // Of the last frame nobody can tell whether it was ever whole.
                    Some(found) => {
                        assert_eq!(found, payloads.len() - 1, "a durable frame before the last was cut at {at}");
                        assert!(at + 4096 >= last, "{at}");
                        cut += 1;
                    }
                }
                bytes[at] ^= 1 << bit;
            }
        }
        assert!(reported > 100_000 && cut > 100 && harmless > 0, "{reported} {cut} {harmless}");
    }

    #[test]
    fn frames_of_a_former_life_are_not_frames() {
        let dir = tempfile::tempdir().expect("a directory");
        let next = |number| Next { disk: &Real, dir: dir.path(), number, previous_end: 0, step: 4096 };
        let mut old = Journal::create(&next(1)).expect("created");
        for n in 0..20 {
            let mut frame = vec![n; FRAME_HEAD + 100];
            old.write(&mut frame).expect("written");
        }
        retire(&Real, dir.path(), 1, u64::MAX).expect("retired");
        let mut new = Journal::create(&next(2)).expect("created");
        assert!(new.fits(2000), "the old file is used again");
        let mut frame = vec![9; FRAME_HEAD + 100];
        new.write(&mut frame).expect("written");
        let bytes = read_all(&Real, &dir.path().join(name(2))).expect("read");
        let scan = scan(&bytes, 2, None).expect("sound");
        assert_eq!((scan.frames.len(), scan.holes), (1, false));
    }

    #[test]
    fn frames_behind_a_hole_are_cut_if_they_were_not_promised_and_damage_if_they_were() {
        for (promised, expected) in [(false, Ok(true)), (true, Err(()))] {
            let dir = tempfile::tempdir().expect("a directory");
            let next = Next { disk: &Real, dir: dir.path(), number: 1, previous_end: 0, step: 4096 };
            let mut journal = Journal::create(&next).expect("created");
            for n in 0..5 {
                let mut frame = vec![n; FRAME_HEAD + 100];
                journal.write(&mut frame).expect("written");
                if promised {
                    journal.handle().sync().expect("synced");
                    journal.synced_up_to(journal.offset);
                }
            }
            let mut bytes = read_all(&Real, &dir.path().join(name(1))).expect("read");
            bytes[FIRST as usize + 136 * 2 + 50] ^= 1;
            let scan = scan(&bytes, 1, None);
            assert_eq!(scan.map(|scan| scan.holes && scan.frames.len() == 2).map_err(drop), expected);
        }
    }
}
