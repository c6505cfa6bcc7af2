//! Direct access to the rows of a closed store, for tests and for fault analysis.

use std::path::Path;

use super::store::mark::{Mark, OpenError};
use super::store::open;
use super::store::txn::Txn;
use super::store::{Fatal, Space, Store, StoreLimits};

/// A store that was closed, and is closed again in the same way on drop.
#[derive(Debug)]
pub struct RawStore {
    store: Store,
    mark: Mark,
}

impl RawStore {
    /// Opens the store in `path`.
    pub fn open(path: &Path) -> Result<RawStore, OpenError> {
        let (store, mark) = open::open(path, StoreLimits::OF_A_TOOL)?;
        Ok(RawStore { store, mark })
    }

    fn keyspace(name: &str) -> Result<Space, String> {
        let found = Space::ALL.iter().find(|(_, known, _)| *known == name);
        found.map(|(space, ..)| *space).ok_or_else(|| format!("there is no keyspace {name}"))
    }

    /// Returns the keys of a keyspace, in order.
    pub fn keys(&self, keyspace: &str) -> Result<Vec<Vec<u8>>, String> {
        let keys = self.store.all(Self::keyspace(keyspace)?).map(|entry| entry.map(|(key, _)| key.to_vec()));
        keys.collect::<Result<_, Fatal>>().map_err(|Fatal(e)| e)
    }

    /// Deletes a key.
    pub fn delete(&self, keyspace: &str, key: &[u8]) -> Result<(), String> {
        let mut txn = Txn::new(self.store.clone());
        txn.delete(Self::keyspace(keyspace)?, key);
        txn.settle(true).map(drop).map_err(|Fatal(e)| e)
    }

    /// Flushes all rows to tables, so that the log is no longer needed.
    pub fn write_out(&self) -> Result<(), String> {
        self.store.write_out_all().map_err(|Fatal(e)| e)
    }
}

impl Drop for RawStore {
    fn drop(&mut self) {
        if let Some(number) = self.mark.was_closed()
            && let Err(e) = self.mark.close(number)
        {
            tracing::warn!(error = %e, "the disk store could not be marked as closed");
        }
    }
}
