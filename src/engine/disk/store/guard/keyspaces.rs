//! fjall's keyspaces as they lie on the disk: whether each is there with the list of its tables, whether the list is
//! what was written, and whether each table in it is there. Changes nothing. What a table holds is checked by fjall
//! when it is read: each block has a checksum.
//!
//! A keyspace is a directory whose name is a number. `current` names the newest list, `v<number>`, with its
//! checksum: `number:8 xxh3:16 0`, little-endian (lsm-tree 3.1.10, `version/persist.rs`). fjall does not compare that
//! checksum, and deletes tables that stand in no list.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Error, ErrorKind, Read, Result};
use std::path::Path;

use xxhash_rust::xxh3::xxh3_128;

/// Where fjall keeps its keyspaces, in the database.
pub const KEYSPACES: &str = "keyspaces";
/// Where a keyspace keeps its tables.
pub const TABLES: &str = "tables";
/// Names the newest list of tables.
pub const CURRENT: &str = "current";

/// The numbers of the keyspaces, and the names of directories that are none.
pub fn list(database: &Path) -> Result<(BTreeSet<u32>, Vec<String>)> {
    let (mut ids, mut others) = (BTreeSet::new(), Vec::new());
    for entry in fs::read_dir(database.join(KEYSPACES))? {
        let entry = entry?;
        let name = entry.file_name();
        match name.to_str().and_then(|name| name.parse().ok()) {
            Some(id) => drop(ids.insert(id)),
            None => others.push(name.to_string_lossy().into_owned()),
        }
    }
    Ok((ids, others))
}

/// What is wrong with a keyspace; `None` if nothing is.
pub fn damage(database: &Path, id: u32) -> Result<Option<String>> {
    let dir = database.join(KEYSPACES).join(id.to_string());
    let wrong = |what: String| Ok(Some(format!("keyspace {id}: {what}")));
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
    let entries = match fs::read_dir(dir.join(TABLES)) {
        Ok(entries) => entries,
        Err(e) if e.kind() == ErrorKind::NotFound => {
            return wrong(format!("its directory {TABLES} is missing"));
        }
        Err(e) => return Err(e),
    };
    for entry in entries {
        let name = entry?.file_name();
        match name.to_str().and_then(|name| name.parse::<u64>().ok()) {
            Some(id) => drop(there.insert(id)),
            None => return wrong(format!("{} is no table", Path::new(TABLES).join(name).display())),
        }
    }
    match tables.iter().find(|table| !there.contains(&table.id)) {
        Some(table) => return wrong(format!("table {} is missing", table.id)),
        None if id != 0 => return Ok(None),
        None => {}
    }
    // The first one holds the names of the others: fjall throws away what has none. It is small.
    for table in tables {
        if xxh3_128(&fs::read(dir.join(TABLES).join(table.id.to_string()))?) != table.checksum {
            return wrong(format!("table {} is not what was written", table.id));
        }
    }
    Ok(None)
}

/// The number of the list, and its checksum.
fn read_current(current: &[u8]) -> Option<(u64, u128)> {
    let version = u64::from_le_bytes(current.get(..8)?.try_into().ok()?);
    let checksum = u128::from_le_bytes(current.get(8..24)?.try_into().ok()?);
    // Behind it stands the kind of the checksum, of which there is one.
    (current.len() == 25 && current[24] == 0).then_some((version, checksum))
}

/// A table in a list.
struct Table {
    id: u64,
    checksum: u128,
}

/// The tables in a list: levels, runs in each, tables in each.
fn tables(list: &Path) -> Result<Vec<Table>> {
    let invalid = |what: String| Error::new(ErrorKind::InvalidData, what);
    let reader = sfa::Reader::new(list).map_err(|e| invalid(e.to_string()))?;
    let section =
        reader.toc().section(b"tables").ok_or_else(|| invalid("no tables stand in it".to_owned()))?;
    let mut section = section.buf_reader(list)?;
    fn read<const N: usize>(from: &mut impl Read) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        from.read_exact(&mut bytes).map(|()| bytes)
    }
    let mut found = Vec::new();
    for _ in 0..read::<1>(&mut section)?[0] {
        for _ in 0..read::<1>(&mut section)?[0] {
            for _ in 0..u32::from_le_bytes(read(&mut section)?) {
                let id = u64::from_le_bytes(read(&mut section)?);
                if read::<1>(&mut section)? != [0] {
                    return Err(invalid("an unknown kind of checksum".to_owned()));
                }
                let checksum = u128::from_le_bytes(read(&mut section)?);
                let _seqno: [u8; 8] = read(&mut section)?;
                found.push(Table { id, checksum });
            }
        }
    }
    Ok(found)
}
