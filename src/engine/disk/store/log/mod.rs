//! The log: what was committed, in the order in which it was, until tables have it. Knows groups as bytes, and nothing
//! of keys, tables or jobs.
//!
//! - [`group`] are the bytes of one commit, [`manifest`] says which files there are, [`judge`] what is damaged.
//! - The writer [`append`](Log::append)s. What was appended has survived the process; what was
//!   appended before a [`sync`](Log::sync) began has survived the machine when it ends.
//! - [`tend`](Log::tend) is for a thread beside the writer. It makes files ahead, with their blocks written, so that a
//!   sync has nothing to write but the groups; and uses those again that are needed no more.
//!
//! All files have one size. Each has a number of its own, its slot, and is written in turns: a turn begins with a head,
//! and what is left of an earlier turn behind the last group has lower numbers than that.

pub mod group;
pub mod judge;
pub mod manifest;
pub mod slots;
pub mod start;

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::Result;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use self::group::{Draft, FILE_HEAD, FileHead, Group};
use self::judge::Findings;
pub use self::manifest::DIR;
use self::manifest::Manifest;
use self::slots::{AHEAD, FILE, Spare};
use super::durable::{self, is_full};

/// The log of an open store.
#[derive(Debug)]
pub struct Log {
    dir: PathBuf,
    pool: u64,
    tail: Mutex<Tail>,
    /// Files with groups that may not be synced, the current one last. They stay open until they are, so that no
    /// failed write goes unnoticed: the system tells each open file of it once.
    dirty: Mutex<Vec<Arc<File>>>,
    /// The last group that is synced,
    synced: AtomicU64,
    /// and the last one of which the manifest says so.
    noted: AtomicU64,
    /// Where the next group goes in the current file, for who makes it ready.
    at: AtomicU64,
    files: Mutex<Files>,
    /// Held while the manifest is written.
    writing: Mutex<()>,
    /// Held while a file that has groups is synced; why a sync has failed. The system tells of it once, and who syncs next
    /// must hear of it too.
    failed: Mutex<Option<String>>,
}

/// Where the next group goes.
#[derive(Debug)]
struct Tail {
    file: Arc<File>,
    at: u64,
    /// The file is ready at least up to here.
    ready: u64,
    last: Group,
}

/// The files.
#[derive(Debug)]
struct Files {
    used: VecDeque<Used>,
    /// The current file, with blocks up to `ready`.
    current: Spare,
    /// Stands in the manifest already, behind those that are used.
    next: Option<Spare>,
    spare: Option<Spare>,
    /// The first slot that no file has.
    free: u32,
    /// What stands before this group is needed no more.
    first: u64,
}

/// A file with groups.
#[derive(Debug)]
struct Used {
    slot: u32,
    turn: u64,
    /// The first group in it.
    first: u64,
}

impl Files {
    fn listed(&self) -> Vec<(u32, u64)> {
        let used = self.used.iter().map(|used| (used.slot, used.turn));
        used.chain(self.next.iter().map(|next| (next.slot, self.turn() + 1))).collect()
    }

    /// How many of the first files have no group from `first` on: a file is over where the next one begins.
    fn over(&self, first: u64) -> usize {
        self.used.iter().skip(1).take_while(|next| next.first <= first).count()
    }

    /// The turn of the current file.
    fn turn(&self) -> u64 {
        self.used.back().map_or(0, |used| used.turn)
    }
}

impl Log {
    /// Makes a log without groups in `dir`, which must be there and hold none. Its first group has the number `first`,
    /// and its files begin with this turn.
    pub fn create(dir: &Path, first: u64, turn: u64) -> Result<()> {
        let pool = std::hash::BuildHasher::hash_one(&std::collections::hash_map::RandomState::new(), DIR);
        let file = slots::create(dir, 0)?.file;
        file.write_all_at(&FileHead { pool, turn, first }.to_bytes(), 0)?;
        file.sync_all()?;
        durable::sync(dir)?;
        Manifest { pool, first, synced: first - 1, files: vec![(0, turn)] }.write(dir)
    }

