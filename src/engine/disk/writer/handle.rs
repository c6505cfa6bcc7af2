//! Handle through which all other threads reach the writer thread.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::mailbox;
use super::op::{Op, StepCall};
use super::poison::Poison;
use crate::clock::Micros;
use crate::engine::disk::state::WriterState;
use crate::engine::disk::state::clock::PoolClock;
use crate::engine::disk::step::{Step, StepResult};
use crate::error::{Error, Result};

/// Sends steps to the writer, and knows when it has failed.
#[derive(Clone, Debug)]
pub struct Handle {
    pub ops: mailbox::Sender<Op>,
    pub poison: Arc<Poison>,
    pub clock: PoolClock,
}

/// A step without effect, which succeeds if the writer is alive.
struct Check;

impl Step for Check {
    type Reply = ();
    const MUST_LAST: bool = false;

    fn run(self, _: &mut WriterState, _: Micros) -> StepResult<()> {
        Ok(())
    }
}

impl Handle {
    /// Runs one step on the writer thread. Fails with `Poisoned` once the store is poisoned; a call already in flight
    /// then fails with `Away`, since its outcome is unknown.
    pub async fn ask<S: Step>(&self, step: S) -> Result<S::Reply> {
        let answer = self.send(step)?;
        let answer = tokio::select! {
            biased;
            answer = answer => self.received(answer),
            // A writer that hangs never replies.
            reason = self.poison.poisoned() => Err(Error::Poisoned(reason)),
        };
        // It was sent before the store failed, so it may have been executed.
        answer.map_err(|e| if matches!(e, Error::Poisoned(_)) { Error::away(e) } else { e })
    }

    /// Like [`ask`](Handle::ask), for a thread that may block.
    pub fn ask_blocking<S: Step>(&self, step: S) -> Result<S::Reply> {
        let answer = self.send(step)?;
        self.ops.wake();
        self.received(answer.blocking_recv())
    }

    /// Returns once the writer has replied.
    pub async fn check(&self) -> Result<()> {
        self.ask(Check).await
    }

    /// Wakes the writer, even if poisoned, so that it notices a stop. If the mailbox is full, the writer is awake.
    pub fn wake(&self) {
        let _ = self.ops.send(Box::new(StepCall::new(Check).0));
        // The caller may block this thread until the writer has ended.
        self.ops.wake();
    }

    fn send<S: Step>(&self, step: S) -> Result<oneshot::Receiver<Result<S::Reply>>> {
        self.poison.check()?;
        let (call, answer) = StepCall::new(step);
        self.ops.send(Box::new(call)).map_err(|e| self.or_poisoned(e))?;
        Ok(answer)
    }

    fn received<T>(&self, answer: std::result::Result<Result<T>, oneshot::error::RecvError>) -> Result<T> {
        answer.unwrap_or(Err(Error::Closed)).map_err(|e| self.or_poisoned(e))
    }

    /// Replaces `Closed` by the poison's error, if the store is poisoned: the writer has then died rather than been
    /// stopped.
    fn or_poisoned(&self, e: Error) -> Error {
        if matches!(e, Error::Closed) { self.poison.error().unwrap_or(e) } else { e }
    }
}
