//! What a crash leaves behind.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use super::content::Content;
use super::{Op, State, TestDisk};

const SECTOR: usize = 512;

/// What becomes of bytes that were written and not synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Survival {
    /// They are lost, and so are names that were not synced.
    Nothing,
    /// They are there.
    Everything,
    /// Any sectors of them, in any order; names up to some point.
    Sectors,
    /// All up to some byte in the middle of a write.
    Torn,
    /// The file has its new length, and zeros there.
    Length,
    /// Only the last write: earlier ones are lost.
    LastWrite,
}

impl Survival {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Nothing, Self::Everything, Self::Sectors, Self::Torn, Self::Length, Self::LastWrite];
}

/// Walks along a record, and makes the disks that crashes leave behind.
#[derive(Debug)]
pub struct Crashes {
    ops: Vec<Op>,
    /// How many of them have happened.
    at: usize,
    durable: Vec<Content>,
    names: BTreeMap<PathBuf, usize>,
    dirs: BTreeSet<PathBuf>,
    /// Not synced: writes and lengths of a file, in order.
    writes: BTreeMap<usize, Vec<Op>>,
    /// Not synced: names of a directory, in order.
    changes: BTreeMap<PathBuf, Vec<Op>>,
}

impl Crashes {
    pub(super) fn new(base: State, ops: Vec<Op>) -> Self {
        Self {
            ops,
            at: 0,
            durable: base.inodes,
            names: base.names,
            dirs: base.dirs,
            writes: BTreeMap::new(),
            changes: BTreeMap::new(),
        }
    }

    /// How many calls have happened at this point.
    pub fn position(&self) -> u64 {
        self.at as u64
    }

    /// Goes on by one call; `false` at the end.
    pub fn advance(&mut self) -> bool {
        let Some(op) = self.ops.get(self.at).cloned() else { return false };
        self.at += 1;
        match op {
            Op::Write { inode, .. } | Op::SetLen { inode, .. } => self.writes.entry(inode).or_default().push(op),
            Op::Sync { inode } => {
                for op in self.writes.remove(&inode).unwrap_or_default() {
                    apply(&mut self.durable[inode], &op);
                }
            }
            Op::SyncWrite { inode, offset } => self.sync_write(inode, offset),
            Op::Create { ref path, inode } => {
                self.durable.resize_with(self.durable.len().max(inode + 1), Content::default);
                self.change(&path.clone(), op);
            }
            Op::Rename { ref to, .. } => self.change(&to.clone(), op),
            Op::Remove { ref path } | Op::MakeDir { ref path } => self.change(&path.clone(), op),
            Op::SyncDir { path } => {
                for op in self.changes.remove(&path).unwrap_or_default() {
                    rename(&mut self.names, &mut self.dirs, &op);
                }
            }
        }
        true
    }

    /// Makes the last write at `offset` of a file durable. Of the ones before, what is not overwritten waits on.
    fn sync_write(&mut self, inode: usize, offset: u64) {
        let Some(pending) = self.writes.get_mut(&inode) else { return };
        let this = |op: &Op| matches!(op, Op::Write { offset: at, .. } if *at == offset);
        let Some(index) = pending.iter().rposition(this) else { return };
        let write = pending.remove(index);
        apply(&mut self.durable[inode], &write);
        if let Op::Write { data, .. } = write {
            let range = offset..offset + data.len() as u64;
            let later = pending.split_off(index);
            let before = std::mem::take(pending);
            *pending = before.iter().flat_map(|op| outside(op, &range)).chain(later).collect();
        }
    }

    fn change(&mut self, path: &Path, op: Op) {
        let dir = path.parent().map(Path::to_owned).unwrap_or_default();
        self.changes.entry(dir).or_default().push(op);
    }

    /// The disk after a crash at this point. `random` makes numbers below its argument.
    pub fn crash(&self, survival: Survival, random: &mut impl FnMut(u64) -> u64) -> TestDisk {
        let (mut names, mut dirs) = (self.names.clone(), self.dirs.clone());
        for ops in self.changes.values() {
            let kept = match survival {
                Survival::Nothing => 0,
                Survival::Everything | Survival::Length => ops.len(),
                _ => usize::try_from(random(ops.len() as u64 + 1)).unwrap_or(0),
            };
            ops[..kept].iter().for_each(|op| rename(&mut names, &mut dirs, op));
        }
        // What is in a directory that was lost is lost.
        dirs = dirs.iter().filter(|dir| dir.ancestors().all(|above| dirs.contains(above))).cloned().collect();
        names.retain(|path, _| path.parent().is_some_and(|dir| dirs.contains(dir)));
        let mut inodes = self.durable.clone();
        for (inode, ops) in &self.writes {
            survive(&mut inodes[*inode], ops, survival, random);
        }
        let state = State { inodes, names, dirs, ..State::default() };
        TestDisk { state: Arc::new(Mutex::new(state)), open: Arc::default() }
    }
}

