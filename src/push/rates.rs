//! Division of a queue's rate among workers: a record `push/rates/<pool>/<namespace>/<queue>` of the settings says how
//! many requests each worker may begin, and until when by the pool's clock. A worker changes its entry by
//! compare-and-swap before it begins more, and renews it about once a minute. The record survives kills and restarts:
//! requests count for one `per` after the end of the worker that may have begun them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::key::PushKey;
use super::leases::target;
use crate::clock::Millis;
use crate::error::{Error, Result};
use crate::settings::{Put, SettingVersion, SettingsStore, scan_all};

/// Prefix of the records' keys.
const PREFIX: &str = "push/rates/";
/// How far ahead an entry is valid, so that it is written rarely.
const AHEAD: Duration = Duration::from_secs(60);
/// An entry is renewed when it is valid for less than this: longer than a lease.
const RENEW: Duration = Duration::from_secs(20);
/// The longest `per`: older requests count in no rate.
const LONGEST_PER: Duration = Duration::from_secs(3600);
/// Maximum number of attempts of a change that conflicts with others.
const TRIES: usize = 16;

fn millis(time: Duration) -> Millis {
    time.as_millis() as Millis
}

fn key_of(key: &PushKey) -> String {
    format!("{PREFIX}{key}")
}

/// How many requests a worker may begin until a time, including those of earlier shares that still count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Reserved {
    requests: u32,
    until: Millis,
}

/// Entries by worker.
type Stored = BTreeMap<String, Reserved>;

async fn read(settings: &dyn SettingsStore, key: &str) -> Result<(Stored, Option<SettingVersion>)> {
    let record = settings.get(key).await?;
    let version = record.as_ref().map(|record| record.version);
    let stored = record.map(|record| serde_json::from_slice(&record.value).map_err(Error::corrupt));
    Ok((stored.transpose()?.unwrap_or_default(), version))
}

/// Creates a queue's record, unless it exists. A full Redis accepts changes, but no new records.
pub async fn create(settings: &dyn SettingsStore, key: &PushKey) -> Result<()> {
    settings.put(&key_of(key), Some(Bytes::from_static(b"{}")), None).await.map(drop)
}

/// Deletes the records of queues that are no longer pushed and whose requests no longer count. `now` returns the clock
/// of a pool, by its name.
pub async fn delete_old(
    settings: &dyn SettingsStore,
    is_pushed: impl Fn(&str) -> bool,
    now: impl Fn(&str) -> Option<Millis>,
) -> Result<()> {
    let mut all = Vec::new();
    scan_all(settings, PREFIX, |key, record| all.push((key, record))).await?;
    for (key, record) in all {
        let queue = key.trim_start_matches(PREFIX);
        let pool_now = queue.split_once('/').and_then(|(pool, _)| now(pool));
        let stored: Stored = serde_json::from_slice(&record.value).unwrap_or_default();
        let counts =
            |reserved: &Reserved| pool_now.is_none_or(|now| reserved.until + millis(LONGEST_PER) >= now);
        if !is_pushed(queue) && pool_now.is_some() && !stored.values().any(counts) {
            settings.put(&key, None, Some(record.version)).await?;
        }
    }
    Ok(())
}

/// A worker's demand for a part of the rate.
#[derive(Clone, Copy, Debug)]
pub struct RateDemand {
    /// How many requests all workers together may begin per `per`.
    pub rate: u32,
    pub per: Duration,
    /// An even share of the rate; how many requests it has begun, if it wants none.
    pub fair: u32,
    /// How many of them it may begin until it receives the grant.
    pub held: u32,
}

/// One worker's part of the rate.
#[derive(Debug, Default)]
pub struct RateShare {
    /// Its entry, as last written.
    stored: Option<Reserved>,
    /// Requests of larger shares that it had, and until when they count.
    lent: Vec<(u32, Instant)>,
    /// When the end of other workers was noticed.
    ended: HashMap<String, Millis>,
}

impl RateShare {
    /// Reads the record before anything more begins, since its lease has lapsed.
    pub fn lapsed(&mut self) {
        self.stored = None;
    }

    /// Returns how many requests `worker` may begin per `per` from now on. `live` are the other workers of the queue,
    /// `now` is by the pool's clock.
    pub async fn divide(
        &mut self,
        (settings, key, worker): (&dyn SettingsStore, &PushKey, &str),
        demand: RateDemand,
        live: &HashSet<&str>,
        now: Millis,
    ) -> Result<u32> {
        let RateDemand { rate, per, fair, held } = demand;
        let began = Instant::now();
        self.lent.retain(|(_, until)| *until > began);
        let lent: u32 = self.lent.iter().map(|(requests, _)| requests).sum();
        let lasts = |reserved: &Reserved| reserved.until >= now + millis(RENEW);
        if fair == held && self.stored.is_some_and(|of| of.requests == held + lent && lasts(&of)) {
            return Ok(fair);
        }
        let key = key_of(key);
        for _ in 0..TRIES {
            let (mut all, version) = read(settings, &key).await?;
            let before = all.clone();
            let own = all.remove(worker);
            all.retain(|name, of| {
                if live.contains(name.as_str()) {
                    self.ended.remove(name);
                    return true;
                }
                let ended = *self.ended.entry(name.clone()).or_insert(now);
                now < of.until.min(ended) + millis(per)
            });
            // Without its entry nothing is left of an earlier share: others have waited for one `per`.
            let held = held.min(own.map_or(0, |of| of.requests));
            let others: u32 = all.values().map(|of| of.requests).sum();
            let share = target(rate.saturating_sub(lent), fair, held, others);
            let requests = held.max(share) + lent;
            let lasting = own.filter(|of| of.requests == requests && lasts(of));
            let new = lasting.unwrap_or(Reserved { requests, until: now + millis(AHEAD) });
            if requests > 0 {
                all.insert(worker.to_owned(), new);
            }
            self.stored = None; // until the record is known to be written
            if all != before && !put(settings, &key, &all, version).await? {
                continue;
            }
            self.stored = Some(new);
            if held > share {
                // A worker that begins fewer from now on may have begun them all.
                self.lent.push((held - share, began + per));
            }
            return Ok(share);
        }
        Err(Error::Overloaded)
    }

    /// Leaves what `worker` has begun to be counted for one `per` after its end: `held` requests, and those lent.
    pub async fn end(
        self,
        (settings, key, worker): (&dyn SettingsStore, &PushKey, &str),
        held: u32,
        now: Millis,
    ) -> Result<()> {
        if self.stored.is_none() {
            return Ok(());
        }
        let began = Instant::now();
        let lent = self.lent.iter().filter(|(_, until)| *until > began);
        let requests = held + lent.map(|(requests, _)| requests).sum::<u32>();
        let key = key_of(key);
        for _ in 0..TRIES {
            let (mut all, version) = read(settings, &key).await?;
            match requests {
                0 => _ = all.remove(worker),
                _ => _ = all.insert(worker.to_owned(), Reserved { requests, until: now }),
            }
            if put(settings, &key, &all, version).await? {
                return Ok(());
            }
        }
        Err(Error::Overloaded)
    }
}

async fn put(
    settings: &dyn SettingsStore,
    key: &str,
    all: &Stored,
    version: Option<SettingVersion>,
) -> Result<bool> {
    let value = serde_json::to_vec(all).map_err(Error::refused)?;
    Ok(matches!(settings.put(key, Some(value.into()), version).await?, Put::Done(_)))
}
