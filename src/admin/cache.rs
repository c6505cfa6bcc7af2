//! Cache of the store's replies about tokens: whether a token exists, and its limit. Most requests are answered from
//! here without a call to the store. Tokens are never logged.
//!
//! The age of an entry, counted from when the store was asked, determines its use:
//!
//! | age | the token exists |
//! |---|---|
//! | below [`FRESH`] | the entry is used |
//! | below [`STALE`] | the entry is used, and the store is asked again in the background |
//! | below [`GRACE`] | the store is asked; if it fails or does not reply within [`PATIENCE`], the entry is used |
//! | beyond | the store is asked |
//!
//! So a token deleted or a limit changed on one server takes effect on every server within a second ([`STALE`]), and a
//! hanging store delays requests with recently accepted tokens by at most [`PATIENCE`]. A token that does not exist is
//! not cached, so guesses use no memory.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ahash::HashMap;
use parking_lot::Mutex;
use quick_cache::sync::Cache;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::{AdminStore, TokenKey, TokenRecord};
use crate::clock::{Clock, Millis};
use crate::error::{Error, Result};
use crate::outage::Outage;
use crate::process::tasks::Tasks;

/// Age of an entry beyond which it is refreshed.
pub const FRESH: Duration = Duration::from_millis(500);
/// Maximum age of an entry that is used while it is refreshed.
pub const STALE: Duration = Duration::from_secs(1);
/// How long a token stays accepted during an outage of the store, counted from when it was last confirmed. Tokens
/// cannot be deleted during an outage either.
pub const GRACE: Duration = Duration::from_secs(3600);
/// Timeout of the store for a request with a token accepted within [`GRACE`].
pub const PATIENCE: Duration = Duration::from_millis(200);
/// Approximate number of entries.
const MOST_KEPT: usize = 100_000;
/// Maximum number of lookups in flight, so that they do not accumulate while the store hangs.
const MOST_QUESTIONS: usize = 16_384;

/// Caches the store's replies. Does not write to the store: code that does calls [`forget`](TokenCache::forget).
pub struct TokenCache {
    store: Arc<dyn AdminStore>,
    clock: Arc<dyn Clock>,
    /// Receives whether the store replies.
    outage: Arc<Outage>,
    /// Lookups outlive the requests that started them.
    tasks: Tasks,
    kept: Cache<TokenKey, Kept>,
    /// Lookups in flight, shared by concurrent requests with the same token. Locked while `kept` is changed, so that a
    /// reply from before a change is not cached after it.
    questions: Mutex<HashMap<TokenKey, Question>>,
}

/// A cached reply.
#[derive(Clone, Copy)]
struct Kept {
    record: TokenRecord,
    /// When the lookup that gave this reply started.
    confirmed: Millis,
    /// When the last lookup started; later than `confirmed` during an outage.
    asked: Millis,
}

/// The reply, once received.
type TokenAnswer = Option<Result<TokenRecord>>;

/// A lookup in flight.
#[derive(Clone)]
struct Question {
    began: Instant,
    answer: watch::Receiver<TokenAnswer>,
}

impl Question {
    fn is(&self, other: &Question) -> bool {
        self.answer.same_channel(&other.answer)
    }
}

impl TokenCache {
    /// Creates an empty cache of `store`. Ages are measured by `clock`; lookups run in `tasks`.
    pub fn new(
        store: Arc<dyn AdminStore>,
        clock: Arc<dyn Clock>,
        outage: Arc<Outage>,
        tasks: Tasks,
    ) -> Arc<TokenCache> {
        let (kept, questions) = (Cache::new(MOST_KEPT), Mutex::default());
        Arc::new(TokenCache { store, clock, outage, tasks, kept, questions })
    }

    /// Returns the store's reply about a token, cached as described above.
    pub async fn get(self: &Arc<Self>, key: &TokenKey) -> Result<TokenRecord> {
        let now = self.clock.now();
        let kept = self.kept.get(key).filter(|kept| within(now, kept.confirmed, GRACE));
        match kept.filter(|kept| within(now, kept.asked, FRESH)) {
            Some(kept) => Ok(kept.record),
            // Boxed, so that most requests do not allocate space for it.
            None => Box::pin(self.ask_and_wait(key, kept, now)).await,
        }
    }

