//! Opening: finds out whose directory it is, locks it, and opens the database.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::codec::{META_CLOSED, META_GROUP};
use super::guard::groups::{GroupRecord, GroupState, Groups, RECORD_LEN};
use super::guard::keyspaces::{self, KEYSPACES};
use super::guard::names::{self, Aside};
use super::guard::{self, DATABASE, Findings};
use super::{Fatal, Store, StoreLimits, describe, journal};

/// The file that says whose directory it is, and that is locked while it is open.
pub const MARK: &str = "dormouse";
const MAGIC: &str = "dormouse disk pool, format ";
const FORMAT: u32 = 4;
/// The line of the mark that stands there once the database is whole.
const MADE: &str = "made\n";

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
    /// Whether the database was whole once: from then on, what is missing is damage.
    made: bool,
    /// What the last orderly close left here, if nobody has opened the directory since.
    closed: Option<u64>,
    /// The same, as it was found.
    was_closed: Option<u64>,
}

impl Mark {
    /// The number of the last commit before this open, if the store was closed in order.
    pub fn was_closed(&self) -> Option<u64> {
        self.was_closed
    }

    /// Writes the line that is always there, and those that say how far it came.
    fn write(&mut self) -> std::io::Result<()> {
        let made = if self.made { MADE } else { "" };
        let closed = self.closed.map_or(String::new(), |number| format!("closed {number}\n"));
        let text = format!("{MAGIC}{FORMAT}\n{made}{closed}");
        self.file.rewind()?;
        self.file.write_all(text.as_bytes())?;
        self.file.set_len(text.len() as u64)?;
        self.file.sync_all()
    }

    /// Notes that there is no database any more, or that there is a whole one.
    pub fn write_made(&mut self, made: bool) -> std::io::Result<()> {
        (self.made, self.closed) = (made, None);
        self.write()
    }

    /// Notes what the last commit was: a journal that ends before it has lost something.
    pub fn close(&mut self, number: u64) -> std::io::Result<()> {
        self.closed = Some(number);
        self.write()
    }
}

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

/// What is known of the groups; `None` if the database was never whole, so that it holds nothing.
pub fn state(path: &Path, mark: &Mark) -> Result<Option<GroupState>, OpenError> {
    match GroupState::read(path) {
        Ok(Some(state)) => Ok(Some(state)),
        Ok(None) if mark.made => {
            Err(OpenError::Damaged(path.to_owned(), "the file groups is missing".to_owned()))
        }
        Err(e) if e.kind() == ErrorKind::InvalidData && mark.made => {
            Err(OpenError::Damaged(path.to_owned(), e.to_string()))
        }
        Err(e) if e.kind() != ErrorKind::InvalidData => Err(OpenError::Io(path.to_owned(), e)),
        _ => Ok(None),
    }
}

/// Opens `path`, made if it is not there.
pub fn open(path: &Path, limits: StoreLimits) -> Result<(Store, Mark), OpenError> {
    let io = |e| OpenError::Io(path.to_owned(), e);
    let damaged = |reason| OpenError::Damaged(path.to_owned(), reason);
    let mut mark = lock(path)?;
    let database = path.join(DATABASE);
    let (state, findings) = match state(path, &mark)? {
        Some(state) => {
            let findings = guard::judge(path, &state).map_err(io)?;
            if !findings.damage.is_empty() {
                return Err(damaged(findings.summary()));
            }
            Aside::new(path).and_then(|mut aside| findings.prepare(path, &mut aside)).map_err(io)?;
            if mark.closed.is_none() {
                journal::rewrite(&database).map_err(io)?;
            }
            (state, findings)
        }
        None => {
            if database.exists() {
                // Nobody was ever answered for what is in it.
                Aside::new(path).and_then(|mut aside| aside.take(&database)).map_err(io)?;
            }
            (GroupState::new(), Findings::default())
        }
    };
    let store = open_whole(path, limits, state, &findings)?;
    mark.was_closed = mark.closed;
    if !mark.made || mark.closed.is_some() {
        if let Some(number) = mark.closed {
            let found = store.number(META_CLOSED).map_err(|Fatal(reason)| damaged(reason))?;
            if found != Some(number) {
                return Err(damaged("its last commits are missing".to_owned()));
            }
        }
        mark.write_made(true).map_err(io)?;
    }
    Ok((store, mark))
}

