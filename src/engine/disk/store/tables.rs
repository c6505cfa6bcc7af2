//! The lists of tables that lsm-tree keeps, as they lie on the disk: whether each keyspace is there with its list,
//! whether the list is what was written, and whether each table in it is there. lsm-tree deletes tables that stand in no
//! list, and does not compare the list with its checksum: so it may open only what was found whole here. What a table
//! holds is checked when it is read: each block has a checksum.
//!
//! A keyspace is a directory. `current` names its newest list, `v<number>`, with its checksum: `number:8 xxh3:16 0`,
//! little-endian (lsm-tree 3.1.10, `version/persist.rs`). Its version is pinned for that.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Cursor, Error, ErrorKind, Read, Result, Write};
use std::path::Path;

use xxhash_rust::xxh3::xxh3_128;

use super::aside::Aside;
use super::durable;

/// Where a keyspace keeps its tables.
pub const TABLES: &str = "tables";
/// Names the newest list of tables.
pub const CURRENT: &str = "current";

/// What is wrong with the keyspace in `dir`; `None` if nothing is.
pub fn damage(dir: &Path) -> Result<Option<String>> {
    let wrong = |what: String| Ok(Some(what));
    let current = match fs::read(dir.join(CURRENT)) {
        Ok(current) => current,
        Err(e) if e.kind() == ErrorKind::NotFound => return wrong(format!("the file {CURRENT} is missing")),
        Err(e) => return Err(e),
    };
    let Some((version, checksum)) = read_current(&current) else {
        return wrong(format!("the file {CURRENT} cannot be read"));
    };
    let list = dir.join(format!("v{version}"));
    let bytes = match fs::read(&list) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == ErrorKind::NotFound => {
            return wrong(format!("its list of tables, v{version}, is missing"));
        }
        Err(e) => return Err(e),
    };
    if xxh3_128(&bytes) != checksum {
        return wrong(format!("its list of tables, v{version}, is not what was written"));
    }
    let tables = match tables(&list) {
        Ok(tables) => tables,
        Err(e) => return wrong(format!("its list of tables, v{version}, cannot be read: {e}")),
    };
    let mut there = BTreeSet::new();
    for name in names_in(&dir.join(TABLES))? {
        match name.parse::<u64>() {
            Ok(id) => drop(there.insert(id)),
            Err(_) => return wrong(format!("{TABLES}/{name} is no table")),
        }
    }
    for table in tables {
        if !there.contains(&table) {
            return wrong(format!("table {table} is missing"));
        }
        if !is_table(&dir.join(TABLES).join(table.to_string()))? {
            return wrong(format!("the end of table {table} cannot be read"));
        }
    }
    Ok(None)
}

/// Whether a table's list of its own parts can be read, which lsm-tree needs to open it.
fn is_table(path: &Path) -> Result<bool> {
    const DAMAGED: [ErrorKind; 3] = [ErrorKind::NotFound, ErrorKind::UnexpectedEof, ErrorKind::InvalidData];
    match sfa::Reader::new(path) {
        Ok(_) => Ok(true),
        // Too many open files, for instance, say nothing of the table.
        Err(sfa::Error::Io(e)) if !DAMAGED.contains(&e.kind()) => Err(e),
        Err(_) => Ok(false),
    }
}

/// The files of the list that is the newest, and of its tables, below `dir`: what a copy of the keyspace needs.
pub fn files(dir: &Path) -> Result<Vec<String>> {
    let current = read_current(&fs::read(dir.join(CURRENT))?);
    let (version, _) = current.ok_or_else(|| Error::from(ErrorKind::InvalidData))?;
    let list = format!("v{version}");
    let tables = tables(&dir.join(&list))?.into_iter().map(|table| format!("{TABLES}/{table}"));
    Ok(tables.chain([list, CURRENT.to_owned()]).collect())
}

/// The names in a directory; none if it is not there.
fn names_in(dir: &Path) -> Result<Vec<String>> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(e),
    };
    entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

/// The number of the list, and its checksum.
fn read_current(current: &[u8]) -> Option<(u64, u128)> {
    let version = u64::from_le_bytes(current.get(..8)?.try_into().ok()?);
    let checksum = u128::from_le_bytes(current.get(8..24)?.try_into().ok()?);
    // Behind it stands the kind of the checksum, of which there is one.
    (current.len() == 25 && current[24] == 0).then_some((version, checksum))
}

/// The bytes of a table in a list: `id:8 0 xxh3:16 seqno:8`, little-endian.
const TABLE: usize = 33;

/// The number of the table that is so listed.
fn table(mut bytes: &[u8]) -> Result<u64> {
    let id = u64::from_le_bytes(read(&mut bytes)?);
    match read::<1>(&mut bytes)? {
        [0] => Ok(id),
        _ => Err(Error::new(ErrorKind::InvalidData, "an unknown kind of checksum")),
    }
}

fn read<const N: usize>(from: &mut impl Read) -> Result<[u8; N]> {
    let mut bytes = [0; N];
    from.read_exact(&mut bytes).map(|()| bytes)
}

