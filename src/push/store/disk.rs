//! The push store on disk: reports are in the directory of the default pool (docs/disk-format.md draws their keys),
//! leases in memory, since a directory has one server. A queue can have two workers there: when it is deleted and
//! pushed again, the old worker may still have requests in flight.

use std::time::Duration;

use ahash::HashMap;
use async_trait::async_trait;
use bytes::{BufMut, Bytes};
use parking_lot::Mutex;

use super::leases::{Begun, Leased, TURNS, millis};
use super::{Grant, Lease, PushKey, PushReport, PushStore, Seen};
use crate::engine::disk::{self, Change, DiskEngine, Table, put_short};
use crate::error::{Error, Result};

/// First byte of a key: the kind of its row.
const REPORT: u8 = b's';
const LENT: u8 = b'l';

/// The longest `per`: older requests count in no rate.
const LONGEST_PER: Duration = Duration::from_secs(3600);

/// The push store in the directory of a disk engine.
#[derive(Debug)]
pub struct DiskPush {
    rows: disk::Records,
    memory: Mutex<Memory>,
    /// Serializes changes of one queue's report, by the queue's hash. Changes of other queues share the write.
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

impl DiskPush {
    pub fn new(engine: &DiskEngine) -> DiskPush {
        DiskPush {
            rows: engine.records(),
            memory: Mutex::default(),
            turns: turns(),
            lease_turns: turns(),
        }
    }

    /// Deletes the rows of requests that no longer count in a rate: their queues may no longer be pushed.
    pub async fn forget_lent(&self) -> Result<()> {
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
        let _turn = turn_of(&self.turns, &row(REPORT, key)).await;
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

    async fn forget(&self, key: &PushKey) -> Result<()> {
        let _turn = turn_of(&self.turns, &row(REPORT, key)).await;
        self.memory.lock().delivered.remove(key);
        self.rows.change(vec![(Table::Push, row(REPORT, key), Change::Delete)]).await.map(drop)
    }

    async fn seen(&self, key: &PushKey) -> Result<Seen> {
        let report = self.stored_report(key)?;
        let memory = self.memory.lock();
        let workers = || memory.leased.get(key).into_iter().flat_map(|leased| leased.workers.values());
        let in_flight = workers().map(|holds| u64::from(holds.in_flight)).sum();
        Ok(Seen { report, in_flight, open: workers().filter_map(|holds| holds.open).min() })
    }
}
