//! Quotas: limits on what a namespace may store in a pool. They are kept in the admin store, shared by all servers; the
//! pools' stores count and enforce them. This module copies them there: each server checks every [`ASK`] whether a
//! quota has changed. Independent of HTTP.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout};

use super::{AdminStore, QuotasVersion, Scope};
use crate::engine::{Engine, Quota, Quotas, together};
use crate::error::Result;
use crate::name::PoolName;
use crate::outage::Outage;

/// Interval of checking for changes.
const ASK: Duration = Duration::from_millis(400);
/// Interval of sending unchanged quotas to a store: a Redis may have lost them.
const AGAIN: Duration = Duration::from_secs(60);
/// How long a change waits to take effect on this server. Counting a large store may take longer.
const IN_FORCE: Duration = Duration::from_secs(1);

/// A store of jobs, and the pools whose publishes it receives.
#[derive(Debug)]
pub struct Bounded {
    engine: Arc<dyn Engine>,
    /// In order of precedence: the first pool with a quota for the namespace counts.
    pools: Vec<PoolName>,
    changed: Notify,
    /// Number of changes made by this server, including its start, and how many of them are in effect here.
    made: watch::Sender<u64>,
    in_force: watch::Sender<u64>,
}

impl Bounded {
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
    store: Arc<dyn AdminStore>,
    outage: Arc<Outage>,
    stores: Vec<Bounded>,
}

impl QuotaManager {
    /// Manages the quotas of `store` for `stores`, each with its own pool followed by the pools that migrate to it.
    /// They take effect once [`keep_applied`](QuotaManager::keep_applied) runs for each.
    pub fn new(
        store: Arc<dyn AdminStore>,
        outage: Arc<Outage>,
        stores: impl Iterator<Item = (Arc<dyn Engine>, Vec<PoolName>)>,
    ) -> Arc<QuotaManager> {
        let bounded = |(engine, pools)| {
            let (made, in_force) = (watch::channel(1).0, watch::channel(0).0);
            Bounded { engine, pools, changed: Notify::new(), made, in_force }
        };
        Arc::new(QuotaManager { store, outage, stores: stores.map(bounded).collect() })
    }

    /// Returns the indices of the stores.
    pub fn stores(&self) -> std::ops::Range<usize> {
        0..self.stores.len()
    }

    /// Reads a namespace's quota from the store.
    pub async fn get(&self, scope: &Scope) -> Result<Option<Quota>> {
        self.store.quota(scope).await
    }

    /// Stores a quota, or deletes it. With `if_none` it returns `false`, and changes nothing, if there is one. Takes
    /// effect on this server before it returns, if the pool's store can count within a second; on others within a
    /// second.
    pub async fn put(&self, scope: &Scope, quota: Option<Quota>, if_none: bool) -> Result<bool> {
        let put = self.store.put_quota(scope, quota, if_none).await;
        // After an error too, since the change may have been made.
        let of_pool = self.stores.iter().filter(|store| store.pools.contains(&scope.pool));
        let changes: Vec<(&Bounded, u64)> = of_pool.map(|store| (store, store.record_change())).collect();
        if put.is_ok() {
            let applied = changes.into_iter().map(|(store, made)| store.wait_until_applied(made));
            let _ = timeout(IN_FORCE, together::all(applied)).await;
        }
        put
    }

    /// Keeps the quotas of one store up to date. Never returns.
    pub async fn keep_applied(&self, store: usize) {
        let store = &self.stores[store];
        let (mut known, mut sent) = (None, Instant::now());
        loop {
            if sent.elapsed() >= AGAIN {
                (known, sent) = (None, Instant::now());
            }
            let made = *store.made.borrow();
            match self.send_quotas(store, known).await {
                Ok(version) => {
                    known = Some(version);
                    store.in_force.send_replace(made);
                }
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
    async fn send_quotas(&self, store: &Bounded, known: Option<QuotasVersion>) -> Result<QuotasVersion> {
        let asked = self.store.quotas(known).await;
        self.outage.report(&asked);
        let Some((version, all)) = asked? else { return Ok(known.unwrap_or_default()) };
        let mut quotas = Quotas::new();
        for pool in &store.pools {
            for (Scope { namespace, .. }, quota) in all.iter().filter(|(scope, _)| scope.pool == *pool) {
                quotas.entry(namespace.clone()).or_insert(*quota);
            }
        }
        store.engine.set_quotas(&quotas).await?;
        Ok(version)
    }
}
