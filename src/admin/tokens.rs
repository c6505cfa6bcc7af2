//! Who may enter which namespace. Tokens live in the admin store; what it said lately is kept in memory, so
//! that a request rarely costs a look there. Knows nothing of HTTP. Never logs a token.
//!
//! Only tokens that the store knows are kept, and they are asked for again after [`FRESH`]. So a token that
//! was deleted on any server is refused by every server within a second, and guesses use no memory.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use ulid::Ulid;

use super::{AdminStore, Scope, TokenKey};
use crate::clock::{Clock, Millis};
use crate::error::{Error, Result};
use crate::name::{DEFAULT_POOL, Token};
use crate::outage::Outage;

/// How long the store's yes is believed, counted from when it was asked.
pub const FRESH: Duration = Duration::from_millis(500);
/// How long a token stays good while the store is away, counted from its last yes. Nobody can revoke a token
/// without the store either.
pub const GRACE: Duration = Duration::from_secs(3600);
/// The shortest token that an operator may choose, in bytes.
pub const MIN_CHOSEN: usize = 20;
/// How many tokens are kept.
const KEPT: usize = 100_000;

/// Reads `[pool:]token` as a client shows it, into the pool's name and the secret, either of which may turn out
/// to be none. What stands before the first colon is the pool; without one, or with nothing before it, it is
/// the default pool.
pub fn split(text: &str) -> (&str, &str) {
    match text.split_once(':') {
        Some((pool, token)) if !pool.is_empty() => (pool, token),
        Some((_, token)) => (DEFAULT_POOL, token),
        None => (DEFAULT_POOL, text),
    }
}

/// The same text back: the pool is left out where it is the default one.
pub fn join(key: &TokenKey) -> String {
    let (pool, token) = (&key.scope.pool, key.token.reveal());
    if pool.is_default() { token.to_owned() } else { format!("{pool}:{token}") }
}

/// Why no token was created.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    #[error("a chosen token needs at least {MIN_CHOSEN} characters")]
    TooShort,
    #[error("the token exists already")]
    Taken,
    #[error(transparent)]
    Store(#[from] Error),
}

/// The tokens of all namespaces.
pub struct Tokens {
    store: Arc<dyn AdminStore>,
    clock: Arc<dyn Clock>,
    /// Hears whether the store answers.
    outage: Arc<Outage>,
    known: Mutex<Known>,
}

/// What is known without asking.
#[derive(Default)]
struct Known {
    good: HashMap<TokenKey, Good>,
    /// Questions on their way to the store. Who comes meanwhile waits for the same answer.
    asking: HashMap<TokenKey, watch::Receiver<Option<Answer>>>,
    /// The last question was not answered.
    away: bool,
}

/// A token that the store knew.
#[derive(Clone, Copy)]
struct Good {
    /// When the store was asked that said yes.
    confirmed: Millis,
    /// When the store was last asked; later than `confirmed` while it is away.
    asked: Millis,
}

/// What one question brought, for all who wait for it.
type Answer = Result<bool>;

/// What a check does next.
enum Turn<'a> {
    Known,
    Wait(watch::Receiver<Option<Answer>>),
    Ask(Question<'a>),
}

/// The right and the duty to ask. Dropped without an answer, its followers begin anew.
struct Question<'a> {
    tokens: &'a Tokens,
    key: &'a TokenKey,
    answer: watch::Sender<Option<Answer>>,
    asked: Millis,
}

impl Tokens {
    /// Tokens of `store`; `clock` tells how old an answer is.
    pub fn new(store: Arc<dyn AdminStore>, clock: Arc<dyn Clock>, outage: Arc<Outage>) -> Tokens {
        Tokens { store, clock, outage, known: Mutex::default() }
    }

