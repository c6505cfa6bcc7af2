//! The push store on disk: records and reports are in the directory of the default pool (docs/disk-format.md draws
//! their keys), leases in memory, since a directory has one server. A queue can have two workers there: when it is
//! deleted and pushed again, the old worker may still have requests in flight.

use std::time::Duration;

use ahash::HashMap;
use async_trait::async_trait;
use bytes::{BufMut, Bytes};
use parking_lot::Mutex;

use super::leases::{Begun, Leased, TURNS, millis};
use super::{Grant, Lease, PushKey, PushRecords, PushReport, PushStore, Seen, Version};
use crate::engine::disk::{self, Change, DiskEngine, Table, put_short, take_short};
use crate::error::{Error, Result};
use crate::name::{Namespace, PoolName, Queue, QueueName};

/// First byte of a key: the kind of its row.
const RECORD: u8 = b'r';
const REPORT: u8 = b's';
const LENT: u8 = b'l';

/// The longest `per`: older requests count in no rate.
const LONGEST_PER: Duration = Duration::from_secs(3600);

/// The push store in the directory of a disk engine.
#[derive(Debug)]
pub struct DiskPush {
    rows: disk::Records,
    memory: Mutex<Memory>,
    /// Serializes changes of one queue's record or report, by the queue's hash. Changes of other queues share the
    /// write.
    turns: Turns,
    /// Serializes leases of one queue, likewise.
    lease_turns: Turns,
}

type Turns = [tokio::sync::Mutex<()>; TURNS];

fn turns() -> Turns {
    std::array::from_fn(|_| tokio::sync::Mutex::default())
}

/// Locks the turn of the queue that a row belongs to.
async fn turn_of<'a>(turns: &'a Turns, row: &[u8]) -> tokio::sync::MutexGuard<'a, ()> {
    turns[xxhash_rust::xxh3::xxh3_64(row) as usize % TURNS].lock().await
}

/// State that is kept in memory only.
#[derive(Debug, Default)]
struct Memory {
    /// Grows with every change of a record.
    version: Version,
    /// The leases of each queue.
    leased: HashMap<PushKey, Leased>,
    /// When the last attempt of each pushed queue succeeded. By the engine's clock, which begins with the process: a
    /// report may be older.
    delivered: HashMap<PushKey, i64>,
}

/// Parses a row written by [`Leased::row`]; `None` if it cannot be read.
fn read_lent(row: &Bytes) -> Option<Begun> {
    serde_json::from_slice(row).ok()
}

/// Returns the key of a row: kind, pool and namespace with their lengths, queue.
fn row(kind: u8, key: &PushKey) -> Bytes {
    let mut out = vec![kind];
    for name in [key.pool.as_str(), key.queue.namespace.as_str()] {
        put_short(&mut out, name);
    }
    out.put_slice(key.queue.name.as_str().as_bytes());
    out.into()
}

/// Parses the key of a record; `None` for a row of another kind.
fn read_record_key(row: &[u8]) -> Result<Option<PushKey>> {
    let read = |mut bytes: &[u8]| {
        let pool = PoolName::parse(take_short(&mut bytes).ok()?).ok()?;
        let namespace = Namespace::parse(take_short(&mut bytes).ok()?).ok()?;
        let name = QueueName::parse_for_consume(std::str::from_utf8(bytes).ok()?).ok()?;
        Some(PushKey { pool, queue: Queue { namespace, name } })
    };
    match row.split_first() {
        Some((&RECORD, rest)) => {
            read(rest).map(Some).ok_or_else(|| Error::corrupt("the key of a pushed queue cannot be read"))
        }
        _ => Ok(None),
    }
}

impl DiskPush {
    /// Fails if the stored rows cannot be read.
    pub fn new(engine: &DiskEngine) -> Result<DiskPush> {
        let push = DiskPush {
            rows: engine.records(),
            memory: Mutex::default(),
            turns: turns(),
            lease_turns: turns(),
        };
        push.all_records()?;
        Ok(push)
    }

    /// Returns every record; fails if a key cannot be read.
    fn all_records(&self) -> Result<Vec<(PushKey, Bytes)>> {
        self.rows.read(Table::Push, |rows| {
            let read = |(row, record): (&Bytes, &Bytes)| {
                read_record_key(row).map(|key| key.map(|key| (key, record.clone())))
            };
            rows.iter().filter_map(|row| read(row).transpose()).collect()
        })
    }

    /// Deletes the rows of requests that no longer count in a rate: their queues may no longer be pushed.
    async fn forget_lent(&self) -> Result<()> {
        let now = self.rows.pool_now();
        let over = |row: &Bytes| read_lent(row).is_none_or(|(_, until)| until + millis(LONGEST_PER) < now);
        let rows = self.rows.read(Table::Push, |rows| {
            let lent = rows.iter().filter(|(key, row)| key.first() == Some(&LENT) && over(row));
            lent.map(|(key, _)| (Table::Push, key.clone(), Change::Delete)).collect::<Vec<_>>()
        });
        if !rows.is_empty() {
            self.rows.change(rows).await?;
        }
        Ok(())
    }

