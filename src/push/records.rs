//! The records of pushed queues in the settings: `push/queues/<pool>/<namespace>/<queue>`, with secrets encrypted if
//! this server has keys. Every server follows them. Does not interpret records.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;

use super::encrypted::SecretKeys;
use super::key::PushKey;
use crate::error::{Error, Result};
use crate::name::{Namespace, PoolName, Queue, QueueName};
use crate::settings::follow::{RecordChange, follow};
use crate::settings::{Put, SettingVersion, SettingsStore};

/// Prefix of the keys of records.
const PREFIX: &str = "push/queues/";

fn key_of(key: &PushKey) -> String {
    format!("{PREFIX}{key}")
}

/// Parses [`key_of`]. `None` for keys of a newer version.
fn parse_key(key: &str) -> Option<PushKey> {
    let mut names = key.strip_prefix(PREFIX)?.split('/');
    let pool = PoolName::parse(names.next()?).ok()?;
    let namespace = Namespace::parse(names.next()?).ok()?;
    let name = QueueName::parse_for_consume(names.next()?).ok()?;
    names.next().is_none().then_some(PushKey { pool, queue: Queue { namespace, name } })
}

/// A record, decrypted, and its version.
#[derive(Clone, PartialEq, Eq)]
pub struct Stored {
    pub plain: Bytes,
    pub version: SettingVersion,
}

/// All records, as one server knows them.
#[derive(Default)]
pub struct KnownRecords {
    since: SettingVersion,
    pub all: BTreeMap<PushKey, Bytes>,
    /// Records whose secrets are to be encrypted with the first key.
    outdated: BTreeMap<PushKey, Stored>,
    /// The records that existed at the start are encrypted.
    is_encrypted: bool,
}

/// The records of all pushed queues. `Debug` shows none, since they contain secrets.
#[derive(Debug)]
pub struct PushRecords {
    settings: Arc<dyn SettingsStore>,
    keys: SecretKeys,
}

impl PushRecords {
    /// Without keys, secrets are stored as they are.
    pub fn new(settings: Arc<dyn SettingsStore>, keys: SecretKeys) -> PushRecords {
        PushRecords { settings, keys }
    }

    /// Returns the record of one queue.
    pub async fn get(&self, key: &PushKey) -> Result<Option<Stored>> {
        let record = self.settings.get(&key_of(key)).await?;
        Ok(record
            .map(|record| Stored { plain: self.keys.show(key, record.value).0, version: record.version }))
    }

    /// Puts a record, or deletes it (`None`). Returns `false`, and changes nothing, if the current version is not
    /// `expected`; `None` expects no record.
    pub async fn put(
        &self,
        key: &PushKey,
        plain: Option<Bytes>,
        expected: Option<SettingVersion>,
    ) -> Result<bool> {
        let value = plain.map(|plain| self.keys.hide(key, plain)).transpose()?;
        Ok(matches!(self.settings.put(&key_of(key), value, expected).await?, Put::Done(_)))
    }

    /// Reads what has changed into `known`. Returns whether anything has.
    pub async fn catch_up(&self, known: &mut KnownRecords) -> Result<bool> {
        let (mut changed, mut unreadable) = (false, 0);
        // While all records are read: the queues not read again yet.
        let mut unmet: Option<BTreeSet<PushKey>> = None;
        let KnownRecords { since, all, outdated, is_encrypted } = known;
        let read = follow(
            &*self.settings,
            PREFIX,
            since,
            |_, _| false,
            |change| match change {
                RecordChange::Begin => {
                    unmet = Some(all.keys().cloned().collect());
                    changed = true;
                }
                RecordChange::Put(key, record) => {
                    let Some(key) = parse_key(&key) else {
                        unreadable += 1;
                        return;
                    };
                    unmet.iter_mut().for_each(|unmet| _ = unmet.remove(&key));
                    let (plain, is_current) = self.keys.show(&key, record.value);
                    if !is_current && !*is_encrypted && !self.keys.is_empty() {
                        let stored = Stored { plain: plain.clone(), version: record.version };
                        outdated.insert(key.clone(), stored);
                    }
                    all.insert(key, plain);
                    changed = true;
                }
                RecordChange::Gone(key, _) => {
                    parse_key(&key).into_iter().for_each(|key| _ = all.remove(&key));
                    changed = true;
                }
                RecordChange::End => {
                    unmet.take().unwrap_or_default().iter().for_each(|key| _ = all.remove(key));
                }
            },
        )
        .await;
        if unreadable > 0 {
            tracing::warn!(unreadable, "push: skipped settings with malformed keys");
        }
        read?;
        if !known.is_encrypted {
            known.is_encrypted = self.encrypt(&mut known.outdated).await?;
        }
        Ok(changed)
    }

    /// Encrypts records with the first key. Returns `false` if some have changed meanwhile, so that they are read
    /// again.
    async fn encrypt(&self, outdated: &mut BTreeMap<PushKey, Stored>) -> Result<bool> {
        let (mut done, mut is_whole, mut failed) = (0, true, None);
        while let Some((key, Stored { plain, version })) = outdated.pop_first() {
            match self.put(&key, Some(plain.clone()), Some(version)).await {
                Ok(true) => done += 1,
                Ok(false) => is_whole = false,
                Err(error @ Error::Away(_)) => {
                    outdated.insert(key, Stored { plain, version });
                    return Err(error);
                }
                Err(error) => failed = Some(error),
            }
        }
        if done > 0 {
            tracing::info!(
                records = done,
                "push: secrets in the store are encrypted with the first key of SecretKeyFile"
            );
        }
        // A store that refuses writes because its disk is full must not stop deliveries.
        if let Some(error) = failed {
            tracing::warn!(%error, "push: some secrets could not be encrypted in the store; the next start retries");
        }
        Ok(is_whole)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_names_its_queue() {
        for (names, is_key) in [
            ("default/shop/mail", true),
            ("default/shop/_mail", true),
            ("", false),
            ("default/shop", false),
            ("default/shop/mail/x", false),
            ("default//mail", false),
        ] {
            let key = format!("{PREFIX}{names}");
            let back = parse_key(&key).map(|key| key_of(&key));
            assert_eq!(back, is_key.then_some(key), "the key of {names:?}");
        }
    }
}
