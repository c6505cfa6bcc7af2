//! What the store said lately about tokens: whether a token is there, and its limit. Most requests are answered
//! from here without a call to the store. Knows nothing of HTTP. No token is logged.
//!
//! How old an answer is decides what happens, counted from when the store was asked:
//!
//! | age | the token is there |
//! |---|---|
//! | below [`FRESH`] | the answer serves |
//! | below [`STALE`] | the answer serves, and the store is asked again meanwhile |
//! | below [`GRACE`] | the store is asked. If it fails, or says nothing within [`PATIENCE`], the answer serves |
//! | beyond | the store is asked |
//!
//! So a token that was deleted, or a limit that was changed, on one server is known to every server within a
//! second ([`STALE`]), and a store that hangs delays nobody whose token was good lately by more than [`PATIENCE`].
//! A token that is not there is not kept, so guesses use no memory.

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

/// How old an answer may be before the store is asked again.
pub const FRESH: Duration = Duration::from_millis(500);
/// How old an answer may be that serves while the store answers.
pub const STALE: Duration = Duration::from_secs(1);
/// How long a token stays accepted while the store is away, counted from its last yes. Without the store nobody
/// can delete a token either.
pub const GRACE: Duration = Duration::from_secs(3600);
/// How long a request with a token that was good within [`GRACE`] waits for the store.
pub const PATIENCE: Duration = Duration::from_millis(200);
/// About how many answers are kept in memory.
const MOST_KEPT: usize = 100_000;
/// How many questions may be on their way to the store. A store that hangs must not gather more.
const MOST_QUESTIONS: usize = 16_384;

/// What is remembered of the store's answers. It does not change the store: who does calls
/// [`forget`](TokenCache::forget).
pub struct TokenCache {
    store: Arc<dyn AdminStore>,
    clock: Arc<dyn Clock>,
    /// Hears whether the store answers.
    outage: Arc<Outage>,
    /// Questions outlive the requests that asked them.
    tasks: Tasks,
    kept: Cache<TokenKey, Kept>,
    /// Questions on their way to the store. Who has the same question meanwhile waits for the same answer. Locked
    /// while `kept` is changed, so that an answer from before a change is not kept after it.
    questions: Mutex<HashMap<TokenKey, Question>>,
}

/// An answer of the store.
#[derive(Clone, Copy)]
struct Kept {
    record: TokenRecord,
    /// When the store was asked that said so.
    confirmed: Millis,
    /// When the store was last asked; later than `confirmed` while it is away.
    asked: Millis,
}

/// The answer, once it is there.
type TokenAnswer = Option<Result<TokenRecord>>;

/// A question on its way to the store.
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
    /// An empty one over `store`. `clock` tells how old an answer is; questions are `tasks`.
    pub fn new(
        store: Arc<dyn AdminStore>,
        clock: Arc<dyn Clock>,
        outage: Arc<Outage>,
        tasks: Tasks,
    ) -> Arc<TokenCache> {
        let (kept, questions) = (Cache::new(MOST_KEPT), Mutex::default());
        Arc::new(TokenCache { store, clock, outage, tasks, kept, questions })
    }

    /// What the store says about a token, or said as lately as the table above allows.
    pub async fn get(self: &Arc<Self>, key: &TokenKey) -> Result<TokenRecord> {
        let now = self.clock.now();
        let kept = self.kept.get(key).filter(|kept| within(now, kept.confirmed, GRACE));
        match kept.filter(|kept| within(now, kept.asked, FRESH)) {
            Some(kept) => Ok(kept.record),
            // Boxed, so that most requests keep no room for it.
            None => Box::pin(self.ask_and_wait(key, kept, now)).await,
        }
    }

    /// Asks the store, and waits for its answer if `kept` is too old to serve.
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

    /// The token or its limit was changed here. What was kept, or is being asked, may no longer be so.
    pub fn forget(&self, key: &TokenKey) {
        let mut questions = self.questions.lock();
        questions.remove(key);
        self.kept.remove(key);
    }

    /// The question about this token that is under way, or a new one. `None` when there are too many.
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

    /// Asks the store, and keeps its answer unless the token was changed here meanwhile.
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

    /// Waits for the answer to a question.
    async fn answer(&self, key: &TokenKey, mut question: Question) -> Result<TokenRecord> {
        let answer = question.answer.wait_for(Option::is_some).await.map(|answer| answer.clone());
        if let Ok(Some(answer)) = answer {
            return answer;
        }
        // The server stops, or the task that asked has died. The next request asks anew.
        let mut questions = self.questions.lock();
        if questions.get(key).is_some_and(|current| current.is(&question)) {
            questions.remove(key);
        }
        Err(Error::away("a question about a token was not asked to its end"))
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
