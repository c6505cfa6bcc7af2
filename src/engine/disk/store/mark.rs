//! The mark of a directory: the file that says whose it is, which format it has and how far it came, and that is locked
//! while the directory is open. And why a directory cannot be opened. It knows nothing of trees and log.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::durable::sync;

/// The file that says whose directory it is, and that is locked while it is open.
pub const MARK: &str = "dormouse";
const MAGIC: &str = "dormouse disk pool, format ";
pub const FORMAT: u32 = 7;
/// The line of the mark that stands there once the store is whole.
const MADE: &str = "made\n";
/// The line that stands there while a repair gives up what is damaged.
const REPAIRING: &str = "repairing\n";
/// What begins the line that an orderly close leaves. The last group follows.
const CLOSED: &str = "closed ";

/// How often a lock is tried that another process holds,
const LOCK_TRIES: u32 = 5;
/// and how long to wait in between.
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// Why a directory cannot be opened. Each says what to do.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("{0} is in use by another process: stop it, or give this one a directory of its own")]
    Locked(PathBuf),
    #[error("{0} was written by a newer version (format {1}, this one reads {FORMAT}): run that version")]
    Newer(PathBuf, u32),
    #[error("{0} was written before the first release (format {1}, this one reads {FORMAT}): move it away")]
    Older(PathBuf, u32),
    #[error("{0} is not empty and not a dormouse directory: choose an empty one")]
    NotOurs(PathBuf),
    #[error(
        "{0} is damaged ({1}): restore it from a copy, or open it without what is damaged: \
         dormouse repair --accept-loss {0}"
    )]
    Damaged(PathBuf, String),
    #[error("{0} cannot be opened: {1}")]
    Io(PathBuf, #[source] std::io::Error),
}

/// The mark in an open directory: who holds it holds the directory.
#[derive(Debug)]
pub struct Mark {
    file: File,
    said: Said,
    /// What the last orderly close had left here when the directory was opened.
    was_closed: Option<u64>,
}

/// What a mark says.
#[derive(Debug, Default)]
pub struct Said {
    /// Whether the store was whole once: from then on, what is missing is damage.
    pub made: bool,
    /// Whether a repair was begun and not ended: nobody knows what it has done.
    pub repairing: bool,
    /// Its last group, if it was closed in order and nobody has opened it since.
    pub closed: Option<u64>,
}

impl Mark {
    /// What it says now.
    pub fn said(&self) -> &Said {
        &self.said
    }

    /// Notes that a repair begins, or has ended.
    pub fn write_repairing(&mut self, repairing: bool) -> std::io::Result<()> {
        self.said.repairing = repairing;
        if !repairing {
            self.said.closed = None;
        }
        self.write()
    }

    /// For who changes the store before it is opened: its end is in order no more.
    pub fn forget_close(&mut self) {
        self.said.closed = None;
    }

    /// The last group before this open, if the store was closed in order.
    pub fn was_closed(&self) -> Option<u64> {
        self.was_closed
    }

    /// Writes the line that is always there, and those that say how far it came.
    fn write(&mut self) -> std::io::Result<()> {
        let made = if self.said.made { MADE } else { "" };
        let repairing = if self.said.repairing { REPAIRING } else { "" };
        let closed = self.said.closed.map_or(String::new(), |number| format!("{CLOSED}{number}\n"));
        let text = format!("{MAGIC}{FORMAT}\n{made}{repairing}{closed}");
        self.file.rewind()?;
        self.file.write_all(text.as_bytes())?;
        self.file.set_len(text.len() as u64)?;
        self.file.sync_all()
    }

    /// Notes that the store is open: whole, and its end in order no more. A repair that goes on notes its own end.
    pub fn write_opened(&mut self) -> std::io::Result<()> {
        self.was_closed = self.said.closed;
        if !self.said.made || (self.said.closed.is_some() && !self.said.repairing) {
            (self.said.made, self.said.closed) = (true, None);
            return self.write();
        }
        Ok(())
    }

    /// Notes which was the last group: a log that ends before it has lost something.
    pub fn close(&mut self, number: u64) -> std::io::Result<()> {
        self.said.closed = Some(number);
        self.write()
    }
}

/// Writes the mark of a copy, which was whole at an end that was not in order.
pub fn write_mark_of_copy(path: &Path) -> std::io::Result<()> {
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path.join(MARK))?;
    Mark { file, said: Said { made: true, ..Said::default() }, was_closed: None }.write()?;
    sync(path)
}

/// What is wrong with a store while a repair of it has not ended.
pub const CUT_OFF: &str = "a repair of it was cut off";

/// Makes the directory, and locks it.
pub fn lock(path: &Path) -> Result<Mark, OpenError> {
    let io = |e| OpenError::Io(path.to_owned(), e);
    // Jobs and tokens are in it.
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(io)?;
    let mode = path.metadata().map_err(io)?.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        let path = path.display().to_string();
        tracing::warn!(
            path,
            mode = format!("{mode:o}"),
            "others may look into the data directory: chmod it to 700"
        );
    }
    read_mark(path)
}

