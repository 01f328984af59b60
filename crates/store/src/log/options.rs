//! How the engine is opened, and why it could not be.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use crate::log::disk::{Disk, Real};

/// When what was written is made durable, and so what a returned value means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sync {
    /// Before it is answered: survives a loss of power.
    #[default]
    Always,
    /// At the latest this long after it was answered: survives the end of the process at once, a loss of power then.
    Interval(Duration),
    /// When the system likes to, and at close: survives the end of the process, not a loss of power.
    Never,
}

impl FromStr for Sync {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("sync must be `always`, `never` or an interval such as `100ms` or `1s`, is {text:?}");
        match text {
            "always" => return Ok(Self::Always),
            "never" => return Ok(Self::Never),
            _ => {}
        }
        let unit = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
        let count: u64 = text[..unit].parse().map_err(|_| wrong())?;
        let interval = match &text[unit..] {
            "ms" => Duration::from_millis(count),
            "s" => Duration::from_secs(count),
            "m" => Duration::from_secs(count.saturating_mul(60)),
            _ => return Err(wrong()),
        };
        // Longer ones are a mistake in the unit; none at all is `always`.
        if interval.is_zero() || interval > Duration::from_secs(3600) {
            return Err(format!(
                "sync's interval must be between 1ms and 60m, is {text:?}; or say `always` or `never`"
            ));
        }
        Ok(Self::Interval(interval))
    }
}

impl fmt::Display for Sync {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Always => f.write_str("always"),
            Self::Interval(interval) => write!(f, "{}ms", interval.as_millis()),
            Self::Never => f.write_str("never"),
        }
    }
}

/// Options of the engine.
#[derive(Debug, Clone)]
pub struct Options {
    /// The data directory; made where it does not exist.
    pub dir: PathBuf,
    /// What an answer means.
    pub sync: Sync,
    /// Bytes of a journal file. Twice this is what may be unflushed, in memory and to be replayed at open.
    pub journal_bytes: u64,
    /// Bytes of a segment, about.
    pub segment_bytes: u64,
    /// Bytes of a block in a segment, before compression.
    pub block_bytes: usize,
    /// True if segments are compressed (lz4).
    pub compress: bool,
    /// Bytes of requests that may wait for the writer; over it, publishers wait.
    pub queue_bytes: u64,
    /// Bytes of the index that are kept in memory.
    pub index_cache_bytes: usize,
    /// An index of at most so many bytes has every checksum looked at when it is opened. (64 MiB are read in a moment;
    /// of a larger one only the doctor sees damage that redb does not trip over.)
    pub index_check_bytes: u64,
    /// How often retention and compaction look; `None`: only when they are asked to.
    pub maintenance: Option<Duration>,
    /// How long compaction waits for a reader that holds a pin.
    pub pin_for: Duration,
    /// How long a snapshot may keep one view of the index; then a round of maintenance takes it away.
    pub view_for: Duration,
    /// Most files that the engine keeps open; at least [`Options::MIN_OPEN_FILES`].
    pub open_files: usize,
    /// Where the files are.
    pub disk: Arc<dyn Disk>,
}

impl Options {
    /// The smallest [`Options::open_files`].
    pub const MIN_OPEN_FILES: usize = 64;

    /// The defaults, in this directory.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            sync: Sync::Always,
            journal_bytes: 64 << 20,
            segment_bytes: 64 << 20,
            block_bytes: 64 << 10,
            compress: false,
            queue_bytes: 64 << 20,
            index_cache_bytes: 32 << 20,
            index_check_bytes: 64 << 20,
            maintenance: Some(Duration::from_secs(60)),
            pin_for: crate::pins::LONGEST,
            view_for: Duration::from_secs(30),
            open_files: 512,
            disk: Arc::new(Real),
        }
    }
}

/// Why a data directory could not be opened. Nothing in it was changed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has it.
    #[error(
        "{dir} is in use by another process; stop that hub, or give this one its own directory (PROMETHEAN_DATA_DIR)"
    )]
    InUse {
        /// The directory.
        dir: PathBuf,
    },
    /// A hub changes it faster than it can be checked.
    #[error("{dir} changes while it is checked: a hub is working there; stop it to check")]
    Busy {
        /// The directory.
        dir: PathBuf,
    },
    /// Written by another version.
    #[error(
        "{dir} has format {found:?}, this program reads {expected:?}; run the version that wrote it, or export and import"
    )]
    Format {
        /// The directory.
        dir: PathBuf,
        /// What its FORMAT file says.
        found: String,
        /// What it would have to say.
        expected: &'static str,
    },
    /// Not a data directory.
    #[error(
        "{dir} is not empty and not a data directory of Promethean (it has {found:?} and no FORMAT file); choose another directory"
    )]
    Foreign {
        /// The directory.
        dir: PathBuf,
        /// One of the names in it.
        found: String,
    },
    /// A restore or a salvage did not come to its end there.
    #[error("{dir} is what a {what} has left that did not come to its end; delete it, and do that again")]
    Unfinished {
        /// The directory.
        dir: PathBuf,
        /// What did not come to its end.
        what: String,
    },
    /// The directory that a restore or a salvage is to make is there already.
    #[error("{dir} is not empty (it has {found:?}); name a directory that is empty or does not exist")]
    NotEmpty {
        /// The directory.
        dir: PathBuf,
        /// One of the names in it.
        found: String,
    },
    /// There is nothing.
    #[error("{dir} is empty: there is no data directory of Promethean")]
    Empty {
        /// The directory.
        dir: PathBuf,
    },
    /// Not writable.
    #[error("{dir} cannot be written to ({error}); let the hub's user write there, or choose another directory")]
    ReadOnly {
        /// The directory.
        dir: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// A segment that the manifest names is not there.
    #[error(
        "the segment {file} is missing (or shorter than {len} bytes); put it back from a backup, or save the rest with `promethean doctor {dir} --salvage TO`"
    )]
    MissingSegment {
        /// The directory.
        dir: PathBuf,
        /// The file.
        file: PathBuf,
        /// Bytes it should have.
        len: u64,
    },
    /// Bytes that were durable are not what they were.
    #[error("{file} is damaged at offset {offset}: {what}; `promethean doctor` says what can be saved")]
    Damaged {
        /// The file.
        file: PathBuf,
        /// Where in it.
        offset: u64,
        /// What is wrong.
        what: String,
    },
    /// The system refused something.
    #[error("{doing}: {error}")]
    Io {
        /// What was being done.
        doing: String,
        /// What the system said.
        error: io::Error,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sync_is_read_as_it_is_written() {
        for (text, sync) in [
            ("always", Sync::Always),
            ("never", Sync::Never),
            ("100ms", Sync::Interval(Duration::from_millis(100))),
            ("1s", Sync::Interval(Duration::from_secs(1))),
        ] {
            assert_eq!(text.parse(), Ok(sync));
            assert_eq!(sync.to_string().parse(), Ok(sync));
        }
        for bad in ["", "often", "100", "ms", "0ms", "-1s", "1h", "99999m", "1.5s", "18446744073709551616ms"] {
            assert!(Sync::from_str(bad).expect_err(bad).contains("sync"), "{bad}");
        }
    }
}
