//! What push shares, on local disk: records and reports in the directory of the default pool (docs/disk-format.md draws
//! their keys), slots in memory: a directory has one server. It may have two workers of a queue: one that was deleted
//! has requests in flight when the queue is pushed again.

use std::time::Duration;

use ahash::HashMap;
use async_trait::async_trait;
use bytes::{BufMut, Bytes};

use super::disk::DiskAdmin;
use super::push::{Lease, PushKey, PushStore, Records, Report, Seen, Share, Version};
use crate::clock::Millis;
use crate::engine::disk::{Change, PUSH_PREFIX, Table};
use crate::error::{Error, Result};
use crate::name::{Namespace, PoolName, Queue, QueueName};

/// What stands behind the prefix: which kind of row it is.
const RECORD: u8 = b'r';
const REPORT: u8 = b's';
const LENT: u8 = b'l';

/// The longest `per`: what was begun so long ago counts in no rate.
const LONGEST_PER: Duration = Duration::from_secs(3600);
/// For how long ahead it is stored that requests may be begun: so seldom is a row written.
const AHEAD: Duration = Duration::from_secs(60);

fn millis(time: Duration) -> Millis {
    time.as_millis() as Millis
}

/// Who holds what of a queue.
#[derive(Debug, Default)]
pub(super) struct Leased {
    workers: HashMap<String, Holds>,
    /// Parts of the rate that nobody holds any more, and until when they count.
    lent: Vec<(u32, Millis)>,
    /// How many may have been begun, until when: what another start must count. `None` until it was read.
    stored: Option<(u32, Millis)>,
}

/// What a worker has told with its last lease, and until when it stands.
#[derive(Debug)]
struct Holds {
    until: Millis,
    slots: u32,
    rate: u32,
    in_flight: u32,
    open: Option<Millis>,
}

impl Leased {
    /// What one worker may do. As the script for a Redis does it, but that what is there goes to whoever asks first:
    /// of two workers one is ending.
    fn divide(&mut self, lease: &Lease<'_>, now: Millis) -> Share {
        let until = now + millis(lease.per);
        self.lent.retain(|(_, until)| *until > now);
        self.workers.remove(lease.server);
        let ended = self.workers.extract_if(|_, holds| holds.until <= now);
        self.lent.extend(ended.map(|(_, holds)| (holds.rate, until)));
        let (slots, rate) = self
            .workers
            .values()
            .fold((0, 0), |(slots, rate), holds| (slots + holds.slots, rate + holds.rate));
        let mut share = Share { alone: self.workers.is_empty(), ..Share::default() };
        if lease.wants > 0 {
            share.slots = lease.slots.saturating_sub(slots);
            let lent: u32 = self.lent.iter().map(|(lent, _)| lent).sum();
            share.rate = lease.rate.min(lease.rate.saturating_sub(rate + lent).max(lease.rate_held));
        }
        if lease.rate_held > share.rate {
            self.lent.push((lease.rate_held - share.rate, until));
        }
        if !lease.time.is_zero() {
            let holds = Holds {
                until: now + millis(lease.time),
                slots: lease.holds.max(share.slots),
                rate: share.rate,
                in_flight: lease.in_flight,
                open: lease.open,
            };
            self.workers.insert(lease.server.to_owned(), holds);
        }
        share
    }

    /// The row that another start is to find, if it must be another one than now: how many may be begun, until when;
    /// none when nothing counts.
    fn row(&mut self, lease: &Lease<'_>, now: Millis) -> Option<(u32, Millis)> {
        let (rate, until) = self.stored.unwrap_or_default();
        let row = match self.workers.is_empty() {
            true => (self.lent.iter().map(|(lent, _)| lent).sum(), now),
            false if lease.rate > rate || now + millis(lease.time) > until => {
                (lease.rate, now + millis(AHEAD))
            }
            false => return None,
        };
        self.stored = Some(row);
        (row.0 > 0 || rate > 0).then_some(row)
    }
}

/// Reads what [`Leased::row`] has said; nothing where it cannot be read.
fn read_lent(row: &Bytes) -> Option<(u32, Millis)> {
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
        let _turn = self.push_turn.lock().await;
        let (report, now) = (self.push_report(key)?, self.records.now());
        let (share, begun) = {
            let mut push = self.push.lock();
            let leased = push.leased.entry(key.clone()).or_default();
            if leased.stored.is_none() {
                let stored =
                    self.records.read(Table::Push, |rows| rows.get(&row(LENT, key)).and_then(read_lent));
                leased.stored = stored;
                let begun = |(rate, until): (u32, Millis)| (rate, until.min(now) + millis(lease.per));
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
            self.records.change(vec![(Table::Push, row(LENT, key), change)]).await?;
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