    /// Starts a lookup, and waits for it if `kept` is too old to use.
    async fn ask_and_wait(
        self: &Arc<Self>,
        key: &TokenKey,
        kept: Option<Kept>,
        now: Millis,
    ) -> Result<TokenRecord> {
        let Some(question) = self.ask(key) else {
            return kept.map(|kept| kept.record).ok_or(Error::Overloaded);
        };
        match kept {
            Some(kept) if within(now, kept.confirmed, STALE) => Ok(kept.record),
            Some(kept) => {
                let patience = question.began + PATIENCE;
                let answer = timeout_at(patience, self.answer(key, question)).await;
                answer.unwrap_or(Ok(kept.record))
            }
            None => self.answer(key, question).await,
        }
    }

    /// Drops the entry of a token that was changed by this server, and ignores a lookup in flight.
    pub fn forget(&self, key: &TokenKey) {
        let mut questions = self.questions.lock();
        questions.remove(key);
        self.kept.remove(key);
    }

    /// Returns the lookup of this token in flight, or starts one. `None` if there are too many.
    fn ask(self: &Arc<Self>, key: &TokenKey) -> Option<Question> {
        let mut questions = self.questions.lock();
        if let Some(question) = questions.get(key) {
            return Some(question.clone());
        }
        if questions.len() >= MOST_QUESTIONS {
            return None;
        }
        let (tell, answer) = watch::channel(None);
        let question = Question { began: Instant::now(), answer };
        questions.insert(key.clone(), question.clone());
        drop(questions);
        let (cache, key, asking) = (self.clone(), key.clone(), question.clone());
        self.tasks.spawn(async move {
            let stop = cache.tasks.stopping();
            if let Some(answer) = stop.run_until_cancelled(cache.ask_store(&key, &asking)).await {
                tell.send_replace(Some(answer));
            }
        });
        Some(question)
    }

    /// Asks the store, and caches its reply unless the token was changed here meanwhile.
    async fn ask_store(&self, key: &TokenKey, question: &Question) -> Result<TokenRecord> {
        let asked = self.clock.now();
        let answer = self.store.look_up(key).await;
        self.outage.report(&answer);
        let now = self.clock.now();
        let mut questions = self.questions.lock();
        let kept = match &answer {
            Ok(record) => Some(Kept { record: *record, confirmed: asked, asked }),
            Err(_) => self
                .kept
                .peek(key)
                .filter(|kept| within(now, kept.confirmed, GRACE))
                .map(|kept| Kept { asked: now, ..kept }),
        };
        if questions.get(key).is_some_and(|current| current.is(question)) {
            questions.remove(key);
            match kept {
                Some(kept) if kept.record != TokenRecord::default() => self.kept.insert(key.clone(), kept),
                _ => drop(self.kept.remove(key)),
            }
        }
        kept.map_or(answer, |kept| Ok(kept.record))
    }

    /// Waits for the result of a lookup.
    async fn answer(&self, key: &TokenKey, mut question: Question) -> Result<TokenRecord> {
        let answer = question.answer.wait_for(Option::is_some).await.map(|answer| answer.clone());
        if let Ok(Some(answer)) = answer {
            return answer;
        }
        // The server is stopping, or the lookup task has died. The next request starts a new one.
        let mut questions = self.questions.lock();
        if questions.get(key).is_some_and(|current| current.is(&question)) {
            questions.remove(key);
        }
        Err(Error::away("the lookup of a token was aborted"))
    }
}

fn within(now: Millis, since: Millis, time: Duration) -> bool {
    u128::from(now.saturating_sub(since)) < time.as_millis()
}

impl fmt::Debug for TokenCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenCache").field("store", &self.store).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::Scope;
    use crate::name::{Namespace, PoolName, Token};

    #[test]
    fn the_answers_stay_in_their_bound() {
        let kept = Cache::<TokenKey, Kept>::new(MOST_KEPT);
        let namespace = Namespace::parse("ns").expect("a name");
        let scope = Scope { pool: PoolName::default_pool(), namespace };
        let record = TokenRecord { exists: true, limit: None };
        for i in 0..2 * MOST_KEPT as Millis {
            let token = Token::new(&i.to_string()).expect("not empty");
            kept.insert(TokenKey { scope: scope.clone(), token }, Kept { record, confirmed: i, asked: i });
        }
        let count = kept.len();
        let bound = MOST_KEPT / 2..=MOST_KEPT + MOST_KEPT / 100;
        assert!(bound.contains(&count), "{count} answers are kept, about {MOST_KEPT} were expected");
    }
}