    /// Creates a token: the chosen one, or a new ULID. It is good on this server at once. Errors when the
    /// chosen one is too short or exists, and when the store fails.
    pub async fn create(
        &self,
        scope: &Scope,
        chosen: Option<Token>,
        description: &str,
    ) -> Result<Token, CreateError> {
        let token = match chosen {
            Some(token) if token.reveal().len() < MIN_CHOSEN => return Err(CreateError::TooShort),
            Some(token) => token,
            None => Token::new(&Ulid::r#gen().to_string()).expect("a ULID has 26 characters"),
        };
        let key = TokenKey { scope: scope.clone(), token };
        let added = self.store.add_token(&key, description).await;
        self.forget(&key);
        if added? { Ok(key.token) } else { Err(CreateError::Taken) }
    }

    /// Where they are kept.
    pub fn store(&self) -> &Arc<dyn AdminStore> {
        &self.store
    }

    /// The tokens of a scope, each with its description.
    pub async fn list(&self, scope: &Scope) -> Result<BTreeMap<String, String>> {
        self.store.tokens(scope).await
    }

    /// Deletes a token and its limit. It is refused on this server at once, on others within a second.
    pub async fn delete(&self, key: &TokenKey) -> Result<()> {
        let removed = self.store.remove_token(key).await;
        self.forget(key); // also after an error: it may have been deleted
        removed
    }

    /// Whether the token opens its scope. While the store is away, a token that was good within [`GRACE`]
    /// still does, and others get the error.
    pub async fn check(&self, key: &TokenKey) -> Result<bool> {
        loop {
            match self.turn(key) {
                Turn::Known => return Ok(true),
                Turn::Wait(mut answer) => {
                    // An error: who asked has left without an answer, so somebody else must ask.
                    if let Ok(answer) = answer.wait_for(Option::is_some).await {
                        match &*answer {
                            Some(answer) => return answer.clone(),
                            None => continue, // not after wait_for
                        }
                    }
                }
                Turn::Ask(question) => {
                    let answer = self.store.has_token(key).await;
                    self.outage.report(&answer);
                    return question.conclude(answer);
                }
            }
        }
    }

    fn turn<'a>(&'a self, key: &'a TokenKey) -> Turn<'a> {
        let now = self.clock.now();
        let mut known = self.known.lock();
        let good = known.good.get(key).copied();
        if good.is_some_and(|good| within(now, good.asked, FRESH) && within(now, good.confirmed, GRACE)) {
            return Turn::Known;
        }
        if let Some(answer) = known.asking.get(key) {
            // While the store is away, one request at a time waits to hear so, not all.
            if known.away && good.is_some_and(|good| within(now, good.confirmed, GRACE)) {
                return Turn::Known;
            }
            return Turn::Wait(answer.clone());
        }
        let (answer, follow) = watch::channel(None);
        known.asking.insert(key.clone(), follow);
        Turn::Ask(Question { tokens: self, key, answer, asked: now })
    }

    /// What was known, or is being asked, may no longer be so.
    fn forget(&self, key: &TokenKey) {
        let mut known = self.known.lock();
        known.good.remove(key);
        known.asking.remove(key);
    }
}

impl Question<'_> {
    /// Keeps the answer and passes it on.
    fn conclude(self, answer: Result<bool>) -> Answer {
        let now = self.tokens.clock.now();
        let mut known = self.tokens.known.lock();
        known.away = answer.is_err();
        // A token created or deleted meanwhile: the answer may be from before, so nothing is kept.
        let current = known.asking.get(self.key).is_some_and(|other| self.answers(other));
        let answer = match answer {
            Ok(true) if current => {
                known.make_room(now);
                known.good.insert(self.key.clone(), Good { confirmed: self.asked, asked: self.asked });
                Ok(true)
            }
            Ok(false) if current => {
                known.good.remove(self.key);
                Ok(false)
            }
            Ok(good) => Ok(good),
            Err(e) => match known.good.get_mut(self.key) {
                Some(good) if current && within(now, good.confirmed, GRACE) => {
                    good.asked = now;
                    Ok(true)
                }
                _ => Err(e),
            },
        };
        drop(known);
        self.answer.send_replace(Some(answer.clone()));
        answer
    }

    fn answers(&self, follower: &watch::Receiver<Option<Answer>>) -> bool {
        follower.same_channel(&self.answer.subscribe())
    }
}

impl Drop for Question<'_> {
    fn drop(&mut self) {
        let mut known = self.tokens.known.lock();
        if known.asking.get(self.key).is_some_and(|other| self.answers(other)) {
            known.asking.remove(self.key);
        }
    }
}

impl Known {
    /// Keeps the map in its bound: at the bound the half that was confirmed longest ago goes.
    fn make_room(&mut self, now: Millis) {
        if self.good.len() < KEPT {
            return;
        }
        self.good.retain(|_, good| within(now, good.confirmed, GRACE));
        if self.good.len() < KEPT {
            return;
        }
        let mut ages: Vec<Millis> = self.good.values().map(|good| good.confirmed).collect();
        let (_, median, _) = ages.select_nth_unstable(KEPT / 2);
        let median = *median;
        let older = self.good.values().filter(|good| good.confirmed < median).count();
        let mut equal = KEPT / 2 - older; // how many of the median's own age go too
        self.good.retain(|_, good| match good.confirmed.cmp(&median) {
            Ordering::Less => false,
            Ordering::Equal if equal > 0 => {
                equal -= 1;
                false
            }
            _ => true,
        });
    }
}

fn within(now: Millis, since: Millis, time: Duration) -> bool {
    u128::from(now.saturating_sub(since)) < time.as_millis()
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokens").field("store", &self.store).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::PoolName;

    #[test]
    fn a_token_may_name_its_pool() {
        for (text, pool, token) in [
            ("abc", "default", "abc"),
            ("p:abc", "p", "abc"),
            (":abc", "default", "abc"),
            ("p:a:b", "p", "a:b"),
            ("", "default", ""),
            ("p:", "p", ""),
        ] {
            assert_eq!(split(text), (pool, token), "{text:?}");
        }
    }

    #[test]
    fn the_map_stays_in_its_bound_and_keeps_the_youngest() {
        let mut known = Known::default();
        let namespace = crate::name::Namespace::parse("ns").expect("a name");
        let scope = Scope { pool: PoolName::default_pool(), namespace };
        for i in 0..(KEPT as Millis) {
            let token = Token::new(&i.to_string()).expect("not empty");
            let good = Good { confirmed: i / 10_000, asked: i };
            known.good.insert(TokenKey { scope: scope.clone(), token }, good);
        }
        known.make_room(20);
        assert_eq!(known.good.len(), KEPT / 2, "half goes");
        let oldest = known.good.values().map(|good| good.confirmed).min();
        assert_eq!(oldest, Some(5), "the older half");
    }
}
