//! Tokens and limits as settings of a store that only this process uses: the directory of the default disk pool. Reads
//! are from memory, so they neither wait for a slow disk nor end with a failed one; each change is stored before it is
//! acknowledged. Counters are in memory only and start anew with the process.
//!
//! A record has the key `tokens/<pool>/<namespace>/<SHA-256 of the token>`, since a token has any characters and length,
//! and keys are not secret. Token and limit are in one record, and so are deleted in one step.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use ahash::HashMap;
use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use parking_lot::Mutex;
use ring::digest;
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex as AsyncMutex;

use super::{AdminStore, Count, Direction, Limit, Scope, TokenKey, TokenRecord};
use crate::clock::{Clock, Millis};
use crate::error::{Error, Result};
use crate::name::{Namespace, PoolName, Token};
use crate::process::tasks::Tasks;
use crate::settings::{Put, SettingsStore, scan_all};

/// Prefix of the records' keys.
pub const TOKENS: &str = "tokens/";
/// Minimum number of counters for a cleanup.
const FEW: usize = 1024;

/// Tokens and limits of one server. `Debug` shows none.
pub struct SettingsAdmin {
    rows: Arc<Rows>,
    counters: Mutex<Counters>,
    clock: Arc<dyn Clock>,
    tasks: Tasks,
}

/// All records, in the store and in memory.
struct Rows {
    store: Arc<dyn SettingsStore>,
    all: Mutex<BTreeMap<TokenKey, Row>>,
    /// Locked during a change, so that memory follows the store in the same order.
    changes: AsyncMutex<()>,
}

/// A token, its limit, or both. The default is stored as no record.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
struct Row {
    /// The token's description, if it exists.
    description: Option<String>,
    limit: Option<Limit>,
}

/// The value of a record.
#[derive(Serialize, Deserialize)]
struct Stored {
    token: String,
    #[serde(flatten)]
    row: Row,
}

/// Requests per token in the current interval.
#[derive(Default)]
struct Counters {
    all: HashMap<(TokenKey, Direction), Counter>,
    /// Number of counters that triggers the removal of expired ones.
    clean_at: usize,
}

struct Counter {
    count: u64,
    ends: Millis,
}

impl Counters {
    fn clean(&mut self, now: Millis) {
        if self.all.len() >= self.clean_at.max(FEW) {
            self.all.retain(|_, counter| counter.ends > now);
            self.clean_at = self.all.len() * 2;
        }
    }
}

/// Returns the key of a token's record.
fn name(TokenKey { scope, token }: &TokenKey) -> String {
    let hash = digest::digest(&digest::SHA256, token.reveal().as_bytes());
    format!("{TOKENS}{}/{}/{}", scope.pool, scope.namespace, URL_SAFE_NO_PAD.encode(hash))
}

fn value(key: &TokenKey, row: Row) -> Result<Vec<u8>> {
    let stored = Stored { token: key.token.reveal().to_owned(), row };
    serde_json::to_vec(&stored).map_err(Error::refused)
}

/// Reads a record.
fn read(name: &str, value: &[u8]) -> Result<(TokenKey, Row)> {
    let read = || {
        let mut names = name.strip_prefix(TOKENS)?.split('/');
        let pool = PoolName::parse(names.next()?).ok()?;
        let namespace = Namespace::parse(names.next()?).ok()?;
        let Stored { token, row } = serde_json::from_slice(value).ok()?;
        Some((TokenKey { scope: Scope { pool, namespace }, token: Token::new(&token)? }, row))
    };
    // The value contains a secret, so it is not shown.
    read().ok_or_else(|| Error::corrupt(format!("the record {name} of a token cannot be read")))
}

impl Rows {
    /// Changes the row of a token in the store, then in memory.
    async fn change<T>(&self, key: &TokenKey, change: impl Fn(&mut Row) -> T) -> Result<T> {
        let (name, _one) = (name(key), self.changes.lock().await);
        loop {
            let there = self.store.get(&name).await?;
            let before = there.as_ref().map(|record| read(&name, &record.value)).transpose()?;
            let before = before.map_or_else(Row::default, |(_, row)| row);
            let mut row = before.clone();
            let answer = change(&mut row);
            if row == before {
                return Ok(answer);
            }
            let is_empty = row == Row::default();
            let value = if is_empty { None } else { Some(value(key, row.clone())?.into()) };
            if let Put::Done(_) = self.store.put(&name, value, there.map(|record| record.version)).await? {
                let mut all = self.all.lock();
                match is_empty {
                    true => all.remove(key),
                    false => all.insert(key.clone(), row),
                };
                return Ok(answer);
            }
        }
    }
}

impl SettingsAdmin {
    /// Reads the records of `store`. Fails if one is unreadable. Intervals of limits are measured by `clock`; changes
    /// run in `tasks`.
    pub async fn open(
        store: Arc<dyn SettingsStore>,
        clock: Arc<dyn Clock>,
        tasks: Tasks,
    ) -> Result<SettingsAdmin> {
        let mut found = Vec::new();
        scan_all(&*store, TOKENS, |name, record| found.push(read(&name, &record.value))).await?;
        let all = Mutex::new(found.into_iter().collect::<Result<_>>()?);
        let rows = Arc::new(Rows { store, all, changes: AsyncMutex::default() });
        Ok(SettingsAdmin { rows, counters: Mutex::default(), clock, tasks })
    }

