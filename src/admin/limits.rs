//! Rate limits of tokens. Limits and counters are kept in the admin store and thus shared by all servers. A token has
//! one counter for consumes and one for publishes, each for the duration of an interval. A limit is read together with
//! its token, so requests without a limit need no further call ([`cache`](super::cache)). Tokens are never logged.
//!
//! Refused requests are not counted. So a counter is the number of requests admitted and not given back, and giving
//! back a request admits another. (lmstfy also counts refused requests, so with its servers on the same store it may
//! not.)

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::cache::TokenCache;
use super::{AdminStore, Count, Direction, Limit, TokenKey};
use crate::clock::Millis;
use crate::error::{Error, Result};
use crate::outage::Outage;

/// Timeout for counting a request, and so the maximum delay caused by a hanging store.
pub const COUNT_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum interval in seconds.
pub const MAX_INTERVAL: i64 = u32::MAX as i64;

/// Why a limit was rejected.
#[derive(Debug, thiserror::Error)]
pub enum LimitError {
    #[error("the interval must be from 1 to {MAX_INTERVAL} seconds")]
    Interval,
    #[error("read and write are both 0: at least one must be positive")]
    Empty,
    #[error("read and write are both 0 or less: at least one must be positive")]
    Unlimited,
    #[error("the token has a limit already")]
    Exists,
    #[error(transparent)]
    Store(#[from] Error),
}

/// Whether a request is admitted.
#[derive(Debug)]
#[must_use]
pub enum Admission {
    /// Admitted. Give the pass back if the request fails.
    Admitted(Pass),
    /// The limit is reached; the interval ends after this time.
    OverLimit(Duration),
}

/// An admitted request. If the pass is dropped, the request stays counted.
#[derive(Debug)]
pub struct Pass {
    counted: Option<Box<Counted>>,
}

#[derive(Debug)]
struct Counted {
    throttle: Arc<Throttle>,
    key: TokenKey,
    direction: Direction,
    /// End of the interval by the store's clock; identifies the counter of the token.
    ends: Millis,
}

/// Rate limits of all tokens.
#[derive(Debug)]
pub struct Throttle {
    store: Arc<dyn AdminStore>,
    cache: Arc<TokenCache>,
    /// Receives whether the store replies.
    outage: Arc<Outage>,
}

impl Throttle {
    /// Creates the limits of `store`, whose replies are cached in `cache`.
    pub fn new(store: Arc<dyn AdminStore>, cache: Arc<TokenCache>, outage: Arc<Outage>) -> Arc<Throttle> {
        Arc::new(Throttle { store, cache, outage })
    }

    /// Admits or refuses a request. If the store is out of memory, the limit is not enforced, so that its jobs can be
    /// consumed. Fails if the store fails in another way: a request that cannot be counted is not admitted. If the
    /// future is dropped, the request may stay counted until the interval ends.
    pub async fn admit(self: &Arc<Self>, key: &TokenKey, direction: Direction) -> Result<Admission> {
        let limit = self.cache.get(key).await?.limit;
        self.admit_within(limit, key, direction).await
    }

    /// Like [`admit`](Throttle::admit), for a token whose limit is known.
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
        // The limit may have been stored by lmstfy and never validated: without an interval nothing can be counted.
        let (Ok(most @ 1..), interval @ 1..) = (u64::try_from(most), limit.interval.min(MAX_INTERVAL)) else {
            return free;
        };
        let interval = Duration::from_secs(interval.unsigned_abs());
        // Boxed, so that requests without a limit do not allocate space for it.
        Box::pin(self.count(key, direction, most, interval)).await
    }

    /// Counts a request with a limit.
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

    /// Returns all limits, ordered by token.
    pub async fn list(&self) -> Result<Vec<(TokenKey, Limit)>> {
        let mut all = self.store.limits().await?;
        all.sort_by(|(a, _), (b, _)| a.cmp(b));
        Ok(all)
    }

    /// Reads a token's limit from the store.
    pub async fn get(&self, key: &TokenKey) -> Result<Option<Limit>> {
        Ok(self.store.look_up(key).await?.limit)
    }

    /// Stores a limit for a token that has none. Takes effect on this server at once, on others within a second.
    pub async fn add(&self, key: &TokenKey, limit: Limit) -> Result<(), LimitError> {
        validate(limit)?;
        let added = self.store.add_limit(key, limit).await;
        self.cache.forget(key); // also after an error: it may have been added
        if added? { Ok(()) } else { Err(LimitError::Exists) }
    }

    /// Stores a limit, replacing any existing one.
    pub async fn set(&self, key: &TokenKey, limit: Limit) -> Result<(), LimitError> {
        validate(limit)?;
        let set = self.store.set_limit(key, limit).await;
        self.cache.forget(key);
        Ok(set?)
    }

    /// Deletes a limit, if it exists.
    pub async fn remove(&self, key: &TokenKey) -> Result<()> {
        let removed = self.store.remove_limit(key).await;
        self.cache.forget(key);
        removed
    }
}

impl Pass {
    /// Returns whether the request was counted.
    pub fn counts(&self) -> bool {
        self.counted.is_some()
    }

    /// Subtracts the request from its counter if the interval has not ended, as may happen during a long poll; the next
    /// interval did not count this request.
    pub async fn give_back(self) -> Result<()> {
        let Some(counted) = self.counted else { return Ok(()) };
        let Counted { throttle, key, direction, ends } = *counted;
        let uncounted = throttle.store.uncount(&key, direction, ends).await;
        throttle.outage.report(&uncounted);
        uncounted
    }
}

/// Checks that this is a valid limit.
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
