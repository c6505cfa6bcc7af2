//! Quotas: limits on what a namespace may store in a pool. Each is a record `quotas/<pool>/<namespace>` of the settings,
//! shared by all servers; the pools' stores count and enforce them. This module copies them there: each server checks
//! every [`ASK`] whether a quota has changed. Independent of HTTP.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, Notify, watch};
use tokio::time::{Instant, sleep, timeout};

use crate::admin::Scope;
use crate::engine::{Engine, Quota, Quotas, together};
use crate::error::{Error, Result};
use crate::name::{Namespace, PoolName};
use crate::outage::Outage;
use crate::settings::{Put, SettingVersion, SettingsStore, scan_all};

/// Prefix of the records' keys.
const PREFIX: &str = "quotas/";

/// Interval of checking for changes.
const ASK: Duration = Duration::from_millis(400);
/// Interval of sending unchanged quotas to a store: a Redis may have lost them.
const AGAIN: Duration = Duration::from_secs(60);
/// How long a change waits to take effect on this server. Counting a large store may take longer.
const IN_FORCE: Duration = Duration::from_secs(1);
/// Number of attempts of a change that other servers' changes interfere with.
const TRIES: usize = 16;

/// Returns the key of a quota's record.
fn key(scope: &Scope) -> String {
    format!("{PREFIX}{}/{}", scope.pool, scope.namespace)
}

/// Parses [`key`].
fn parse_key(key: &str) -> Option<Scope> {
    let (pool, namespace) = key.strip_prefix(PREFIX)?.split_once('/')?;
    Some(Scope { pool: PoolName::parse(pool).ok()?, namespace: Namespace::parse(namespace).ok()? })
}

/// A store of jobs, and the pools whose publishes it receives.
#[derive(Debug)]
pub struct Bounded {
    engine: Arc<dyn Engine>,
    /// In order of precedence: the quota of the first pool that has one for a namespace applies.
    pools: Vec<PoolName>,
    /// Quotas by namespace, not reduced by the bytes that schedules use.
    quotas: Mutex<Quotas>,
    /// Locked while quotas are sent to the store.
    sent: AsyncMutex<Sent>,
    changed: Notify,
    /// Number of changes made by this server, including its start, and how many of them are in effect here.
    made: watch::Sender<u64>,
    in_force: watch::Sender<u64>,
}

/// Quotas that a store has received.
#[derive(Debug)]
struct Sent {
    /// `None`: they must be sent again.
    version: Option<SettingVersion>,
    at: Instant,
    quotas: Quotas,
}

impl Bounded {
    /// Returns whether a namespace has a quota of bytes.
    fn bounds_bytes(&self, namespace: &Namespace) -> bool {
        self.quotas.lock().get(namespace).is_some_and(|quota| quota.bytes > 0)
    }

    /// Records that a quota may have changed. Returns the number of the change.
    fn record_change(&self) -> u64 {
        self.made.send_modify(|made| *made += 1);
        let made = *self.made.borrow();
        self.changed.notify_one();
        made
    }

    /// Waits until the change is in effect.
    async fn wait_until_applied(&self, made: u64) {
        // The sender is not dropped before `self`.
        let _ = self.in_force.subscribe().wait_for(|done| *done >= made).await;
    }
}

/// Quotas of all namespaces.
#[derive(Debug)]
pub struct QuotaManager {
    settings: Arc<dyn SettingsStore>,
    outage: Arc<Outage>,
    stores: Vec<Bounded>,
    /// Bytes used by the schedules of each namespace. They count toward its quota, although they are not in the pool's
    /// store: the store receives a quota reduced by them.
    schedule_bytes: Mutex<BTreeMap<Scope, u64>>,
}

impl QuotaManager {
    /// Manages the quotas of `settings` for `stores`, each with its own pool followed by the pools that migrate to it.
    /// They take effect once [`keep_applied`](QuotaManager::keep_applied) runs for each.
    pub fn new(
        settings: Arc<dyn SettingsStore>,
        outage: Arc<Outage>,
        stores: impl Iterator<Item = (Arc<dyn Engine>, Vec<PoolName>)>,
    ) -> Arc<QuotaManager> {
        let bounded = |(engine, pools)| {
            let (made, in_force) = (watch::channel(1).0, watch::channel(0).0);
            let sent = Sent { version: None, at: Instant::now(), quotas: Quotas::new() };
            let (quotas, sent, changed) = (Mutex::default(), AsyncMutex::new(sent), Notify::new());
            Bounded { engine, pools, quotas, sent, changed, made, in_force }
        };
        let (stores, schedule_bytes) = (stores.map(bounded).collect(), Mutex::default());
        Arc::new(QuotaManager { settings, outage, stores, schedule_bytes })
    }

