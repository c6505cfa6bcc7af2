//! The log: commits in order, until they are in tables. Treats groups as bytes; knows nothing of keys, tables or jobs.
//!
//! - [`group`] is the format of one commit, [`manifest`] lists the files, [`judge`] finds corruption.
//! - The writer calls [`append`](Log::append). An appended group survives a crash of the process; once a later
//!   [`sync`](Log::sync) has returned, it survives a power cut.
//! - [`tend`](Log::tend) runs on a thread beside the writer. It preallocates files, so that a sync writes nothing but
//!   groups, and reuses files that are no longer needed.
//!
//! All files have the same size. Each is identified by its slot and written in turns: a turn starts with a header, and
//! groups left from an earlier turn behind the last group have lower numbers than that header.

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
    /// Files with groups that may not be synced, the current one last. They stay open until they are, so that no failed
    /// write goes unnoticed: the kernel reports it once per open file.
    dirty: Mutex<Vec<Arc<File>>>,
    /// The last synced group.
    synced: AtomicU64,
    /// The last group recorded as synced in the manifest.
    noted: AtomicU64,
    /// Write offset in the current file, for the preallocating thread.
    at: AtomicU64,
    files: Mutex<Files>,
    /// Serializes writes of the manifest.
    writing: Mutex<()>,
    /// Serializes syncs and keeps the first sync error: the kernel reports it once per open file, and every later sync
    /// must fail too.
    failed: Mutex<Option<String>>,
}

/// Position of the next group.
#[derive(Debug)]
struct Tail {
    file: Arc<File>,
    at: u64,
    /// The file is preallocated at least up to here.
    ready: u64,
    last: Group,
}

/// Files of the log.
#[derive(Debug)]
struct Files {
    used: VecDeque<Used>,
    /// The current file, preallocated up to `ready`.
    current: Spare,
    /// Already in the manifest, after the files in use.
    next: Option<Spare>,
    spare: Option<Spare>,
    /// The lowest slot without a file.
    free: u32,
    /// The first group that is still needed.
    first: u64,
}

/// A file with groups.
#[derive(Debug)]
struct Used {
    slot: u32,
    turn: u64,
    /// Its first group.
    first: u64,
}

impl Files {
    fn listed(&self) -> Vec<(u32, u64)> {
        let used = self.used.iter().map(|used| (used.slot, used.turn));
        used.chain(self.next.iter().map(|next| (next.slot, self.turn() + 1))).collect()
    }

    /// Returns how many of the first files have no group from `first` on. A file ends where the next one starts.
    fn over(&self, first: u64) -> usize {
        self.used.iter().skip(1).take_while(|next| next.first <= first).count()
    }

    /// Returns the turn of the current file.
    fn turn(&self) -> u64 {
        self.used.back().map_or(0, |used| used.turn)
    }
}

impl Log {
    /// Creates an empty log in `dir`, an existing empty directory. `first` is the number of its first group.
    pub fn create(dir: &Path, first: u64) -> Result<()> {
        let turn = 1;
        let pool = std::hash::BuildHasher::hash_one(&std::collections::hash_map::RandomState::new(), DIR);
        let file = slots::create(dir, 0)?.file;
        file.write_all_at(&FileHead { pool, turn, first }.to_bytes(), 0)?;
        file.sync_all()?;
        durable::sync(dir)?;
        Manifest { pool, first, synced: first - 1, files: vec![(0, turn)] }.write(dir)
    }

    /// Opens an undamaged log for appending. All of its contents must be synced.
    pub fn open(dir: &Path, manifest: &Manifest, findings: &Findings) -> Result<Log> {
        let ((current, at), pool) = (findings.end, manifest.pool);
        let files = manifest.files.iter().zip(&findings.firsts);
        let used: VecDeque<_> = files.map(|(&(slot, turn), &first)| Used { slot, turn, first }).collect();
        let Used { slot, turn, first } = used[current];
        if findings.end == (0, FILE_HEAD) {
            // A power cut may have torn the header of the only file, whose earlier groups are in tables.
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
            // With a full disk, the store must still open so that it can be drained.
            Err(e) if is_full(&e) => {
                tracing::warn!(error = %e, "not enough disk space for the next log file")
            }
            Err(e) => return Err(e),
        }
        Ok(log)
    }

    /// Returns the number of the last group.
    pub fn last(&self) -> u64 {
        self.tail.lock().last.number
    }

    /// Returns the number of files with groups that may be needed.
    pub fn used(&self) -> usize {
        self.files.lock().used.len()
    }

    /// Returns the first group of the newer half of the files, if more than `most` files have groups.
    pub fn too_old(&self, most: usize) -> Option<u64> {
        let files = self.files.lock();
        (files.used.len() > most)
            .then(|| files.used.get(files.used.len() / 2).map(|used| used.first))
            .flatten()
    }

    /// Returns the bytes on disk, including preallocated files.
    pub fn disk_bytes(&self) -> u64 {
        let files = self.files.lock();
        let ahead = files.spare.iter().chain(&files.next).map(|spare| spare.ready);
        (files.used.len() as u64 - 1) * FILE + files.current.ready + ahead.sum::<u64>()
    }

    /// Appends a group and returns its number. The group then survives a crash of the process. After an error, nothing
    /// more may be appended.
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

