//! The mark of a directory: the file that records its owner, format and state, and is locked while the directory is
//! open. Also the reasons why a directory cannot be opened. Independent of trees and log.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::durable::sync;

/// Name of the mark.
pub const MARK: &str = "dormouse";
const MAGIC: &str = "dormouse disk pool, format ";
pub const FORMAT: u32 = 10;
/// Line of the mark once the store has been created completely.
const MADE: &str = "made\n";
/// Prefix of the line written by a clean shutdown, followed by the number of the last group.
const CLOSED: &str = "closed ";

/// Number of attempts to take a lock held by another process.
const LOCK_TRIES: u32 = 5;
/// The same if only checks hold it, each for a moment: 10 s.
const CHECK_TRIES: u32 = 1000;
/// Pause between attempts.
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// Why a directory cannot be opened. Each message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("{0} is in use by another process: stop it, or give this one a directory of its own")]
    Locked(PathBuf),
    #[error("{0} was written by a newer version (format {1}, this one reads {FORMAT}): run that version")]
    Newer(PathBuf, u32),
    #[error(
        "{0} was written before the first release (format {1}, this one reads {FORMAT}): move it elsewhere"
    )]
    Older(PathBuf, u32),
    #[error("{0} is not empty and not a dormouse directory: choose an empty one")]
    NotOurs(PathBuf),
    #[error(
        "{0} is damaged ({1}): restore it from a backup, or open it without the damaged parts: \
         dormouse repair --accept-loss {0}"
    )]
    Damaged(PathBuf, String),
    #[error("{0} was not repaired, and is unchanged: {1}")]
    NotRepaired(PathBuf, String),
    #[error("{0} cannot be opened: {1}")]
    Io(PathBuf, #[source] std::io::Error),
}

/// The mark of an open directory. Holding it locks the directory.
#[derive(Debug)]
pub struct Mark {
    file: File,
    said: Said,
    /// The last group recorded by a clean shutdown, as of opening.
    was_closed: Option<u64>,
}

/// Contents of a mark.
#[derive(Debug, Default)]
pub struct Said {
    /// Whether the store has been created completely; from then on, missing files are corruption.
    pub made: bool,
    /// The last group, if the last shutdown was clean and the store has not been opened since.
    pub closed: Option<u64>,
}

impl Mark {
    /// Returns the current contents.
    pub fn said(&self) -> &Said {
        &self.said
    }

    /// Returns the last group before this open, if the shutdown was clean.
    pub fn was_closed(&self) -> Option<u64> {
        self.was_closed
    }

    /// Writes the format line and the state lines.
    fn write(&mut self) -> std::io::Result<()> {
        let made = if self.said.made { MADE } else { "" };
        let closed = self.said.closed.map_or(String::new(), |number| format!("{CLOSED}{number}\n"));
        let text = format!("{MAGIC}{FORMAT}\n{made}{closed}");
        self.file.rewind()?;
        self.file.write_all(text.as_bytes())?;
        self.file.set_len(text.len() as u64)?;
        self.file.sync_all()
    }

    /// Records that the store is open: created completely, and not cleanly shut down.
    pub fn write_opened(&mut self) -> std::io::Result<()> {
        self.was_closed = self.said.closed;
        if !self.said.made || self.said.closed.is_some() {
            (self.said.made, self.said.closed) = (true, None);
            return self.write();
        }
        Ok(())
    }

    /// Records the last group on a clean shutdown: a log that ends earlier has lost groups.
    pub fn close(&mut self, number: u64) -> std::io::Result<()> {
        self.said.closed = Some(number);
        self.write()
    }
}

/// Writes the mark of a copy: created completely, not cleanly shut down.
pub fn write_mark_of_copy(path: &Path) -> std::io::Result<()> {
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path.join(MARK))?;
    Mark { file, said: Said { made: true, ..Said::default() }, was_closed: None }.write()?;
    sync(path)
}

/// Creates the directory and locks it.
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
            "the data directory is accessible to other users: chmod it to 700"
        );
    }
    read_mark(path)
}

