//! Settings: state that all servers must agree on and that belongs to no job. The trait [`SettingsStore`] stores
//! opaque records by key; each user has its own prefix. Two stores implement it: a Redis, with all keys in one slot
//! of a cluster ([`redis`]), and the directory of the default pool or of the one that it moves to ([`disk`]). The laws
//! in tests/laws/settings.rs hold for both.
//!
//! Servers cache what requests need, and [`follow`](follow::follow) its changes.

pub mod disk;
pub mod follow;
pub mod redis;

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::error::Result;

/// Key of the secret that all servers share.
const SECRET: &str = "secret";
/// Maximum length of a key in bytes.
pub const MAX_KEY: usize = 1024;
/// Upper bound on the records of one [`SettingsStore::scan`].
pub const MAX_SCAN: usize = 500;
/// A page of a scan ends after this many bytes of values, or one record.
pub const SCAN_BYTES: usize = 1 << 20;
/// Upper bound on the keys returned by one [`SettingsStore::changes`].
pub const MAX_CHANGES: usize = 1000;
/// Minimum number of changes that a store keeps. A server that has missed more reads everything.
pub const CHANGES_KEPT: usize = 20_000;

/// Grows with every change of a store and is never reused, also after a Redis has lost its newest writes. 0 precedes
/// all.
pub type SettingVersion = u64;

/// A value, and the change that wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub value: Bytes,
    pub version: SettingVersion,
}

/// Result of a [`SettingsStore::put`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Put {
    /// Done: the new version of the record, or of its deletion.
    Done(SettingVersion),
    /// The record does not have the expected version. Nothing has changed.
    Differs(Option<Record>),
}

/// A page of records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// In the order of their keys. May be shorter than requested although there are more.
    pub records: Vec<(String, Record)>,
    /// Whether there may be more after the last.
    pub more: bool,
}

/// Changes since a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingChanges {
    /// Version to continue from: all changes up to it are included.
    pub version: SettingVersion,
    /// The keys that were put or deleted, each with the version of that change, in order, some perhaps more than once.
    /// `None`: any may have changed, since there were too many changes or the store has lost its newest writes.
    pub keys: Option<Vec<(String, SettingVersion)>>,
}

impl SettingChanges {
    /// Whether nothing has changed.
    pub fn is_empty(&self) -> bool {
        self.keys.as_ref().is_some_and(Vec::is_empty)
    }
}

/// Returns the secret that all servers share: the stored one, or `new`, which is stored if there is none.
pub async fn shared_secret(store: &dyn SettingsStore, new: &[u8]) -> Result<Bytes> {
    loop {
        if let Some(stored) = store.get(SECRET).await? {
            return Ok(stored.value);
        }
        let new = Bytes::copy_from_slice(new);
        if let Put::Done(_) = store.put(SECRET, Some(new.clone()), None).await? {
            return Ok(new);
        }
    }
}

/// Passes all records whose keys begin with `prefix` to `each`, in the order of their keys.
pub async fn scan_all(
    store: &dyn SettingsStore,
    prefix: &str,
    mut each: impl FnMut(String, Record) + Send,
) -> Result<()> {
    let mut after = None;
    loop {
        let page = store.scan(prefix, after.as_deref(), MAX_SCAN).await?;
        after = page.records.last().map(|(key, _)| key.clone()).or(after);
        page.records.into_iter().for_each(|(key, record)| each(key, record));
        if !page.more {
            return Ok(());
        }
    }
}

/// Moves all records from one store to another, which keeps the records that it has, except those whose keys begin with
/// `stay`. Returns their number. If it is interrupted, the next call moves the rest. Only for a store that no other
/// server uses.
pub async fn move_records(from: &dyn SettingsStore, to: &dyn SettingsStore, stay: &str) -> Result<usize> {
    let (mut moved, mut after) = (0, None);
    loop {
        let page = from.scan("", after.as_deref(), MAX_SCAN).await?;
        after = page.records.last().map(|(key, _)| key.clone()).or(after);
        for (key, Record { value, version }) in page.records {
            if key.starts_with(stay) {
                continue;
            }
            // First, so that a kill in between loses nothing.
            to.put(&key, Some(value), None).await?;
            from.put(&key, None, Some(version)).await?;
            moved += 1;
        }
        if !page.more {
            return Ok(moved);
        }
    }
}

/// A store of settings. Every method is one atomic step. Keys are text of 1 to [`MAX_KEY`] bytes without control
/// characters.
#[async_trait]
pub trait SettingsStore: Send + Sync + fmt::Debug + 'static {
    /// Returns a record.
    async fn get(&self, key: &str) -> Result<Option<Record>>;

    /// Puts a record, or deletes it (`None`), if the version of the current record is `expected`; `None` expects no
    /// record. Durable once it returns.
    async fn put(&self, key: &str, value: Option<Bytes>, expected: Option<SettingVersion>) -> Result<Put>;

    /// Returns the records whose keys begin with `prefix` and follow `after`, in the order of their keys: up to
    /// `limit`, 1 to [`MAX_SCAN`].
    async fn scan(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Page>;

    /// Returns the keys with this prefix that were put or deleted after the change `since`; all, if that is 0. Cheap
    /// if nothing has changed.
    async fn changes(&self, prefix: &str, since: SettingVersion) -> Result<SettingChanges>;

    /// Puts a record that expires after `ttl` unless it is kept again, replacing any other. Does not count as a
    /// change: use [`scan`](SettingsStore::scan) for such records. Need not survive a restart.
    async fn keep(&self, key: &str, value: Bytes, ttl: Duration) -> Result<()>;
}
