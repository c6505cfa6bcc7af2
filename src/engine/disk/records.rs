//! Small tables of named records, for who keeps something beside the jobs: read from memory, changed through the
//! writer thread. Knows nothing of what a record means.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

pub use super::codec::{QUOTA, put_short, take_short};
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

/// What to do to one record.
pub enum Change {
    /// Stores it, whether or not there is one.
    Put(Bytes),
    /// Stores it if there is none.
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
    /// Reads a table. A change is seen a moment before it is answered. Goes on when the store has failed: what is in
    /// memory is what was stored, or what a caller was told is not known to be stored.
    pub fn read<T>(&self, table: Table, read: impl FnOnce(&Rows) -> T) -> T {
        read(self.tables.lock().rows(table))
    }

    /// Makes changes in one step, and answers once they are on disk whether anything was changed.
    pub async fn change(&self, changes: Vec<(Table, Bytes, Change)>) -> Result<bool> {
        self.handle.ask(ChangeRecords(changes)).await
    }

    /// Returns a record of the settings, as its version and its value.
    pub async fn setting(&self, key: &str) -> Result<Option<Row>> {
        self.handle.ask(GetSetting(bytes(key))).await
    }

    /// Puts or deletes a record of the settings whose version is `expected`. Returns its new version, or what is there.
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

    /// Returns the version up to which changes are told, and the keys that have changed since; `None`: all may have.
    pub async fn setting_changes(&self, since: u64, most: usize) -> Result<(u64, Option<Vec<Bytes>>)> {
        self.handle.ask(ReadChanges { since, most }).await
    }

    /// Now by the monotonic clock: only differences mean something.
    pub fn now(&self) -> Millis {
        self.handle.clock.monotonic()
    }

    /// Now by the pool's clock, which goes on over a start: for times that are stored.
    pub fn pool_now(&self) -> Millis {
        self.handle.clock.now()
    }

    /// Whether the store would take a change now.
    pub async fn check(&self) -> Result<()> {
        self.handle.check().await
    }
}
