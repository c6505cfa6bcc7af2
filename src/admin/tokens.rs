//! Which token opens which namespace. Tokens are kept in the admin store. The tokens that it accepted lately are
//! kept in memory, so most requests do not ask the store. Knows nothing of HTTP. No token is logged.
//!
//! An accepted token is asked for again after [`FRESH`], so a token that was deleted on one server is refused by
//! every server within a second. A refused token is not kept, so guesses use no memory.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use quick_cache::sync::{Cache, DefaultLifecycle, GuardResult, PlaceholderGuard};
use quick_cache::{DefaultHashBuilder, UnitWeighter};
use ulid::Ulid;

use super::{AdminStore, Scope, TokenKey};
use crate::clock::{Clock, Millis};
use crate::error::{Error, Result};
use crate::name::{DEFAULT_POOL, Token};
use crate::outage::Outage;

/// How long a yes of the store is believed, counted from when it was asked.
pub const FRESH: Duration = Duration::from_millis(500);
/// How long a token stays accepted while the store is away, counted from its last yes. Without the store nobody
/// can delete a token either.
pub const GRACE: Duration = Duration::from_secs(3600);
/// The shortest token that an operator may choose, in bytes.
pub const MIN_CHOSEN: usize = 20;
/// About how many accepted tokens are kept in memory.
const MOST_ACCEPTED: usize = 100_000;

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
pub struct TokenManager {
    store: Arc<dyn AdminStore>,
    clock: Arc<dyn Clock>,
    /// Hears whether the store answers.
    outage: Arc<Outage>,
    /// Tokens that the store has said yes to. A no is not kept.
    accepted: Cache<TokenKey, Accepted>,
    /// Questions on their way to the store. Who has the same question meanwhile waits for the same answer. The
    /// capacity is 0, so no answer stays.
    questions: Cache<TokenKey, Answer>,
    /// Held while an answer is taken in, and while a token that was created or deleted is forgotten.
    changing: Mutex<()>,
    /// The last question was not answered.
    away: AtomicBool,
}

/// A token that the store has said yes to.
#[derive(Clone, Copy)]
struct Accepted {
    /// When the store was asked that said yes.
    confirmed: Millis,
    /// When the store was last asked; later than `confirmed` while it is away.
    asked: Millis,
}

/// The answer to a question, for all who wait for it.
type Answer = Result<bool>;

/// The right to ask the store about a token. Dropped without an answer, it passes to one who waits for it.
type Question<'a> = PlaceholderGuard<
    'a,
    TokenKey,
    Answer,
    UnitWeighter,
    DefaultHashBuilder,
    DefaultLifecycle<TokenKey, Answer>,
>;

impl TokenManager {
    /// Tokens of `store`; `clock` tells how old an answer is.
    pub fn new(store: Arc<dyn AdminStore>, clock: Arc<dyn Clock>, outage: Arc<Outage>) -> TokenManager {
        TokenManager {
            store,
            clock,
            outage,
            accepted: Cache::new(MOST_ACCEPTED),
            questions: Cache::new(0),
            changing: Mutex::default(),
            away: AtomicBool::new(false),
        }
    }

    /// Creates a token: the chosen one, or a new ULID. This server accepts it at once. Errors when the
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

    /// Whether the token opens its scope. While the store is away, a token that was accepted within [`GRACE`]
    /// still does, and others get the error.
    pub async fn check(&self, key: &TokenKey) -> Result<bool> {
        let now = self.clock.now();
        let accepted = self.accepted.get(key).filter(|last| within(now, last.confirmed, GRACE));
        if accepted.is_some_and(|last| within(now, last.asked, FRESH)) {
            return Ok(true);
        }
        // While the store is away, one request at a time waits to hear so, not all.
        let wait = accepted.is_none() || !self.away.load(Ordering::SeqCst);
        let question = match self.questions.get_value_or_guard(key, Some(Duration::ZERO)) {
            GuardResult::Guard(question) => question,
            GuardResult::Timeout if !wait => return Ok(true),
            GuardResult::Timeout | GuardResult::Value(_) => {
                match self.questions.get_value_or_guard_async(key).await {
                    Ok(answer) => return answer,
                    Err(question) => question,
                }
            }
        };
        self.ask(key, question).await
    }

    /// Asks the store, keeps its answer, and gives it to all who wait for it.
    async fn ask(&self, key: &TokenKey, question: Question<'_>) -> Answer {
        let asked = self.clock.now();
        let answer = self.store.has_token(key).await;
        self.away.store(answer.is_err(), Ordering::SeqCst);
        self.outage.report(&answer);
        let now = self.clock.now();
        let _changing = self.changing.lock();
        let keep = match answer {
            Ok(true) => Some(Accepted { confirmed: asked, asked }),
            Ok(false) => None,
            Err(_) => self
                .accepted
                .peek(key)
                .filter(|last| within(now, last.confirmed, GRACE))
                .map(|last| Accepted { asked: now, ..last }),
        };
        let answer = if keep.is_some() { Ok(true) } else { answer };
        // An error means that the token was created or deleted meanwhile. The answer may be from before that, so
        // it is not kept.
        if question.insert(answer.clone()).is_ok() {
            match keep {
                Some(accepted) => self.accepted.insert(key.clone(), accepted),
                None => drop(self.accepted.remove(key)),
            }
        }
        answer
    }

    /// The token was created or deleted here. What was kept, or is being asked, may no longer be so.
    fn forget(&self, key: &TokenKey) {
        let _changing = self.changing.lock();
        self.questions.remove(key);
        self.accepted.remove(key);
    }
}

fn within(now: Millis, since: Millis, time: Duration) -> bool {
    u128::from(now.saturating_sub(since)) < time.as_millis()
}

impl fmt::Debug for TokenManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenManager").field("store", &self.store).finish_non_exhaustive()
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
    fn the_accepted_tokens_stay_in_their_bound() {
        let accepted = Cache::<TokenKey, Accepted>::new(MOST_ACCEPTED);
        let namespace = crate::name::Namespace::parse("ns").expect("a name");
        let scope = Scope { pool: PoolName::default_pool(), namespace };
        for i in 0..2 * MOST_ACCEPTED as Millis {
            let token = Token::new(&i.to_string()).expect("not empty");
            accepted.insert(TokenKey { scope: scope.clone(), token }, Accepted { confirmed: i, asked: i });
        }
        let kept = accepted.len();
        let bound = MOST_ACCEPTED / 2..=MOST_ACCEPTED + MOST_ACCEPTED / 100;
        assert!(bound.contains(&kept), "{kept} tokens are kept, {MOST_ACCEPTED} were expected");
    }
}
