//! The two stores of a pool that moves, and how an answer is made of what both say. How long the old one is waited for.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Mutex, Semaphore};
use tokio::time::{Instant, timeout};

use crate::engine::{By, Detail, Engine, Held};
use crate::error::{Error, Result};
use crate::job::{JobId, Receipt};
use crate::name::Queue;
use crate::process::tasks::Tasks;

/// How long the old store may hold up what the new one could answer.
pub const PATIENCE: Duration = Duration::from_millis(250);
/// The same for an old store whose last consume took long. Without it a store that is slow all the time would
/// never be drained: what it hands out would be given back each time. A consume that finds nothing in the new store
/// fails after this time too.
pub const MOST_PATIENCE: Duration = Duration::from_secs(1);
/// How often a consume looks into the new store while the old one hangs, and how soon a pump asks a store that was away
/// again.
pub const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// How many acks may be owed to an old store that is away. The jobs of others come back after their ttr.
const MAX_OWED: usize = 1000;

/// The store that is drained, and the one that is filled.
#[derive(Debug)]
pub struct TwoStores {
    pub old: Arc<dyn Engine>,
    pub new: Arc<dyn Engine>,
    pub state: Arc<OldState>,
    /// What goes on in the old store although nobody waits for it.
    pub tasks: Tasks,
    /// Of schedules, from the old store to the new one.
    pub moves: Moves,
    /// A permit for each ack that may be owed to the old store.
    pub owed: Arc<Semaphore>,
}

/// What is known of schedules that move.
#[derive(Debug, Default)]
pub struct Moves {
    /// Held while schedules move, and while one is deleted: what was deleted must not come from the old store again.
    pub one: Mutex<()>,
    /// All that were in the old store had moved when it was last looked at.
    pub done: AtomicBool,
}

/// How the old store does.
#[derive(Debug)]
pub struct OldState {
    /// How many consumes hang in it.
    pub late: AtomicUsize,
    /// How long the last consume that it answered took, in milliseconds.
    pub took: AtomicU64,
}

impl OldState {
    /// How long it is waited for now.
    pub fn patience(&self) -> Duration {
        let took = Duration::from_millis(self.took.load(Ordering::Relaxed));
        (took * 2).clamp(PATIENCE, MOST_PATIENCE)
    }

    /// It has answered a consume.
    pub fn answered<T>(&self, asked: Instant, answer: &Result<T>) {
        // A failure says nothing about how long an answer takes.
        let took = answer.as_ref().map_or(Duration::ZERO, |_| asked.elapsed());
        self.took.store(took.as_millis().try_into().unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

impl TwoStores {
    /// Nothing hangs, and nothing is owed.
    pub fn new(old: Arc<dyn Engine>, new: Arc<dyn Engine>, tasks: Tasks) -> TwoStores {
        let state = Arc::new(OldState { late: AtomicUsize::new(0), took: AtomicU64::new(0) });
        TwoStores {
            old,
            new,
            state,
            tasks,
            moves: Moves::default(),
            owed: Arc::new(Semaphore::new(MAX_OWED)),
        }
    }

    /// Asks the old store for what may be asked again: nothing is lost with an answer that comes too late.
    pub async fn ask_old<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        timeout(self.state.patience(), call).await.unwrap_or_else(|_| Err(late()))
    }

    /// What the old store has, or else the new one.
    pub async fn old_first<T>(
        &self,
        old: impl Future<Output = Result<Option<T>>>,
        new: impl Future<Output = Result<Option<T>>>,
    ) -> Result<Option<T>> {
        let old = self.ask_old(old).await;
        if let Ok(Some(_)) = old {
            return old;
        }
        Ok(match new.await? {
            Some(job) => Some(job),
            None => old?,
        })
    }

    /// What the new store has, or else the old one.
    pub async fn new_first<T>(
        &self,
        old: impl Future<Output = Result<Option<T>>>,
        new: impl Future<Output = Result<Option<T>>>,
    ) -> Result<Option<T>> {
        match new.await? {
            Some(found) => Ok(Some(found)),
            None => self.ask_old(old).await,
        }
    }

    /// Asks both for what both have a part of.
    pub async fn ask_both<T>(
        &self,
        old: impl Future<Output = Result<T>>,
        new: impl Future<Output = Result<T>>,
    ) -> Result<(Option<T>, Option<T>)> {
        match tokio::join!(self.ask_old(old), new) {
            (Err(error), Err(_)) => Err(error),
            (old, new) => Ok((old.ok(), new.ok())),
        }
    }

    /// A step of a holder. The receipt is the same whoever asks, before the move and after it, so both stores are asked:
    /// the one that has the job answers, and the other knows no such job.
    pub async fn held<T>(
        &self,
        old: impl Future<Output = Result<Held<T>>>,
        new: impl Future<Output = Result<Held<T>>>,
    ) -> Result<Held<T>> {
        let (mut old, mut new) = (pin!(old), pin!(new));
        let (first, of_old) = tokio::select! {
            first = &mut old => (first, true),
            first = &mut new => (first, false),
        };
        if let Ok(Held::Done(_) | Held::NotYours) = first {
            return first;
        }
        match if of_old { new.await } else { old.await } {
            Ok(Held::NotFound) => first,
            other => other,
        }
    }

    /// Whether the new store has this job.
    pub async fn new_has(&self, queue: &Queue, by: By<'_>) -> Result<bool> {
        Ok(self.new.inspect(queue, by, Detail::Stored).await?.is_some())
    }

    /// Whether the new store has all of these jobs. Looks no further than to the first that it has not.
    pub async fn new_has_all(&self, queue: &Queue, jobs: &[(JobId, Option<Receipt>)]) -> Result<bool> {
        for (id, _) in jobs {
            if !self.new_has(queue, By::Id(*id)).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// The old store has not answered in time.
pub fn late() -> Error {
    Error::away("the store that the pool moves from does not answer")
}
