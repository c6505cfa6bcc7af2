//! Tokens and limits on local disk, in the directory of the default pool. Reads are from memory; each change
//! is on disk before it is answered. Counters are in memory only and begin anew with the process. Knows the
//! disk engine's writer, not its store.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;

use super::{AdminStore, Direction, Limit, Scope, TokenKey};
use crate::clock::Millis;
use crate::engine::disk::{AdminOp, Answer, Handle, Op, Tokens};
use crate::error::Result;

/// The admin store of a disk engine; made by its `admin_store`.
#[derive(Debug)]
pub struct DiskAdmin {
    handle: Handle,
    tokens: Arc<Mutex<Tokens>>,
    counters: Mutex<Counters>,
}

/// How often each token was used in its current interval.
#[derive(Debug, Default)]
struct Counters {
    all: HashMap<(TokenKey, Direction), Counter>,
    /// When there are so many, those that have ended are thrown out.
    clean_at: usize,
}

#[derive(Debug)]
struct Counter {
    count: u64,
    ends: Millis,
}

/// Fewer counters than this are never cleaned.
const FEW: usize = 1024;

impl Counters {
    fn clean(&mut self, now: Millis) {
        if self.all.len() >= self.clean_at.max(FEW) {
            self.all.retain(|_, counter| counter.ends > now);
            self.clean_at = self.all.len() * 2;
        }
    }
}

impl DiskAdmin {
    pub(crate) fn new(handle: Handle, tokens: Arc<Mutex<Tokens>>) -> DiskAdmin {
        DiskAdmin { handle, tokens, counters: Mutex::default() }
    }

    /// Makes a change; answers whether it was one.
    async fn change(&self, op: AdminOp) -> Result<bool> {
        match self.handle.ask(Op::Admin(op)).await? {
            Answer::Changed(changed) => Ok(changed),
            other => Err(Handle::unexpected(&other)),
        }
    }
}

#[async_trait]
impl AdminStore for DiskAdmin {
    async fn tokens(&self, scope: &Scope) -> Result<BTreeMap<String, String>> {
        self.handle.poison.check()?;
        let all = self.tokens.lock();
        let of_scope = all.tokens.iter().filter(|(key, _)| key.scope == *scope);
        Ok(of_scope.map(|(key, description)| (key.token.reveal().to_owned(), description.clone())).collect())
    }

    async fn has_token(&self, key: &TokenKey) -> Result<bool> {
        self.handle.poison.check()?;
        Ok(self.tokens.lock().tokens.contains_key(key))
    }

    async fn add_token(&self, key: &TokenKey, description: &str) -> Result<bool> {
        self.change(AdminOp::AddToken(key.clone(), description.to_owned())).await
    }

    async fn remove_token(&self, key: &TokenKey) -> Result<()> {
        self.change(AdminOp::RemoveToken(key.clone())).await.map(drop)
    }

    async fn limits(&self) -> Result<Vec<(TokenKey, Limit)>> {
        self.handle.poison.check()?;
        Ok(self.tokens.lock().limits.iter().map(|(key, limit)| (key.clone(), *limit)).collect())
    }

    async fn add_limit(&self, key: &TokenKey, limit: Limit) -> Result<bool> {
        self.change(AdminOp::AddLimit(key.clone(), limit)).await
    }

    async fn set_limit(&self, key: &TokenKey, limit: Limit) -> Result<()> {
        self.change(AdminOp::SetLimit(key.clone(), limit)).await.map(drop)
    }

    async fn remove_limit(&self, key: &TokenKey) -> Result<()> {
        self.change(AdminOp::RemoveLimit(key.clone())).await.map(drop)
    }

    async fn count(&self, key: &TokenKey, direction: Direction, interval: Duration) -> Result<u64> {
        self.handle.poison.check()?;
        let now = self.handle.clock.now();
        let mut counters = self.counters.lock();
        counters.clean(now);
        let interval = u64::try_from(interval.as_millis()).unwrap_or(u64::MAX);
        let ends = now.saturating_add(interval);
        let counter = counters.all.entry((key.clone(), direction)).or_insert(Counter { count: 0, ends });
        if counter.ends <= now {
            *counter = Counter { count: 0, ends };
        }
        counter.count += 1;
        Ok(counter.count)
    }

    async fn uncount(&self, key: &TokenKey, direction: Direction) -> Result<()> {
        self.handle.poison.check()?;
        let now = self.handle.clock.now();
        if let Some(counter) = self.counters.lock().all.get_mut(&(key.clone(), direction))
            && counter.ends > now
        {
            counter.count = counter.count.saturating_sub(1);
        }
        Ok(())
    }

    async fn check(&self) -> Result<()> {
        self.handle.tell(Op::Check).await
    }
}
