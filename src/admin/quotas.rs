//! How much a namespace may keep in a pool. Quotas are kept in the admin store, so all servers share them; the stores of
//! the pools count and refuse. This brings the ones to the others: each server asks twice a second whether a quota has
//! changed. Knows nothing of HTTP.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout};

use super::{AdminStore, QuotasVersion, Scope};
use crate::engine::{Engine, Quota, Quotas, together};
use crate::error::Result;
use crate::name::PoolName;
use crate::outage::Outage;

/// How often a server asks for changes.
const ASK: Duration = Duration::from_millis(400);
/// How often a store is told of quotas that have not changed: a Redis may have lost them.
const AGAIN: Duration = Duration::from_secs(60);
/// How long a change waits until it is in force on this server. Counting what a large store has may take longer.
const IN_FORCE: Duration = Duration::from_secs(1);

/// A store of jobs, and the pools whose publishes go there.
#[derive(Debug)]
pub struct Bounded {
    engine: Arc<dyn Engine>,
    /// A namespace has the quota of the first that gives it one.
    pools: Vec<PoolName>,
    changed: Notify,
    /// How many changes this server has made, its start included, and how many of them are in force on it.
    made: watch::Sender<u64>,
    in_force: watch::Sender<u64>,
}

impl Bounded {
    /// A quota may have changed. Answers which change of this server it is.
    fn is_to_be_told(&self) -> u64 {
        self.made.send_modify(|made| *made += 1);
        let made = *self.made.borrow();
        self.changed.notify_one();
        made
    }

    /// Returns once so many changes are in force.
    async fn has_heard(&self, made: u64) {
        // Its sender lives as long as this.
        let _ = self.in_force.subscribe().wait_for(|done| *done >= made).await;
    }
}

/// The quotas of all namespaces.
#[derive(Debug)]
pub struct QuotaManager {
    store: Arc<dyn AdminStore>,
    outage: Arc<Outage>,
    stores: Vec<Bounded>,
}

impl QuotaManager {
    /// Quotas of `store` for `stores`, each with its own pool and then those that move to it. They are in force once
    /// [`keep_applied`](QuotaManager::keep_applied) runs for each.
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

    /// Each store.
    pub fn stores(&self) -> std::ops::Range<usize> {
        0..self.stores.len()
    }

    /// A namespace's quota, as the store has it now.
    pub async fn get(&self, scope: &Scope) -> Result<Option<Quota>> {
        self.store.quota(scope).await
    }

    /// Stores a quota, or deletes it. With `if_none` only where there is none: `false`, and nothing changes, when there
    /// is one. In force on this server when it answers, if its store counts within a second; on others within a second.
    pub async fn put(&self, scope: &Scope, quota: Option<Quota>, if_none: bool) -> Result<bool> {
        let put = self.store.put_quota(scope, quota, if_none).await;
        // Also after an error: it may have been done.
        let of_pool = self.stores.iter().filter(|store| store.pools.contains(&scope.pool));
        let told: Vec<(&Bounded, u64)> = of_pool.map(|store| (store, store.is_to_be_told())).collect();
        if put.is_ok() {
            let heard = told.into_iter().map(|(store, made)| store.has_heard(made));
            let _ = timeout(IN_FORCE, together::all(heard)).await;
        }
        put
    }

    /// Keeps the quotas of one store up to date. Never returns.
    pub async fn keep_applied(&self, store: usize) {
        let store = &self.stores[store];
        let (mut known, mut told) = (None, Instant::now());
        loop {
            if told.elapsed() >= AGAIN {
                (known, told) = (None, Instant::now());
            }
            let made = *store.made.borrow();
            match self.bring(store, known).await {
                Ok(version) => {
                    known = Some(version);
                    store.in_force.send_replace(made);
                }
                // It is asked again, and whoever uses the store is told that it is away.
                Err(error) => tracing::debug!(%error, "quotas were not brought to a store"),
            }
            tokio::select! {
                () = sleep(ASK) => {}
                () = store.changed.notified() => {}
            }
        }
    }

    /// Returns when every store has been told of its quotas, or after a second.
    pub async fn begun(&self) {
        let begun = async {
            for store in &self.stores {
                store.has_heard(1).await;
            }
        };
        let _ = timeout(IN_FORCE, begun).await;
    }

    /// Tells a store of its quotas, if one has changed.
    async fn bring(&self, store: &Bounded, known: Option<QuotasVersion>) -> Result<QuotasVersion> {
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
