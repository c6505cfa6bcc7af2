//! The two stores of a pool that moves, and how their replies are combined.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::time::Duration;

use tokio::sync::Semaphore;

use super::patience::OldState;
use crate::engine::{By, Detail, Engine, Held};
use crate::error::Result;
use crate::job::{JobId, Receipt};
use crate::name::Queue;
use crate::process::tasks::Tasks;

/// Maximum number of acks owed to an unavailable source. Jobs of further acks become ready again after their ttr.
const MAX_OWED: usize = 1000;

/// The source (`old`) and the target (`new`).
#[derive(Debug)]
pub struct TwoStores {
    pub old: Arc<dyn Engine>,
    pub new: Arc<dyn Engine>,
    pub state: Arc<OldState>,
    /// Calls of the source that no caller waits for.
    pub tasks: Tasks,
    /// A permit for each ack that may be owed to the source.
    pub owed: Arc<Semaphore>,
}

impl TwoStores {
    /// Creates it with no call hanging and no ack owed.
    pub fn new(old: Arc<dyn Engine>, new: Arc<dyn Engine>, patience: Duration, tasks: Tasks) -> TwoStores {
        let state = OldState { least: patience, late: AtomicUsize::new(0), took: AtomicU64::new(0) };
        let state = Arc::new(state);
        TwoStores { old, new, state, tasks, owed: Arc::new(Semaphore::new(MAX_OWED)) }
    }

    /// Makes a call of the source that may be repeated, so a late reply loses nothing.
    pub async fn ask_old<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        self.state.ask(call).await
    }

    /// Returns the source's value, or else the target's.
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

    /// Returns the target's value, or else the source's.
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

    /// Calls both stores, since each may have a part. Fails only if both fail.
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

    /// Executes a step with a receipt. Receipts are the same before, during and after the move, so both stores are
    /// called: the one that has the job replies, and the other does not know it.
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

    /// Returns whether the target has this job.
    pub async fn new_has(&self, queue: &Queue, by: By<'_>) -> Result<bool> {
        Ok(self.new.inspect(queue, by, Detail::Stored).await?.is_some())
    }

    /// Returns whether the target has all of these jobs. Stops at the first missing one.
    pub async fn new_has_all(&self, queue: &Queue, jobs: &[(JobId, Option<Receipt>)]) -> Result<bool> {
        for (id, _) in jobs {
            if !self.new_has(queue, By::Id(*id)).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
