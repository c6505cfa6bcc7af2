//! Settings: what all servers must agree on and no job carries. The trait [`SettingsStore`] keeps records by key and knows
//! nothing of what is in them; whoever keeps something here has a prefix of its own. Two stores implement it: a Redis, in a
//! cluster one slot ([`redis`]), and the directory of the default pool ([`disk`]). The laws in tests/laws/settings.rs hold
//! both.
//!
//! Servers cache what requests need, and follow [`SettingsStore::changes`].

pub mod disk;
pub mod redis;

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::error::Result;

/// The key of the secret that all servers share.
const SECRET: &str = "secret";
/// The longest key, in bytes.
pub const MAX_KEY: usize = 1024;
/// Upper bound on the records of one [`SettingsStore::scan`].
pub const MAX_SCAN: usize = 500;
/// A page of a scan ends after this many bytes of values, or one record.
pub const SCAN_BYTES: usize = 1 << 20;
/// Upper bound on the keys that one [`SettingsStore::changes`] names.
pub const MAX_CHANGES: usize = 1000;
/// How many changes a store remembers at least. A server that has missed more reads all.
pub const CHANGES_KEPT: usize = 20_000;

/// Grows with every change of a store and is never used twice, also when a Redis has lost its newest writes. 0 comes
/// before all.
pub type SettingVersion = u64;

/// A value, and the change that wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub value: Bytes,
    pub version: SettingVersion,
}

/// What became of a [`SettingsStore::put`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Put {
    /// It is done: the version of the record now, or of its deletion.
    Done(SettingVersion),
    /// The record is another one than was expected. Nothing has changed.
    Differs(Option<Record>),
}

/// A part of the records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// In the order of their keys. May be fewer than asked for although there are more.
    pub records: Vec<(String, Record)>,
    /// Whether there may be more behind the last.
    pub more: bool,
}

/// What has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingChanges {
    /// Where to go on: all changes up to this version are told.
    pub version: SettingVersion,
    /// The keys that were put or deleted, in the order of the changes, some perhaps more than once. `None`: all may have
    /// changed, since too much has happened or the store has lost its newest writes.
    pub keys: Option<Vec<String>>,
}

impl SettingChanges {
    /// Whether nothing has changed.
    pub fn is_empty(&self) -> bool {
        self.keys.as_ref().is_some_and(Vec::is_empty)
    }
}

/// What became of a [`SettingsStore::count`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// The counter was below the bound. It ends so much later.
    Below(Duration),
    /// It was not, and nothing has changed. It ends so much later.
    Full(Duration),
}

/// Returns the secret that all servers share: the one that is stored, or `new`, which is stored where there is none.
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

/// A store of settings. Every method is one atomic step. Keys are text of 1 to [`MAX_KEY`] bytes without control
/// characters.
#[async_trait]
pub trait SettingsStore: Send + Sync + fmt::Debug + 'static {
    /// Returns a record.
    async fn get(&self, key: &str) -> Result<Option<Record>>;

    /// Puts a record, or deletes it (`None`), if the version of what is there is `expected`; `None` expects that nothing is
    /// there. Durable once it is answered.
    async fn put(&self, key: &str, value: Option<Bytes>, expected: Option<SettingVersion>) -> Result<Put>;

    /// Returns the records whose keys begin with `prefix`, in the order of their keys, behind `after`: up to `limit`, 1 to
    /// [`MAX_SCAN`].
    async fn scan(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Page>;

    /// Returns the keys with this prefix that were put or deleted after the change `since`; all, if that is 0. Costs next to
    /// nothing when nothing has changed.
    async fn changes(&self, prefix: &str, since: SettingVersion) -> Result<SettingChanges>;

    /// Puts a record that is gone after `ttl`, whatever is there, unless it is kept again. It is no change: see
    /// [`scan`](SettingsStore::scan) for such records. Need not survive a restart.
    async fn keep(&self, key: &str, value: Bytes, ttl: Duration) -> Result<()>;

    /// Adds one to a counter that is below `max`. A counter begins at 0 and ends `window` after its first count. Counters are
    /// no records.
    async fn count(&self, key: &str, max: u64, window: Duration) -> Result<Counted>;
}
