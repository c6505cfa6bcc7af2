//! Holes: blocks of tables that do not read. lsm-tree merges no table that has one, so nobody merges its keyspace. Finds
//! such tables, and writes what can be read of them anew, so that they can be given up. For a store that nobody else
//! uses, but for the looks.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeBounds;

use lsm_tree::{AbstractTree, Guard, KeyRange, SeqNo, Slice, Table};

use super::durable::is_unreadable_io;
use super::log::manifest::Manifest;
use super::log::{self, group};
use super::txn::Txn;
use super::{Fatal, Space, Store, is_unreadable};

/// After so many blocks in a row that cannot be read a table is given up: its index may fail for ever.
const BAD_BLOCKS: usize = 4096;

/// A table with a hole, and which keys it may have.
#[derive(Debug)]
pub struct Holed {
    pub table: u64,
    keys: KeyRange,
}

impl Holed {
    /// Whether the table may have this key.
    pub fn may_have(&self, key: &[u8]) -> bool {
        self.keys.contains_key(key)
    }
}

/// Adds the keys of a range of a table that can be read. A walk over a keyspace ends at the first bad block, one over a
/// table goes on behind it.
pub fn add_keys(
    table: &Table,
    range: impl RangeBounds<Slice> + Send,
    keys: &mut BTreeSet<Slice>,
) -> Result<(), Fatal> {
    let mut bad = 0;
    for item in table.range(range) {
        match item {
            Ok(item) => {
                bad = 0;
                // A key of a table holds its block in memory.
                keys.insert(Slice::from(&item.key.user_key[..]));
            }
            Err(e) if is_unreadable(&e) && bad < BAD_BLOCKS => bad += 1,
            Err(e) if is_unreadable(&e) => break,
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

/// Whether a table has a hole. An error says nothing of what is stored.
fn is_holed(table: &Table) -> std::io::Result<bool> {
    for item in table.iter() {
        match item {
            Ok(_) => {}
            Err(lsm_tree::Error::Io(e)) if !is_unreadable_io(&e) => return Err(e),
            Err(_) => return Ok(true),
        }
    }
    Ok(false)
}

impl Store {
    /// The tables of a keyspace that have holes. Reads the keyspace.
    pub fn holed(&self, space: Space) -> std::io::Result<Vec<Holed>> {
        let mut holed = Vec::new();
        for table in self.trees.of(space).current_version().iter_tables() {
            if is_holed(table)? {
                holed.push(Holed { table: table.id(), keys: table.metadata.key_range.clone() });
            }
        }
        Ok(holed)
    }

    /// Which table it is that could not be merged for this reason, in words. Reads until there.
    pub fn which_is_holed(&self, space: Space, reason: &str) -> String {
        let version = self.trees.of(space).current_version();
        let found = version.iter_tables().find(|table| is_holed(table).unwrap_or(false));
        let which = found.map_or_else(|| "a table".to_owned(), |table| format!("table {}", table.id()));
        format!("keyspace {}: {which} has blocks that cannot be read: {reason}", space.name())
    }

    /// Writes anew what can be read of the entries that tables with holes may have, so that nothing is lost with these
    /// tables but what their holes have. One whose newest value may be in a hole is deleted, although an older value can
    /// be read. Afterwards all is in tables, and the log is used again: before the first keyspace is written anew, what
    /// [the log says](Store::write_logged) of all of them must be.
    pub fn rewrite(&self, space: Space, holed: &[Holed]) -> Result<(), Fatal> {
        let tree = self.trees.of(space);
        let mut keys: BTreeSet<Slice> = BTreeSet::new();
        self.move_to_tables()?;
        for table in tree.current_version().iter_tables() {
            for Holed { keys: range, .. } in holed {
                add_keys(table, range.min().clone()..=range.max().clone(), &mut keys)?;
            }
        }
        let mut txn = Txn::new(self.clone());
        for key in keys {
            match tree.get(&key, SeqNo::MAX) {
                Ok(Some(value)) => txn.put(space, key, value),
                Ok(None) => txn.delete(space, key),
                // A filter may be what does not read: a range asks none.
                Err(e) if is_unreadable(&e) => {
                    let read = tree.range(key.clone()..=key.clone(), SeqNo::MAX, None).next();
                    match read.and_then(|item| item.into_inner().ok()) {
                        Some((_, value)) => txn.put(space, key, value),
                        None => txn.delete(space, key),
                    }
                }
                Err(e) => return Err(e.into()),
            }
            txn.relieve()?;
        }
        txn.settle(true)?;
        self.move_to_tables()
    }

    /// Writes anew what the log still says last of the keys that these tables may have: nothing is newer than that. It is
    /// stored before the log is used again, so a repair that is killed in between loses none of it.
    pub fn write_logged(&self, holes: &[(Space, Vec<Holed>)]) -> Result<(), Fatal> {
        let dir = self.pool.join(log::DIR);
        let mut logged = vec![BTreeMap::new(); holes.len()];
        log::judge::judge_each(&dir, &Manifest::read(&dir)?, |_, group| {
            for (of, key, value) in group::items(group).flatten() {
                let is_of = |(space, holed): &(Space, Vec<Holed>)| {
                    of == *space && holed.iter().any(|holed| holed.may_have(key))
                };
                if let Some(n) = holes.iter().position(is_of) {
                    logged[n].insert(Slice::from(key), value.map(Slice::from));
                }
            }
            Ok(())
        })?;
        let mut txn = Txn::new(self.clone());
        for ((space, _), logged) in holes.iter().zip(logged) {
            for (key, value) in logged {
                match value {
                    Some(value) => txn.put(*space, key, value),
                    None => txn.delete(*space, key),
                }
                txn.relieve()?;
            }
        }
        txn.settle(true)?;
        Ok(())
    }
}
