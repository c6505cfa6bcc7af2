//! Opening: finds out whose directory it is, locks it, and opens the database.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::codec::META_CLOSED;
use super::{Fatal, Limits, Store, describe, journal};

/// The file that says whose directory it is, and that is locked while it is open.
const MARK: &str = "dormouse";
/// The database, beside it.
const DATABASE: &str = "db";
/// Where fjall keeps its keyspaces, in the database.
const KEYSPACES: &str = "keyspaces";
const MAGIC: &str = "dormouse disk pool, format ";
const FORMAT: u32 = 3;
/// The oldest format that is read. What it wrote reads as this one's; docs/disk-format.md says what is new.
const OLDEST: u32 = 2;

/// Why a directory cannot be opened. Each says what to do.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("{0} is in use by another process: stop it, or give this one a directory of its own")]
    Locked(PathBuf),
    #[error("{0} was written by a newer version (format {1}, this one reads {FORMAT}): run that version")]
    Newer(PathBuf, u32),
    #[error(
        "{0} was written before the first release (format {1}, this one reads {OLDEST} and {FORMAT}): move it away"
    )]
    Older(PathBuf, u32),
    #[error("{0} is not empty and not a dormouse directory: choose an empty one")]
    NotOurs(PathBuf),
    #[error("{0} is damaged ({1}): restore it from a copy, or move it away and begin with an empty one")]
    Damaged(PathBuf, String),
    #[error("{0} cannot be opened: {1}")]
    Io(PathBuf, #[source] std::io::Error),
}

/// The mark in an open directory: who holds it holds the directory.
#[derive(Debug)]
pub struct Mark {
    file: File,
    /// What the last orderly close left here, if nobody has opened the directory since.
    closed: Option<u64>,
    /// The same, as it was found.
    was_closed: Option<u64>,
    /// Whether it says that the directory has an older format.
    is_older: bool,
}

impl Mark {
    /// The number of the last commit before this open, if the store was closed in order.
    pub fn was_closed(&self) -> Option<u64> {
        self.was_closed
    }

    /// Writes the one line that is always there, and a second one after an orderly close.
    fn write(&mut self) -> std::io::Result<()> {
        let closed = self.closed.map_or(String::new(), |number| format!("closed {number}\n"));
        let text = format!("{MAGIC}{FORMAT}\n{closed}");
        self.file.rewind()?;
        self.file.write_all(text.as_bytes())?;
        self.file.set_len(text.len() as u64)?;
        self.file.sync_all()
    }

    /// Notes what the last commit was: a journal that ends before it has lost something.
    pub fn close(&mut self, number: u64) -> std::io::Result<()> {
        self.closed = Some(number);
        self.write()
    }
}

/// Opens `path`, made if it is not there.
pub fn open(path: &Path, limits: Limits) -> Result<(Store, Mark), OpenError> {
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
    let mut mark = mark(path)?;
    let database = path.join(DATABASE);
    if mark.closed.is_none() && was_never_complete(&database).map_err(io)? {
        std::fs::remove_dir_all(&database).map_err(io)?;
    }
    if mark.closed.is_none() && database.exists() {
        journal::rewrite(&database).map_err(io)?;
    }
    let store = Store::open(&database, limits).map_err(|e| match e {
        fjall::Error::Locked => OpenError::Locked(path.to_owned()),
        fjall::Error::Io(e) => OpenError::Io(path.to_owned(), e),
        other => OpenError::Damaged(path.to_owned(), describe(&other)),
    })?;
    sync_names(path, &database).map_err(io)?;
    if let Some(number) = mark.closed {
        let damaged = |reason| OpenError::Damaged(path.to_owned(), reason);
        let found = store.number(META_CLOSED).map_err(|Fatal(reason)| damaged(reason))?;
        if found != Some(number) {
            return Err(damaged("its last commits are missing".to_owned()));
        }
        mark.was_closed = mark.closed.take();
        mark.write().map_err(io)?;
    } else if mark.is_older {
        // Before anything is written that an older version would not understand.
        mark.write().map_err(io)?;
    }
    Ok((store, mark))
}

/// Whether there is a database whose making was cut off, so that it holds nothing. Before it makes the first
/// keyspace, fjall writes this file last and syncs it: where the file is not whole, there is no keyspace.
fn was_never_complete(database: &Path) -> std::io::Result<bool> {
    if !database.exists() {
        return Ok(false);
    }
    let version = match std::fs::read(database.join("version")) {
        Ok(version) => version,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(true),
        Err(e) => return Err(e),
    };
    // Four bytes, none of them zero.
    let is_whole = version.len() >= 4 && !version.contains(&0);
    let has_keyspaces = match std::fs::read_dir(database.join(KEYSPACES)) {
        Ok(mut keyspaces) => keyspaces.next().is_some(),
        Err(e) if e.kind() == ErrorKind::NotFound => false,
        Err(e) => return Err(e),
    };
    Ok(!is_whole && !has_keyspaces)
}

/// Makes the names last that the store relies on, whoever made them and when: a power cut may take a file whose
/// name was never synced, with all that was synced in it. fjall does not sync the names of its keyspaces.
fn sync_names(path: &Path, database: &Path) -> std::io::Result<()> {
    let sync = |dir: &Path| File::open(dir).and_then(|dir| dir.sync_all());
    for dir in [&database.join(KEYSPACES), database, path] {
        sync(dir)?;
    }
    // `path` may have been made with some of these. One that this process may not read was there before.
    for dir in path.canonicalize()?.ancestors().skip(1) {
        let _ = sync(dir);
    }
    Ok(())
}

/// Locks and reads the mark, or makes it in an empty directory.
fn mark(path: &Path) -> Result<Mark, OpenError> {
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
    file.try_lock().map_err(|e| match e {
        TryLockError::WouldBlock => OpenError::Locked(path.to_owned()),
        TryLockError::Error(e) => io(e),
    })?;
    let mut bytes = Vec::new();
    (&file).take(256).read_to_end(&mut bytes).map_err(io)?;
    let mut mark = Mark { file, closed: None, was_closed: None, is_older: false };
    if bytes.iter().all(|byte| *byte == 0) && empty {
        // New, or a start that was cut off before the mark was on disk: a power cut may leave its length and
        // not its bytes.
        mark.write().map_err(io)?;
        File::open(path).and_then(|dir| dir.sync_all()).map_err(io)?;
        return Ok(mark);
    }
    let text = String::from_utf8_lossy(&bytes);
    let mut lines = text.lines();
    let version = lines.next().and_then(|line| line.strip_prefix(MAGIC)?.parse::<u32>().ok());
    match version {
        Some(version @ OLDEST..=FORMAT) => mark.is_older = version < FORMAT,
        Some(version) if version > FORMAT => return Err(OpenError::Newer(path.to_owned(), version)),
        Some(version) => return Err(OpenError::Older(path.to_owned(), version)),
        None => return Err(OpenError::NotOurs(path.to_owned())),
    }
    // A second line that was cut off says nothing: the store is opened as after a crash.
    let closed = text.ends_with('\n').then(|| lines.next()).flatten();
    mark.closed = closed.and_then(|line| line.strip_prefix("closed ")?.parse().ok());
    Ok(mark)
}