    fn stored_report(&self, key: &PushKey) -> Result<PushReport> {
        let stored = self.rows.read(Table::Push, |rows| rows.get(&row(REPORT, key)).cloned());
        let read = |stored: Bytes| serde_json::from_slice(&stored).map_err(Error::corrupt);
        stored.map_or(Ok(PushReport::default()), read)
    }
}

#[async_trait]
impl PushStore for DiskPush {
    async fn records(&self, known: Option<Version>) -> Result<Option<PushRecords>> {
        let version = self.memory.lock().version;
        if known == Some(version) {
            return Ok(None);
        }
        if known.is_none() {
            self.forget_lent().await?;
        }
        Ok(Some(PushRecords { version, all: self.all_records()? }))
    }

    async fn record(&self, key: &PushKey) -> Result<Option<Bytes>> {
        Ok(self.rows.read(Table::Push, |rows| rows.get(&row(RECORD, key)).cloned()))
    }

    async fn swap(&self, key: &PushKey, old: Option<Bytes>, new: Option<Bytes>) -> Result<bool> {
        // Serialized per queue, so that nothing changes between the check and the write.
        let _turn = turn_of(&self.turns, &row(RECORD, key)).await;
        if self.record(key).await? != old {
            return Ok(false);
        }
        let is_end = new.is_none();
        let changes = match new {
            Some(new) => vec![(Table::Push, row(RECORD, key), Change::Put(new))],
            None => [RECORD, REPORT].map(|kind| (Table::Push, row(kind, key), Change::Delete)).into(),
        };
        let changed = self.rows.change(changes).await;
        let mut memory = self.memory.lock();
        // Also after an error: the change may have happened.
        memory.version += 1;
        if is_end {
            memory.delivered.remove(key);
        }
        drop(memory);
        changed.map(|_| true)
    }

    async fn lease(&self, key: &PushKey, lease: Lease) -> Result<Grant> {
        let lent_row = row(LENT, key);
        // Serialized per queue, so that its rows are written in the order of their computation. Leases of
        // other queues do not wait for a write.
        let _turn = turn_of(&self.lease_turns, &lent_row).await;
        let (report, now, pool_now) = (self.stored_report(key)?, self.rows.now(), self.rows.pool_now());
        let (grant, begun, delivered) = {
            let mut memory = self.memory.lock();
            let leased = memory.leased.entry(key.clone()).or_default();
            if leased.stored.is_none() {
                let stored = self.rows.read(Table::Push, |rows| rows.get(&lent_row).and_then(read_lent));
                leased.stored = stored;
                // Requests that began until then count for one more `per`.
                let begun = |(rate, until): Begun| {
                    let left = (until.min(pool_now) + millis(lease.per)).saturating_sub(pool_now);
                    (rate, now + left)
                };
                leased.lent.extend(stored.map(begun));
            }
            let (grant, begun) = (leased.divide(&lease, now), leased.row(&lease, pool_now));
            if leased.workers.is_empty() {
                memory.leased.remove(key);
            }
            (grant, begun, memory.delivered.get(key).copied())
        };
        let delivered_ago = delivered.map(|at| Duration::from_millis((now as i64).abs_diff(at)));
        if let Some(begun) = begun {
            let change = match begun.0 {
                0 => Change::Delete,
                _ => Change::Put(serde_json::to_vec(&begun).map_err(Error::refused)?.into()),
            };
            // Before the reply: after a kill it must be known how many requests may have begun.
            self.rows.change(vec![(Table::Push, lent_row, change)]).await?;
            if let Some(leased) = self.memory.lock().leased.get_mut(key) {
                leased.stored = Some(begun);
            }
        }
        Ok(Grant { failed: report.failed, delivered_ago, ..grant })
    }

    async fn report(&self, key: &PushKey, report: PushReport) -> Result<()> {
        let _turn = turn_of(&self.turns, &row(RECORD, key)).await;
        if self.record(key).await?.is_none() {
            return Ok(()); // deleted meanwhile
        }
        if let Some(ago) = report.delivered_ago {
            let at = self.rows.now() as i64 - millis(ago) as i64;
            let mut memory = self.memory.lock();
            let last = memory.delivered.entry(key.clone()).or_insert(at);
            *last = at.max(*last);
        }
        let mut all = self.stored_report(key)?;
        all.add(report);
        let text = serde_json::to_vec(&all).map_err(Error::refused)?;
        let change = (Table::Push, row(REPORT, key), Change::Put(text.into()));
        self.rows.change(vec![change]).await.map(drop)
    }

    async fn seen(&self, key: &PushKey) -> Result<Seen> {
        let report = self.stored_report(key)?;
        let memory = self.memory.lock();
        let workers = || memory.leased.get(key).into_iter().flat_map(|leased| leased.workers.values());
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
            let _ = read_record_key(&bytes);
        }
    }
}
