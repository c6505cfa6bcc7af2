//! Settings in the directory of the default pool, or of the pool that it moves to. Records with a ttl are in memory only,
//! since a directory has one server.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{MAX_CHANGES, Page, Put, Record, SCAN_BYTES, SettingChanges, SettingVersion, SettingsStore};
use crate::engine::disk::{DiskEngine, Records};
use crate::error::{Error, Result};

/// Prefix of the records that have bodies of jobs. Like those, they are refused while the disk is almost full.
const WITH_BODIES: &str = "schedules/";

/// Settings of one server.
#[derive(Debug)]
pub struct DiskSettings {
    records: Records,
    /// Records with a ttl, and their end.
    kept: Mutex<BTreeMap<String, (Instant, Record)>>,
}

impl DiskSettings {
    pub fn new(engine: &DiskEngine) -> DiskSettings {
        DiskSettings { records: engine.records(), kept: Mutex::default() }
    }

    /// Returns the record kept under this key, unless it has ended.
    fn kept(&self, key: &str) -> Option<Record> {
        let kept = self.kept.lock();
        kept.get(key).filter(|(ends, _)| *ends > Instant::now()).map(|(_, record)| record.clone())
    }
}

fn record((version, value): (SettingVersion, Bytes)) -> Record {
    Record { version, value }
}

fn text(key: &[u8]) -> Result<String> {
    String::from_utf8(key.to_vec()).map_err(Error::corrupt)
}

#[async_trait]
impl SettingsStore for DiskSettings {
    async fn get(&self, key: &str) -> Result<Option<Record>> {
        match self.kept(key) {
            Some(kept) => Ok(Some(kept)),
            None => Ok(self.records.setting(key).await?.map(record)),
        }
    }

    async fn put(&self, key: &str, value: Option<Bytes>, expected: Option<SettingVersion>) -> Result<Put> {
        if let Some(kept) = self.kept(key) {
            if expected != Some(kept.version) {
                return Ok(Put::Differs(Some(kept)));
            }
            self.kept.lock().remove(key);
            return self.put(key, value, None).await;
        }
        if let Some(value) = value.as_ref().filter(|_| key.starts_with(WITH_BODIES)) {
            self.records.has_room_for(value.len())?;
        }
        Ok(match self.records.put_setting(key, value, expected).await? {
            Ok(version) => Put::Done(version),
            Err(there) => Put::Differs(there.map(record)),
        })
    }

    async fn scan(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Page> {
        let (found, mut more) = self.records.scan_settings(prefix, after, limit, SCAN_BYTES).await?;
        let found = found.into_iter().map(|(key, row)| Ok((text(&key)?, record(row))));
        let mut all: BTreeMap<String, Record> = found.collect::<Result<_>>()?;
        let end = all.last_key_value().map(|(last, _)| last.clone()).filter(|_| more);
        let now = Instant::now();
        let mut kept = self.kept.lock();
        kept.retain(|_, (ends, _)| *ends > now);
        let is_asked = |key: &&String| {
            key.starts_with(prefix)
                && after.is_none_or(|after| key.as_str() > after)
                && end.as_ref().is_none_or(|end| *key <= end)
        };
        let kept = kept.iter().filter(|(key, _)| is_asked(key));
        all.extend(kept.map(|(key, (_, record))| (key.clone(), record.clone())));
        more |= all.len() > limit;
        Ok(Page { records: all.into_iter().take(limit).collect(), more })
    }

    async fn changes(&self, prefix: &str, since: SettingVersion) -> Result<SettingChanges> {
        let (version, keys) = self.records.setting_changes(since, MAX_CHANGES).await?;
        let keys = keys.filter(|_| since > 0).map(|keys| {
            let of_prefix = keys.into_iter().filter(|(_, key)| key.starts_with(prefix.as_bytes()));
            of_prefix.map(|(version, key)| Ok((text(&key)?, version))).collect::<Result<_>>()
        });
        Ok(SettingChanges { version, keys: keys.transpose()? })
    }

    async fn keep(&self, key: &str, value: Bytes, ttl: Duration) -> Result<()> {
        let version = self.records.setting_changes(0, 1).await?.0;
        let mut kept = self.kept.lock();
        let version = kept.get(key).map_or(version, |(_, before)| before.version) + 1;
        kept.insert(key.to_owned(), (Instant::now() + ttl, Record { value, version }));
        Ok(())
    }
}
