//! How many requests a token may make. Limits and counters are kept in the admin store, so all servers share them.
//! A token has one counter for consumes and one for publishes; each counts until its interval ends. The limits
//! are also kept in memory and read again every [`REFRESH`], so a request of a token without a limit does not ask
//! the store. Knows nothing of HTTP. No token is logged.
//!
//! A refused request is not counted: the count that refused it is taken back at once. So the counter is the
//! number of requests that were admitted and not given back, and each one given back makes room for another.
//! (lmstfy leaves refused requests in the counter, so there a request that is given back may make no room.)

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use tokio::sync::Mutex;

use super::{AdminStore, Direction, Limit, TokenKey};
use crate::clock::{Clock, Millis};
use crate::error::{Error, Result};
use crate::outage::Outage;

/// How old the limits in memory may be.
pub const REFRESH: Duration = Duration::from_secs(1);
/// The longest interval, in seconds.
pub const MAX_INTERVAL: i64 = u32::MAX as i64;

/// Why a limit was not stored.
#[derive(Debug, thiserror::Error)]
pub enum LimitError {
    #[error("the interval must be from 1 to {MAX_INTERVAL} seconds")]
    Interval,
    #[error("read and write are both 0: that is no limit")]
    Empty,
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
    /// Its token has made as many as it may, until the interval ends.
    OverLimit,
}

/// A request that was admitted. If the pass is dropped, the request stays counted.
#[derive(Debug)]
pub struct Pass {
    counted: Option<Counted>,
}

#[derive(Debug)]
struct Counted {
    throttle: Arc<Throttle>,
    key: TokenKey,
    direction: Direction,
    /// By then the counter has ended, whenever it began.
    ends: Millis,
}

/// The limits of all tokens.
#[derive(Debug)]
pub struct Throttle {
    store: Arc<dyn AdminStore>,
    clock: Arc<dyn Clock>,
    /// As last read. `None` until the store has answered once: until then nobody knows whether there are limits.
    limits: RwLock<Option<HashMap<TokenKey, Limit>>>,
    /// Held from before the store is read or changed until `limits` shows it, so that what was read before a change
    /// does not overwrite the change.
    changing: Mutex<()>,
    /// Hears whether the store answers.
    outage: Arc<Outage>,
}

impl Throttle {
    /// Limits of `store`; `clock` tells whether a counter has ended.
    pub fn new(store: Arc<dyn AdminStore>, clock: Arc<dyn Clock>, outage: Arc<Outage>) -> Arc<Throttle> {
        Arc::new(Throttle { store, clock, limits: RwLock::new(None), changing: Mutex::default(), outage })
    }

    /// Admits a request or refuses it. Errors when the store fails: without a count nothing is admitted. If the
    /// future is dropped, the request may stay counted until the interval ends.
    pub async fn admit(self: &Arc<Self>, key: &TokenKey, direction: Direction) -> Result<Admission> {
        let Some(limit) = self.limit_of(key).await? else {
            return Ok(Admission::Admitted(Pass { counted: None }));
        };
        let most = match direction {
            Direction::Read => limit.read,
            Direction::Write => limit.write,
        };
        // Stored by others too, so perhaps never validated: without an interval nothing can be counted.
        let (Ok(most @ 1..), interval @ 1..) = (u64::try_from(most), limit.interval.min(MAX_INTERVAL)) else {
            return Ok(Admission::Admitted(Pass { counted: None }));
        };
        let interval = Duration::from_secs(interval.unsigned_abs());
        let count = self.store.count(key, direction, interval).await;
        self.outage.report(&count);
        let count = count?;
        let ends = self.clock.now().saturating_add(interval.as_millis() as Millis);
        let pass =
            Pass { counted: Some(Counted { throttle: self.clone(), key: key.clone(), direction, ends }) };
        if count <= most {
            return Ok(Admission::Admitted(pass));
        }
        pass.give_back().await?;
        Ok(Admission::OverLimit)
    }

    /// Reads all limits anew.
    pub async fn refresh(&self) -> Result<()> {
        let _changing = self.changing.lock().await;
        self.read().await
    }

