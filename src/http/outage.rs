//! Logs outages: one line when the requests to a store begin to fail, one when they work again. An outage under
//! load must not fill the disk with logs. The stores are the pools, and the one that counts limits.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use axum::response::Response;
use parking_lot::Mutex;

use crate::error::Error;
use crate::name::PoolName;

/// An extension of a response that a store's failure caused. The middleware logs it.
#[derive(Debug, Clone)]
pub struct Trouble(pub Arc<Error>);

/// The pools whose requests fail now, each with how many did.
#[derive(Debug, Default)]
pub struct Outages {
    failing: Mutex<BTreeMap<PoolName, u64>>,
    /// How many requests could not be counted against their limits, in the outage that lasts now.
    uncounted: AtomicU64,
    /// Whether `failing` has any, so that a request takes no lock while all is well.
    any: AtomicBool,
}

impl Outages {
    /// Takes note of a response. `pool` is the one that the request's token names. Requests without a pool are an
    /// operator's: they are few, so each failure is logged.
    pub fn note(&self, pool: Option<&PoolName>, answer: &Response) {
        match (answer.extensions().get::<Trouble>(), pool) {
            (Some(Trouble(error)), None) => tracing::error!(%error, "a request failed"),
            (Some(Trouble(error)), Some(pool)) => {
                let mut failing = self.failing.lock();
                self.any.store(true, Ordering::SeqCst);
                let failed = failing.entry(pool.clone()).or_insert(0);
                *failed += 1;
                if *failed == 1 {
                    tracing::error!(pool = pool.as_str(), %error, "requests fail");
                }
            }
            (None, Some(pool)) if answer.status().is_success() && self.any.load(Ordering::SeqCst) => {
                let mut failing = self.failing.lock();
                if let Some(failed) = failing.remove(pool) {
                    tracing::info!(pool = pool.as_str(), failed, "requests work again");
                }
                self.any.store(!failing.is_empty(), Ordering::SeqCst);
            }
            _ => {}
        }
    }

    /// A request failed because it could not be counted against its limit. This is not an outage of its pool:
    /// requests of tokens without a limit still work.
    pub fn uncounted(&self, error: &Error) {
        if self.uncounted.fetch_add(1, Ordering::SeqCst) == 0 {
            tracing::error!(%error, "limits cannot be counted: requests with limits fail");
        }
    }

    /// A request was counted.
    pub fn counted(&self) {
        if self.uncounted.load(Ordering::Relaxed) > 0 {
            let failed = self.uncounted.swap(0, Ordering::SeqCst);
            if failed > 0 {
                tracing::info!(failed, "limits are counted again");
            }
        }
    }
}
