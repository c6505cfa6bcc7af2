//! How many requests a token may make. Limits and counters are kept in the admin store, so all servers share them.
//! A token has one counter for consumes and one for publishes; each counts until its interval ends. A token's limit
//! is read with the token, so a request of a token without a limit asks nothing more
//! ([`cache`](super::cache)). Knows nothing of HTTP. No token is logged.
//!
//! A refused request is not counted. So the counter is the number of requests that were admitted and not given
//! back, and each one given back makes room for another. (lmstfy counts refused requests too, so there a request
//! that is given back may make no room.)

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::cache::TokenCache;
use super::{AdminStore, Count, Direction, Limit, TokenKey};
use crate::clock::Millis;
use crate::error::{Error, Result};
use crate::outage::Outage;

/// How long a request waits to be counted. A store that hangs costs a limited request this and no more.
pub const COUNT_TIMEOUT: Duration = Duration::from_secs(1);
/// The longest interval, in seconds.
pub const MAX_INTERVAL: i64 = u32::MAX as i64;

/// Why a limit was not stored.
#[derive(Debug, thiserror::Error)]
pub enum LimitError {
    #[error("the interval must be from 1 to {MAX_INTERVAL} seconds")]
    Interval,
    #[error("read and write are both 0: that is no limit")]
    Empty,
    #[error("read and write are both 0 or less: that is no limit")]
    Unlimited,
    #[error("the token has a limit already")]
    Exists,
    #[error(transparent)]
    Store(#[from] Error),
}

/// Whether a request may go on.
#[derive(Debug)]
#[must_use]
pub enum Admission {
    /// It may. Give the pass back if the request does not do what it was counted for.
    Admitted(Pass),
    /// Its token has made as many as it may, until the interval ends: so long from now.
    OverLimit(Duration),
}

/// A request that was admitted. If the pass is dropped, the request stays counted.
#[derive(Debug)]
pub struct Pass {
    counted: Option<Box<Counted>>,
}

#[derive(Debug)]
struct Counted {
    throttle: Arc<Throttle>,
    key: TokenKey,
    direction: Direction,
    /// Tells its counter from the next one of the same token. By the store's clock.
    ends: Millis,
}

/// The limits of all tokens.
#[derive(Debug)]
pub struct Throttle {
    store: Arc<dyn AdminStore>,
    cache: Arc<TokenCache>,
    /// Hears whether the store counts.
    outage: Arc<Outage>,
}

impl Throttle {
    /// Limits of `store`, whose answers are in `cache`.
    pub fn new(store: Arc<dyn AdminStore>, cache: Arc<TokenCache>, outage: Arc<Outage>) -> Arc<Throttle> {
        Arc::new(Throttle { store, cache, outage })
    }

    /// Admits a request or refuses it. A store without memory counts nothing, and the limit is not enforced: what is
    /// stored must be drained. Errors when the store fails in another way: without a count nothing is admitted. If the
    /// future is dropped, the request may stay counted until the interval ends.
    pub async fn admit(self: &Arc<Self>, key: &TokenKey, direction: Direction) -> Result<Admission> {
        let limit = self.cache.get(key).await?.limit;
        self.admit_within(limit, key, direction).await
    }

    /// The same for a token whose limit is known.
    pub async fn admit_within(
        self: &Arc<Self>,
        limit: Option<Limit>,
        key: &TokenKey,
        direction: Direction,
    ) -> Result<Admission> {
        let free = Ok(Admission::Admitted(Pass { counted: None }));
        let Some(limit) = limit else { return free };
        let most = match direction {
            Direction::Read => limit.read,
            Direction::Write => limit.write,
        };
        // Stored by others too, so perhaps never validated: without an interval nothing can be counted.
        let (Ok(most @ 1..), interval @ 1..) = (u64::try_from(most), limit.interval.min(MAX_INTERVAL)) else {
            return free;
        };
        let interval = Duration::from_secs(interval.unsigned_abs());
        // Boxed, so that requests without a limit keep no room for it.
        Box::pin(self.count(key, direction, most, interval)).await
    }

    /// Counts a request that has a limit.
    async fn count(
        self: &Arc<Self>,
        key: &TokenKey,
        direction: Direction,
        most: u64,
        interval: Duration,
    ) -> Result<Admission> {
        let count = self.store.count(key, direction, most, interval);
        let count = timeout(COUNT_TIMEOUT, count).await;
        let count = count.unwrap_or_else(|_| Err(Error::away("a request was not counted in time")));
        self.outage.report(&count);
        Ok(match count? {
            Count::NotCounted => {
                self.outage.full(&"OOM: limits are not enforced");
                Admission::Admitted(Pass { counted: None })
            }
            Count::Counted(ends) => {
                self.outage.has_room();
                let (throttle, key) = (self.clone(), key.clone());
                let counted = Counted { throttle, key, direction, ends };
                Admission::Admitted(Pass { counted: Some(Box::new(counted)) })
            }
            Count::Full(left) => Admission::OverLimit(left),
        })
    }

    /// Every limit, in the order of their tokens.
    pub async fn list(&self) -> Result<Vec<(TokenKey, Limit)>> {
        let mut all = self.store.limits().await?;
        all.sort_by(|(a, _), (b, _)| a.cmp(b));
        Ok(all)
    }

    /// A token's limit, as the store has it now.
    pub async fn get(&self, key: &TokenKey) -> Result<Option<Limit>> {
        Ok(self.store.look_up(key).await?.limit)
    }

    /// Stores a limit for a token that has none. It counts on this server at once, on others within a second.
    pub async fn add(&self, key: &TokenKey, limit: Limit) -> Result<(), LimitError> {
        validate(limit)?;
        let added = self.store.add_limit(key, limit).await;
        self.cache.forget(key); // also after an error: it may have been added
        if added? { Ok(()) } else { Err(LimitError::Exists) }
    }

    /// Stores a limit, whether or not there is one.
    pub async fn set(&self, key: &TokenKey, limit: Limit) -> Result<(), LimitError> {
        validate(limit)?;
        let set = self.store.set_limit(key, limit).await;
        self.cache.forget(key);
        Ok(set?)
    }

    /// Deletes a limit. Deleting an unknown one is fine.
    pub async fn remove(&self, key: &TokenKey) -> Result<()> {
        let removed = self.store.remove_limit(key).await;
        self.cache.forget(key);
        removed
    }
}

impl Pass {
    /// Whether there is anything to give back.
    pub fn counts(&self) -> bool {
        self.counted.is_some()
    }

    /// Takes the request out of the count, if it was counted and its counter still runs. The counter may have
    /// ended during a long poll; the next one did not count this request.
    pub async fn give_back(self) -> Result<()> {
        let Some(counted) = self.counted else { return Ok(()) };
        let Counted { throttle, key, direction, ends } = *counted;
        let uncounted = throttle.store.uncount(&key, direction, ends).await;
        throttle.outage.report(&uncounted);
        uncounted
    }
}

/// Whether this can be a limit.
pub fn validate(limit: Limit) -> Result<(), LimitError> {
    if limit.read == 0 && limit.write == 0 {
        return Err(LimitError::Empty);
    }
    if limit.read <= 0 && limit.write <= 0 {
        return Err(LimitError::Unlimited);
    }
    if !(1..=MAX_INTERVAL).contains(&limit.interval) {
        return Err(LimitError::Interval);
    }
    Ok(())
}
