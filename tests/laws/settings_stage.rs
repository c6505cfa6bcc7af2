//! A settings store in memory, the model of the others; and the stage for laws of settings stores.

use std::any::Any;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use dormouse::error::Result;
use dormouse::settings::{MAX_CHANGES, Page, Put, Record, SettingChanges, SettingVersion, SettingsStore};
use parking_lot::Mutex;
use tokio::time::Instant;

/// Records in a map.
#[derive(Debug, Default)]
pub struct MemorySettings(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    version: SettingVersion,
    records: BTreeMap<String, (Record, Option<Instant>)>,
    log: Vec<(SettingVersion, String)>,
}

impl State {
    fn get(&self, key: &str) -> Option<Record> {
        let (record, ends) = self.records.get(key)?;
        ends.is_none_or(|ends| ends > Instant::now()).then(|| record.clone())
    }
}

#[async_trait]
impl SettingsStore for MemorySettings {
    async fn get(&self, key: &str) -> Result<Option<Record>> {
        Ok(self.0.lock().get(key))
    }

    async fn put(&self, key: &str, value: Option<Bytes>, expected: Option<SettingVersion>) -> Result<Put> {
        let mut state = self.0.lock();
        let there = state.get(key);
        if there.as_ref().map(|record| record.version) != expected {
            return Ok(Put::Differs(there));
        }
        state.version += 1;
        let version = state.version;
        state.log.push((version, key.to_owned()));
        match value {
            Some(value) => drop(state.records.insert(key.to_owned(), (Record { value, version }, None))),
            None => drop(state.records.remove(key)),
        }
        Ok(Put::Done(version))
    }

    async fn scan(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Page> {
        let state = self.0.lock();
        let from = match after.filter(|after| *after >= prefix) {
            Some(after) => Bound::Excluded(after),
            None => Bound::Included(prefix),
        };
        let keys = state.records.range::<str, _>((from, Bound::Unbounded)).map(|(key, _)| key);
        let there = keys.take_while(|key| key.starts_with(prefix));
        let mut records: Vec<_> =
            there.filter_map(|key| Some((key.clone(), state.get(key)?))).take(limit + 1).collect();
        let more = records.len() > limit;
        records.truncate(limit);
        Ok(Page { records, more })
    }

    async fn changes(&self, prefix: &str, since: SettingVersion) -> Result<SettingChanges> {
        let state = self.0.lock();
        if since != state.version && (since == 0 || since > state.version) {
            return Ok(SettingChanges { version: state.version, keys: None });
        }
        let some: Vec<_> =
            state.log.iter().filter(|(version, _)| *version > since).take(MAX_CHANGES).collect();
        let version = some.last().map_or(since, |(version, _)| *version);
        let keys = some.into_iter().map(|(version, key)| (key.clone(), *version));
        let keys = keys.filter(|(key, _)| key.starts_with(prefix));
        Ok(SettingChanges { version, keys: Some(keys.collect()) })
    }

    async fn keep(&self, key: &str, value: Bytes, ttl: Duration) -> Result<()> {
        let mut state = self.0.lock();
        // Not reported as a change, but no version is used twice.
        state.version += 1;
        let version = state.version;
        state.records.insert(key.to_owned(), (Record { value, version }, Some(Instant::now() + ttl)));
        Ok(())
    }
}

/// An empty settings store.
pub struct SettingsStage {
    store: Arc<dyn SettingsStore>,
    /// Dropped after the store.
    _keep: Box<dyn Any + Send + Sync>,
}

impl SettingsStage {
    pub fn new(store: Arc<dyn SettingsStore>, keep: impl Any + Send + Sync) -> SettingsStage {
        SettingsStage { store, _keep: Box::new(keep) }
    }

    /// Returns the store under test.
    pub fn store(&self) -> &Arc<dyn SettingsStore> {
        &self.store
    }
}