    /// Opens a log in which nothing is damaged, to go on behind its last group. All that it holds must be synced.
    pub fn open(dir: &Path, manifest: &Manifest, findings: &Findings) -> Result<Log> {
        let ((current, at), pool) = (findings.end, manifest.pool);
        let files = manifest.files.iter().zip(&findings.firsts);
        let used: VecDeque<_> = files.map(|(&(slot, turn), &first)| Used { slot, turn, first }).collect();
        let Used { slot, turn, first } = used[current];
        if findings.end == (0, FILE_HEAD) {
            // A power cut may have torn the begin of the only file: what stood before it is in tables.
            slots::write(dir, slot, 0, &FileHead { pool, turn, first }.to_bytes())?;
        }
        let current = slots::open_spare(dir, slot)?;
        let mut extra = slots::list(dir)?;
        let free = extra.iter().max().map_or(0, |slot| slot + 1);
        extra.retain(|slot| used.iter().all(|used| used.slot != *slot));
        let spare = extra.pop().map(|slot| slots::open_again(dir, slot)).transpose()?;
        let (file, ready, at) = (current.file.clone(), current.ready, at as u64);
        let log = Log {
            dir: dir.to_owned(),
            pool,
            at: AtomicU64::new(at),
            dirty: Mutex::new(vec![file.clone()]),
            tail: Mutex::new(Tail { file, at, ready, last: findings.last }),
            synced: AtomicU64::new(findings.last.number),
            noted: AtomicU64::new(0),
            files: Mutex::new(Files { used, current, next: None, spare, free, first: manifest.first }),
            writing: Mutex::default(),
            failed: Mutex::default(),
        };
        match log.provide_next() {
            // From here on the manifest names none of these.
            Ok(()) => extra.iter().try_for_each(|slot| fs::remove_file(dir.join(slot.to_string())))?,
            // Whoever has no room must be able to open the store and drain it.
            Err(e) if is_full(&e) => tracing::warn!(error = %e, "no room for the next file of the log"),
            Err(e) => return Err(e),
        }
        Ok(log)
    }

    /// The number of the last group.
    pub fn last(&self) -> u64 {
        self.tail.lock().last.number
    }

    /// How many files hold groups that may be needed.
    pub fn used(&self) -> usize {
        self.files.lock().used.len()
    }

    /// The first group of the newer half of the files that hold groups, where there are more than `most`.
    pub fn too_old(&self, most: usize) -> Option<u64> {
        let files = self.files.lock();
        (files.used.len() > most)
            .then(|| files.used.get(files.used.len() / 2).map(|used| used.first))
            .flatten()
    }

    /// Bytes on disk, those of files ahead included.
    pub fn disk_bytes(&self) -> u64 {
        let files = self.files.lock();
        let ahead = files.spare.iter().chain(&files.next).map(|spare| spare.ready);
        (files.used.len() as u64 - 1) * FILE + files.current.ready + ahead.sum::<u64>()
    }

    /// Appends a group, and answers its number. It has survived the process then. After an error nothing may be
    /// appended any more.
    pub fn append(&self, draft: &mut Draft) -> Result<u64> {
        let tail = &mut *self.tail.lock();
        let number = tail.last.number + 1;
        let (synced, previous) = (self.synced.load(Ordering::Acquire), tail.last.check);
        let (bytes, check) = draft.seal(self.pool, number, synced, previous);
        let end = tail.at + bytes.len() as u64;
        if end > FILE && tail.at > FILE_HEAD as u64 {
            let head = self.turn_over(tail, number)?;
            tail.at = (FILE_HEAD + bytes.len()) as u64;
            self.taken(tail, tail.at);
            tail.file.write_all_at(&[&head, bytes].concat(), 0)?;
        } else {
            self.taken(tail, end);
            tail.file.write_all_at(bytes, tail.at)?;
            tail.at = end;
        }
        self.at.store(tail.at, Ordering::Relaxed);
        tail.last = Group { number, synced, previous, check };
        draft.clear();
        Ok(number)
    }

