//! Opening: finds out whose directory it is, locks it, opens the database, and rebuilds what the writer keeps
//! in memory from one walk over the keys of each list.

use std::collections::HashMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use super::clock::PoolClock;
use super::codec;
use super::core::{Core, FIRST_SEQ, META_CLOCK, META_CLOSED, META_NEWEST, META_SEQ, Windows};
use super::queues::{QueueState, Queues};
use super::store::{Fatal, Space, Store, Txn, describe};
use super::timers::Timers;
use super::tokens::Tokens;
use crate::clock::Clock;
use crate::job::JobId;
use crate::name::Queue;

/// The file that says whose directory it is, and that is locked while it is open.
const MARK: &str = "dormouse";
/// The database, beside it.
const DATABASE: &str = "db";
/// Where fjall keeps its keyspaces, in the database.
const KEYSPACES: &str = "keyspaces";
const MAGIC: &str = "dormouse disk pool, format ";
const FORMAT: u32 = 2;

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
    #[error("{0} is damaged ({1}): restore it from a copy, or move it away and begin with an empty one")]
    Damaged(PathBuf, String),
    #[error("{0} cannot be opened: {1}")]
    Io(PathBuf, #[source] std::io::Error),
}

/// The mark in an open directory: who holds it holds the directory.
#[derive(Debug)]
pub(super) struct Mark {
    file: File,
    /// What the last orderly close left here, if nobody has opened the directory since.
    closed: Option<u64>,
}

impl Mark {
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
    pub(super) fn close(&mut self, number: u64) -> std::io::Result<()> {
        self.closed = Some(number);
        self.write()
    }
}