/// Opens the database in a directory that was found undamaged.
pub fn open_whole(
    path: &Path,
    limits: StoreLimits,
    mut state: GroupState,
    findings: &Findings,
) -> Result<Store, OpenError> {
    let io = |e| OpenError::Io(path.to_owned(), e);
    let database = path.join(DATABASE);
    let store = Store::open(path, limits, |meta| {
        let stored = match meta.get(META_GROUP)? {
            Some(value) => {
                let value: Result<[u8; RECORD_LEN], _> = value.as_ref().try_into();
                value.map(|value| GroupRecord::read(&value)).map_err(|_| fjall::Error::Unrecoverable)?
            }
            None => GroupRecord::default(),
        };
        if state.base == GroupState::BEHIND_ALL {
            state.base = stored.number.saturating_add(2);
            state.first = state.base;
        }
        // The batches before a repair have the numbers below.
        let base = GroupRecord { number: state.base - 1, ..GroupRecord::default() };
        let last = if stored.number < base.number { base } else { stored };
        Ok(Groups::open(path, state, last)?)
    })
    .map_err(|e| match e {
        fjall::Error::Locked => OpenError::Locked(path.to_owned()),
        fjall::Error::Io(e) => OpenError::Io(path.to_owned(), e),
        other => OpenError::Damaged(path.to_owned(), describe(&other)),
    })?;
    let last = store.groups.last();
    let expected = findings.last.map_or(findings.synced, |last| last.number);
    if last < expected || (findings.last.is_some() && last != expected) {
        let reason = format!("it ends with group {last} of requests, not with {expected}");
        return Err(OpenError::Damaged(path.to_owned(), reason));
    }
    sync_names(path, &database).map_err(io)?;
    let keyspaces = keyspaces::list(&database).map_err(io)?.0.into_iter().collect();
    let seqno = store.db.seqno();
    // fjall has synced the journals.
    let now =
        |state: &mut GroupState| (state.keyspaces, state.synced, state.seqno) = (keyspaces, last, seqno);
    store.groups.change(now).map_err(io)?;
    names::sync(path).map_err(io)?;
    names::link_journals(path, &database, &store.groups).map_err(io)?;
    // Also those that a process gave them which was killed before it synced.
    if path.join(names::SECOND).exists() {
        names::sync(&path.join(names::SECOND)).map_err(io)?;
    }
    Ok(store)
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
    file.try_lock().map_err(|e| match e {
        TryLockError::WouldBlock => OpenError::Locked(path.to_owned()),
        TryLockError::Error(e) => io(e),
    })?;
    let mut bytes = Vec::new();
    (&file).take(256).read_to_end(&mut bytes).map_err(io)?;
    let mut mark = Mark { file, made: false, closed: None, was_closed: None };
    if bytes.iter().all(|byte| *byte == 0) && empty {
        // New, or a start that was cut off before the mark was on disk: a power cut may leave its length and
        // not its bytes.
        mark.write().map_err(io)?;
        File::open(path).and_then(|dir| dir.sync_all()).map_err(io)?;
        return Ok(mark);
    }
    let text = String::from_utf8_lossy(&bytes);
    let (first, rest) = text.split_once('\n').unwrap_or((&text, ""));
    let format = first.strip_prefix(MAGIC).and_then(|format| format.parse::<u32>().ok());
    let format = format.ok_or_else(|| OpenError::NotOurs(path.to_owned()))?;
    let closed = match (format, rest.strip_prefix(MADE)) {
        (FORMAT, Some(closed)) => {
            mark.made = true;
            closed
        }
        // A start that was cut off while it wrote that line.
        (FORMAT, None) if MADE.starts_with(rest.trim_end_matches('\0')) => "",
        (FORMAT, None) => {
            let reason = format!("the file {MARK} is not what was written");
            return Err(OpenError::Damaged(path.to_owned(), reason));
        }
        (format, _) if format > FORMAT => return Err(OpenError::Newer(path.to_owned(), format)),
        (format, _) => return Err(OpenError::Older(path.to_owned(), format)),
    };
    // A line that was cut off says nothing: the store is opened as after a crash.
    mark.closed = closed.strip_suffix('\n').and_then(|line| line.strip_prefix("closed ")?.parse().ok());
    Ok(mark)
}
