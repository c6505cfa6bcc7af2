//! The two stores of a pool that moves, and how an answer is made of what both say.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize};

use tokio::sync::Semaphore;

use super::patience::OldState;
use crate::engine::{By, Detail, Engine, Held};
use crate::error::Result;
use crate::job::{JobId, Receipt};
use crate::name::Queue;
use crate::process::tasks::Tasks;

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
    /// A permit for each ack that may be owed to the old store.
    pub owed: Arc<Semaphore>,
}

impl TwoStores {
    /// Nothing hangs, and nothing is owed.
    pub fn new(old: Arc<dyn Engine>, new: Arc<dyn Engine>, tasks: Tasks) -> TwoStores {
        let state = Arc::new(OldState { late: AtomicUsize::new(0), took: AtomicU64::new(0) });
        TwoStores { old, new, state, tasks, owed: Arc::new(Semaphore::new(MAX_OWED)) }
    }

    /// Asks the old store for what may be asked again: nothing is lost with an answer that comes too late.
    pub async fn ask_old<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        self.state.ask(call).await
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
