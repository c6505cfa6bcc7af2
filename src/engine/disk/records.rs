//! Settings in the directory of a pool: read and changed through the writer thread.

use std::sync::Arc;

use bytes::Bytes;

use super::state::settings::{SettingChange, SettingKey};
use super::upkeep::space::FreeSpace;
pub use super::verbs::settings::Row;
use super::verbs::settings::{GetSetting, PutSetting, ReadChanges, ScanSettings};
use super::writer::handle::Handle;
use crate::error::Result;

/// The settings of an open engine.
#[derive(Clone, Debug)]
pub struct Records {
    pub(super) handle: Handle,
    pub(super) room: Arc<FreeSpace>,
}

fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

impl Records {
    /// Returns a record, as its version and its value.
    pub async fn setting(&self, key: &str) -> Result<Option<Row>> {
        self.handle.ask(GetSetting(bytes(key))).await
    }

    /// Fails if the disk is too full to store the bodies of jobs again, of `bytes` in total.
    pub fn has_room_for(&self, bytes: usize) -> Result<()> {
        self.room.rewrite(bytes)
    }

    /// Puts or deletes a record whose version is `expected`. Returns its new version, or the current record.
    pub async fn put_setting(
        &self,
        key: &str,
        value: Option<Bytes>,
        expected: Option<u64>,
    ) -> Result<std::result::Result<u64, Option<Row>>> {
        self.handle.ask(PutSetting { key: bytes(key), value, expected }).await
    }

    /// Returns records by key, and whether there may be more.
    pub async fn scan_settings(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
        most: usize,
    ) -> Result<(Vec<(SettingKey, Row)>, bool)> {
        let scan = ScanSettings { prefix: bytes(prefix), after: after.map(bytes), limit, bytes: most };
        self.handle.ask(scan).await
    }

    /// Returns the current version, and the changes since `since`; `None`: any key may have changed.
    pub async fn setting_changes(
        &self,
        since: u64,
        most: usize,
    ) -> Result<(u64, Option<Vec<SettingChange>>)> {
        self.handle.ask(ReadChanges { since, most }).await
    }
}