/// Opens `path`, made if it is not there.
pub(super) fn open(path: &Path) -> Result<(Store, Mark), OpenError> {
    let io = |e| OpenError::Io(path.to_owned(), e);
    std::fs::create_dir_all(path).map_err(io)?;
    let mut mark = mark(path)?;
    let database = path.join(DATABASE);
    if mark.closed.is_none() && was_never_complete(&database).map_err(io)? {
        std::fs::remove_dir_all(&database).map_err(io)?;
    }
    let store = Store::open(&database).map_err(|e| match e {
        fjall::Error::Locked => OpenError::Locked(path.to_owned()),
        fjall::Error::Io(e) => OpenError::Io(path.to_owned(), e),
        other => OpenError::Damaged(path.to_owned(), describe(&other)),
    })?;
    sync_names(path, &database).map_err(io)?;
    if let Some(number) = mark.closed {
        let damaged = |reason| OpenError::Damaged(path.to_owned(), reason);
        let found = number_in(&store, META_CLOSED).map_err(|Fatal(reason)| damaged(reason))?;
        if found != Some(number) {
            return Err(damaged("its last commits are missing".to_owned()));
        }
        mark.closed = None;
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

fn number_in(store: &Store, key: &[u8]) -> Result<Option<u64>, Fatal> {
    Ok(store.get(Space::Meta, key)?.map(|value| codec::read_number(&value)).transpose()?)
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
    let file =
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(file).map_err(io)?;
    file.try_lock().map_err(|e| match e {
        TryLockError::WouldBlock => OpenError::Locked(path.to_owned()),
        TryLockError::Error(e) => io(e),
    })?;
    let mut bytes = Vec::new();
    (&file).take(256).read_to_end(&mut bytes).map_err(io)?;
    let mut mark = Mark { file, closed: None };
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
        Some(FORMAT) => {}
        Some(version) if version > FORMAT => return Err(OpenError::Newer(path.to_owned(), version)),
        Some(version) => return Err(OpenError::Older(path.to_owned(), version)),
        None => return Err(OpenError::NotOurs(path.to_owned())),
    }
    // A second line that was cut off says nothing: the store is opened as after a crash.
    let closed = text.ends_with('\n').then(|| lines.next()).flatten();
    mark.closed = closed.and_then(|line| line.strip_prefix("closed ")?.parse().ok());
    Ok(mark)
}

/// Rebuilds the writer's state.
pub(super) fn load(store: Store, clock: Arc<dyn Clock>, windows: Windows) -> Result<Core, Fatal> {
    let seq = number_in(&store, META_SEQ)?.unwrap_or(FIRST_SEQ);
    let clock_mark = number_in(&store, META_CLOCK)?.unwrap_or(0);
    let clock = PoolClock::new(clock, clock_mark);
    if clock.ahead() > 0 {
        let ahead_ms = clock.ahead() / 1000;
        tracing::warn!(
            ahead_ms,
            "the machine's clock is behind the store's; the store's goes on from where it was"
        );
    }
    let newest = match store.get(Space::Meta, META_NEWEST)? {
        Some(value) => codec::read_newest(&value)?,
        None => JobId::from_bytes([0; 16], false),
    };
    let tokens = Arc::new(Mutex::new(Tokens::load(&store)?));
    let mut core = Core {
        txn: Txn::new(store.clone()),
        clock,
        windows,
        queues: Queues::default(),
        timers: Timers::default(),
        tokens,
        seq: (seq, seq),
        clock_mark,
        newest,
        newest_mark: newest,
        next_due: Arc::default(),
        sweep: Default::default(),
        ring: Default::default(),
        must_sync: false,
    };
    for item in store.all(Space::Queues) {
        let queue = codec::read_queue_key(&item?.0)?;
        let low = core.next_seq();
        let state = QueueState::new(&queue, low);
        core.queues.insert(queue, state);
    }
    count_list(&mut core, &store, Space::Ready, |q, count, first| q.recover(count, first))?;
    count_list(&mut core, &store, Space::Dead, |q, count, first| {
        q.dead = count;
        q.dead_from = first;
    })?;
    load_timers(&mut core, &store)?;
    core.count_garbage();
    let now = core.clock.now_micros();
    for queue in core.queue_names() {
        core.queues.note_idle(&queue, now);
    }
    Ok(core)
}

/// Counts the entries of each queue in a list, and notes the number of the first.
fn count_list(
    core: &mut Core,
    store: &Store,
    space: Space,
    done: impl Fn(&mut QueueState, u64, u64),
) -> Result<(), Fatal> {
    let mut run: Option<(Vec<u8>, u64, u64)> = None;
    let end = |core: &mut Core, run: Option<(Vec<u8>, u64, u64)>| -> Result<(), Fatal> {
        if let Some((prefix, count, first)) = run {
            let queue = codec::read_queue_key(&prefix)?;
            done(core.queue(&queue), count, first);
        }
        Ok(())
    };
    for key in store.keys(space) {
        let key = key?;
        let (prefix, seq) = codec::split_list_key(&key)?;
        match &mut run {
            Some((same, count, _)) if same == prefix => *count += 1,
            _ => end(core, run.replace((prefix.to_vec(), 1, seq)))?,
        }
    }
    end(core, run)
}

/// Counts the timers of each queue, and takes the running ones into memory.
fn load_timers(core: &mut Core, store: &Store) -> Result<(), Fatal> {
    let mut delayed = 0;
    // By prefix: nothing is allocated for a timer of a queue that was met before.
    let mut queues: HashMap<Vec<u8>, (Queue, u64)> = HashMap::new();
    for space in [Space::Delayed, Space::Running] {
        for item in store.all(space) {
            let (key, value) = item?;
            let (prefix, entry) = codec::split_timer_value(&value)?;
            if !queues.contains_key(prefix) {
                let queue = core.queues.shared(codec::read_queue_key(prefix)?);
                queues.insert(prefix.to_vec(), (queue, 0));
            }
            let Some((queue, count)) = queues.get_mut(prefix) else { continue };
            *count += 1;
            if space == Space::Running {
                core.timers.run(codec::read_timer_key(&key)?, queue.clone(), entry);
            } else {
                delayed += 1;
            }
        }
    }
    for (queue, count) in queues.into_values() {
        core.queue(&queue).timers = count;
    }
    core.timers.recover(delayed);
    core.refill_delayed()
}
