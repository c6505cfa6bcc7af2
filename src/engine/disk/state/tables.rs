//! Small tables of named records, completely in memory; their owners define the records. The writer changes them
//! together with the disk; any thread may read.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::engine::disk::store::{Fatal, Space, Store};

/// One table. Its contents may be secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    Tokens,
    Limits,
}

impl Table {
    const ALL: [Table; 2] = [Table::Tokens, Table::Limits];

    /// Returns the keyspace of the table.
    pub fn space(self) -> Space {
        match self {
            Table::Tokens => Space::Tokens,
            Table::Limits => Space::Limits,
        }
    }
}

/// Values by key.
pub type Rows = BTreeMap<Bytes, Bytes>;

/// All tables. `Debug` shows neither keys nor values.
#[derive(Default)]
pub struct Tables([Rows; Table::ALL.len()]);

impl std::fmt::Debug for Tables {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tables(..)")
    }
}

impl Tables {
    /// Loads all tables from the disk.
    pub fn load(store: &Store) -> Result<Tables, Fatal> {
        let mut tables = Tables::default();
        for table in Table::ALL {
            for item in store.all(table.space()) {
                let (key, value) = item?;
                let row = (Bytes::copy_from_slice(&key), Bytes::copy_from_slice(&value));
                tables.rows_mut(table).insert(row.0, row.1);
            }
        }
        Ok(tables)
    }

    /// Returns a table.
    pub fn rows(&self, table: Table) -> &Rows {
        &self.0[table as usize]
    }

    /// Returns a table, to be changed.
    pub fn rows_mut(&mut self, table: Table) -> &mut Rows {
        &mut self.0[table as usize]
    }
}