    /// Under `changing`.
    async fn read(&self) -> Result<()> {
        let read = self.store.limits().await;
        self.outage.report(&read);
        *self.limits.write() = Some(read?.into_iter().collect());
        Ok(())
    }

    /// Reads all limits every [`REFRESH`], for ever. After a failure the last ones stay, and it tries again.
    pub async fn keep_fresh(&self) {
        loop {
            tokio::time::sleep(REFRESH).await;
            let _ = self.refresh().await; // it was reported to `outage`
        }
    }

    /// Every limit, in the order of their tokens; as the store has them now when `force`, else at most
    /// [`REFRESH`] old.
    pub async fn list(&self, force: bool) -> Result<Vec<(TokenKey, Limit)>> {
        if force {
            self.refresh().await?;
        } else {
            self.load().await?;
        }
        let mut all: Vec<_> =
            self.limits.read().iter().flatten().map(|(key, limit)| (key.clone(), *limit)).collect();
        all.sort_by(|(a, _), (b, _)| a.cmp(b));
        Ok(all)
    }

    /// A token's limit, as the store has it now.
    pub async fn get(&self, key: &TokenKey) -> Result<Option<Limit>> {
        self.refresh().await?;
        self.limit_of(key).await
    }

    /// Stores a limit for a token that has none.
    pub async fn add(&self, key: &TokenKey, limit: Limit) -> Result<(), LimitError> {
        validate(limit)?;
        let _changing = self.changing.lock().await;
        if !self.store.add_limit(key, limit).await? {
            return Err(LimitError::Exists);
        }
        self.note(key, Some(limit));
        Ok(())
    }

    /// Stores a limit, whether or not there is one.
    pub async fn set(&self, key: &TokenKey, limit: Limit) -> Result<(), LimitError> {
        validate(limit)?;
        let _changing = self.changing.lock().await;
        self.store.set_limit(key, limit).await?;
        self.note(key, Some(limit));
        Ok(())
    }

    /// Deletes a limit. Deleting an unknown one is fine.
    pub async fn remove(&self, key: &TokenKey) -> Result<()> {
        let _changing = self.changing.lock().await;
        self.store.remove_limit(key).await?;
        self.note(key, None);
        Ok(())
    }

    /// The limit in memory; reads the store first if that was never done.
    async fn limit_of(&self, key: &TokenKey) -> Result<Option<Limit>> {
        self.load().await?;
        Ok(self.limits.read().as_ref().and_then(|limits| limits.get(key).copied()))
    }

    async fn load(&self) -> Result<()> {
        let missing = || self.limits.read().is_none();
        if missing() {
            let _changing = self.changing.lock().await;
            if missing() {
                self.read().await?; // nobody has read them while this call waited for the lock
            }
        }
        Ok(())
    }

    /// Shows a change of this server's at once. Under `changing`.
    fn note(&self, key: &TokenKey, limit: Option<Limit>) {
        if let Some(limits) = self.limits.write().as_mut() {
            match limit {
                Some(limit) => limits.insert(key.clone(), limit),
                None => limits.remove(key),
            };
        }
    }
}

impl Pass {
    /// Whether there is anything to give back.
    pub fn counts(&self) -> bool {
        self.counted.is_some()
    }

    /// Takes the request out of the count, if it was counted and its counter may still run.
    pub async fn give_back(self) -> Result<()> {
        let Some(Counted { throttle, key, direction, ends }) = self.counted else { return Ok(()) };
        if throttle.clock.now() >= ends {
            return Ok(()); // the count ended during a long poll; the next counter did not count this request
        }
        let uncounted = throttle.store.uncount(&key, direction).await;
        throttle.outage.report(&uncounted);
        uncounted
    }
}

/// Whether this can be a limit.
pub fn validate(limit: Limit) -> Result<(), LimitError> {
    if limit.read == 0 && limit.write == 0 {
        return Err(LimitError::Empty);
    }
    if !(1..=MAX_INTERVAL).contains(&limit.interval) {
        return Err(LimitError::Interval);
    }
    Ok(())
}
