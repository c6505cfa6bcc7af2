//! How everybody else reaches the writer thread.

use std::sync::Arc;

use super::op::{Answer, Op};
use super::poison::Poison;
use super::state::clock::PoolClock;
use crate::engine::batch::BatchSender;
use crate::error::{Error, Result};

/// Asks the writer, and knows when it has failed.
#[derive(Clone, Debug)]
pub struct Handle {
    pub(super) caller: BatchSender<Op, Answer>,
    pub poison: Arc<Poison>,
    pub clock: PoolClock,
}

impl Handle {
    /// Asks for one step. Once the store is poisoned that is the answer to everything.
    pub async fn ask(&self, op: Op) -> Result<Answer> {
        self.poison.check()?;
        let answer = self.caller.call(op).await;
        match answer {
            // The writer may have died rather than been closed.
            Err(Error::Closed) => Err(self.poison.error().unwrap_or(Error::Closed)),
            answer => answer,
        }
    }

    /// Asks for one step that answers nothing.
    pub async fn tell(&self, op: Op) -> Result<()> {
        self.ask(op).await.map(drop)
    }

    /// Asks the writer to end after what waits already. A poisoned one must hear this too.
    pub async fn close(&self) -> Result<()> {
        self.caller.call(Op::Close).await.map(drop)
    }

    /// For an answer that does not fit the question: a fault of this program.
    pub fn unexpected(answer: &Answer) -> Error {
        Error::refused(format!("the writer gave an answer to another question: {answer:?}"))
    }
}
