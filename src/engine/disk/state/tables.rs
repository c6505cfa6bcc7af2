//! Four small tables of named records, whole in memory: what a record means is its owner's business. The
//! writer changes them together with the disk; anybody may read.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::engine::disk::store::{Fatal, Space, Store};

/// One table. What is in it may be secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    Tokens,
    Limits,
    /// Queues that are pushed. Its keys begin with `push/`: it lives among the numbers of the store itself.
    Push,
    /// Quotas of namespaces. Its keys begin with `quota/`, in the same place.
    Quotas,
}

/// What the keys of [`Table::Push`] begin with.
pub const PUSH_PREFIX: &[u8] = b"push/";
/// What the keys of [`Table::Quotas`] begin with.
pub const QUOTA_PREFIX: &[u8] = b"quota/";

impl Table {
    /// The keyspace that holds it.
    pub fn space(self) -> Space {
        match self {
            Table::Tokens => Space::Tokens,
            Table::Limits => Space::Limits,
            Table::Push | Table::Quotas => Space::Meta,
        }
    }

    fn prefix(self) -> &'static [u8] {
        match self {
            Table::Tokens | Table::Limits => b"",
            Table::Push => PUSH_PREFIX,
            Table::Quotas => QUOTA_PREFIX,
        }
    }
}

/// Values by key.
pub type Rows = BTreeMap<Bytes, Bytes>;

/// All tables. `Debug` shows neither keys nor values.
#[derive(Default)]
pub struct Tables([Rows; 4]);

impl std::fmt::Debug for Tables {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tables(..)")
    }
}

impl Tables {
    /// Reads all from the disk.
    pub fn load(store: &Store) -> Result<Tables, Fatal> {
        let mut tables = Tables::default();
        for table in [Table::Tokens, Table::Limits, Table::Push, Table::Quotas] {
            for item in store.all(table.space()) {
                let (key, value) = item?;
                if !key.starts_with(table.prefix()) {
                    continue;
                }
                let row = (Bytes::copy_from_slice(&key), Bytes::copy_from_slice(&value));
                tables.rows_mut(table).insert(row.0, row.1);
            }
        }
        Ok(tables)
    }

    /// One of them.
    pub fn rows(&self, table: Table) -> &Rows {
        &self.0[table as usize]
    }

    /// One of them, to change.
    pub fn rows_mut(&mut self, table: Table) -> &mut Rows {
        &mut self.0[table as usize]
    }
}
