//! Small tables of named records besides jobs: read from memory, changed through the writer thread. Knows no record
//! format.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

pub use super::codec::{put_short, take_short};
use super::state::WriterState;
pub use super::state::tables::Table;
use super::state::tables::{Rows, Tables};
use super::step::{Step, StepResult};
use super::upkeep::space::FreeSpace;
pub use super::verbs::settings::Row;
use super::verbs::settings::{GetSetting, PutSetting, ReadChanges, ScanSettings};
use super::writer::handle::Handle;
use crate::clock::{Micros, Millis};
use crate::error::Result;

/// The tables of an open engine. `Debug` shows neither keys nor values.
#[derive(Clone, Debug)]
pub struct Records {
    pub(super) handle: Handle,
    pub(super) room: Arc<FreeSpace>,
    pub(super) tables: Arc<Mutex<Tables>>,
}

/// A change of one record.
pub enum Change {
    /// Stores it, replacing any other.
    Put(Bytes),
    /// Stores it unless one exists.
    Add(Bytes),
    Delete,
}

/// Changes records, all in one step.
struct ChangeRecords(Vec<(Table, Bytes, Change)>);

impl Step for ChangeRecords {
    /// Whether anything was changed.
    type Reply = bool;
    const MUST_LAST: bool = true;

    fn run(self, state: &mut WriterState, _: Micros) -> StepResult<bool> {
        let mut tables = state.tables.lock();
        let mut changed = false;
        for (table, key, change) in self.0 {
            let rows = tables.rows_mut(table);
            let there = rows.contains_key(&key);
            match change {
                Change::Add(_) if there => continue,
                Change::Delete if !there => continue,
                Change::Delete => {
                    state.txn.delete(table.space(), &key);
                    rows.remove(&key);
                }
                Change::Put(value) | Change::Add(value) => {
                    state.txn.put(table.space(), &key, &value);
                    rows.insert(key, value);
                }
            }
            changed = true;
        }
        // Synced in either mode.
        state.must_sync |= changed;
        Ok(changed)
    }
}

fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

impl Records {
    /// Reads a table. A change is visible shortly before it is acknowledged. Still works after the store has failed:
    /// memory has the stored records, or records whose caller got an error because their fate is unknown.
    pub fn read<T>(&self, table: Table, read: impl FnOnce(&Rows) -> T) -> T {
        read(self.tables.lock().rows(table))
    }

    /// Makes changes in one step. Once they are durable, returns whether anything was changed.
    pub async fn change(&self, changes: Vec<(Table, Bytes, Change)>) -> Result<bool> {
        self.handle.ask(ChangeRecords(changes)).await
    }

    /// Returns a record of the settings, as its version and its value.
    pub async fn setting(&self, key: &str) -> Result<Option<Row>> {
        self.handle.ask(GetSetting(bytes(key))).await
    }

    /// Puts or deletes a record of the settings whose version is `expected`. Returns its new version, or the current
    /// record.
    pub async fn put_setting(
        &self,
        key: &str,
        value: Option<Bytes>,
        expected: Option<u64>,
    ) -> Result<std::result::Result<u64, Option<Row>>> {
        if let Some(value) = &value {
            self.room.rewrite(value.len())?;
        }
        self.handle.ask(PutSetting { key: bytes(key), value, expected }).await
    }

    /// Returns records of the settings by key, and whether there may be more.
    pub async fn scan_settings(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
        most: usize,
    ) -> Result<(Vec<(Bytes, Row)>, bool)> {
        let scan = ScanSettings { prefix: bytes(prefix), after: after.map(bytes), limit, bytes: most };
        self.handle.ask(scan).await
    }

    /// Returns the current version, and the changes since `since`; `None`: any key may have changed.
    pub async fn setting_changes(&self, since: u64, most: usize) -> Result<(u64, Option<Vec<(u64, Bytes)>>)> {
        self.handle.ask(ReadChanges { since, most }).await
    }

    /// Returns the monotonic time. Only differences are meaningful.
    pub fn now(&self) -> Millis {
        self.handle.clock.monotonic()
    }

    /// Checks whether the store would accept a change now.
    pub async fn check(&self) -> Result<()> {
        self.handle.check().await
    }
}
