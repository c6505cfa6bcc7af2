//! Tokens of parked polls. A poll may wait for hours, so its token is checked again meanwhile: once a second per
//! token, however many polls use it.

use std::sync::{Arc, Weak};
use std::time::Duration;

use ahash::HashMap;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{MissedTickBehavior, interval};

use crate::admin::TokenKey;
use crate::admin::tokens::TokenManager;
use crate::process::tasks::Tasks;

/// How often each token is checked.
const EVERY: Duration = Duration::from_secs(1);
/// Number of tokens checked concurrently.
const AT_ONCE: usize = 64;

/// Tokens of parked polls.
#[derive(Debug, Default)]
pub struct ParkedTokens {
    /// An entry whose polls have all ended is removed before the next check.
    entries: Mutex<HashMap<TokenKey, Weak<ParkedToken>>>,
}

/// A token of parked polls. Each of them holds a reference.
#[derive(Debug)]
pub struct ParkedToken {
    key: TokenKey,
    /// Notified after each check that the token fails. Polls that arrive later have passed their own check.
    revoked: Notify,
}

impl ParkedToken {
    /// Completes when the token is no longer valid for its namespace.
    pub async fn revoked(&self) {
        self.revoked.notified().await;
    }
}

impl ParkedTokens {
    /// Registers a poll with this token until the result is dropped.
    pub fn enter(&self, key: &TokenKey) -> Arc<ParkedToken> {
        let mut entries = self.entries.lock();
        if let Some(parked) = entries.get(key).and_then(Weak::upgrade) {
            return parked;
        }
        let parked = Arc::new(ParkedToken { key: key.clone(), revoked: Notify::new() });
        entries.insert(key.clone(), Arc::downgrade(&parked));
        parked
    }

    /// Returns the tokens of the polls that are parked now.
    fn parked(&self) -> Vec<Arc<ParkedToken>> {
        let mut parked = Vec::new();
        self.entries.lock().retain(|_, entry| {
            let entry = entry.upgrade();
            let there = entry.is_some();
            parked.extend(entry);
            there
        });
        parked
    }
}

/// Checks the tokens of parked polls until it is dropped. Each check is one of `tasks`.
pub async fn keep_checked(parked_tokens: Arc<ParkedTokens>, tokens: Arc<TokenManager>, tasks: Tasks) {
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        for some in parked_tokens.parked().chunks(AT_ONCE) {
            let check = |parked: &Arc<ParkedToken>| {
                let (tokens, parked) = (tokens.clone(), parked.clone());
                tasks.spawn(async move {
                    // An error says nothing about the token. It was reported, and the next second checks again.
                    if let Ok(false) = tokens.check(&parked.key).await {
                        parked.revoked.notify_waiters();
                    }
                })
            };
            for check in some.iter().map(check).collect::<Vec<_>>() {
                // A panic was logged, and the next second checks again.
                let _ = check.await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::Scope;
    use crate::name::{Namespace, PoolName, Token};

    #[test]
    fn a_token_is_kept_once_and_only_while_polls_wait_with_it() {
        let namespace = Namespace::parse("ns").expect("a literal");
        let scope = Scope { pool: PoolName::default_pool(), namespace };
        let key = |token| TokenKey { scope: scope.clone(), token: Token::new(token).expect("not empty") };
        let tokens = ParkedTokens::default();
        let polls: Vec<_> = (0..100).map(|_| tokens.enter(&key("a"))).collect();
        let other = tokens.enter(&key("b"));
        assert_eq!(tokens.parked().len(), 2, "a hundred polls wait with one token, one with another");
        drop(other);
        assert_eq!(tokens.parked().len(), 1, "no poll waits with the other token");
        drop(polls);
        assert_eq!((tokens.parked().len(), tokens.entries.lock().len()), (0, 0), "no poll waits");
    }
}
