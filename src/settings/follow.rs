//! Follows the records of a prefix, for caches: which were put or deleted since the last call.

use std::collections::BTreeSet;

use super::{MAX_SCAN, Record, SettingVersion, SettingsStore};
use crate::engine::together;
use crate::error::Result;

/// Number of changed records that are read at a time.
const AT_A_TIME: usize = 64;

/// A step of [`follow`].
#[derive(Debug)]
pub enum RecordChange {
    /// All records follow, up to [`End`](RecordChange::End). Those known before and not among them are deleted, and those
    /// known in a later version were lost by a failover.
    Begin,
    Put(String, Record),
    /// It was deleted, no later than by this version.
    Gone(String, SettingVersion),
    End,
}

/// Reports the records of `prefix` that have changed since `since`, and advances it; changes that `is_known` are not
/// read. A record is reported as it is when it is read, which may be later than its change. After an error `since`
/// stays, so that the next call reports them again; a [`Begin`](RecordChange::Begin) may then come without its end.
pub async fn follow(
    store: &dyn SettingsStore,
    prefix: &str,
    since: &mut SettingVersion,
    is_known: impl Fn(&str, SettingVersion) -> bool + Sync,
    mut see: impl FnMut(RecordChange) + Send,
) -> Result<()> {
    loop {
        let changes = store.changes(prefix, *since).await?;
        match changes.keys {
            None => {
                see(RecordChange::Begin);
                let mut after = None;
                loop {
                    let page = store.scan(prefix, after.as_deref(), MAX_SCAN).await?;
                    after = page.records.last().map(|(key, _)| key.clone()).or(after);
                    page.records.into_iter().for_each(|(key, record)| see(RecordChange::Put(key, record)));
                    if !page.more {
                        break;
                    }
                }
                see(RecordChange::End);
                *since = changes.version;
                return Ok(());
            }
            Some(keys) => {
                let is_last = changes.version == *since;
                let is_empty = keys.is_empty();
                let unknown = keys.into_iter().filter(|(key, version)| !is_known(key, *version));
                let keys: Vec<String> =
                    BTreeSet::from_iter(unknown.map(|(key, _)| key)).into_iter().collect();
                for some in keys.chunks(AT_A_TIME) {
                    let records = together::try_all(some.iter().map(|key| store.get(key))).await?;
                    for (key, record) in some.iter().cloned().zip(records) {
                        see(match record {
                            Some(record) => RecordChange::Put(key, record),
                            None => RecordChange::Gone(key, changes.version),
                        });
                    }
                }
                *since = changes.version;
                if is_last || is_empty {
                    return Ok(());
                }
            }
        }
    }
}