    /// Records that the current file is written up to `end`, so that the preallocating thread does not write there.
    fn taken(&self, tail: &mut Tail, end: u64) {
        if end > tail.ready {
            let mut files = self.files.lock();
            files.current.ready = files.current.ready.max(end);
            tail.ready = files.current.ready;
        }
    }

    /// Switches to the next file. Returns its header, to be written with the first group.
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

    /// Makes everything appended so far durable. After an error it must not be retried: the kernel may have dropped the
    /// unwritten pages.
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

    /// Makes the groups up to `group` durable and records this in the manifest: from then on tables may contain their
    /// entries, and a log that ends earlier is corrupt.
    pub fn secure(&self, group: u64) -> Result<()> {
        if self.noted.load(Ordering::Acquire) >= group {
            return Ok(());
        }
        if self.synced.load(Ordering::Acquire) < group {
            self.sync()?;
        }
        self.rewrite_manifest(0).map(drop)
    }

    /// Records the synced groups in the manifest if no later group does so, since a later unsynced group may be lost.
    /// Until then, corruption of them looks like a torn tail.
    pub fn attest(&self) -> Result<()> {
        self.secure(self.synced.load(Ordering::Acquire))
    }

    /// Returns whether [`tend`](Log::tend) should be called soon.
    pub fn wants_tending(&self) -> bool {
        // The lock's holder is tending the files or about to release it; then the next commit asks again.
        self.files.try_lock().is_some_and(|files| files.next.is_none() || self.is_short(&files))
    }

    /// Returns whether little preallocated space is left in the current file.
    fn is_short(&self, files: &Files) -> bool {
        let ready = files.current.ready;
        ready < FILE && ready < self.at.load(Ordering::Relaxed) + AHEAD / 2
    }

    /// Preallocates files ahead of the writer, and reuses files without groups from `first` on.
    pub fn tend(&self, first: u64) -> Result<()> {
        // Free space first.
        if self.files.lock().over(first) > 0 {
            self.forget(first)?;
        }
        if self.is_short(&self.files.lock()) {
            // Twice the space in use, so that a file with few groups stays small.
            let most = (2 * self.at.load(Ordering::Relaxed)).next_multiple_of(AHEAD).min(FILE);
            while self.add_blocks(most, |files| Some(&mut files.current))? {}
        }
        self.provide_next()?;
        if self.at.load(Ordering::Relaxed) > FILE / 2 {
            while self.add_blocks(FILE, |files| files.next.as_mut())? {}
        }
        Ok(())
    }

    /// Preallocates more of a file, up to `most`. Returns whether it did.
    fn add_blocks(&self, most: u64, of: impl Fn(&mut Files) -> Option<&mut Spare>) -> Result<bool> {
        let mut files = self.files.lock();
        let Some(file) = of(&mut files).filter(|file| file.ready < most) else { return Ok(false) };
        let len = AHEAD.min(FILE - file.ready);
        // Under the lock, since the writer may reach these bytes.
        file.file.write_all_at(&[0; AHEAD as usize][..len as usize], file.ready)?;
        file.ready += len;
        let file = file.file.clone();
        drop(files);
        self.sync_file(&file)?;
        Ok(true)
    }

    /// Ensures that there is a next file and that the manifest names it.
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
        // Only now, so that a retry after a full disk uses the same file.
        let mut files = self.files.lock();
        files.free = files.free.max(next.slot + 1);
        files.spare.take_if(|spare| spare.slot == next.slot);
        files.next = Some(next);
        Ok(())
    }

    /// Writes the manifest. The caller must hold `writing`.
    fn write_manifest(&self, first: u64, files: Vec<(u32, u64)>) -> Result<()> {
        let synced = self.synced.load(Ordering::Acquire);
        Manifest { pool: self.pool, first, synced, files }.write(&self.dir)?;
        self.noted.fetch_max(synced, Ordering::AcqRel);
        Ok(())
    }

    /// Rewrites the manifest with `first` as the first group needed, if that is later than before. Returns the files it
    /// no longer names, because all their groups are earlier.
    fn rewrite_manifest(&self, first: u64) -> Result<Vec<Used>> {
        let _writing = self.writing.lock();
        let files = self.files.lock();
        // `first` 0 frees nothing: only the caller that frees files knows from where on groups are needed.
        let (over, first) = (files.over(first), files.first.max(first));
        let listed = files.listed().split_off(over);
        drop(files);
        self.write_manifest(first, listed)?;
        let mut files = self.files.lock();
        files.first = first;
        Ok(files.used.drain(..over).collect())
    }

    /// Truncates the log before `first`, at once and durably: a start does not replay earlier groups. Files without
    /// later groups are reused or deleted.
    pub fn forget(&self, first: u64) -> Result<()> {
        // An entry may be missing from the tables because a later group deletes it, so that group must be durable
        // first. Synced before taking the manifest's lock, which the writer may wait for.
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

    /// Copies the groups appended so far to the empty directory `to`, and syncs them. Files must not be reused
    /// meanwhile.
    pub fn copy_to(&self, to: &Path) -> Result<()> {
        let (at, last, first, files) = {
            let tail = self.tail.lock();
            let files = self.files.lock();
            let used: Vec<_> = files.used.iter().map(|used| (used.slot, used.turn)).collect();
            (tail.at, tail.last.number, files.first, used)
        };
        for (n, (slot, _)) in files.iter().enumerate() {
            // Fails on unreadable sectors instead of copying zeros.
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
