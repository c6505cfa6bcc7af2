//! Holes: blocks of tables that do not read. lsm-tree merges no table that has one, so nobody merges its keyspace. Finds
//! such tables, and writes what can be read of them anew, so that they can be given up. For a store that nobody else
//! uses, but for the looks.

use std::collections::BTreeSet;
use std::ops::RangeBounds;

use lsm_tree::{AbstractTree, KeyRange, SeqNo, Slice, Table};

use super::durable::is_unreadable_io;
use super::txn::Txn;
use super::{Fatal, Space, Store, is_unreadable, or_walk};

/// After so many blocks in a row that cannot be read a table is given up: its index may fail for ever.
const BAD_BLOCKS: usize = 4096;
/// At each of so many keys the filter is looked at, too. Its parts are for some thousands each.
const FILTER_ASKED: usize = 256;

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
fn add_keys(
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

/// Whether a table has a hole, its filter counted. An error says nothing of what is stored.
fn is_holed(table: &Table) -> std::io::Result<bool> {
    // Whatever the hash is, the part of the filter that is for this key is read.
    let ask = |key: &[u8]| table.get(key, SeqNo::MAX, 0).map(drop);
    let items = table.iter().enumerate().map(|(n, item)| match item {
        Ok(item) if n.is_multiple_of(FILTER_ASKED) => ask(&item.key.user_key),
        item => item.map(drop),
    });
    for read in items.chain([ask(table.metadata.key_range.max())]) {
        match read {
            Ok(()) => {}
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

    /// Which table it is that could not be merged for this reason, in words. Reads until there, or `gave_up`.
    pub fn which_is_holed(&self, space: Space, reason: &str, gave_up: impl Fn() -> bool) -> String {
        let version = self.trees.of(space).current_version();
        let mut tables = version.iter_tables().take_while(|_| !gave_up());
        let found = tables.find(|table| is_holed(table).unwrap_or(false));
        let which = found.map_or_else(|| "a table".to_owned(), |table| format!("table {}", table.id()));
        format!("keyspace {}: {which} has blocks that cannot be read: {reason}", space.name())
    }

    /// Writes anew what can be read of the entries that tables with holes may have, so that nothing is lost with these
    /// tables but what their holes have. One whose newest value may be in a hole is deleted, although an older value can
    /// be read; what the log has of it was put into memory [at the open](super::open::open_locked). Afterwards all is in
    /// tables, that of other keyspaces too, and the log is used again.
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
            match or_walk(tree, &key, SeqNo::MAX, tree.get(&key, SeqNo::MAX)) {
                Ok(value) => txn.rewrite(space, key, value),
                Err(e) if is_unreadable(&e) => txn.rewrite(space, key, None),
                Err(e) => return Err(e.into()),
            }
            txn.relieve()?;
        }
        txn.settle(true)?;
        self.move_to_tables()
    }
}
