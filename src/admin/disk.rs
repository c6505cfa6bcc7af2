//! Tokens and limits in the directory of the default disk pool. Reads are from memory; each change is on disk before it
//! is acknowledged. Counters are in memory only and start anew with the process. Defines the encoding of tokens and
//! limits (docs/disk-format.md has drawings); the disk engine decides where they are stored.

use std::collections::BTreeMap;
use std::time::Duration;

use ahash::HashMap;
use async_trait::async_trait;
use bytes::{Buf, BufMut, Bytes};
use parking_lot::Mutex;

use super::{AdminStore, Count, Direction, Limit, Scope, TokenKey, TokenRecord};
use crate::clock::Millis;
use crate::engine::disk::{Change, DiskEngine, Records, Table, put_short, take_short};
use crate::error::{Error, Result};
use crate::name::{Namespace, PoolName, Token};

/// Tokens and limits in the directory of a disk engine.
#[derive(Debug)]
pub struct DiskAdmin {
    records: Records,
    counters: Mutex<Counters>,
}

/// Requests per token in the current interval.
#[derive(Debug, Default)]
struct Counters {
    all: HashMap<(TokenKey, Direction), Counter>,
    /// Number of counters that triggers the removal of expired ones.
    clean_at: usize,
}

#[derive(Debug)]
struct Counter {
    count: u64,
    ends: Millis,
}

/// Minimum number of counters for a cleanup.
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
    /// Fails if the stored data is unreadable.
    pub fn new(engine: &DiskEngine) -> Result<DiskAdmin> {
        let admin = DiskAdmin { records: engine.records(), counters: Mutex::default() };
        admin.records.read(Table::Tokens, |rows| rows.keys().try_for_each(|key| read_key(key).map(drop)))?;
        admin.all_limits()?;
        Ok(admin)
    }

    async fn change(&self, table: Table, key: &TokenKey, change: Change) -> Result<bool> {
        self.records.change(vec![(table, key_of(key), change)]).await
    }

    fn all_limits(&self) -> Result<Vec<(TokenKey, Limit)>> {
        let read = |(key, value): (&Bytes, &Bytes)| Ok((read_key(key)?, read_limit(value)?));
        self.records.read(Table::Limits, |rows| rows.iter().map(read).collect())
    }
}

/// Returns the common prefix of the keys of a scope's tokens: pool and namespace with their lengths.
fn scope_key(scope: &Scope) -> Vec<u8> {
    let mut out = Vec::new();
    for name in [scope.pool.as_str(), scope.namespace.as_str()] {
        put_short(&mut out, name);
    }
    out
}

/// Returns the key in `tokens` and `limits`: the scope, then the token.
fn key_of(key: &TokenKey) -> Bytes {
    let mut out = scope_key(&key.scope);
    out.put_slice(key.token.reveal().as_bytes());
    out.into()
}

/// Reads [`scope_key`] from the front.
fn read_scope(key: &mut &[u8]) -> Option<Scope> {
    let pool = PoolName::parse(take_short(key).ok()?).ok()?;
    Some(Scope { pool, namespace: Namespace::parse(take_short(key).ok()?).ok()? })
}

/// Reads [`key_of`]. The error does not show the key, which may contain a secret.
fn read_key(mut key: &[u8]) -> Result<TokenKey> {
    let mut read = || {
        let scope = read_scope(&mut key)?;
        Some(TokenKey { scope, token: Token::new(std::str::from_utf8(key).ok()?)? })
    };
    read().ok_or_else(|| Error::corrupt("a token's key cannot be read"))
}

/// Returns the value in `limits`: read, write, interval.
fn limit_value(limit: Limit) -> Bytes {
    let mut out = Vec::with_capacity(24);
    for number in [limit.read, limit.write, limit.interval] {
        out.put_i64(number);
    }
    out.into()
}

/// Reads [`limit_value`].
fn read_limit(mut value: &[u8]) -> Result<Limit> {
    if value.len() != 24 {
        return Err(Error::corrupt("a token's limit cannot be read"));
    }
    Ok(Limit { read: value.get_i64(), write: value.get_i64(), interval: value.get_i64() })
}

#[async_trait]
impl AdminStore for DiskAdmin {
    async fn tokens(&self, scope: &Scope) -> Result<BTreeMap<String, String>> {
        let prefix = Bytes::from(scope_key(scope));
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok(self.records.read(Table::Tokens, |rows| {
            let of_scope = rows.range(prefix.clone()..).take_while(|(key, _)| key.starts_with(&prefix));
            of_scope.map(|(key, description)| (text(&key[prefix.len()..]), text(description))).collect()
        }))
    }

    async fn look_up(&self, key: &TokenKey) -> Result<TokenRecord> {
        let key = key_of(key);
        let exists = self.records.read(Table::Tokens, |rows| rows.contains_key(&key));
        let limit = |rows: &BTreeMap<Bytes, Bytes>| rows.get(&key).map(|value| read_limit(value)).transpose();
        Ok(TokenRecord { exists, limit: self.records.read(Table::Limits, limit)? })
    }

    async fn add_token(&self, key: &TokenKey, description: &str) -> Result<bool> {
        let description = Bytes::copy_from_slice(description.as_bytes());
        self.change(Table::Tokens, key, Change::Add(description)).await
    }

    async fn remove_token(&self, key: &TokenKey) -> Result<()> {
        let delete = |table| (table, key_of(key), Change::Delete);
        self.records.change(vec![delete(Table::Tokens), delete(Table::Limits)]).await.map(drop)
    }

    async fn limits(&self) -> Result<Vec<(TokenKey, Limit)>> {
        self.all_limits()
    }

    async fn add_limit(&self, key: &TokenKey, limit: Limit) -> Result<bool> {
        self.change(Table::Limits, key, Change::Add(limit_value(limit))).await
    }

    async fn set_limit(&self, key: &TokenKey, limit: Limit) -> Result<()> {
        self.change(Table::Limits, key, Change::Put(limit_value(limit))).await.map(drop)
    }

    async fn remove_limit(&self, key: &TokenKey) -> Result<()> {
        self.change(Table::Limits, key, Change::Delete).await.map(drop)
    }

    async fn count(
        &self,
        key: &TokenKey,
        direction: Direction,
        most: u64,
        interval: Duration,
    ) -> Result<Count> {
        let now = self.records.now();
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
        let now = self.records.now();
        if let Some(counter) = self.counters.lock().all.get_mut(&(key.clone(), direction))
            && counter.ends == ends
            && ends > now
        {
            counter.count = counter.count.saturating_sub(1);
        }
        Ok(())
    }

    async fn check(&self) -> Result<()> {
        self.records.check().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn tokens_and_limits_survive(pool in "[a-z]{1,9}", ns in "[a-z]{1,9}", token in ".{1,40}", n: [i64; 3]) {
            let scope = Scope {
                pool: PoolName::parse(&pool).unwrap(), // the pattern generates names
                namespace: Namespace::parse(&ns).unwrap(),
            };
            let key = TokenKey { scope, token: Token::new(&token).unwrap() }; // not empty
            prop_assert_eq!(read_key(&key_of(&key)).unwrap(), key);
            let limit = Limit { read: n[0], write: n[1], interval: n[2] };
            prop_assert_eq!(read_limit(&limit_value(limit)).unwrap(), limit);
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            let _ = read_key(&bytes);
            prop_assert_eq!(read_limit(&bytes).is_ok(), bytes.len() == 24);
        }
    }
}