/// The tables in a list: levels, runs in each, tables in each.
fn tables(list: &Path) -> Result<Vec<u64>> {
    let invalid = |what: String| Error::new(ErrorKind::InvalidData, what);
    let reader = sfa::Reader::new(list).map_err(|e| invalid(e.to_string()))?;
    let section =
        reader.toc().section(b"tables").ok_or_else(|| invalid("no tables stand in it".to_owned()))?;
    let mut section = section.buf_reader(list)?;
    let mut found = Vec::new();
    for _ in 0..read::<1>(&mut section)?[0] {
        for _ in 0..read::<1>(&mut section)?[0] {
            for _ in 0..u32::from_le_bytes(read(&mut section)?) {
                found.push(table(&read::<TABLE>(&mut section)?)?);
            }
        }
    }
    Ok(found)
}

/// Makes a keyspace open again, without the tables that are not there. One that has no list of tables is set aside
/// as a whole; an empty one takes its place.
pub fn mend(dir: &Path, aside: &mut Aside) -> Result<()> {
    if !dir.is_dir() {
        return Ok(());
    }
    for name in names_in(&dir.join(TABLES))? {
        if name.parse::<u64>().is_err() {
            aside.take(&dir.join(TABLES).join(name))?;
        }
    }
    let Some((version, list)) = list_to_use(dir)? else { return aside.take(dir) };
    // What no list names would be deleted.
    let mut kept = BTreeSet::new();
    for name in names_in(&dir.join(TABLES))? {
        let path = dir.join(TABLES).join(&name);
        match is_table(&path)? {
            true => drop(kept.insert(name)),
            false => aside.take(&path)?,
        }
    }
    let list = without(&list, |table| kept.contains(&table.to_string()))?;
    // The next number: nothing is written over.
    let version = version + 1;
    let mut current = version.to_le_bytes().to_vec();
    current.extend(xxh3_128(&list).to_le_bytes());
    current.push(0);
    for (name, bytes) in [(format!("v{version}"), list), (CURRENT.to_owned(), current)] {
        if dir.join(&name).exists() {
            aside.take(&dir.join(&name))?;
        }
        durable::write(&dir.join(&name), &bytes)?;
        durable::sync(dir)?;
    }
    Ok(())
}

/// The number and the bytes of the list that `current` means, if both are whole; else of the newest list that reads.
fn list_to_use(dir: &Path) -> Result<Option<(u64, Vec<u8>)>> {
    let (mut highest, mut best) = (0, None);
    let meant = fs::read(dir.join(CURRENT)).ok().and_then(|current| read_current(&current));
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix('v')?.parse::<u64>().ok());
        let Some(number) = number else { continue };
        highest = highest.max(number);
        let path = dir.join(name);
        let bytes = fs::read(&path)?;
        // Of a list that is not what was written nothing is believed.
        let is_rotten = meant.is_some_and(|(version, sum)| version == number && sum != xxh3_128(&bytes));
        if !is_rotten && tables(&path).is_ok() && best.as_ref().is_none_or(|(best, _)| *best < number) {
            best = Some((number, bytes));
        }
    }
    Ok(best.map(|(_, bytes)| (highest, bytes)))
}

/// A list with those of its tables that `keep` says.
fn without(list: &[u8], keep: impl Fn(u64) -> bool) -> Result<Vec<u8>> {
    let invalid = |what: String| Error::new(ErrorKind::InvalidData, what);
    let reader = sfa::Reader::from_reader(&mut Cursor::new(list)).map_err(|e| invalid(e.to_string()))?;
    let mut writer = sfa::Writer::from_writer(Cursor::new(Vec::new()));
    for section in reader.toc().iter() {
        let (from, len) = (section.pos() as usize, section.len() as usize);
        let bytes = list.get(from..from + len).ok_or_else(|| invalid("a section is cut off".to_owned()))?;
        writer.start(section.name())?;
        if section.name() == b"tables" {
            writer.write_all(&tables_without(bytes, &keep)?)?;
        } else {
            writer.write_all(bytes)?;
        }
    }
    writer.into_inner().map(Cursor::into_inner).map_err(|e| invalid(e.to_string()))
}

/// The same of the section that names the tables. A run without tables is left out.
fn tables_without(mut section: &[u8], keep: impl Fn(u64) -> bool) -> Result<Vec<u8>> {
    let levels = read::<1>(&mut section)?[0];
    let mut kept = vec![levels];
    for _ in 0..levels {
        let mut runs = Vec::new();
        for _ in 0..read::<1>(&mut section)?[0] {
            let mut run = Vec::new();
            for _ in 0..u32::from_le_bytes(read(&mut section)?) {
                let bytes: [u8; TABLE] = read(&mut section)?;
                if keep(table(&bytes)?) {
                    run.push(bytes);
                }
            }
            if !run.is_empty() {
                runs.push(run);
            }
        }
        // Both counts are not above those that were read.
        kept.push(runs.len() as u8);
        for run in runs {
            kept.extend((run.len() as u32).to_le_bytes());
            kept.extend(run.concat());
        }
    }
    Ok(kept)
}
