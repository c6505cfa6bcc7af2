//! One log line when a store's requests begin to fail, one when they work again: an outage under load must not
//! fill the disk with logs. The stores are the pools, and the one that counts limits.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use axum::response::Response;
use parking_lot::Mutex;

use crate::error::Error;
use crate::name::PoolName;

/// Travels with an answer that a store's failure caused, to where it is logged.
#[derive(Debug, Clone)]
pub struct Trouble(pub Arc<Error>);

/// The pools whose requests fail now, each with how many did.
#[derive(Debug, Default)]
pub struct Outages {
    failing: Mutex<BTreeMap<PoolName, u64>>,
    /// The same of requests that could not be counted against their limits.
    uncounted: AtomicU64,
    /// Whether there is any, so that the usual request takes no lock.
    any: AtomicBool,
}

impl Outages {
    /// An answer leaves. `pool` is known once the request's token named one; failures without are an
    /// operator's, few, and logged each.
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

    /// A request failed since it could not be counted against its limit. A failure of its own: other tokens'
    /// requests to the same pool go on.
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
