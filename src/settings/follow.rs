//! Follows the records of a prefix for caches: reports those put or deleted since the last call. Independent of their
//! contents.

use std::collections::BTreeSet;

use super::{Record, SettingVersion, SettingsStore, scan_all};
use crate::engine::together;
use crate::error::Result;

/// Number of changed records that are read at a time.
const AT_A_TIME: usize = 64;

/// A step of [`follow`].
#[derive(Debug)]
pub enum RecordChange {
    /// All records follow, up to [`End`](RecordChange::End). A known record that is not among them was deleted, and a
    /// failover has lost every known version later than the reported one.
    Begin,
    Put(String, Record),
    /// The record was deleted, at this version or before.
    Gone(String, SettingVersion),
    End,
}

/// Reports to `see` the records of `prefix` that have changed since `since`, and advances `since`. Changes for which
/// `is_known` returns `true` are not read. A record is reported in its current version, which may be later than the
/// change. After an error the next call reports the remaining changes, and perhaps some again; a
/// [`Begin`](RecordChange::Begin) may then lack its [`End`](RecordChange::End).
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
                scan_all(store, prefix, |key, record| see(RecordChange::Put(key, record))).await?;
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
