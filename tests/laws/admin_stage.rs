//! An in-memory admin store that counts its calls, can fail, and can be held during a call; and the stage for laws of
//! admin stores.

use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use dormouse::admin::{AdminStore, Count, Direction, Limit, Scope, TokenKey, TokenRecord};
use dormouse::clock::{Clock, ManualClock, Millis};
use dormouse::error::{Error, Result};
use dormouse::name::{Namespace, PoolName, Token};
use parking_lot::Mutex;
use tokio::sync::{RwLock, RwLockWriteGuard};

use crate::jobs::ms;

/// Tokens, limits and counters in maps.
#[derive(Debug)]
pub struct MemoryAdmin {
    clock: Arc<dyn Clock>,
    state: Mutex<Tables>,
    failing: AtomicBool,
    calls: AtomicUsize,
    /// Every call takes a read lock; a test that holds the write lock holds the calls.
    gate: RwLock<()>,
    /// Like `gate`, taken by `look_up` when its reply exists and has not been returned.
    answers: RwLock<()>,
}

#[derive(Debug, Default)]
struct Tables {
    tokens: BTreeMap<TokenKey, String>,
    limits: BTreeMap<TokenKey, Limit>,
    /// The count, and the end of its interval.
    counts: HashMap<(TokenKey, Direction), (u64, Millis)>,
}

impl MemoryAdmin {
    /// Returns an empty store that uses `clock`.
    pub fn new(clock: Arc<dyn Clock>) -> Arc<MemoryAdmin> {
        Arc::new(MemoryAdmin {
            clock,
            state: Mutex::default(),
            failing: AtomicBool::new(false),
            calls: AtomicUsize::new(0),
            gate: RwLock::default(),
            answers: RwLock::default(),
        })
    }

    /// Makes every call fail as if the store were unavailable, or succeed again.
    pub fn fail(&self, failing: bool) {
        self.failing.store(failing, Ordering::SeqCst);
    }

    /// Returns the number of calls so far.
    pub fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }

    /// Holds all calls until the guard is dropped. They are counted on arrival.
    pub async fn hold(&self) -> RwLockWriteGuard<'_, ()> {
        self.gate.write().await
    }

    /// Holds the replies of `look_up` until the guard is dropped: the store has created them, but callers do not
    /// receive them.
    pub async fn hold_answers(&self) -> RwLockWriteGuard<'_, ()> {
        self.answers.write().await
    }

    async fn call<T>(&self, step: impl FnOnce(&mut Tables, Millis) -> T) -> Result<T> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        let _open = self.gate.read().await;
        if self.failing.load(Ordering::SeqCst) {
            return Err(Error::away("this test says so"));
        }
        Ok(step(&mut self.state.lock(), self.clock.now()))
    }
}

#[async_trait]
impl AdminStore for MemoryAdmin {
    async fn tokens(&self, scope: &Scope) -> Result<BTreeMap<String, String>> {
        self.call(|state, _| {
            let of_scope = state.tokens.iter().filter(|(key, _)| key.scope == *scope);
            of_scope.map(|(key, text)| (key.token.reveal().to_string(), text.clone())).collect()
        })
        .await
    }

    async fn look_up(&self, key: &TokenKey) -> Result<TokenRecord> {
        let record = |state: &mut Tables, _| TokenRecord {
            exists: state.tokens.contains_key(key),
            limit: state.limits.get(key).copied(),
        };
        let answer = self.call(record).await;
        let _open = self.answers.read().await;
        answer
    }

    async fn add_token(&self, key: &TokenKey, description: &str) -> Result<bool> {
        self.call(|state, _| {
            let free = !state.tokens.contains_key(key);
            if free {
                state.tokens.insert(key.clone(), description.to_string());
            }
            free
        })
        .await
    }

    async fn remove_token(&self, key: &TokenKey) -> Result<()> {
        self.call(|state, _| {
            state.tokens.remove(key);
            state.limits.remove(key);
        })
        .await
    }

    async fn limits(&self) -> Result<Vec<(TokenKey, Limit)>> {
        self.call(|state, _| state.limits.iter().map(|(key, limit)| (key.clone(), *limit)).collect()).await
    }

    async fn add_limit(&self, key: &TokenKey, limit: Limit) -> Result<bool> {
        self.call(|state, _| {
            let free = !state.limits.contains_key(key);
            if free {
                state.limits.insert(key.clone(), limit);
            }
            free
        })
        .await
    }

    async fn set_limit(&self, key: &TokenKey, limit: Limit) -> Result<()> {
        self.call(|state, _| {
            state.limits.insert(key.clone(), limit);
        })
        .await
    }

    async fn remove_limit(&self, key: &TokenKey) -> Result<()> {
        self.call(|state, _| {
            state.limits.remove(key);
        })
        .await
    }

    async fn count(
        &self,
        key: &TokenKey,
        direction: Direction,
        most: u64,
        interval: Duration,
    ) -> Result<Count> {
        self.call(|state, now| {
            let counter = state.counts.entry((key.clone(), direction)).or_insert((0, now));
            if counter.1 <= now {
                *counter = (0, now + ms(interval));
            }
            if counter.0 >= most {
                return Count::Full(Duration::from_millis(counter.1 - now));
            }
            counter.0 += 1;
            Count::Counted(counter.1)
        })
        .await
    }

    async fn uncount(&self, key: &TokenKey, direction: Direction, ends: Millis) -> Result<()> {
        self.call(|state, now| {
            if let Some((count, end)) = state.counts.get_mut(&(key.clone(), direction))
                && *end == ends
                && ends > now
            {
                *count = count.saturating_sub(1);
            }
        })
        .await
    }

    async fn check(&self) -> Result<()> {
        self.call(|_, _| ()).await
    }
}

/// An empty admin store and its clock.
pub struct AdminStage {
    store: Arc<dyn AdminStore>,
    clock: Option<Arc<ManualClock>>,
    /// Dropped after the store.
    _keep: Box<dyn Any + Send + Sync>,
}

impl AdminStage {
    /// Returns a stage. `clock` is the store's clock, if it is a manual one.
    pub fn new(
        store: Arc<dyn AdminStore>,
        clock: Option<Arc<ManualClock>>,
        keep: impl Any + Send + Sync,
    ) -> AdminStage {
        AdminStage { store, clock, _keep: Box::new(keep) }
    }

    /// Returns the store under test.
    pub fn store(&self) -> &dyn AdminStore {
        &*self.store
    }

    /// Returns once the store's clock has advanced by at least this much.
    pub async fn advance(&self, by: Duration) {
        match &self.clock {
            Some(clock) => clock.advance(by),
            None => tokio::time::sleep(by + Duration::from_millis(5)).await,
        }
    }
}

/// Returns a namespace of a pool.
pub fn scope(pool: &str, namespace: &str) -> Scope {
    Scope {
        pool: PoolName::parse(pool).unwrap_or_else(|e| panic!("{pool:?} is a name: {e}")),
        namespace: Namespace::parse(namespace).unwrap_or_else(|e| panic!("{namespace:?} is a name: {e}")),
    }
}

/// Returns a token of a namespace of a pool.
pub fn token(pool: &str, namespace: &str, token: &str) -> TokenKey {
    TokenKey { scope: scope(pool, namespace), token: Token::new(token).expect("a test's token is not empty") }
}

/// Returns a limit.
pub fn limit(read: i64, write: i64, interval: i64) -> Limit {
    Limit { read, write, interval }
}
