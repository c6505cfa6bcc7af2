//! Unreadable blocks of tables, called holes. lsm-tree cannot merge a table with a hole, so its keyspace is not merged.
//! Finds such tables and rewrites their readable entries, so that the tables can be dropped. Except for the queries,
//! the caller needs exclusive use of the store.

use std::collections::BTreeSet;
use std::ops::RangeBounds;

use lsm_tree::{AbstractTree, KeyRange, SeqNo, Slice, Table};

use super::durable::is_unreadable_io;
use super::txn::Txn;
use super::{Fatal, Space, Store, is_unreadable, or_walk};

/// Number of consecutive unreadable blocks after which a table is given up: its index may fail forever.
const BAD_BLOCKS: usize = 4096;
/// Number of keys between two checks of the filter. Each filter partition covers some thousands of keys.
const FILTER_ASKED: usize = 256;

/// A table with a hole, and its key range.
#[derive(Debug)]
pub struct Holed {
    pub table: u64,
    keys: KeyRange,
}

impl Holed {
    /// Returns whether the table may contain `key`.
    pub fn may_have(&self, key: &[u8]) -> bool {
        self.keys.contains_key(key)
    }
}

/// Adds the readable keys of a table's range. A keyspace iterator ends at the first bad block; a table iterator
/// continues behind it.
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
                // Copied, since a table's key keeps its block in memory.
                keys.insert(Slice::from(&item.key.user_key[..]));
            }
            Err(e) if is_unreadable(&e) && bad < BAD_BLOCKS => bad += 1,
            Err(e) if is_unreadable(&e) => break,
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

/// Returns whether a table or its filter has a hole. An error means that this could not be determined.
fn is_holed(table: &Table) -> std::io::Result<bool> {
    // For any hash, this reads the filter partition of the key.
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
    /// Returns the tables of a keyspace that have holes. Reads the whole keyspace.
    pub fn holed(&self, space: Space) -> std::io::Result<Vec<Holed>> {
        let mut holed = Vec::new();
        for table in self.trees.of(space).current_version().iter_tables() {
            if is_holed(table)? {
                holed.push(Holed { table: table.id(), keys: table.metadata.key_range.clone() });
            }
        }
        Ok(holed)
    }

    /// Describes the table that failed to merge with error `reason`. Reads tables until it is found or `gave_up`
    /// returns true.
    pub fn which_is_holed(&self, space: Space, reason: &str, gave_up: impl Fn() -> bool) -> String {
        let version = self.trees.of(space).current_version();
        let mut tables = version.iter_tables().take_while(|_| !gave_up());
        let found = tables.find(|table| is_holed(table).unwrap_or(false));
        let which = found.map_or_else(|| "a table".to_owned(), |table| format!("table {}", table.id()));
        format!("keyspace {}: {which} has blocks that cannot be read: {reason}", space.name())
    }

    /// Rewrites the readable entries in the key ranges of tables with holes, so that only the contents of the holes are
    /// lost when these tables are dropped. An entry whose newest value may be in a hole is deleted, even if an older
    /// value is readable; newer values from the log were loaded into memory [on open](super::open::open_locked).
    /// Afterwards all keyspaces are flushed to tables and the log is empty.
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
