//! Memory of settings: their keys, versions and latest changes. Values are read from the disk. Changes memory only:
//! the steps write the same change to the disk.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use crate::clock::Micros;
use crate::engine::disk::codec;
use crate::engine::disk::store::{Fatal, Space, Store};

/// Number of changes kept.
const CHANGES_KEPT: usize = 20_000;

/// The key of a record, shared by the map and the log.
pub type SettingKey = Arc<[u8]>;
/// The version of a change, and the key that was changed.
pub type SettingChange = (u64, SettingKey);

/// The keys of all settings.
#[derive(Debug, Default)]
pub struct Settings {
    versions: BTreeMap<SettingKey, u64>,
    /// The latest changes, oldest first.
    log: VecDeque<SettingChange>,
    /// Version of the last change.
    version: u64,
    /// Changes up to this version are no longer in the log.
    floor: u64,
}

impl Settings {
    /// Loads all from the disk. `mark` is less than a second before the time of the last shutdown.
    pub fn load(store: &Store, mark: Micros) -> Result<Settings, Fatal> {
        let mut all = Settings { version: mark, ..Settings::default() };
        for item in store.all(Space::Settings) {
            let (key, value) = item?;
            let version = codec::read_setting(&value)?.0;
            all.versions.insert(Arc::from(&key[..]), version);
            all.version = all.version.max(version);
        }
        all.floor = all.version;
        Ok(all)
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.versions.len()
    }

    pub fn version_of(&self, key: &[u8]) -> Option<u64> {
        self.versions.get(key).copied()
    }

    /// Records a change, and returns its version.
    pub fn change(&mut self, key: &[u8], is_there: bool, now: Micros) -> u64 {
        self.version = now.max(self.version + 1);
        let known = self.versions.get_key_value(key).map(|(key, _)| key.clone());
        let key = known.unwrap_or_else(|| key.into());
        match is_there {
            true => _ = self.versions.insert(key.clone(), self.version),
            false => _ = self.versions.remove(&key),
        }
        self.log.push_back((self.version, key));
        if self.log.len() > CHANGES_KEPT
            && let Some((version, _)) = self.log.pop_front()
        {
            self.floor = version;
        }
        self.version
    }

    /// Returns the keys with `prefix` after `after`, in order.
    pub fn keys<'a>(
        &'a self,
        prefix: &'a [u8],
        after: Option<&'a [u8]>,
    ) -> impl Iterator<Item = &'a SettingKey> {
        let from = match after.filter(|after| *after >= prefix) {
            Some(after) => Bound::Excluded(after),
            None => Bound::Included(prefix),
        };
        let range = self.versions.range::<[u8], _>((from, Bound::Unbounded)).map(|(key, _)| key);
        range.take_while(move |key| key.starts_with(prefix))
    }

    /// Returns the current version, and up to `most` changes since `since`; `None`: any key may have changed.
    pub fn changes(&self, since: u64, most: usize) -> (u64, Option<Vec<SettingChange>>) {
        if since == self.version {
            return (self.version, Some(Vec::new()));
        }
        if since < self.floor || since > self.version {
            return (self.version, None);
        }
        let from = self.log.partition_point(|(version, _)| *version <= since);
        let some: Vec<_> = self.log.range(from..).take(most).collect();
        let version = some.last().map_or(self.version, |(version, _)| *version);
        (version, Some(some.into_iter().cloned().collect()))
    }
}
