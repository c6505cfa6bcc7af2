//! Tokens and limits as the disk store keeps them: all in memory for reading, each change written through the
//! writer thread. What a token opens and what a limit means is not known here.

use std::collections::BTreeMap;

use super::op::AdminOp;
use super::state::Core;
use super::store::codec;
use super::store::{Fatal, Space, Store};
use crate::admin::{Limit, Scope, TokenKey};
use crate::name::{Namespace, PoolName, Token};

/// Every token with its description, and every limit.
#[derive(Debug, Default)]
pub struct Tokens {
    pub tokens: BTreeMap<TokenKey, String>,
    pub limits: BTreeMap<TokenKey, Limit>,
}

impl Tokens {
    /// Reads all from the disk.
    pub(super) fn load(store: &Store) -> Result<Tokens, Fatal> {
        let mut all = Tokens::default();
        for item in store.all(Space::Tokens) {
            let (key, value) = item?;
            let description = String::from_utf8_lossy(&value).into_owned();
            all.tokens.insert(read_key(&key)?, description);
        }
        for item in store.all(Space::Limits) {
            let (key, value) = item?;
            let [read, write, interval] = codec::read_limit_value(&value)?;
            all.limits.insert(read_key(&key)?, Limit { read, write, interval });
        }
        Ok(all)
    }
}

fn read_key(key: &[u8]) -> Result<TokenKey, Fatal> {
    let (pool, namespace, token) = codec::split_token_key(key)?;
    let bad = || Fatal("a token's key cannot be read".to_owned());
    Ok(TokenKey {
        scope: Scope {
            pool: PoolName::parse(pool).map_err(|_| bad())?,
            namespace: Namespace::parse(namespace).map_err(|_| bad())?,
        },
        token: Token::new(token).ok_or_else(bad)?,
    })
}

impl Core {
    /// Makes a change, if it is one; answers whether it was. It is synced in either mode.
    pub(super) fn admin(&mut self, op: AdminOp) -> bool {
        let key = |key: &TokenKey| {
            codec::token_key(key.scope.pool.as_str(), key.scope.namespace.as_str(), key.token.reveal())
        };
        let value = |limit: Limit| codec::limit_value([limit.read, limit.write, limit.interval]);
        let mut all = self.tokens.lock();
        let changed = match op {
            AdminOp::AddToken(token, _) if all.tokens.contains_key(&token) => false,
            AdminOp::AddToken(token, description) => {
                self.txn.put(Space::Tokens, key(&token), &description);
                all.tokens.insert(token, description);
                true
            }
            AdminOp::RemoveToken(token) => {
                self.txn.delete(Space::Tokens, key(&token));
                self.txn.delete(Space::Limits, key(&token));
                all.limits.remove(&token);
                all.tokens.remove(&token);
                true
            }
            AdminOp::AddLimit(token, _) if all.limits.contains_key(&token) => false,
            AdminOp::AddLimit(token, limit) | AdminOp::SetLimit(token, limit) => {
                self.txn.put(Space::Limits, key(&token), value(limit));
                all.limits.insert(token, limit);
                true
            }
            AdminOp::RemoveLimit(token) => {
                self.txn.delete(Space::Limits, key(&token));
                all.limits.remove(&token).is_some()
            }
        };
        self.must_sync |= changed;
        changed
    }
}