/// Locks and reads the mark, or makes it in an empty directory.
fn read_mark(path: &Path) -> Result<Mark, OpenError> {
    let io = |e| OpenError::Io(path.to_owned(), e);
    let file = path.join(MARK);
    let others = std::fs::read_dir(path).map_err(io)?.filter_map(|entry| entry.ok());
    let empty = others.into_iter().all(|entry| entry.file_name() == MARK);
    if !file.exists() && !empty {
        return Err(OpenError::NotOurs(path.to_owned()));
    }
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let file = options.open(file).map_err(io)?;
    let mut tries = 0;
    while let Err(e) = file.try_lock() {
        match e {
            // `dormouse check` may hold it for a moment.
            TryLockError::WouldBlock if tries < LOCK_TRIES => std::thread::sleep(LOCK_PAUSE),
            TryLockError::WouldBlock => return Err(OpenError::Locked(path.to_owned())),
            TryLockError::Error(e) => return Err(io(e)),
        }
        tries += 1;
    }
    let mut bytes = Vec::new();
    (&file).take(256).read_to_end(&mut bytes).map_err(io)?;
    let mut mark = Mark { file, said: Said::default(), was_closed: None };
    if bytes.iter().all(|byte| *byte == 0) && empty {
        // New, or a start that was cut off before the mark was on disk: a power cut may leave its length and
        // not its bytes.
        mark.write().map_err(io)?;
        sync(path).map_err(io)?;
        return Ok(mark);
    }
    mark.said = Said::parse(path, &bytes)?;
    // Whoever wrote it may have been killed before it was on the disk, or its sync has failed: then no later sync writes
    // what the system shows. A power cut would bring the mark of before back, and with it another store: one that was never
    // made, or that was closed before the last jobs came. So it is written once more.
    mark.write().map_err(io)?;
    Ok(mark)
}

impl Said {
    pub fn parse(path: &Path, bytes: &[u8]) -> Result<Said, OpenError> {
        let text = String::from_utf8_lossy(bytes);
        let (first, rest) = text.split_once('\n').unwrap_or((&text, ""));
        match first.strip_prefix(MAGIC).and_then(|format| format.parse().ok()) {
            None => return Err(OpenError::NotOurs(path.to_owned())),
            Some(newer) if newer > FORMAT => return Err(OpenError::Newer(path.to_owned(), newer)),
            Some(older) if older < FORMAT => return Err(OpenError::Older(path.to_owned(), older)),
            Some(_) => {}
        }
        let damaged =
            || OpenError::Damaged(path.to_owned(), format!("the file {MARK} is not what was written"));
        let (made, rest) = match rest.strip_prefix(MADE) {
            Some(rest) => (true, rest),
            // A start that was cut off while it wrote that line.
            None if MADE.starts_with(rest.trim_end_matches('\0')) => (false, ""),
            None => return Err(damaged()),
        };
        let (repairing, rest) = match rest.strip_prefix(REPAIRING) {
            Some(rest) => (true, rest),
            None => (false, rest),
        };
        // A line that was cut off says nothing: the store is opened as after a crash.
        let line = rest.trim_end_matches('\0');
        let closed = line.strip_suffix('\n').and_then(|line| line.strip_prefix(CLOSED)?.parse().ok());
        let begun = |whole: &str| whole.starts_with(line);
        let is_cut_off = || line.strip_prefix(CLOSED).is_some_and(|n| n.bytes().all(|n| n.is_ascii_digit()));
        if closed.is_none() && !begun(REPAIRING) && !begun(CLOSED) && !is_cut_off() {
            return Err(damaged());
        }
        Ok(Said { made, repairing, closed })
    }
}

#[cfg(test)]
mod tests {
    use super::super::StoreLimits;
    use super::super::open::open;
    use super::*;

    #[test]
    fn a_mark_that_is_not_what_was_written_is_refused() {
        let dir = tempfile::tempdir().unwrap(); // the temporary directory can be written
        drop(open(dir.path(), StoreLimits::OF_A_TOOL).unwrap()); // new directory
        let mark = dir.path().join(MARK);
        let whole = std::fs::read_to_string(&mark).unwrap(); // it was written
        for (line, opens) in [
            ("", true),
            ("clo", true),
            ("closed ", true),
            ("closed 1", true),
            ("closed 0\n", true),
            ("\0\0\0", true),
            ("repai", true),
            ("repairing\n", false),
            ("repaiXing\n", false),
            ("clXsed 1\n", false),
            ("closed 1x\n", false),
        ] {
            std::fs::write(&mark, format!("{whole}{line}")).unwrap(); // as above
            let opened = open(dir.path(), StoreLimits::OF_A_TOOL).map(drop);
            assert_eq!(opened.is_ok(), opens, "with {line:?}: {opened:?}");
        }
    }
}
