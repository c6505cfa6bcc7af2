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
pub mod start;

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{ErrorKind, Result};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use self::group::{Draft, FILE_HEAD, FileHead, Group};
use self::judge::Findings;
pub use self::manifest::DIR;
use self::manifest::{FILE, Manifest, open_file};
use super::durable;

/// So many bytes get their blocks at a time, and so many a new file has.
const AHEAD: u64 = 256 << 10;

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

/// A file that is open, with blocks up to `ready`.
#[derive(Clone, Debug)]
struct Spare {
    slot: u32,
    file: Arc<File>,
    ready: u64,
}

impl Files {
    fn listed(&self) -> Vec<(u32, u64)> {
        let used = self.used.iter().map(|used| (used.slot, used.turn));
        used.chain(self.next.iter().map(|next| (next.slot, self.turn() + 1))).collect()
    }

    /// The turn of the current file.
    fn turn(&self) -> u64 {
        self.used.back().map_or(0, |used| used.turn)
    }
}

/// Makes a file whose first bytes have their blocks. The name is not synced.
fn new_file(dir: &Path, slot: u32) -> Result<Spare> {
    let file = open_file(dir, slot)?;
    file.set_len(0)?;
    file.write_all_at(&zeros(), 0)?;
    file.sync_all()?;
    Ok(Spare { slot, file: Arc::new(file), ready: AHEAD })
}

fn zeros() -> Vec<u8> {
    vec![0; AHEAD as usize]
}

impl Log {
    /// Makes a log without groups in `dir`, which must be there and hold none. Its first group has the number `first`,
    /// and its files begin with this turn.
    pub fn create(dir: &Path, first: u64, turn: u64) -> Result<()> {
        let pool = std::hash::BuildHasher::hash_one(&std::collections::hash_map::RandomState::new(), DIR);
        let file = new_file(dir, 0)?.file;
        file.write_all_at(&FileHead { pool, turn, first }.to_bytes(), 0)?;
        file.sync_all()?;
        durable::sync(dir)?;
        Manifest { pool, first, synced: first - 1, files: vec![(0, turn)] }.write(dir)
    }

    /// Opens a log in which nothing is damaged, to go on behind its last group. All that it holds must be synced.
    pub fn open(dir: &Path, manifest: &Manifest, findings: &Findings) -> Result<Log> {
        let (current, at) = findings.end;
        let open = |slot: u32| -> Result<Spare> {
            let file = open_file(dir, slot)?;
            let ready = file.metadata()?.len();
            Ok(Spare { slot, file: Arc::new(file), ready })
        };
        let (mut used, mut last) = (VecDeque::new(), None);
        for (slot, turn) in &manifest.files[..=current] {
            let spare = last.insert(open(*slot)?);
            let mut head = [0; FILE_HEAD];
            spare.file.read_at(&mut head, 0)?;
            let head = FileHead::read(&head).filter(|head| (head.pool, head.turn) == (manifest.pool, *turn));
            let first = head.map_or(findings.last.number + 1, |head| head.first);
            if head.is_none() {
                // A power cut has torn the begin of the only file: what stood before it is in tables.
                spare
                    .file
                    .write_all_at(&FileHead { pool: manifest.pool, turn: *turn, first }.to_bytes(), 0)?;
                spare.file.sync_data()?;
            }
            used.push_back(Used { slot: *slot, turn: *turn, first });
        }
        let current = last.ok_or(ErrorKind::NotFound)?;
        let (mut spare, mut extra, mut free) = (None, Vec::new(), 0);
        for entry in fs::read_dir(dir)? {
            let slot = entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok());
            let Some(slot) = slot else { continue };
            free = free.max(slot + 1);
            if used.iter().any(|used| used.slot == slot) {
                continue;
            }
            match spare {
                None => spare = Some(open(slot)?),
                Some(_) => extra.push(slot),
            }
        }
        let (file, ready, at) = (current.file.clone(), current.ready, at as u64);
        let log = Log {
            dir: dir.to_owned(),
            pool: manifest.pool,
            at: AtomicU64::new(at),
            dirty: Mutex::new(vec![file.clone()]),
            tail: Mutex::new(Tail { file, at, ready, last: findings.last }),
            synced: AtomicU64::new(findings.last.number),
            noted: AtomicU64::new(0),
            files: Mutex::new(Files { used, current, next: None, spare, free, first: manifest.first }),
            writing: Mutex::default(),
            failed: Mutex::default(),
        };
        // From here on the manifest names none of these.
        log.provide_next()?;
        for slot in extra {
            fs::remove_file(dir.join(slot.to_string()))?;
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
        self.rewrite_manifest(0)
    }

