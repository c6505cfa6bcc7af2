//! Unreadable blocks of tables, called holes. lsm-tree cannot merge a table with a hole, so its keyspace is not merged.

use lsm_tree::{AbstractTree, SeqNo, Table};

use super::durable::is_unreadable_io;
use super::{Space, Store};

/// Number of keys between two checks of the filter. Each filter partition covers some thousands of keys.
const FILTER_ASKED: usize = 256;

/// Returns whether a table or its filter has a hole. An error means that this could not be determined.
pub fn is_holed(table: &Table) -> std::io::Result<bool> {
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
    /// Describes the table that failed to merge with error `reason`. Reads tables until it is found or `gave_up`
    /// returns true.
    pub fn which_is_holed(&self, space: Space, reason: &str, gave_up: impl Fn() -> bool) -> String {
        let version = self.trees.of(space).current_version();
        let mut tables = version.iter_tables().take_while(|_| !gave_up());
        let found = tables.find(|table| is_holed(table).unwrap_or(false));
        let which = found.map_or_else(|| "a table".to_owned(), |table| format!("table {}", table.id()));
        format!("keyspace {}: {which} has blocks that cannot be read: {reason}", space.name())
    }
}
