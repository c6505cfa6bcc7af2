//! lsm-tree's table lists as stored on disk: checks that each keyspace has its list, that the list matches its
//! checksum, and that its tables exist. lsm-tree deletes tables that no list names, and does not verify the list's
//! checksum, so it may open a keyspace only after this check. Contents of tables are verified when they are read: each
//! block has a checksum.
//!
//! A keyspace is a directory. `current` names its newest list, `v<number>`, with its checksum: `number:8 xxh3:16 0`,
//! little-endian (lsm-tree 3.1.10, `version/persist.rs`). The version is pinned for this reason.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{Cursor, Error, ErrorKind, Read, Result, Seek, SeekFrom};
use std::path::Path;
use std::sync::Arc;

use lsm_tree::{Cache, Checksum, DescriptorTable, Table};
use xxhash_rust::xxh3::xxh3_128;

use super::durable::is_unreadable_io;

/// Directory of a keyspace's tables.
pub const TABLES: &str = "tables";
/// File that names the newest list of tables.
pub const CURRENT: &str = "current";

/// Levels whose tables have their index, and those whose tables have their filter, loaded on open; the last value is
/// for all lower levels.
pub const PINNED: ([bool; 3], [bool; 2]) = ([true, true, false], [true, false]);

/// Returns the damage of the keyspace in `dir`.
pub fn damage(dir: &Path) -> Result<Option<String>> {
    match judge(dir) {
        Err(e) if e.kind() == ErrorKind::InvalidData => Ok(Some(e.to_string())),
        judged => judged.map(|()| None),
    }
}

/// Reads a file of a keyspace, called `what` in errors.
fn read_whole(path: &Path, what: &str) -> Result<Vec<u8>> {
    fs::read(path).map_err(|e| match e.kind() {
        ErrorKind::NotFound => invalid(format!("{what} is missing")),
        _ if is_unreadable_io(&e) => invalid(format!("{what} cannot be read: {e}")),
        _ => e,
    })
}

/// Checks the keyspace in `dir`. Corruption is [`ErrorKind::InvalidData`]; other errors say nothing about the keyspace.
fn judge(dir: &Path) -> Result<()> {
    let current = format!("the file {CURRENT}");
    let (version, checksum) = read_current(&read_whole(&dir.join(CURRENT), &current)?)
        .ok_or_else(|| invalid(format!("{current} cannot be read")))?;
    let list = format!("its list of tables, v{version},");
    let bytes = read_whole(&dir.join(format!("v{version}")), &list)?;
    if xxh3_128(&bytes) != checksum {
        return Err(invalid(format!("{list} is corrupt")));
    }
    let runs = runs(&bytes).map_err(|e| invalid(format!("{list} cannot be read: {e}")))?;
    let there: BTreeSet<String> = names_in(&dir.join(TABLES))?.into_iter().collect();
    if let Some(name) = there.iter().find(|name| name.parse::<u64>().is_err()) {
        return Err(invalid(format!("{TABLES}/{name} is not a table")));
    }
    // Nothing is read but what opening reads.
    let opener = Opener::new(16, 0);
    for (table, level) in runs.into_iter().flatten() {
        let name = table.to_string();
        if !there.contains(&name) {
            return Err(invalid(format!("table {table} is missing")));
        }
        if opener.open(&dir.join(TABLES).join(name), level, 0)?.is_none() {
            return Err(invalid(format!("the metadata of table {table} is unreadable")));
        }
    }
    Ok(())
}

/// Opens tables without a tree, which would delete the unlisted ones.
pub struct Opener {
    cache: Arc<Cache>,
    files: Arc<DescriptorTable>,
}

impl Opener {
    /// Creates an opener with the maximum number of open files, and the size of a cache of blocks.
    pub fn new(open_tables: usize, cache: u64) -> Opener {
        Opener {
            cache: Arc::new(Cache::with_capacity_bytes(cache)),
            files: Arc::new(DescriptorTable::new(open_tables)),
        }
    }

    /// Opens the listed tables of the keyspace in `dir` that open, in their runs. `tree` distinguishes keyspaces in the
    /// cache.
    pub fn readable(&self, dir: &Path, tree: u64) -> Result<Vec<Vec<Table>>> {
        let Some(list) = list_to_use(dir)? else { return Ok(Vec::new()) };
        let open = |(table, level): (u64, usize)| {
            self.open(&dir.join(TABLES).join(table.to_string()), level, tree).transpose()
        };
        runs(&list)?.into_iter().map(|run| run.into_iter().filter_map(&open).collect()).collect()
    }