    /// Changes a row, also if the caller leaves: memory would not follow the store.
    async fn change<T: Send + 'static>(
        &self,
        key: &TokenKey,
        change: impl Fn(&mut Row) -> T + Send + 'static,
    ) -> Result<T> {
        let (rows, key) = (self.rows.clone(), key.clone());
        self.tasks.spawn(async move { rows.change(&key, change).await }).await.map_err(Error::away)?
    }
}

impl fmt::Debug for SettingsAdmin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SettingsAdmin").finish_non_exhaustive()
    }
}

#[async_trait]
impl AdminStore for SettingsAdmin {
    async fn tokens(&self, scope: &Scope) -> Result<BTreeMap<String, String>> {
        let token = Token::new("\0").expect("the first of all that are not empty");
        let first = Bound::Included(TokenKey { scope: scope.clone(), token });
        let all = self.rows.all.lock();
        let of_scope = all.range((first, Bound::Unbounded)).take_while(|(key, _)| key.scope == *scope);
        let text = |key: &TokenKey| key.token.reveal().to_owned();
        Ok(of_scope.filter_map(|(key, row)| Some((text(key), row.description.clone()?))).collect())
    }

    async fn look_up(&self, key: &TokenKey) -> Result<TokenRecord> {
        let all = self.rows.all.lock();
        let record = |row: &Row| TokenRecord { exists: row.description.is_some(), limit: row.limit };
        Ok(all.get(key).map(record).unwrap_or_default())
    }

    async fn add_token(&self, key: &TokenKey, description: &str) -> Result<bool> {
        let description = description.to_owned();
        let add = move |row: &mut Row| {
            let is_new = row.description.is_none();
            row.description.get_or_insert_with(|| description.clone());
            is_new
        };
        self.change(key, add).await
    }

    async fn remove_token(&self, key: &TokenKey) -> Result<()> {
        self.change(key, |row| *row = Row::default()).await
    }

    async fn limits(&self) -> Result<Vec<(TokenKey, Limit)>> {
        let all = self.rows.all.lock();
        Ok(all.iter().filter_map(|(key, row)| Some((key.clone(), row.limit?))).collect())
    }

    async fn add_limit(&self, key: &TokenKey, limit: Limit) -> Result<bool> {
        let add = move |row: &mut Row| {
            let is_new = row.limit.is_none();
            row.limit.get_or_insert(limit);
            is_new
        };
        self.change(key, add).await
    }

    async fn set_limit(&self, key: &TokenKey, limit: Limit) -> Result<()> {
        self.change(key, move |row| row.limit = Some(limit)).await
    }

    async fn remove_limit(&self, key: &TokenKey) -> Result<()> {
        self.change(key, |row| row.limit = None).await
    }

    async fn count(
        &self,
        key: &TokenKey,
        direction: Direction,
        most: u64,
        interval: Duration,
    ) -> Result<Count> {
        let now = self.clock.now();
        let mut counters = self.counters.lock();
        counters.clean(now);
        let interval = u64::try_from(interval.as_millis()).unwrap_or(u64::MAX);
        let ends = now.saturating_add(interval);
        let counter = counters.all.entry((key.clone(), direction)).or_insert(Counter { count: 0, ends });
        if counter.ends <= now {
            *counter = Counter { count: 0, ends };
        }
        if counter.count >= most {
            return Ok(Count::Full(Duration::from_millis(counter.ends - now)));
        }
        counter.count += 1;
        Ok(Count::Counted(counter.ends))
    }

    async fn uncount(&self, key: &TokenKey, direction: Direction, ends: Millis) -> Result<()> {
        let now = self.clock.now();
        if let Some(counter) = self.counters.lock().all.get_mut(&(key.clone(), direction))
            && counter.ends == ends
            && ends > now
        {
            counter.count = counter.count.saturating_sub(1);
        }
        Ok(())
    }

    async fn check(&self) -> Result<()> {
        self.rows.store.get(TOKENS).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn tokens_and_limits_survive(
            pool in "[a-z]{1,9}", ns in "[a-z]{1,9}", token in ".{1,40}", description: Option<String>, n: [i64; 3],
        ) {
            let scope = Scope {
                pool: PoolName::parse(&pool).unwrap(), // the pattern generates names
                namespace: Namespace::parse(&ns).unwrap(),
            };
            let key = TokenKey { scope, token: Token::new(&token).unwrap() }; // not empty
            let limit = Limit { read: n[0], write: n[1], interval: n[2] };
            for limit in [None, Some(limit)] {
                let row = Row { description: description.clone(), limit };
                let value = value(&key, row.clone()).unwrap(); // any row is JSON
                let (of, read) = read(&name(&key), &value).unwrap(); // as it was written
                prop_assert!(of == key && read == row, "{of:?} instead of {key:?}");
            }
        }

        #[test]
        fn any_record_is_read_or_refused(name: String, value: Vec<u8>) {
            let _ = read(&format!("{TOKENS}{name}"), &value);
        }
    }
}
