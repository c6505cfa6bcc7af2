//! An in-memory admin store that counts its calls, can fail, and can be held during a call; and the stage for laws of
//! admin stores.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use dormouse::admin::settings::SettingsAdmin;
use dormouse::admin::{AdminStore, Count, Direction, Limit, Scope, TokenKey, TokenRecord};
use dormouse::clock::{Clock, ManualClock, Millis};
use dormouse::error::{Error, Result};
use dormouse::name::{Namespace, PoolName, Token};
use dormouse::process::tasks::{Failure, Tasks};
use dormouse::settings::SettingsStore;
use tokio::sync::{RwLock, RwLockWriteGuard};

use crate::settings_stage::MemorySettings;
use crate::stage::ok;

/// Tokens and limits in settings in memory.
#[derive(Debug)]
pub struct MemoryAdmin {
    inner: SettingsAdmin,
    failing: AtomicBool,
    calls: AtomicUsize,
    /// Every call takes a read lock; a test that holds the write lock holds the calls.
    gate: RwLock<()>,
    /// Like `gate`, taken by `look_up` when its reply exists and has not been returned.
    answers: RwLock<()>,
}

impl MemoryAdmin {
    /// Returns an empty store that uses `clock`.
    pub async fn new(clock: Arc<dyn Clock>) -> Arc<MemoryAdmin> {
        let inner = open_admin(Arc::new(MemorySettings::default()), clock).await;
        Arc::new(MemoryAdmin {
            inner,
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

    async fn call<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        let _open = self.gate.read().await;
        if self.failing.load(Ordering::SeqCst) {
            return Err(Error::away("this test says so"));
        }
        call.await
    }
}

#[async_trait]
impl AdminStore for MemoryAdmin {
    async fn tokens(&self, scope: &Scope) -> Result<BTreeMap<String, String>> {
        self.call(self.inner.tokens(scope)).await
    }

    async fn look_up(&self, key: &TokenKey) -> Result<TokenRecord> {
        let answer = self.call(self.inner.look_up(key)).await;
        let _open = self.answers.read().await;
        answer
    }

    async fn add_token(&self, key: &TokenKey, description: &str) -> Result<bool> {
        self.call(self.inner.add_token(key, description)).await
    }

    async fn remove_token(&self, key: &TokenKey) -> Result<()> {
        self.call(self.inner.remove_token(key)).await
    }

    async fn limits(&self) -> Result<Vec<(TokenKey, Limit)>> {
        self.call(self.inner.limits()).await
    }

    async fn add_limit(&self, key: &TokenKey, limit: Limit) -> Result<bool> {
        self.call(self.inner.add_limit(key, limit)).await
    }

    async fn set_limit(&self, key: &TokenKey, limit: Limit) -> Result<()> {
        self.call(self.inner.set_limit(key, limit)).await
    }

    async fn remove_limit(&self, key: &TokenKey) -> Result<()> {
        self.call(self.inner.remove_limit(key)).await
    }

    async fn count(
        &self,
        key: &TokenKey,
        direction: Direction,
        most: u64,
        interval: Duration,
    ) -> Result<Count> {
        self.call(self.inner.count(key, direction, most, interval)).await
    }

    async fn uncount(&self, key: &TokenKey, direction: Direction, ends: Millis) -> Result<()> {
        self.call(self.inner.uncount(key, direction, ends)).await
    }

    async fn check(&self) -> Result<()> {
        self.call(self.inner.check()).await
    }
}

/// Opens the tokens and limits in a settings store.
pub async fn open_admin(store: Arc<dyn SettingsStore>, clock: Arc<dyn Clock>) -> SettingsAdmin {
    ok("open", SettingsAdmin::open(store, clock, Tasks::new(Failure::default())).await)
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