    /// Says that the current file is written up to `end`: nobody else writes there.
    fn taken(&self, tail: &mut Tail, end: u64) {
        if end > tail.ready {
            let mut files = self.files.lock();
            files.current.ready = files.current.ready.max(end);
            tail.ready = files.current.ready;
        }
    }

    /// Begins the next file. Answers its head, which goes with its first group.
    fn turn_over(&self, tail: &mut Tail, first: u64) -> Result<[u8; FILE_HEAD]> {
        loop {
            let mut files = self.files.lock();
            let Some(next) = files.next.take() else {
                drop(files);
                self.provide_next()?;
                continue;
            };
            let turn = files.turn() + 1;
            files.used.push_back(Used { slot: next.slot, turn, first });
            (tail.file, tail.ready) = (next.file.clone(), next.ready);
            self.dirty.lock().push(next.file.clone());
            files.current = next;
            return Ok(FileHead { pool: self.pool, turn, first }.to_bytes());
        }
    }

    /// Makes everything appended so far survive the machine. Once it has failed it must not be tried again: the system
    /// may have forgotten what it did not write.
    pub fn sync(&self) -> Result<()> {
        let last = self.last();
        let files = self.dirty.lock().clone();
        for file in &files {
            self.sync_file(file)?;
        }
        if let [older @ .., _] = &files[..]
            && !older.is_empty()
        {
            self.dirty.lock().retain(|file| !older.iter().any(|older| Arc::ptr_eq(older, file)));
        }
        self.synced.fetch_max(last, Ordering::AcqRel);
        Ok(())
    }

    fn sync_file(&self, file: &File) -> Result<()> {
        let mut failed = self.failed.lock();
        match &*failed {
            Some(why) => Err(std::io::Error::other(why.clone())),
            None => file.sync_data().inspect_err(|e| *failed = Some(e.to_string())),
        }
    }

    /// Makes the groups up to this one survive the machine, and notes that they have: a table may have their entries
    /// from now on, and a log that ends before them is damaged.
    pub fn secure(&self, group: u64) -> Result<()> {
        if self.noted.load(Ordering::Acquire) >= group {
            return Ok(());
        }
        if self.synced.load(Ordering::Acquire) < group {
            self.sync()?;
        }
        self.rewrite_manifest(0).map(drop)
    }

    /// Notes what is synced, where no later group may say so: one that is not synced itself may be lost. Until then damage
    /// to it looks like an end that a power cut tore.
    pub fn attest(&self) -> Result<()> {
        self.secure(self.synced.load(Ordering::Acquire))
    }

    /// Whether [`tend`](Log::tend) should be called soon.
    pub fn wants_tending(&self) -> bool {
        // Whoever holds the files tends them, or will be done at once: then the next commit asks.
        self.files.try_lock().is_some_and(|files| files.next.is_none() || self.is_short(&files))
    }

    /// Whether the current file has few blocks ahead.
    fn is_short(&self, files: &Files) -> bool {
        let ready = files.current.ready;
        ready < FILE && ready < self.at.load(Ordering::Relaxed) + AHEAD / 2
    }

    /// Makes files ready ahead of the writer, and uses those again that are not needed for the groups from `first` on.
    pub fn tend(&self, first: u64) -> Result<()> {
        // First what gives room back.
        if self.files.lock().over(first) > 0 {
            self.forget(first)?;
        }
        if self.is_short(&self.files.lock()) {
            // Twice as many as were used: a file that is hardly written stays small.
            let most = (2 * self.at.load(Ordering::Relaxed)).next_multiple_of(AHEAD).min(FILE);
            while self.add_blocks(most, |files| Some(&mut files.current))? {}
        }
        self.provide_next()?;
        if self.at.load(Ordering::Relaxed) > FILE / 2 {
            while self.add_blocks(FILE, |files| files.next.as_mut())? {}
        }
        Ok(())
    }