    /// Returns the indices of the stores.
    pub fn stores(&self) -> std::ops::Range<usize> {
        0..self.stores.len()
    }

    /// Reads a namespace's quota from the settings.
    pub async fn get(&self, scope: &Scope) -> Result<Option<Quota>> {
        let record = self.settings.get(&key(scope)).await?;
        record.map(|record| serde_json::from_slice(&record.value).map_err(Error::corrupt)).transpose()
    }

    /// Stores a quota, or deletes it. With `if_none` it returns `false`, and changes nothing, if there is one. Takes
    /// effect on this server before it returns, if the pool's store can count within a second; on others within a
    /// second.
    pub async fn put(&self, scope: &Scope, quota: Option<Quota>, if_none: bool) -> Result<bool> {
        let put = self.replace(scope, quota, if_none).await;
        // After an error too, since the change may have been made.
        let changes = QuotaManager::record_changes(self.stores_of(&scope.pool));
        if put.is_ok() {
            QuotaManager::wait_until_applied(changes).await;
        }
        put
    }

    /// Replaces the record of a quota. Returns `false` if nothing was replaced.
    async fn replace(&self, scope: &Scope, quota: Option<Quota>, if_none: bool) -> Result<bool> {
        let (key, value) = (key(scope), quota.map(|quota| serde_json::to_vec(&quota)).transpose());
        let value = value.map_err(Error::refused)?;
        for _ in 0..TRIES {
            let there = self.settings.get(&key).await?;
            if if_none && there.is_some() || value.is_none() && there.is_none() {
                return Ok(false);
            }
            let (value, version) = (value.clone().map(Into::into), there.map(|there| there.version));
            if let Put::Done(_) = self.settings.put(&key, value, version).await? {
                return Ok(true);
            }
        }
        Err(Error::Overloaded)
    }

    /// Returns the version of the settings, and the quotas of all namespaces if any has changed since `known`.
    async fn changed_since(
        &self,
        known: Option<SettingVersion>,
    ) -> Result<(SettingVersion, Option<Vec<(Scope, Quota)>>)> {
        let changes = self.settings.changes(PREFIX, known.unwrap_or(0)).await?;
        if known.is_some() && changes.is_empty() {
            return Ok((changes.version, None));
        }
        let (mut all, mut unreadable) = (Vec::new(), 0);
        scan_all(&*self.settings, PREFIX, |key, record| {
            match (parse_key(&key), serde_json::from_slice(&record.value)) {
                (Some(scope), Ok(quota)) => all.push((scope, quota)),
                _ => unreadable += 1,
            }
        })
        .await?;
        if unreadable > 0 {
            tracing::warn!(unreadable, "skipped unreadable quotas in the settings");
        }
        // The version is older than the records: a concurrent change is read again.
        Ok((changes.version, Some(all)))
    }

    fn stores_of(&self, pool: &PoolName) -> impl Iterator<Item = &Bounded> {
        self.stores.iter().filter(move |store| store.pools.contains(pool))
    }

