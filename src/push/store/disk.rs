//! What push shares, on local disk: records and reports in the directory of the default pool (docs/disk-format.md draws
//! their keys), slots in memory: a directory has one server. It may have two workers of a queue: one that was deleted
//! has requests in flight when the queue is pushed again.

use std::time::Duration;

use async_trait::async_trait;
use bytes::{BufMut, Bytes};

use super::disk::DiskAdmin;
use super::leases::{Begun, LEASE_TURNS, millis};
use super::push::{Lease, PushKey, PushStore, Records, Report, Seen, Share, Version};
use crate::engine::disk::{Change, PUSH_PREFIX, Table};
use crate::error::{Error, Result};
use crate::name::{Namespace, PoolName, Queue, QueueName};

/// What stands behind the prefix: which kind of row it is.
const RECORD: u8 = b'r';
const REPORT: u8 = b's';
const LENT: u8 = b'l';

/// The longest `per`: what was begun so long ago counts in no rate.
const LONGEST_PER: Duration = Duration::from_secs(3600);

/// Reads what [`Leased::row`](super::leases::Leased::row) has said; nothing where it cannot be read.
fn read_lent(row: &Bytes) -> Option<Begun> {
    serde_json::from_slice(row).ok()
}

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

    /// Drops the rows of parts of a rate that count no more: the queue may not be pushed any longer.
    async fn forget_lent(&self) -> Result<()> {
        let (prefix, now) = ([PUSH_PREFIX, &[LENT]].concat(), self.records.now());
        let over = |row: &Bytes| read_lent(row).is_none_or(|(_, until)| until + millis(LONGEST_PER) < now);
        let rows = self.records.read(Table::Push, |rows| {
            let lent = rows.iter().filter(|(key, row)| key.starts_with(&prefix) && over(row));
            lent.map(|(key, _)| (Table::Push, key.clone(), Change::Delete)).collect::<Vec<_>>()
        });
        if !rows.is_empty() {
            self.records.change(rows).await?;
        }
        Ok(())
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
        if known.is_none() {
            self.forget_lent().await?;
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
        let lent_row = row(LENT, key);
        // One lease of a queue at a time, so that its rows are written in the order in which they were made. Leases of
        // other queues do not wait for a write.
        let turn = xxhash_rust::xxh3::xxh3_64(&lent_row) as usize % LEASE_TURNS;
        let _turn = self.lease_turns[turn].lock().await;
        let (report, now) = (self.push_report(key)?, self.records.now());
        let (share, begun) = {
            let mut push = self.push.lock();
            let leased = push.leased.entry(key.clone()).or_default();
            if leased.stored.is_none() {
                let stored = self.records.read(Table::Push, |rows| rows.get(&lent_row).and_then(read_lent));
                leased.stored = stored;
                let begun = |(rate, until): Begun| (rate, until.min(now) + millis(lease.per));
                leased.lent.extend(stored.map(begun));
            }
            let (share, begun) = (leased.divide(&lease, now), leased.row(&lease, now));
            if leased.workers.is_empty() {
                push.leased.remove(key);
            }
            (share, begun)
        };
        if let Some(begun) = begun {
            let change = match begun.0 {
                0 => Change::Delete,
                _ => Change::Put(serde_json::to_vec(&begun).map_err(Error::refused)?.into()),
            };
            // Before the answer: what may be begun is known after a kill, too.
            self.records.change(vec![(Table::Push, lent_row, change)]).await?;
            if let Some(leased) = self.push.lock().leased.get_mut(key) {
                leased.stored = Some(begun);
            }
        }
        Ok(Share { failed: report.failed, delivered: report.delivered, ..share })
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
        let push = self.push.lock();
        let workers = || push.leased.get(key).into_iter().flat_map(|leased| leased.workers.values());
        let in_flight = workers().map(|holds| u64::from(holds.in_flight)).sum();
        Ok(Seen { report, in_flight, open: workers().filter_map(|holds| holds.open).min() })
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