    /// Gives a file some more blocks, up to `most`. Answers whether it did.
    fn add_blocks(&self, most: u64, of: impl Fn(&mut Files) -> Option<&mut Spare>) -> Result<bool> {
        let mut files = self.files.lock();
        let Some(file) = of(&mut files).filter(|file| file.ready < most) else { return Ok(false) };
        let len = AHEAD.min(FILE - file.ready);
        // Under the lock, since the writer may come to these bytes.
        file.file.write_all_at(&[0; AHEAD as usize][..len as usize], file.ready)?;
        file.ready += len;
        let file = file.file.clone();
        drop(files);
        self.sync_file(&file)?;
        Ok(true)
    }

    /// Sees to it that there is a next file, and that the manifest names it.
    fn provide_next(&self) -> Result<()> {
        let _writing = self.writing.lock();
        let files = self.files.lock();
        if files.next.is_some() {
            return Ok(());
        }
        let (spare, free, turn) = (files.spare.clone(), files.free, files.turn() + 1);
        let (first, mut listed) = (files.first, files.listed());
        drop(files);
        let next = match spare {
            Some(spare) => spare,
            None => {
                let next = slots::create(&self.dir, free)?;
                durable::sync(&self.dir)?;
                next
            }
        };
        listed.push((next.slot, turn));
        self.write_manifest(first, listed)?;
        // Only now: whoever has no room tries again with the same file.
        let mut files = self.files.lock();
        files.free = files.free.max(next.slot + 1);
        files.spare.take_if(|spare| spare.slot == next.slot);
        files.next = Some(next);
        Ok(())
    }

    /// For who holds `writing`.
    fn write_manifest(&self, first: u64, files: Vec<(u32, u64)>) -> Result<()> {
        let synced = self.synced.load(Ordering::Acquire);
        Manifest { pool: self.pool, first, synced, files }.write(&self.dir)?;
        self.noted.fetch_max(synced, Ordering::AcqRel);
        Ok(())
    }

    /// Writes the manifest anew: groups are needed from `first` on, if that is later. Answers the files that it names no
    /// more, since all their groups stand before.
    fn rewrite_manifest(&self, first: u64) -> Result<Vec<Used>> {
        let _writing = self.writing.lock();
        let files = self.files.lock();
        // With 0 none: whoever frees files says from where on groups are needed.
        let (over, first) = (files.over(first), files.first.max(first));
        let listed = files.listed().split_off(over);
        drop(files);
        self.write_manifest(first, listed)?;
        let mut files = self.files.lock();
        files.first = first;
        Ok(files.used.drain(..over).collect())
    }

    /// Forgets the groups before `first`, at once and for good: a start does not repeat them. Files that have no others are
    /// used again, or removed.
    pub fn forget(&self, first: u64) -> Result<()> {
        // An entry may be in no table for the sake of a later group that deletes it: that must not be lost, then. Before
        // the manifest is held, for which the writer may wait.
        self.sync()?;
        for used in self.rewrite_manifest(first)? {
            let freed = slots::open_again(&self.dir, used.slot)?;
            let mut files = self.files.lock();
            if files.spare.is_none() {
                files.spare = Some(freed);
            } else {
                drop(files);
                slots::remove(&self.dir, &freed.file, freed.slot)?;
            }
        }
        Ok(())
    }

    /// Copies what was appended so far into `to`, a directory that is empty, synced. Files must not be used again
    /// meanwhile.
    pub fn copy_to(&self, to: &Path) -> Result<()> {
        let (at, last, first, files) = {
            let tail = self.tail.lock();
            let files = self.files.lock();
            let used: Vec<_> = files.used.iter().map(|used| (used.slot, used.turn)).collect();
            (tail.at, tail.last.number, files.first, used)
        };
        for (n, (slot, _)) in files.iter().enumerate() {
            // What cannot be read is not copied as zeros.
            let mut bytes = fs::read(self.dir.join(slot.to_string()))?;
            if n + 1 == files.len() {
                bytes.truncate(at as usize);
            }
            slots::write(to, *slot, 0, &bytes)?;
        }
        durable::sync(to)?;
        Manifest { pool: self.pool, first, synced: last, files }.write(to)
    }
}

#[cfg(test)]
mod tests;