    fn record_changes<'a>(stores: impl Iterator<Item = &'a Bounded>) -> Vec<(&'a Bounded, u64)> {
        stores.map(|store| (store, store.record_change())).collect()
    }

    /// Waits until the changes are in effect on this server, at most [`IN_FORCE`].
    async fn wait_until_applied(changes: Vec<(&Bounded, u64)>) {
        let applied = changes.into_iter().map(|(store, made)| store.wait_until_applied(made));
        let _ = timeout(IN_FORCE, together::all(applied)).await;
    }

    /// Records how many bytes the schedules of a namespace use.
    pub fn set_schedule_bytes(&self, scope: Scope, bytes: u64) {
        match bytes {
            0 => self.schedule_bytes.lock().remove(&scope),
            _ => self.schedule_bytes.lock().insert(scope.clone(), bytes),
        };
        // Afterwards, so that no task that wakes applies the earlier bytes.
        let bounded = self.stores_of(&scope.pool).filter(|store| store.bounds_bytes(&scope.namespace));
        bounded.for_each(|store| store.changed.notify_one());
    }

    /// Waits until the bytes recorded for a namespace count on this server, at most [`IN_FORCE`].
    pub async fn apply_schedule_bytes(&self, scope: &Scope) {
        let bounded = self.stores_of(&scope.pool).filter(|store| store.bounds_bytes(&scope.namespace));
        QuotaManager::wait_until_applied(QuotaManager::record_changes(bounded)).await;
    }

    /// Checks that a namespace has room for `more` bytes, of a new schedule or of one that grows. Fails with
    /// [`OverQuota`](Error::OverQuota).
    pub async fn admit_schedule(&self, scope: &Scope, more: u64, is_new: bool) -> Result<()> {
        // While the pool migrates, its new jobs go to the target: the store that serves more than one pool.
        let Some(store) = self.stores_of(&scope.pool).max_by_key(|store| store.pools.len()) else {
            return Ok(());
        };
        let quota = store.quotas.lock().get(&scope.namespace).copied();
        let Some(quota) = quota.filter(|quota| more > 0 && quota.counts_jobs()) else { return Ok(()) };
        let used = {
            let _one = store.sent.lock().await;
            // Usually the store has these quotas already, and this only reads the usage.
            let used = store.engine.set_quotas(&self.without_schedules(store)).await?;
            used.get(&scope.namespace).copied().unwrap_or_default()
        };
        let bytes = used.bytes + self.schedule_bytes_in(store, &scope.namespace) + more;
        if is_new && quota.jobs > 0 && used.jobs >= quota.jobs {
            Err(Error::OverQuota("jobs"))
        } else if quota.bytes > 0 && bytes > quota.bytes {
            Err(Error::OverQuota("bytes"))
        } else {
            Ok(())
        }
    }

    /// Returns the bytes of the schedules whose jobs go to this store.
    fn schedule_bytes_in(&self, store: &Bounded, namespace: &Namespace) -> u64 {
        let all = self.schedule_bytes.lock();
        let scope = |pool: &PoolName| Scope { pool: pool.clone(), namespace: namespace.clone() };
        store.pools.iter().filter_map(|pool| all.get(&scope(pool))).sum()
    }

    /// Keeps the quotas of one store up to date. Never returns.
    pub async fn keep_applied(&self, store: usize) {
        let store = &self.stores[store];
        loop {
            let made = *store.made.borrow();
            match self.send_quotas(store).await {
                Ok(()) => _ = store.in_force.send_replace(made),
                // Retried; the outage is reported by the store's callers.
                Err(error) => tracing::debug!(%error, "quotas could not be applied to a store"),
            }
            tokio::select! {
                () = sleep(ASK) => {}
                () = store.changed.notified() => {}
            }
        }
    }

    /// Waits until every store has its quotas, at most a second.
    pub async fn begun(&self) {
        let begun = async {
            for store in &self.stores {
                store.wait_until_applied(1).await;
            }
        };
        let _ = timeout(IN_FORCE, begun).await;
    }

    /// Sends a store its quotas, if any has changed.
    async fn send_quotas(&self, store: &Bounded) -> Result<()> {
        let mut sent = store.sent.lock().await;
        if sent.at.elapsed() >= AGAIN {
            sent.version = None;
        }
        let read = self.changed_since(sent.version).await;
        self.outage.report(&read);
        let (version, changed) = read?;
        if let Some(all) = &changed {
            let mut quotas = Quotas::new();
            for pool in &store.pools {
                for (Scope { namespace, .. }, quota) in all.iter().filter(|(scope, _)| scope.pool == *pool) {
                    quotas.entry(namespace.clone()).or_insert(*quota);
                }
            }
            *store.quotas.lock() = quotas;
        }
        let quotas = self.without_schedules(store);
        if changed.is_none() && quotas == sent.quotas {
            sent.version = Some(version);
            return Ok(());
        }
        sent.version = None; // until the store has them
        store.engine.set_quotas(&quotas).await?;
        *sent = Sent { version: Some(version), at: Instant::now(), quotas };
        Ok(())
    }

    /// Returns the quotas of a store, reduced by the bytes that schedules use.
    fn without_schedules(&self, store: &Bounded) -> Quotas {
        let mut quotas = store.quotas.lock().clone();
        for (namespace, quota) in quotas.iter_mut().filter(|(_, quota)| quota.bytes > 0) {
            // 0 would mean no limit.
            quota.bytes = quota.bytes.saturating_sub(self.schedule_bytes_in(store, namespace)).max(1);
        }
        quotas
    }
}