    /// Opens a table of this level if lsm-tree can: if its table of contents and metadata are readable, and index and
    /// filter if they are [`PINNED`].
    fn open(&self, path: &Path, level: usize, tree: u64) -> Result<Option<Table>> {
        const DAMAGED: [ErrorKind; 3] =
            [ErrorKind::NotFound, ErrorKind::UnexpectedEof, ErrorKind::InvalidData];
        let [index, filter] = [&PINNED.0[..], &PINNED.1[..]].map(|of| of[level.min(of.len() - 1)]);
        let opened = match File::open(path).and_then(has_whole_toc) {
            Ok(false) => return Ok(None),
            Ok(true) => {
                let (cache, files) = (self.cache.clone(), Some(self.files.clone()));
                Table::recover(path.to_owned(), Checksum::from_raw(0), 0, tree, cache, files, filter, index)
            }
            Err(e) => Err(e.into()),
        };
        match opened {
            Ok(table) => Ok(Some(table)),
            // Other errors, such as too many open files, say nothing about the table.
            Err(lsm_tree::Error::Io(e)) if !DAMAGED.contains(&e.kind()) && !is_unreadable_io(&e) => Err(e),
            Err(_) => Ok(None),
        }
    }
}

/// Length of the trailer of an sfa archive: `SFA! 1 0 checksum:16 pos:8 len:8`, little-endian. It locates the table of
/// contents.
const TRAILER: usize = 38;

/// Returns whether an archive's table of contents matches its checksum. sfa verifies it only after allocating the
/// memory that the length asks for, so a flipped byte would abort the process.
fn has_whole_toc(mut archive: impl Read + Seek) -> Result<bool> {
    let Some(end) = archive.seek(SeekFrom::End(0))?.checked_sub(TRAILER as u64) else { return Ok(false) };
    archive.seek(SeekFrom::Start(end))?;
    archive.seek_relative(6)?;
    let checksum = u128::from_le_bytes(read(&mut archive)?);
    let (at, len) = (u64::from_le_bytes(read(&mut archive)?), u64::from_le_bytes(read(&mut archive)?));
    if at.checked_add(len) != Some(end) {
        return Ok(false);
    }
    archive.seek(SeekFrom::Start(at))?;
    let mut toc = Vec::new();
    archive.take(len).read_to_end(&mut toc)?;
    Ok(xxh3_128(&toc) == checksum)
}

/// Returns the files that a copy of the keyspace needs, relative to `dir`: the newest list and its tables.
pub fn files(dir: &Path) -> Result<Vec<String>> {
    let current = read_current(&fs::read(dir.join(CURRENT))?);
    let (version, _) = current.ok_or_else(|| Error::from(ErrorKind::InvalidData))?;
    let list = format!("v{version}");
    let runs = runs(&fs::read(dir.join(&list))?)?;
    let tables = runs.into_iter().flatten().map(|(table, _)| format!("{TABLES}/{table}"));
    Ok(tables.chain([list, CURRENT.to_owned()]).collect())
}

/// Returns the names in a directory; none if it is missing.
fn names_in(dir: &Path) -> Result<Vec<String>> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(e),
    };
    entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

/// Parses `current`: the number of the list, and its checksum.
fn read_current(current: &[u8]) -> Option<(u64, u128)> {
    let version = u64::from_le_bytes(current.get(..8)?.try_into().ok()?);
    let checksum = u128::from_le_bytes(current.get(8..24)?.try_into().ok()?);
    // The last byte is the kind of checksum; only kind 0 exists.
    (current.len() == 25 && current[24] == 0).then_some((version, checksum))
}

/// Length of a table's entry in a list: `id:8 0 xxh3:16 seqno:8`, little-endian.
const TABLE: usize = 33;

/// Parses the table number of an entry.
fn table(mut bytes: &[u8]) -> Result<u64> {
    let id = u64::from_le_bytes(read(&mut bytes)?);
    match read::<1>(&mut bytes)? {
        [0] => Ok(id),
        _ => Err(invalid("unknown checksum type")),
    }
}

fn invalid(what: impl ToString) -> Error {
    Error::new(ErrorKind::InvalidData, what.to_string())
}

fn read<const N: usize>(from: &mut impl Read) -> Result<[u8; N]> {
    let mut bytes = [0; N];
    from.read_exact(&mut bytes).map(|()| bytes)
}

/// Returns the section of a list that names the tables: levels, their runs, and the tables of each run.
fn section(list: &[u8]) -> Result<&[u8]> {
    if !has_whole_toc(Cursor::new(list))? {
        return Err(invalid("its table of contents is corrupt"));
    }
    let reader = sfa::Reader::from_reader(&mut Cursor::new(list)).map_err(invalid)?;
    let named = reader.toc().iter().find(|section| section.name() == TABLES.as_bytes());
    let section = named.ok_or_else(|| invalid("it has no tables section"))?;
    let from = section.pos() as usize;
    list.get(from..from.saturating_add(section.len() as usize))
        .ok_or_else(|| invalid("a section is truncated"))
}