/// Locks and reads the mark, or creates it in an empty directory.
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
    let bytes = read_locked(path, &file)?;
    let mut mark = Mark { file, said: Said::default(), was_closed: None };
    if is_blank(&bytes) && empty {
        // New, or a start was interrupted before the mark was durable: a power cut may leave its length without its
        // bytes.
        mark.write().map_err(io)?;
        sync(path).map_err(io)?;
        return Ok(mark);
    }
    mark.said = Said::parse(path, &bytes)?;
    // The mark may not be durable: its writer was killed before the sync, or the sync failed, and then no later sync
    // writes the contents of the page cache. A power cut would then restore the previous mark, which may describe
    // another state: never created, or shut down before the last jobs arrived. So it is written again.
    mark.write().map_err(io)?;
    Ok(mark)
}

/// Locks a mark and reads it.
fn read_locked(path: &Path, file: &File) -> Result<Vec<u8>, OpenError> {
    let io = |e| OpenError::Io(path.to_owned(), e);
    let mut tries = 0;
    while let Err(e) = file.try_lock() {
        match e {
            TryLockError::WouldBlock => {
                let most = if is_checked(file).map_err(io)? { CHECK_TRIES } else { LOCK_TRIES };
                if tries >= most {
                    return Err(OpenError::Locked(path.to_owned()));
                }
                std::thread::sleep(LOCK_PAUSE);
            }
            TryLockError::Error(e) => return Err(io(e)),
        }
        tries += 1;
    }
    let mut bytes = Vec::new();
    file.take(256).read_to_end(&mut bytes).map_err(io)?;
    Ok(bytes)
}

/// Whether a locked mark is locked by `dormouse check`, which shares its lock. A server does not.
fn is_checked(file: &File) -> std::io::Result<bool> {
    match file.try_lock_shared() {
        Ok(()) => file.unlock().map(|()| true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(e)) => Err(e),
    }
}

/// Returns whether a mark was never written.
fn is_blank(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

/// Locks an existing directory without changing it, even on a disk that has turned read-only. The lock is held by the
/// file.
pub fn lock_unchanged(path: &Path) -> Result<(File, Said), OpenError> {
    let mark = path.join(MARK);
    // A network file system locks only files that are open for writing.
    let opened = OpenOptions::new().read(true).write(true).open(&mark).or_else(|_| File::open(&mark));
    let file = opened.map_err(|e| match e.kind() {
        ErrorKind::NotFound => OpenError::NotOurs(path.to_owned()),
        _ => OpenError::Io(path.to_owned(), e),
    })?;
    let bytes = read_locked(path, &file)?;
    let is_empty = std::fs::read_dir(path).is_ok_and(|entries| entries.count() == 1);
    let said = if is_blank(&bytes) && is_empty { Said::default() } else { Said::parse(path, &bytes)? };
    Ok((file, said))
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
        let damaged = || OpenError::Damaged(path.to_owned(), format!("the file {MARK} is corrupt"));
        let (made, rest) = match rest.strip_prefix(MADE) {
            Some(rest) => (true, rest),
            // A start was interrupted while it wrote this line.
            None if MADE.starts_with(rest.trim_end_matches('\0')) => (false, ""),
            None => return Err(damaged()),
        };
        // A truncated line is ignored: the store opens as after a crash.
        let line = rest.trim_end_matches('\0');
        let closed = line.strip_suffix('\n').and_then(|line| line.strip_prefix(CLOSED)?.parse().ok());
        let is_cut_off = || line.strip_prefix(CLOSED).is_some_and(|n| n.bytes().all(|n| n.is_ascii_digit()));
        if closed.is_none() && !CLOSED.starts_with(line) && !is_cut_off() {
            return Err(damaged());
        }
        Ok(Said { made, closed })
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
            ("repai", false),
            ("repairing\n", false),
            ("clXsed 1\n", false),
            ("closed 1x\n", false),
        ] {
            std::fs::write(&mark, format!("{whole}{line}")).unwrap(); // as above
            let opened = open(dir.path(), StoreLimits::OF_A_TOOL).map(drop);
            assert_eq!(opened.is_ok(), opens, "with {line:?}: {opened:?}");
        }
    }
}