    /// Notes that the last group is synced, if it is and no later group can say so. Until then damage to it looks like an
    /// end that a power cut tore.
    pub fn attest(&self) -> Result<()> {
        let last = self.last();
        if self.synced.load(Ordering::Acquire) >= last { self.secure(last) } else { Ok(()) }
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
        self.free(first)?;
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
        file.file.write_all_at(&zeros()[..len as usize], file.ready)?;
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
                let next = new_file(&self.dir, free)?;
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

    /// Writes the manifest anew, with `first` if that is later.
    fn rewrite_manifest(&self, first: u64) -> Result<()> {
        let _writing = self.writing.lock();
        let (first, listed) = {
            let mut files = self.files.lock();
            files.first = files.first.max(first);
            (files.first, files.listed())
        };
        self.write_manifest(first, listed)
    }

    /// Frees the files whose groups are all before `first`.
    fn free(&self, first: u64) -> Result<()> {
        // A file is over where the next one begins.
        let over = |files: &Files| files.used.iter().skip(1).take_while(|next| next.first <= first).count();
        if over(&self.files.lock()) == 0 {
            return Ok(());
        }
        // An entry may be in no table for the sake of a later group that deletes it: that must not be lost, then. Before
        // the manifest is held, for which the writer may wait.
        self.sync()?;
        let freed: Vec<Used> = {
            let _writing = self.writing.lock();
            let files = self.files.lock();
            let over = over(&files);
            let (first, listed) = (files.first.max(first), files.listed().split_off(over));
            drop(files);
            self.write_manifest(first, listed)?;
            let mut files = self.files.lock();
            files.first = first;
            files.used.drain(..over).collect()
        };
        for used in freed {
            let file = open_file(&self.dir, used.slot)?;
            if file.metadata()?.len() > FILE {
                file.set_len(FILE)?;
            }
            let (slot, ready) = (used.slot, file.metadata()?.len());
            let file = Arc::new(file);
            let mut files = self.files.lock();
            if files.spare.is_none() {
                files.spare = Some(Spare { slot, file, ready });
            } else {
                drop(files);
                remove(&self.dir, &file, slot)?;
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
        start::write_again(&self.dir, to, &files, at as usize)?;
        durable::sync(to)?;
        Manifest { pool: self.pool, first, synced: last, files }.write(to)
    }

    /// Forgets the groups before `first`, at once and for good: a start does not repeat them.
    pub fn forget(&self, first: u64) -> Result<()> {
        self.sync()?;
        self.rewrite_manifest(first)
    }
}

/// Removes a file in parts: a file system that tells the disk of each freed block (mounted with `discard`) takes long
/// for many, and a sync waits for that.
fn remove(dir: &Path, file: &File, slot: u32) -> Result<()> {
    const PART: u64 = 4 << 20;
    const PAUSE: Duration = Duration::from_millis(2);
    let mut len = file.metadata()?.len();
    while len > PART {
        len -= PART;
        file.set_len(len)?;
        std::thread::sleep(PAUSE);
    }
    fs::remove_file(dir.join(slot.to_string()))
}

#[cfg(test)]
mod tests {
    use super::judge::LogDamage;
    use super::start::{clear_torn, replay, rewrite, torn_bytes};
    use super::*;
    use crate::engine::disk::store::Space;

    /// A new log in a temporary directory.
    fn new() -> (tempfile::TempDir, Log) {
        let dir = tempfile::tempdir().unwrap(); // the temporary directory can be written
        Log::create(dir.path(), 1, 1).unwrap(); // nothing is wrong with the disk
        let log = opened(dir.path());
        (dir, log)
    }

    fn judged(dir: &Path) -> (Manifest, Findings) {
        let manifest = Manifest::read(dir).unwrap(); // it was written
        let findings = judge::judge(dir, &manifest).unwrap(); // nothing is wrong with the disk
        (manifest, findings)
    }

    /// Opens a log as a store does.
    fn opened(dir: &Path) -> Log {
        let (manifest, mut findings) = judged(dir);
        assert_eq!(findings.damage, [], "nothing is damaged");
        if let Some(torn) = findings.torn.take() {
            clear_torn(dir, &manifest, &torn).unwrap(); // nothing is wrong with the disk
        }
        rewrite(dir, &manifest, &findings).unwrap(); // as above
        Log::open(dir, &manifest, &findings).unwrap() // as above
    }

    /// Appends a group of about so many bytes, which holds its number.
    fn append(log: &Log, bytes: usize) -> u64 {
        let mut draft = Draft::default();
        let number = log.last() + 1;
        draft.add(Space::Ready, &number.to_be_bytes(), Some(&vec![number as u8; bytes]));
        let appended = log.append(&mut draft).unwrap(); // nothing is wrong with the disk
        assert_eq!(appended, number, "groups are numbered without a gap");
        number
    }

    /// The groups that a start would repeat: each holds its number.
    fn replayed(dir: &Path) -> Vec<u64> {
        let (manifest, findings) = judged(dir);
        let mut numbers = Vec::new();
        let each = |number: u64, group: &[u8]| {
            for item in group::items(group) {
                let (_, key, value) = item.expect("what was written");
                assert_eq!(key, number.to_be_bytes(), "the group with this number");
                assert!(
                    value.is_some_and(|value| value.iter().all(|byte| *byte == number as u8)),
                    "its value"
                );
            }
            numbers.push(number);
            Ok(())
        };
        replay(dir, &manifest, &findings, each).unwrap(); // nothing is wrong with the disk
        numbers
    }

    fn flip(dir: &Path, slot: u32, at: u64) {
        let file = open_file(dir, slot).unwrap(); // it is there
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap(); // as above
        file.write_all_at(&[byte[0] ^ 0x55], at).unwrap(); // as above
    }

    const MIB: usize = 1 << 20;

    #[test]
    fn what_was_appended_is_there_after_a_kill_over_many_files() {
        let (dir, log) = new();
        for n in 0..40 {
            append(&log, if n % 5 == 0 { MIB } else { 10 });
            if n % 3 == 0 {
                log.sync().unwrap(); // nothing is wrong with the disk
            }
        }
        // One that is larger than a file stands alone.
        append(&log, FILE as usize + 5);
        append(&log, 5);
        assert!(log.used() >= 3, "{} files hold 9 MiB and more", log.used());
        drop(log);
        assert_eq!(replayed(dir.path()), (1..=42).collect::<Vec<_>>(), "all, in order");
        let log = opened(dir.path());
        append(&log, 10);
        drop(log);
        assert_eq!(replayed(dir.path()), (1..=43).collect::<Vec<_>>(), "it goes on behind the last");
    }

    #[test]
    fn files_that_are_needed_no_more_are_used_again() {
        let (dir, log) = new();
        for _ in 0..300 {
            let last = append(&log, MIB / 2);
            // The last ten groups are needed.
            log.tend(last.saturating_sub(10)).unwrap(); // nothing is wrong with the disk
        }
        let (used, bytes) = (log.used(), log.disk_bytes());
        assert!(used <= 3, "{used} files for 5 MiB that are needed");
        assert!(bytes <= 6 * FILE, "{bytes} bytes for 5 MiB that are needed");
        drop(log);
        let there = replayed(dir.path());
        assert!(there[0] <= 290 && *there.last().unwrap() == 300, "there are {there:?}"); // not empty
        let files = fs::read_dir(dir.path()).unwrap().count(); // it is there
        assert!(files <= 7, "{files} names for 150 MiB that were written");
        drop(opened(dir.path()));
        assert_eq!(replayed(dir.path()), there, "an open changes nothing");
    }

    #[test]
    fn what_was_forgotten_is_not_repeated() {
        let (dir, log) = new();
        for _ in 0..9 {
            append(&log, 100);
        }
        log.forget(6).unwrap(); // nothing is wrong with the disk
        drop(log);
        assert_eq!(replayed(dir.path()), [6, 7, 8, 9], "from the sixth on");
    }

    #[test]
    fn what_was_not_synced_may_be_torn_and_what_was_synced_is_damaged() {
        for (synced, expected) in [(0, Ok(2)), (2, Ok(2)), (3, Err(())), (4, Err(()))] {
            let (dir, log) = new();
            let mut ends = Vec::new();
            for n in 1..=6 {
                append(&log, 3000);
                ends.push(log.at.load(Ordering::Relaxed));
                if n == synced {
                    log.sync().unwrap(); // nothing is wrong with the disk
                }
            }
            drop(log);
            // In the third.
            flip(dir.path(), 0, ends[1] + 1000);
            let (manifest, findings) = judged(dir.path());
            let found = if findings.damage.is_empty() { Ok(findings.last.number) } else { Err(()) };
            assert_eq!(found, expected, "{synced} synced, the third damaged: {findings:?}");
            if expected.is_err() {
                let lost = LogDamage::Unreadable {
                    slot: 0,
                    bytes: ends[1] as usize..ends[2] as usize,
                    groups: 3..4,
                };
                assert_eq!(findings.damage, [lost], "what is damaged");
                continue;
            }
            let torn = findings.torn.clone().expect("groups stand behind what was torn");
            assert_eq!(torn_bytes(dir.path(), &manifest, &torn).unwrap()[0].1, ends[1], "where it is torn");
            // What stood behind the tear never comes back, whatever is written there.
            let log = opened(dir.path());
            append(&log, 2000);
            drop(log);
            assert_eq!(replayed(dir.path()), [1, 2, 3], "cut, and gone on");
            drop(opened(dir.path()));
        }
    }

    #[test]
    fn a_synced_end_is_told_from_a_torn_one_once_it_is_attested() {
        for attested in [false, true] {
            let (dir, log) = new();
            for _ in 0..4 {
                append(&log, 1000);
            }
            let before = log.at.load(Ordering::Relaxed);
            append(&log, 1000);
            log.sync().unwrap(); // nothing is wrong with the disk
            if attested {
                log.attest().unwrap(); // as above
                let at = log.at.load(Ordering::Relaxed);
                log.attest().unwrap(); // as above
                assert_eq!(log.at.load(Ordering::Relaxed), at, "once is enough");
            }
            drop(log);
            flip(dir.path(), 0, before + 500);
            let damage = judged(dir.path()).1.damage;
            assert_eq!(damage.is_empty(), !attested, "the last group that was synced is damaged: {damage:?}");
        }
    }

    #[test]
    fn a_file_that_is_missing_is_damage_and_each_byte_of_the_manifest_counts() {
        let (dir, log) = new();
        for _ in 0..20 {
            append(&log, MIB);
        }
        log.sync().unwrap(); // nothing is wrong with the disk
        drop(log);
        let (manifest, _) = judged(dir.path());
        assert!(manifest.files.len() >= 3, "20 MiB take {:?}", manifest.files);
        for (slot, _) in &manifest.files {
            let (path, kept) = (dir.path().join(slot.to_string()), dir.path().join("kept"));
            fs::rename(&path, &kept).unwrap(); // it is there
            let damage = judged(dir.path()).1.damage;
            assert!(damage.contains(&LogDamage::NoFile { slot: *slot }), "{slot} is missing: {damage:?}");
            fs::rename(&kept, &path).unwrap(); // as above
        }
        assert_eq!(judged(dir.path()).1.damage, [], "all are back");
    }

    #[test]
    fn a_begin_that_was_torn_is_begun_again() {
        let (dir, log) = new();
        append(&log, 100);
        // All of it is in tables.
        log.forget(2).unwrap(); // nothing is wrong with the disk
        drop(log);
        open_file(dir.path(), 0).unwrap().write_all_at(&[0; 4096], 0).unwrap(); // it is there
        // The manifest says that the first group was synced when it was written, or not: it was not.
        let log = opened(dir.path());
        assert_eq!(log.last(), 1, "numbers go on");
        append(&log, 100);
        drop(log);
        assert_eq!(replayed(dir.path()), [2], "what was appended later");
    }

    #[test]
    fn a_writer_that_is_faster_than_who_makes_files_ready_loses_nothing() {
        for (bytes, most) in [(20_000, 3000), (MIB, 150), (FILE as usize / 2, 40)] {
            let (dir, log) = new();
            std::thread::scope(|scope| {
                let tended = scope.spawn(|| {
                    while log.last() == 0 {
                        std::thread::yield_now();
                    }
                    for _ in 0..100 {
                        // The last twenty groups are needed.
                        log.tend(log.last().saturating_sub(20)).unwrap(); // nothing is wrong with the disk
                    }
                });
                while !tended.is_finished() && log.last() < most {
                    append(&log, bytes);
                }
            });
            let last = log.last();
            drop(log);
            let there = replayed(dir.path());
            let first = there.first().copied().unwrap_or(0);
            assert!(
                first <= last.saturating_sub(19).max(1),
                "groups of {bytes} bytes, from {first} of {last}"
            );
            assert_eq!(there, (first..=last).collect::<Vec<_>>(), "groups of {bytes} bytes, in order");
        }
    }

    #[test]
    fn a_disk_without_room_leaves_no_files_behind() {
        let (dir, log) = new();
        // A directory in the place of the next file: it cannot be made.
        let next = dir.path().join("9");
        log.files.lock().next = None;
        log.files.lock().free = 9;
        fs::create_dir(&next).unwrap(); // the name is free
        for _ in 0..5 {
            assert!(log.tend(0).is_err(), "the next file cannot be made");
        }
        fs::remove_dir(&next).unwrap(); // it is empty
        log.tend(0).unwrap(); // nothing is wrong with the disk
        assert!(next.exists() && !dir.path().join("10").exists(), "one name was tried again");
    }

    #[test]
    fn a_sync_that_runs_beside_the_writer_covers_what_was_appended_before() {
        let (dir, log) = new();
        std::thread::scope(|scope| {
            let synced = scope.spawn(|| {
                for _ in 0..50 {
                    let before = log.last();
                    log.sync().unwrap(); // nothing is wrong with the disk
                    assert!(log.synced.load(Ordering::Acquire) >= before, "a sync covers what was before it");
                }
            });
            while !synced.is_finished() {
                append(&log, 50_000);
            }
        });
        assert!(log.dirty.lock().len() <= 1 + log.used(), "files that are synced are let go");
        drop(log);
        drop(opened(dir.path()));
    }
}