/// Returns the runs of a list in the order of a lookup, and the tables of each with their level. Tables of a run are
/// sorted and do not overlap.
fn runs(list: &[u8]) -> Result<Vec<Vec<(u64, usize)>>> {
    let (mut section, mut found) = (section(list)?, Vec::new());
    for level in 0..read::<1>(&mut section)?[0] {
        for _ in 0..read::<1>(&mut section)?[0] {
            let count = u32::from_le_bytes(read(&mut section)?);
            let mut entry = || Ok((table(&read::<TABLE>(&mut section)?)?, usize::from(level)));
            found.push((0..count).map(|_| entry()).collect::<Result<_>>()?);
        }
    }
    Ok(found)
}

/// Returns the list that `current` names if both are intact, else the newest readable list. `None` if there is none: a
/// table that the list does not name may be newer than the list, or older.
fn list_to_use(dir: &Path) -> Result<Option<Vec<u8>>> {
    let mut best: Option<(u64, Vec<u8>)> = None;
    let meant = fs::read(dir.join(CURRENT)).ok().and_then(|current| read_current(&current));
    for name in names_in(dir)? {
        let Some(number) = name.strip_prefix('v').and_then(|number| number.parse::<u64>().ok()) else {
            continue;
        };
        let bytes = match fs::read(dir.join(name)) {
            Err(e) if is_unreadable_io(&e) => continue,
            read => read?,
        };
        // A list that does not match its checksum is not used.
        let is_rotten = meant.is_some_and(|(version, sum)| version == number && sum != xxh3_128(&bytes));
        if is_rotten || runs(&bytes).is_err() {
            continue;
        }
        if meant.is_some_and(|(version, _)| version == number) {
            return Ok(Some(bytes));
        }
        if best.as_ref().is_none_or(|(best, _)| *best < number) {
            best = Some((number, bytes));
        }
    }
    Ok(best.map(|(_, bytes)| bytes))
}

#[cfg(test)]
mod tests {
    use super::super::txn::Txn;
    use super::super::{Space, StoreLimits, open};
    use super::*;

    /// Creates and closes a store with one table per key. Returns it with the directory of their keyspace.
    fn tables_of(keys: &[&[u8]], each: impl Fn(&Path)) -> (tempfile::TempDir, std::path::PathBuf) {
        let dir = tempfile::tempdir().unwrap(); // the temporary directory can be written
        let keyspace = dir.path().join("trees/ready");
        let (store, _mark) = open::open(dir.path(), StoreLimits::OF_A_TOOL).unwrap(); // new directory
        let mut txn = Txn::new(store.clone());
        for key in keys {
            txn.put(Space::Ready, key, [7; 100]);
            txn.settle(true).unwrap(); // nothing is wrong with the disk
            store.write_out_all().unwrap(); // as above
            each(&keyspace);
        }
        (dir, keyspace)
    }

    /// Guards against using a length before its checksum is verified, which aborts the process.
    #[test]
    fn a_list_of_parts_that_says_too_much_is_damage() {
        let (_dir, keyspace) = tables_of(&[b"one"], |_| {});
        assert_eq!(damage(&keyspace).unwrap(), None, "nothing is damaged"); // it can be read
        let table = keyspace.join(TABLES).join(&names_in(&keyspace.join(TABLES)).unwrap()[0]); // it has one
        let mut bytes = fs::read(&table).unwrap(); // as above
        let at = bytes.windows(4).rposition(|four| four == b"TOC!").unwrap(); // it is a table
        bytes[at + 4..at + 8].fill(0xff);
        fs::write(&table, bytes).unwrap(); // as above
        let found = damage(&keyspace).unwrap(); // as above
        assert!(found.as_ref().is_some_and(|what| what.contains("the metadata of table")), "{found:?}");
    }

    /// Guards against reading a list that does not match its checksum, or tables that the list does not name.
    #[test]
    fn an_older_list_is_used_if_the_newest_is_corrupt() {
        // lsm-tree removes a list when it writes a newer one, so it is restored here.
        let older = std::cell::RefCell::new(Vec::new());
        let (_dir, keyspace) = tables_of(&[b"one", b"two"], |keyspace| {
            let name = files(keyspace).unwrap().into_iter().find(|name| name.starts_with('v')).unwrap(); // it has a list
            let bytes = fs::read(keyspace.join(&name)).unwrap(); // as above
            older.borrow_mut().push((name, bytes));
        });
        let ([first, second], names) = (&older.borrow()[..], names_in(&keyspace.join(TABLES)).unwrap())
        else {
            panic!("one list for each key")
        };
        assert_eq!(names.len(), 2, "two tables: {names:?}");
        let readable = || Opener::new(16, 0).readable(&keyspace, 0).unwrap().iter().flatten().count(); // it can be read
        fs::write(keyspace.join(&first.0), &first.1).unwrap(); // it is there
        assert_eq!(readable(), 2, "the tables of the list that `current` names");
        fs::write(keyspace.join(&second.0), b"rotten").unwrap(); // as above
        assert_eq!(readable(), 1, "the tables of the older list");
        assert_eq!(names_in(&keyspace.join(TABLES)).unwrap().len(), 2, "nothing is deleted"); // it is there
    }
}
