//! What push shares, on local disk: records and reports in the directory of the default pool (docs/disk-format.md draws
//! their keys), slots in memory: a directory has one server.

use async_trait::async_trait;
use bytes::{BufMut, Bytes};

use super::disk::DiskAdmin;
use super::push::{Lease, PushKey, PushStore, Records, Report, Seen, Share, Version};
use crate::engine::disk::{Change, PUSH_PREFIX, Table};
use crate::error::{Error, Result};
use crate::name::{Namespace, PoolName, Queue, QueueName};

/// What stands behind the prefix: which kind of row it is.
const RECORD: u8 = b'r';
const REPORT: u8 = b's';

/// The key of a row: kind, pool and namespace with their lengths, queue.
fn row(kind: u8, key: &PushKey) -> Bytes {
    let mut out = PUSH_PREFIX.to_vec();
    out.put_u8(kind);
    for name in [key.pool.as_str(), key.queue.namespace.as_str()] {
        // A name is at most 255 bytes: name.rs holds that.
        out.put_u8(name.len() as u8);
        out.put_slice(name.as_bytes());
    }
    out.put_slice(key.queue.name.as_str().as_bytes());
    out.into()
}

/// Reads the key of a record; `None` for a row of another kind.
fn read_record_key(row: &[u8]) -> Result<Option<PushKey>> {
    fn name<'a>(bytes: &mut &'a [u8]) -> Option<&'a str> {
        let (len, rest) = bytes.split_first()?;
        let (name, rest) = rest.split_at_checked(usize::from(*len))?;
        *bytes = rest;
        std::str::from_utf8(name).ok()
    }
    let read = |mut bytes: &[u8]| {
        let pool = PoolName::parse(name(&mut bytes)?).ok()?;
        let namespace = Namespace::parse(name(&mut bytes)?).ok()?;
        let name = QueueName::parse_for_consume(std::str::from_utf8(bytes).ok()?).ok()?;
        Some(PushKey { pool, queue: Queue { namespace, name } })
    };
    match row.strip_prefix(PUSH_PREFIX).and_then(<[u8]>::split_first) {
        Some((&RECORD, rest)) => {
            read(rest).map(Some).ok_or_else(|| Error::corrupt("the key of a pushed queue cannot be read"))
        }
        _ => Ok(None),
    }
}

impl DiskAdmin {
    /// Every record; fails when a key cannot be read.
    pub(super) fn push_records(&self) -> Result<Vec<(PushKey, Bytes)>> {
        self.records.read(Table::Push, |rows| {
            let read = |(row, record): (&Bytes, &Bytes)| {
                read_record_key(row).map(|key| key.map(|key| (key, record.clone())))
            };
            rows.iter().filter_map(|row| read(row).transpose()).collect()
        })
    }

    fn push_report(&self, key: &PushKey) -> Result<Report> {
        let stored = self.records.read(Table::Push, |rows| rows.get(&row(REPORT, key)).cloned());
        let read = |stored: Bytes| serde_json::from_slice(&stored).map_err(Error::corrupt);
        stored.map_or(Ok(Report::default()), read)
    }
}

#[async_trait]
impl PushStore for DiskAdmin {
    async fn records(&self, known: Option<Version>) -> Result<Option<Records>> {
        let version = self.push.lock().version;
        if known == Some(version) {
            return Ok(None);
        }
        Ok(Some(Records { version, all: self.push_records()? }))
    }

    async fn record(&self, key: &PushKey) -> Result<Option<Bytes>> {
        Ok(self.records.read(Table::Push, |rows| rows.get(&row(RECORD, key)).cloned()))
    }

    async fn swap(&self, key: &PushKey, old: Option<Bytes>, new: Option<Bytes>) -> Result<bool> {
        // One change at a time, so that nothing comes between the look and the change.
        let _turn = self.push_turn.lock().await;
        if self.record(key).await? != old {
            return Ok(false);
        }
        let changes = match new {
            Some(new) => vec![(Table::Push, row(RECORD, key), Change::Put(new))],
            None => [RECORD, REPORT].map(|kind| (Table::Push, row(kind, key), Change::Delete)).into(),
        };
        let changed = self.records.change(changes).await;
        // After an error too: the change may have happened.
        self.push.lock().version += 1;
        changed.map(|_| true)
    }

    async fn lease(&self, key: &PushKey, lease: Lease<'_>) -> Result<Share> {
        let failed = self.push_report(key)?.failed;
        let mut push = self.push.lock();
        if lease.time.is_zero() {
            push.servers.remove(key);
        } else {
            push.servers.insert(key.clone(), (lease.in_flight, lease.open));
        }
        Ok(Share { slots: lease.slots, rate: lease.rate, failed })
    }

    async fn report(&self, key: &PushKey, report: Report) -> Result<()> {
        let _turn = self.push_turn.lock().await;
        if self.record(key).await?.is_none() {
            return Ok(()); // deleted meanwhile
        }
        let mut all = self.push_report(key)?;
        all.add(report);
        let text = serde_json::to_vec(&all).map_err(Error::refused)?;
        let change = (Table::Push, row(REPORT, key), Change::Put(text.into()));
        self.records.change(vec![change]).await.map(drop)
    }

    async fn seen(&self, key: &PushKey) -> Result<Seen> {
        let report = self.push_report(key)?;
        let (in_flight, open) = self.push.lock().servers.get(key).copied().unwrap_or_default();
        Ok(Seen { report, in_flight: u64::from(in_flight), open })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_key_of_a_record_survives(pool in "[a-z]{1,9}", ns in "[a-z]{1,9}", name in "[-_A-Za-z0-9]{1,40}") {
            let key = PushKey {
                pool: PoolName::parse(&pool).unwrap(), // the patterns make names
                queue: Queue {
                    namespace: Namespace::parse(&ns).unwrap(),
                    name: QueueName::parse_for_consume(&name).unwrap(),
                },
            };
            prop_assert_eq!(read_record_key(&row(REPORT, &key)).unwrap(), None);
            prop_assert_eq!(read_record_key(&row(RECORD, &key)).unwrap(), Some(key));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            let _ = read_record_key(&[PUSH_PREFIX, &bytes].concat());
        }
    }
}