fn apply(content: &mut Content, op: &Op) {
    match op {
        Op::Write { offset, data, .. } => content.write(*offset, data),
        Op::SetLen { len, .. } => content.set_len(*len),
        _ => {}
    }
}

/// What is left of a call when the bytes of `range` are not its any more.
fn outside(op: &Op, range: &Range<u64>) -> Vec<Op> {
    let Op::Write { inode, offset, data } = op else { return vec![op.clone()] };
    let end = offset + data.len() as u64;
    let part = |from: u64, to: u64| {
        let bytes = |at: u64| usize::try_from(at - offset).unwrap_or(usize::MAX);
        (from < to).then(|| Op::Write { inode: *inode, offset: from, data: data[bytes(from)..bytes(to)].into() })
    };
    let before = part(*offset, end.min(range.start));
    before.into_iter().chain(part(range.end.max(*offset), end)).collect()
}

fn rename(names: &mut BTreeMap<PathBuf, usize>, dirs: &mut BTreeSet<PathBuf>, op: &Op) {
    match op {
        Op::Create { path, inode } => {
            names.insert(path.clone(), *inode);
        }
        Op::Rename { from, to } => {
            if let Some(inode) = names.remove(from) {
                names.insert(to.clone(), inode);
            }
        }
        Op::Remove { path } => {
            names.remove(path);
        }
        Op::MakeDir { path } => {
            dirs.insert(path.clone());
        }
        _ => {}
    }
}

fn survive(content: &mut Content, ops: &[Op], survival: Survival, random: &mut impl FnMut(u64) -> u64) {
    match survival {
        Survival::Nothing => {}
        Survival::Everything => ops.iter().for_each(|op| apply(content, op)),
        Survival::LastWrite => ops.last().into_iter().for_each(|op| apply(content, op)),
        Survival::Length => {
            let mut grown = content.clone();
            ops.iter().for_each(|op| apply(&mut grown, op));
            content.set_len(grown.len());
        }
        Survival::Torn => {
            let whole = usize::try_from(random(ops.len() as u64)).unwrap_or(0);
            ops[..whole].iter().for_each(|op| apply(content, op));
            if let Some(Op::Write { offset, data, .. }) = ops.get(whole) {
                let kept = usize::try_from(random(data.len() as u64 + 1)).unwrap_or(0);
                content.write(*offset, &data[..kept]);
            }
        }
        Survival::Sectors => {
            for op in ops {
                let Op::Write { offset, data, .. } = op else {
                    if random(2) == 0 {
                        apply(content, op);
                    }
                    continue;
                };
                let mut at = 0;
                while at < data.len() {
                    let place = offset + at as u64;
                    let end = (at + SECTOR - usize::try_from(place).unwrap_or(0) % SECTOR).min(data.len());
                    if random(2) == 0 {
                        content.write(place, &data[at..end]);
                    }
                    at = end;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::{Disk as _, File, Mode};
    use super::*;

    #[test]
    fn a_durable_write_survives_and_nothing_before_it_has_to() {
        let disk = TestDisk::new();
        let path = Path::new("/file");
        let file: Arc<dyn File> = disk.open(path, Mode::Create).expect("made");
        disk.sync_dir(Path::new("/")).expect("synced");
        disk.record();
        file.write_at(0, &[1; 300]).expect("written");
        file.write_durably(100, &[2; 100]).expect("written");
        let mut crashes = disk.crashes();
        let mut states = Vec::new();
        loop {
            for survival in [Survival::Nothing, Survival::Everything] {
                let left = crashes.crash(survival, &mut |_| 0);
                states.push(super::super::super::read_all(&left, path).expect("read"));
            }
            if !crashes.advance() {
                break;
            }
        }
        let all = [vec![1; 100], vec![2; 100], vec![1; 100]].concat();
        let only = [vec![0; 100], vec![2; 100]].concat();
        // Nothing and everything: before the first call, after the write, after the second one's bytes, after its sync.
        let expected = [vec![], vec![], vec![], vec![1; 300], vec![], all.clone(), only, all];
        assert_eq!(states, expected);
    }
}
