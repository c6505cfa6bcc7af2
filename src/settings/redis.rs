//! Settings in the Redis of tokens and limits; in a cluster, all in one slot. lmstfy has none of these keys:
//!
//! `dormouse/settings` hash key → `version ends value`, and a field without a name: the version of the last change;
//! `dormouse/settings/names` sorted set of the keys; `dormouse/settings/changes` stream of changes, whose ids are the
//! versions.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use redis::{FromRedisValue, Value};

use super::{
    CHANGES_KEPT, MAX_CHANGES, Page, Put, Record, SCAN_BYTES, SettingChanges, SettingVersion, SettingsStore,
};
use crate::admin::redis::RedisAdmin;
use crate::engine::redis::layout::scripts::{Script, Scripts};
use crate::engine::redis::tables::Tables;
use crate::engine::together;
use crate::error::{Error, Result};

/// The hash of all records.
const RECORDS: &str = "dormouse/settings";
/// Hash of push settings in versions before the first release, with a field without a name.
const PUSH_BEFORE_SETTINGS: &str = "dormouse/push";
const OF_EARLIER_VERSION: &str = "the Redis has push settings of a version before the first release: delete them with \
    that version, or delete the key dormouse/push";
/// The partition of all its keys.
const PART: u16 = 0;

/// Settings that a fleet shares.
#[derive(Debug)]
pub struct RedisSettings {
    tables: Tables,
    scripts: Scripts,
}

impl RedisSettings {
    /// Uses the connection of the Redis of tokens and limits.
    pub fn new(admin: &RedisAdmin) -> RedisSettings {
        RedisSettings { tables: admin.tables(), scripts: Scripts::default() }
    }

    /// Fails if the Redis has push settings that this version would ignore. Passes over unavailable parts of a cluster,
    /// without which a server starts.
    pub async fn refuse_earlier(&self) -> Result<()> {
        let fields = together::all(self.tables.parts().map(|part| async move {
            let mut fields = redis::cmd("HLEN");
            fields.arg(self.tables.key(part, PUSH_BEFORE_SETTINGS));
            self.tables.query::<u64>(part, &fields).await
        }));
        match fields.await.into_iter().flatten().any(|fields| fields > 1) {
            true => Err(Error::refused(OF_EARLIER_VERSION)),
            false => Ok(()),
        }
    }

    fn call<const N: usize>(&self, script: &Script, kinds: [&str; N]) -> redis::Cmd {
        let keys = kinds.map(|kind| self.tables.key(PART, format!("{RECORDS}{kind}")));
        self.tables.call(script, PART, keys)
    }

    async fn run<T: FromRedisValue>(&self, script: &Script, call: &redis::Cmd) -> Result<T> {
        Ok(self.tables.run(PART, script, call).await?)
    }
}

fn unreadable() -> Error {
    Error::corrupt(format!("unexpected reply about {RECORDS}"))
}

fn read<T: FromRedisValue>(value: Value) -> Result<T> {
    redis::from_redis_value(value).map_err(|_| unreadable())
}

/// Returns the record of a version and a value; `None` for an empty version.
fn record(version: Value, value: Value) -> Result<Option<Record>> {
    let version: String = read(version)?;
    if version.is_empty() {
        return Ok(None);
    }
    let version = version.parse().map_err(|_| unreadable())?;
    Ok(Some(Record { version, value: read::<Vec<u8>>(value)?.into() }))
}

#[async_trait]
impl SettingsStore for RedisSettings {
    async fn get(&self, key: &str) -> Result<Option<Record>> {
        let script = &self.scripts.get_setting;
        let mut call = self.call(script, [""]);
        let [version, value]: [Value; 2] = pair(self.run(script, call.arg(key)).await?)?;
        record(version, value)
    }

    async fn put(&self, key: &str, value: Option<Bytes>, expected: Option<SettingVersion>) -> Result<Put> {
        let script = &self.scripts.put_setting;
        let mut call = self.call(script, ["", "/names", "/changes"]);
        let expected = expected.map(|version| version.to_string()).unwrap_or_default();
        call.arg(key).arg(expected).arg(CHANGES_KEPT).arg(u8::from(value.is_some()));
        call.arg(&value.unwrap_or_default()[..]);
        let [is_done, version, value]: [Value; 3] =
            self.run::<Vec<Value>>(script, &call).await?.try_into().map_err(|_| unreadable())?;
        Ok(match read(is_done)? {
            true => Put::Done(record(version, value)?.ok_or_else(unreadable)?.version),
            false => Put::Differs(record(version, value)?),
        })
    }

    async fn scan(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Page> {
        let script = &self.scripts.scan_settings;
        let mut call = self.call(script, ["", "/names"]);
        let from = match after.filter(|after| *after >= prefix) {
            Some(after) => format!("({after}"),
            None => format!("[{prefix}"),
        };
        // No text contains this byte.
        let end = [b"(", prefix.as_bytes(), b"\xff"].concat();
        call.arg(from).arg(end).arg(limit).arg(SCAN_BYTES);
        let mut found = self.run::<Vec<Value>>(script, &call).await?.into_iter();
        let more = read(found.next().ok_or_else(unreadable)?)?;
        let mut records = Vec::new();
        while let (Some(key), Some(version), Some(value)) = (found.next(), found.next(), found.next()) {
            records.push((read(key)?, record(version, value)?.ok_or_else(unreadable)?));
        }
        Ok(Page { records, more })
    }

    async fn changes(&self, prefix: &str, since: SettingVersion) -> Result<SettingChanges> {
        let script = &self.scripts.setting_changes;
        let mut call = self.call(script, ["", "/changes"]);
        call.arg(since).arg(MAX_CHANGES);
        let mut told = self.run::<Vec<Value>>(script, &call).await?.into_iter();
        let mut next = || told.next().ok_or_else(unreadable);
        let version: String = read(next()?)?;
        let version = version.parse().map_err(|_| unreadable())?;
        let is_all: bool = read(next()?)?;
        if is_all {
            return Ok(SettingChanges { version, keys: None });
        }
        let mut keys = Vec::new();
        while let (Some(key), Some(version)) = (told.next(), told.next()) {
            let (key, version): (String, String) = (read(key)?, read(version)?);
            if key.starts_with(prefix) {
                keys.push((key, version.parse().map_err(|_| unreadable())?));
            }
        }
        Ok(SettingChanges { version, keys: Some(keys) })
    }

    async fn keep(&self, key: &str, value: Bytes, ttl: Duration) -> Result<()> {
        let script = &self.scripts.keep_setting;
        let mut call = self.call(script, ["", "/names"]);
        call.arg(key).arg(ttl.as_millis().max(1) as u64).arg(&value[..]);
        let _: u64 = self.run(script, &call).await?;
        Ok(())
    }
}

fn pair(values: Vec<Value>) -> Result<[Value; 2]> {
    values.try_into().map_err(|_| unreadable())
}
